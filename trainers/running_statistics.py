"""Running statistics of norms: the only buffers that have a mean over ranks or over steps.

Any other buffer, as the unit vectors of spectral norm or a queue of keys, need not be valid as a mean. It is copied:
from rank 0 as by torch's DistributedDataParallel, or from the model as by torch's AveragedModel.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from trainers.names import plain_name

_STATISTICS = ("running_mean", "running_var")


def running_statistics(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Module and key of each running mean and variance of the batch and instance norms in ``model``, by plain name.

    Places and not tensors: a forward pass may put another tensor there.
    """
    return {
        plain_name(f"{prefix}.{key}" if prefix else key): (module, key)
        for prefix, module in model.named_modules()
        if isinstance(module, _NormBase)
        for key in _STATISTICS
        if module._buffers.get(key) is not None
    }
