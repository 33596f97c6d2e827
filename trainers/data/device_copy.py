"""Copies of whole data sets in a device's memory, from which batches are gathered there, without work for the host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from trainers.gpu import is_gpu, module_of
from trainers.randomness import generators_kept
from trainers.structures import mapped, parts_of, tensors_in

SMALL, LARGE = 1 / 64, 1 / 4
"""Shares of a device's free memory that a copy may take before, and after, the run's own need has been seen."""
_ROWS = 256
"""Items that are read and copied together."""


class DeviceCopy:
    """All items of a data set, in ``parts``: a structure of tensors on one device, whose first axis is the items'.

    Args:
        host (sequence of Tensor): tensors of the host that were copied.
    """

    def __init__(self, parts: object, host: Sequence[Tensor] = ()) -> None:
        self._parts = parts
        self._host = [(tensor, tensor._version) for tensor in host]
        self._device = next(tensors_in(parts)).device

    @property
    def is_current(self) -> bool:
        """Whether the host's tensors are as they were."""
        return all(tensor._version == version for tensor, version in self._host)

    def gathered(self, indices: Tensor) -> Any:
        """Items at ``indices``, as the data set gives them."""
        indices = indices.to(self._device, non_blocking=True)
        return mapped(self._parts, lambda tensor: tensor[indices])


class ItemReader:
    """Reader of the items at ``chosen`` of ``samples``, a data set that is no Subset, for a copy of them."""

    def __init__(self, samples: Any, chosen: Tensor) -> None:
        self._samples, self._chosen = samples, chosen
        self._tensors: tuple[Tensor, ...] = samples.tensors if type(samples) is TensorDataset else ()
        self._first: object = None
        self.refusal = self._refusal()
        """Reason why the items cannot be copied, in words that follow the data set's name; None where they can."""

    def _refusal(self) -> str | None:
        if self._tensors:
            # Versions of inference tensors are not counted; gradients of others belong to the host's tensors.
            fit = not any(tensor.is_inference() or tensor.requires_grad for tensor in self._tensors)
            fit = fit and len(self._tensors) == 2
            return (
                None
                if fit
                else "is not of two tensors without gradients, made outside of torch.inference_mode"
            )
        if not getattr(self._samples, "fixed_items", False) or not hasattr(self._samples, "read_batch"):
            return "is no torch TensorDataset, and has no read_batch with fixed_items = True"
        self._first = self._read(self._chosen[:1])
        return None if _is_stacked(self._first, 1) else "returns no tensors of one shape from read_batch"

    @property
    def bytes(self) -> int:
        """Memory that a copy takes."""
        tensors = [tensor[:1] for tensor in self._tensors] or tensors_in(self._first)
        return len(self._chosen) * sum(tensor.nbytes for tensor in tensors)

    def copied_to(self, device: torch.device) -> DeviceCopy | None:
        """Copy on ``device``; None if the items turn out to have several shapes."""
        if self._tensors:
            whole = len(self._chosen) == len(self._samples) and bool(torch.all(self._chosen.diff() == 1))
            parts = (tensor if whole else tensor[self._chosen] for tensor in self._tensors)
            return DeviceCopy(tuple(part.to(device) for part in parts), self._tensors)
        length = len(self._chosen)

        def room(tensor: Tensor) -> Tensor:
            return torch.empty((length, *tensor.shape[1:]), dtype=tensor.dtype, device=device)

        made = mapped(self._first, room)
        for first in range(0, length, _ROWS):
            end = min(first + _ROWS, length)
            read = self._read(self._chosen[first:end])
            pairs = [*zip(tensors_in(made), tensors_in(read))]
            if not _is_stacked(read, end - first) or any(_kind(into) != _kind(rows) for into, rows in pairs):
                return None
            for into, rows in pairs:
                into[first:end].copy_(rows)
        return DeviceCopy(made)

    def _read(self, chosen: Tensor) -> object:
        with torch.device("cpu"), generators_kept():
            return self._samples.read_batch(chosen)


def free_bytes(device: torch.device) -> int:
    """Memory of ``device`` that no process has. What this process has freed it keeps, as its next step needs it."""
    if is_gpu(device):
        return int(module_of(device).mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kind(tensor: Tensor) -> tuple[Sequence[int], torch.dtype]:
    return tensor.shape[1:], tensor.dtype


def _is_stacked(value: object, rows: int) -> bool:
    """Whether ``value`` is a pair of structures of tensors alone, each of ``rows`` rows."""
    return isinstance(value, (tuple, list)) and len(value) == 2 and _is_of_rows(value, rows)


def _is_of_rows(value: object, rows: int) -> bool:
    if isinstance(value, Tensor):
        return bool(value.dim()) and len(value) == rows
    parts = parts_of(value)
    return parts is not None and all(_is_of_rows(part, rows) for _, part in parts)
