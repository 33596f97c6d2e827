"""Names of a model's tensors, equal for a compiled and a plain model, their memory formats, and running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def plain_name(name: str) -> str:
    """``name`` of a tensor as it is where the model, or a part of it, is not compiled."""
    return name.replace("_orig_mod.", "")


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` by plain names, so that compiled and plain models read each other's checkpoints."""
    return {plain_name(name): value for name, value in state.items()}


def renamed(value: object, rename: Callable[[str], str]) -> object:
    """``value`` with the keys of dictionaries in it changed by ``rename``."""
    if isinstance(value, dict):
        return {
            rename(key) if isinstance(key, str) else key: renamed(part, rename) for key, part in value.items()
        }
    return [renamed(part, rename) for part in value] if isinstance(value, list) else value


def format_of(tensor: Tensor) -> torch.memory_format:
    """The memory format that ``tensor`` is dense in; the contiguous format where it is in none."""
    if not tensor.is_contiguous():
        for name, dimensions in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if tensor.dim() == dimensions and tensor.is_contiguous(memory_format=name):
                return name
    return torch.contiguous_format


def running_statistics(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Module and key of each running mean and variance of the batch and instance norms in ``model``, by plain name.

    They are places and not tensors, as a forward pass may put another tensor there. These are the only buffers that
    have a mean over ranks or steps. Any other buffer, such as the unit vectors of spectral norm, is copied: from rank 0
    as by torch's DistributedDataParallel, or from the model as by torch's AveragedModel.
    """
    return {
        plain_name(f"{prefix}.{key}" if prefix else key): (module, key)
        for prefix, module in model.named_modules()
        if isinstance(module, _NormBase)
        for key in ("running_mean", "running_var")
        if module._buffers.get(key) is not None
    }
