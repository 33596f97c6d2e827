"""Copies of tensors in the host's memory."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

_Place = tuple[object, ...]


class HostCopy:
    """Takes copies of a run's state one after the other, each in the memory of the last.

    Memory that is new to a process is given page by page, which takes longer than the copy; what a GPU copies to is
    page-locked, which takes longer still.
    """

    def __init__(self) -> None:
        self._buffers: dict[_Place, Tensor] = {}
        self._locks = True
        """Whether the host gave page-locked memory wherever it was asked."""

    @torch.no_grad()
    def of(self, value: Any) -> Any:
        """A copy of ``value``, tensors and other things in dictionaries, lists and tuples; its tensors are on the CPU,
        and numpy's numbers, of an optimizer's settings maybe, are Python's: others cannot be read again. The tensors of
        the copy before are overwritten.
        """
        before, self._buffers = self._buffers, {}
        seen: dict[object, Tensor] = {}
        copied = self._copied(value, (), before, seen)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()
        return copied

    def _copied(
        self, value: Any, place: _Place, before: dict[_Place, Tensor], seen: dict[object, Tensor]
    ) -> Any:
        if isinstance(value, Tensor):
            return self._copy_of(value.detach(), place, before, seen)
        if isinstance(value, np.generic):
            return value.item()
        # Not their subclasses, which other things may make of their parts.
        if type(value) is dict:
            return {name: self._copied(part, (*place, name), before, seen) for name, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(
                self._copied(part, (*place, index), before, seen) for index, part in enumerate(value)
            )
        return deepcopy(value)

    def _memory_like(self, tensor: Tensor) -> Tensor:
        if tensor.is_cuda and self._locks:
            try:
                return torch.empty_like(tensor, device="cpu", pin_memory=True)
            except RuntimeError:
                # What can be locked may be used up. Other ranks, which may need none, are not to wait for an error.
                self._locks = False
        return torch.empty_like(tensor, device="cpu")

    def _copy_of(
        self, tensor: Tensor, place: _Place, before: dict[_Place, Tensor], seen: dict[object, Tensor]
    ) -> Tensor:
        if tensor.layout is not torch.strided or type(tensor) is not Tensor:
            return tensor.cpu().clone()
        # Weights that layers share are kept once.
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else place
        if memory in seen:
            return seen[memory]
        buffer = before.get(place)
        fits = (
            buffer is not None
            and buffer.shape == tensor.shape
            and buffer.dtype is tensor.dtype
            and buffer.is_pinned() == (tensor.is_cuda and self._locks)
        )
        if buffer is None or not fits:
            buffer = self._memory_like(tensor)
        buffer.copy_(tensor, non_blocking=True)
        self._buffers[place] = seen[memory] = buffer
        return buffer
