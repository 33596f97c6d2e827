"""What tensors of a model are called whether or not it is compiled, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def plain_name(name: str) -> str:
    """``name`` of a tensor as it is where the model, or a part of it, is not compiled."""
    return name.replace("_orig_mod.", "")


def plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` by plain names: a compiled model's checkpoint is one of the plain model, and the reverse."""
    return {plain_name(name): value for name, value in state.items()}


def format_of(tensor: Tensor) -> torch.memory_format:
    """The memory format that ``tensor`` is dense in; the contiguous one where it is in none."""
    if not tensor.is_contiguous():
        for name, dimensions in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
            if tensor.dim() == dimensions and tensor.is_contiguous(memory_format=name):
                return name
    return torch.contiguous_format


def renamed(value: object, rename: Callable[[str], str]) -> object:
    """``value`` with the names in it, the keys of dictionaries, changed."""
    if isinstance(value, dict):
        return {
            rename(name) if isinstance(name, str) else name: renamed(part, rename)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [renamed(part, rename) for part in value]
    return value
