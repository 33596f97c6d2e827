"""Timer for checkpoints, which gives the same answer on all ranks without a message at each step.

Rank 0's clock decides. With each message, rank 0 also sends the step of the next message, about at the end of the
interval by the time that steps have taken. The first steps may take longer, or seem short on a GPU that works
asynchronously, so the number of steps to the next message at most doubles: n steps have about log2(n) messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch

from trainers.communication.communicator import Communicator

clock: Callable[[], float] = time.monotonic
"""Clock in seconds, which tests replace."""


class SaveTimer:
    """Timer of a run on a rank, with an interval ``every`` between checkpoints, started after ``steps`` steps."""

    def __init__(self, every: timedelta, communicator: Communicator, steps: int) -> None:
        self._every_s = every.total_seconds()
        self._communicator = communicator
        self._asked_at = steps
        self._asked_s = self._saved_s = clock()
        self._next = steps + 1

    def due(self, steps: int) -> bool:
        """Whether to save after ``steps`` steps, equal on all ranks, which must call this once after each step.

        Collective at some of the steps: a broadcast.
        """
        if steps < self._next:
            return False
        now, taken = clock(), steps - self._asked_at
        save = now - self._saved_s >= self._every_s
        left_s = self._every_s - (0 if save else now - self._saved_s)
        step_s = (now - self._asked_s) / taken
        # A step time of 0 is possible with a coarse clock, or a GPU that has not begun.
        ahead = max(1, min(2 * taken, int(left_s / step_s) if step_s > 0 else 2 * taken))
        words = torch.tensor([int(save), ahead], device="cpu")
        save_by_all, ahead = self._communicator.service.broadcast(words).wait().tolist()
        self._asked_at, self._asked_s, self._next = steps, now, steps + ahead
        if save_by_all:
            self._saved_s = now
        return bool(save_by_all)
