"""One line on a terminal that shows how far a run is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

_REFRESH_S = 0.2


class ProgressLine:
    """Written over and over by rank 0; ``shown`` None: if stderr is a terminal; ``epochs`` None: it counts steps."""

    def __init__(
        self, *, shown: bool | None, rank: int, epochs: int | None, steps: int, steps_per_epoch: int
    ) -> None:
        self._shown = rank == 0 and (sys.stderr.isatty() if shown is None else shown)
        self._epochs = epochs
        self._steps = steps
        self._steps_per_epoch = steps_per_epoch
        self._last = ""
        self._written_at = 0.0
        self._width = 0

    def step(self, steps: int) -> None:
        """``steps`` steps of the run have been taken."""
        if self._shown and time.monotonic() - self._written_at >= _REFRESH_S:
            if self._epochs is None:
                self._write(f"step {steps}/{self._steps}{self._last}")
            else:
                epoch, step = divmod(steps - 1, self._steps_per_epoch)
                self._write(
                    f"epoch {epoch + 1}/{self._epochs}  step {step + 1}/{self._steps_per_epoch}{self._last}"
                )

    def evaluated(self, entry: Mapping[str, float]) -> None:
        """An evaluation brought ``entry``."""
        if not self._shown:
            return
        numbers = [
            f"{name} {value:.4g}"
            for name, value in entry.items()
            if name not in ("epoch", "steps") and not name.endswith(("_s", "_nodes", "_fraction", "_ratio"))
        ]
        self._last = "  " + "  ".join(numbers)
        if self._epochs is None:
            self._write(f"step {entry['steps']:.0f}/{self._steps}{self._last}")
        else:
            self._write(f"epoch {entry['epoch']:.4g}/{self._epochs}{self._last}")

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
