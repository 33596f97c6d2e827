"""Copies of a run's state in the host's memory."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.checkpoints.shards import TensorPart
from trainers.gpu import in_use, is_gpu
from trainers.structures import Place, mapped_at


class HostCopy:
    """Copies a run's state again and again, each time to the memory of the copy before."""

    # The memory is kept because a process gets new memory page by page, which takes longer than the copy, and memory
    # that a GPU copies to is page-locked, which takes longer still.
    def __init__(self) -> None:
        self._before: dict[Place, Tensor] = {}
        self._buffers: dict[Place, Tensor] = {}
        self._seen: dict[object, Tensor] = {}
        """Copies by the memory of the tensors, which layers may share."""
        self._locks = True
        """Whether page-locked memory is used, until the host refuses it."""

    @torch.no_grad()
    def of(self, value: Any) -> Any:
        """Copy ``value``, a structure of dictionaries, lists and tuples with tensors and other objects.

        Tensors are copied to the CPU's memory, over those of the copy before, and NumPy's numbers become Python's.
        """
        self._before, self._buffers, self._seen = self._buffers, {}, {}
        copied = mapped_at(value, self._copied)
        self._before, self._seen = {}, {}
        if (gpus := in_use()) is not None:
            gpus.current_stream().synchronize()
        return copied

    def _copied(self, value: Any, place: Place) -> Any:
        """Copy of ``value``, of a container the container itself."""
        if isinstance(value, Tensor):
            return self._copy_of(value.detach(), place)
        # NumPy's numbers, such as settings of an optimizer, could not be read from a checkpoint without running code.
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, TensorPart):
            return replace(value, local=self._copied(value.local, place))
        return value if type(value) in (dict, list, tuple) else deepcopy(value)

    def _copy_of(self, tensor: Tensor, place: Place) -> Tensor:
        if tensor.layout is not torch.strided or type(tensor) is not Tensor:
            return tensor.cpu().clone()
        # Weights that layers share are copied a single time.
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if tensor.numel() else place
        if memory in self._seen:
            return self._seen[memory]
        buffer = self._before.get(place)
        fits = (
            buffer is not None
            and buffer.shape == tensor.shape
            and buffer.dtype is tensor.dtype
            and buffer.is_pinned() == (is_gpu(tensor.device) and self._locks)
        )
        if buffer is None or not fits:
            buffer = self._memory_like(tensor)
        buffer.copy_(tensor, non_blocking=True)
        self._buffers[place] = self._seen[memory] = buffer
        return buffer

    def _memory_like(self, tensor: Tensor) -> Tensor:
        if is_gpu(tensor.device) and self._locks:
            try:
                return torch.empty_like(tensor, device="cpu", pin_memory=True)
            except RuntimeError:
                # The host's limit of locked memory may be reached. An error on this rank alone would let the other
                # ranks wait.
                self._locks = False
        return torch.empty_like(tensor, device="cpu")
