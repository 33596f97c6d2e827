"""One line on a terminal that shows how far a run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

_REFRESH_S = 0.2


class ProgressLine:
    """Written over and over by rank 0; ``shown`` None: if stderr is a terminal."""

    def __init__(self, *, shown: bool | None, rank: int, epochs: int, steps_per_epoch: int) -> None:
        self._shown = rank == 0 and (sys.stderr.isatty() if shown is None else shown)
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._last = ""
        self._written_at = 0.0
        self._width = 0

    def step(self, epoch: int, steps: int) -> None:
        """``steps`` steps of ``epoch``, counted from 0, have been taken."""
        if self._shown and time.monotonic() - self._written_at >= _REFRESH_S:
            self._write(f"epoch {epoch + 1}/{self._epochs}  step {steps}/{self._steps_per_epoch}{self._last}")

    def epoch(self, entry: Mapping[str, float]) -> None:
        """An epoch is over and brought ``entry``."""
        if not self._shown:
            return
        numbers = [
            f"{name} {value:.4g}"
            for name, value in entry.items()
            if name != "epoch" and not name.endswith(("_s", "_nodes", "_fraction", "_ratio"))
        ]
        self._last = "  " + "  ".join(numbers)
        self._write(f"epoch {entry['epoch']:.0f}/{self._epochs}{self._last}")

    def close(self) -> None:
        """Leave the last line standing."""
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._width = 0

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)
        self._written_at = time.monotonic()
