"""A trace of a few training steps by torch's profiler."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

TRACED = (3, 5)
"""The first and last optimizer step in the trace, counted from 1 in this process; those before warm up caches."""


class Profiler:
    """Writes steps ``TRACED`` of this process to ``trace.json`` in ``directory``, in Chrome's trace format.

    ValueError if the directory cannot be made.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory) / "trace.json"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"profile = {str(directory)!r}: cannot be made ({error.strerror}). Name a directory that rank 0 may "
                "write to."
            ) from error
        first, last = TRACED
        self._steps = 0
        # The step before the first is profiled and thrown away: starting the profiler takes time.
        self._profile = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=first - 2, warmup=1, active=last - first + 1, repeat=1),
            on_trace_ready=self._write,
        )
        self._profile.start()

    def step(self) -> None:
        """Count an optimizer step, and end the trace after the last of ``TRACED``."""
        if self._steps < TRACED[1]:
            self._steps += 1
            self._profile.step()
            if self._steps == TRACED[1]:
                self._profile.stop()

    def close(self) -> None:
        """Write what has been traced of a shorter run; RuntimeWarning where that is nothing."""
        if self._steps < TRACED[1]:
            self._profile.stop()
        if self._steps < TRACED[0]:
            warnings.warn(
                f"profile = {str(self._path.parent)!r}: nothing was traced. Steps {TRACED[0]} to {TRACED[1]} are, "
                f"and this run took {self._steps}: train for more steps",
                RuntimeWarning,
                stacklevel=2,
            )

    def _write(self, profile: torch.profiler.profile) -> None:
        if self._steps >= TRACED[0]:  # it is also called where the run ends while the profiler warms up
            profile.export_chrome_trace(str(self._path))
