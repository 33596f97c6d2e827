"""Checkpoints by the clock, after the same step on all ranks, without an exchange at each step.

Rank 0's clock decides, and at each exchange it also says, from the time that steps take, after which step the next one
comes: about when the interval is over. As the first steps take longer, or only seem to be short on a GPU that works
behind the CPU, the steps up to the next exchange at most double: n steps have about log2(n) of them per interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch

from trainers.communication.communicator import Communicator

clock: Callable[[], float] = time.monotonic
"""Seconds; tests put another in its place."""


class SaveTimer:
    """Of one run on one rank, which begins after ``steps`` steps."""

    def __init__(self, every: timedelta, communicator: Communicator, steps: int) -> None:
        self._every_s = every.total_seconds()
        self._communicator = communicator
        self._asked_at = steps
        self._asked_s = self._saved_s = clock()
        self._next = steps + 1

    def due(self, steps: int) -> bool:
        """Whether to save after ``steps``. Every rank asks once after each step, and all get the same answer.
        Collective, at some steps: one broadcast.
        """
        if steps < self._next:
            return False
        now, taken = clock(), steps - self._asked_at
        save = now - self._saved_s >= self._every_s
        left_s = self._every_s - (0 if save else now - self._saved_s)
        step_s = (now - self._asked_s) / taken
        ahead = max(1, min(2 * taken, int(left_s / step_s) if step_s > 0 else 2 * taken))
        words = torch.tensor([int(save), ahead], device="cpu")
        save_by_all, ahead = self._communicator.service.broadcast(words).wait().tolist()
        self._asked_at, self._asked_s, self._next = steps, now, steps + ahead
        if save_by_all:
            self._saved_s = now
        return bool(save_by_all)
