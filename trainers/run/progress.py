"""A line on a terminal that shows the progress of a run."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping

from trainers.run.position import Length

_REFRESH_S = 0.2


class ProgressLine:
    """Progress line of rank 0, which is overwritten as the run goes on."""

    def __init__(self, length: Length, *, shown: bool) -> None:
        self._length = length
        self._shown = shown
        self._metrics = ""
        self._written_at = 0.0
        self._width = 0

    def step(self, steps: int) -> None:
        """Show that ``steps`` steps of the run have been taken, unless the line is fresh."""
        if self._shown and time.monotonic() - self._written_at >= _REFRESH_S:
            self._write(steps)

    def evaluated(self, entry: Mapping[str, float]) -> None:
        """Show the metrics in ``entry`` of an evaluation, now and at later steps."""
        if self._shown:
            hidden = ("_s", "_nodes", "_fraction", "_ratio")
            names = [name for name in entry if name not in ("epoch", "steps") and not name.endswith(hidden)]
            self._metrics = "".join(f"  {name} {entry[name]:.4g}" for name in names)
            self._write(int(entry["steps"]))

    def close(self) -> None:
        """Leave the last line standing."""
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()
            self._width = 0

    def _write(self, steps: int) -> None:
        length = self._length
        epoch = (steps - 1) // length.steps_per_epoch + 1
        text = f"epoch {epoch}/{math.ceil(length.epochs)}  step {steps}/{length.steps}{self._metrics}"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)
        self._written_at = time.monotonic()
