"""How an objective's axis is drawn: which values it shows, and whether by orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_DECADES = 2.5
"""Positive values, most of which span more orders of magnitude than that, are drawn by the logarithm."""
_MOST = 0.9
_FAR = 4.0
"""What is worse than the median by this many times the distance from the best to the median lies at the border."""
_MARGIN = 0.04


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """``best`` and ``worst`` that are drawn inside; values beyond ``worst`` lie on it. ``log``: by the logarithm."""

    best: float
    worst: float
    log: bool

    def inside(self, value: float) -> float:
        """``value``, or the border where it lies beyond."""
        low, high = sorted((self.best, self.worst))
        return min(high, max(low, value))

    def beyond(self, steps: float) -> float:
        """A place outside, next to the worst, ``steps`` hundredths of the range away."""
        best, worst = self.place(self.best), self.place(self.worst)
        found = worst + steps / 100 * ((worst - best) or 1.0)
        return self.value_at(found)

    def limits(self, steps: float = 0.0) -> list[float]:
        """The axis's range in its own unit (powers of ten with ``log``), ascending, with ``steps`` hundredths more on
        the side of the worst."""
        best, worst = self.place(self.best), self.place(self.worst)
        width = (worst - best) or 1.0
        return sorted((best - _MARGIN * width, worst + (_MARGIN + steps / 100) * width))

    def place(self, value: float) -> float:
        """``value`` in the axis's own unit."""
        return math.log10(value) if self.log else value

    def value_at(self, place: float) -> float:
        """The value at a place in the axis's own unit."""
        return 10.0**place if self.log else place


def value_range(values: Iterable[float], direction: str) -> ValueRange | None:
    """For the finite ones of ``values``; None where there are none."""
    sign = -1.0 if direction == "maximize" else 1.0
    ordered = sorted((one for one in values if math.isfinite(one)), key=lambda one: sign * one)
    if not ordered:
        return None
    most = ordered[: int(_MOST * (len(ordered) - 1)) + 1]
    log = min(ordered) > 0 and max(most) / min(most) > 10**_DECADES
    losses = [sign * (math.log10(one) if log else one) for one in ordered]
    middle = losses[len(losses) // 2]
    far = middle + _FAR * (middle - losses[0])
    if far <= losses[0]:  # half of them are equal
        return ValueRange(best=ordered[0], worst=ordered[-1], log=log)
    worst = max(place for place, loss in enumerate(losses) if loss <= far)
    return ValueRange(best=ordered[0], worst=ordered[worst], log=log)
