"""What ``trainers.train`` and ``trainers.wrap`` refuse of a model and of the optimizer that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def refuse_wrapped(model: nn.Module, *, instead: str) -> None:
    """ValueError where ``model``, or a module of it, is in a wrapper that exchanges gradients itself; ``instead``: what
    the user may do other than to pass the module inside.
    """
    for name, module in model.named_modules():
        if type(module).__name__ in _WRAPPERS:
            raise ValueError(
                f"model: {name or 'it'} is in {type(module).__name__}, which exchanges gradients itself. Pass the "
                f"module inside (.module){instead}."
            )


def refuse_foreign_tensors(parameters: Iterable[nn.Parameter], optimizer: Optimizer, *, remedy: str) -> None:
    """ValueError where ``optimizer`` has tensors beside ``parameters``, the model's: nothing would average or save
    them.
    """
    own = {id(parameter) for parameter in parameters}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if others := len(held - own):
        raise ValueError(
            f"optimizer: {others} of its tensors {'is' if others == 1 else 'are'} not of the model, and would be "
            f"neither averaged over ranks nor saved. {remedy}"
        )
