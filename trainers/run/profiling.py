"""A trace of a few training steps by torch's profiler."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

TRACED = (3, 5)
"""The first and last optimizer step in the trace, counted from 1 in this process; those before warm up caches."""


class Profiler:
    """Writes ``trace.json`` into ``directory``: steps ``TRACED`` in Chrome's trace format, on this process.

    Raises:
        ValueError: the directory cannot be made.
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
        self._open = True
        # The step before the first is profiled and thrown away: starting the profiler takes time.
        self._profile = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=first - 2, warmup=1, active=last - first + 1, repeat=1),
            on_trace_ready=self._write,
        )
        self._profile.start()

    def step(self) -> None:
        """An optimizer step is over."""
        if self._open:
            self._steps += 1
            self._profile.step()
            if self._steps == TRACED[1]:
                self._open = False
                self._profile.stop()

    def _write(self, profile: torch.profiler.profile) -> None:
        if self._steps >= TRACED[0]:  # it is also called where the run ends while the profiler warms up
            profile.export_chrome_trace(str(self._path))

    def close(self) -> None:
        """The run is over: what has been traced so far is written. RuntimeWarning where it was too short for any."""
        if self._open:
            self._open = False
            self._profile.stop()
            if self._steps < TRACED[0]:
                warnings.warn(
                    f"profile = {str(self._path.parent)!r}: nothing was traced. Steps {TRACED[0]} to {TRACED[1]} are, "
                    f"and this run took {self._steps}: train for more steps",
                    RuntimeWarning,
                    stacklevel=2,
                )
