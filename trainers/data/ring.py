"""Page-locked buffers for batches on their way to a GPU, used in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainers.gpu import module_of

IN_FLIGHT = 3
"""Batches between the host and the end of the GPU's work with them, besides those that are read ahead."""


@dataclass
class _Slot:
    buffers: list[Tensor] = field(default_factory=list)
    copied: torch.Event | None = None
    """Event after which the GPU has read the buffers."""


class Ring:
    """Buffers of ``IN_FLIGHT`` batches, and the host's wait for a GPU that lies further behind.

    Without the wait the memory of batches would grow with the distance, as that of a batch is given back once the GPU
    has done its step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots = deque(_Slot() for _ in range(IN_FLIGHT))
        self._begun: deque[torch.Event] = deque()
        """Ends of the GPU's work before each of the last batches."""

    def keep_up(self) -> None:
        """Wait until the GPU has done its work with all but the last batches; before each copy of a batch."""
        self._begun.append(module_of(self._device).current_stream(self._device).record_event())
        if len(self._begun) == IN_FLIGHT:
            self._begun.popleft().synchronize()

    def buffers(self, tensors: Sequence[Tensor], rows: int) -> list[Tensor]:
        """Page-locked tensors of ``rows`` rows like those of ``tensors``, which the GPU does not read any more."""
        self._slots.rotate(-1)
        slot = self._slots[0]
        if slot.copied is not None:
            slot.copied.synchronize()
        if not slot.buffers or len(slot.buffers[0]) < rows:
            slot.buffers = [_page_locked((rows, *tensor.shape[1:]), tensor.dtype) for tensor in tensors]
        return [buffer[:rows] for buffer in slot.buffers]

    def copied(self, event: torch.Event) -> None:
        """Note that the GPU has read the last ``buffers`` after ``event``."""
        self._slots[0].copied = event


def _page_locked(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
