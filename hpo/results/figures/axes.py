"""Axes that show what matters: logarithms where the values ask for them, and no room for wild outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hpo.results.figures import theme

_FACTOR = 30.0
"""Values that span more than this, most of them, are shown on a logarithmic axis."""
_FEWEST = 8
"""Fewer values are all shown."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How an axis of results is drawn. ``low``, ``high``: its ends; ``outside``: how many values lie beyond them."""

    log: bool
    low: float
    high: float
    outside: int

    def axis(self) -> dict[str, Any]:
        """For plotly's layout."""
        if self.low == self.high:
            return {}
        if self.log:
            low, high = float(numpy.log10(self.low)), float(numpy.log10(self.high))
            found: dict[str, Any] = {"type": "log", "range": [low, high]}
            if high - low < 1.5:  # between two powers of ten there would be one tick or none
                return {**found, "dtick": "D2"}
            every = max(1, round((high - low) / 6))
            powers = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)]
            return {**found, "tickvals": powers, "ticktext": [theme.number(one) for one in powers]}
        return {"range": [self.low, self.high]}

    def note(self, direction: str) -> str:
        """What is said where values lie outside; else empty."""
        if not self.outside:
            return ""
        bound = self.low if direction == "maximize" else self.high
        verb = "lies" if self.outside == 1 else "lie"
        side = "below" if direction == "maximize" else "above"
        return f"{self.outside} worse {verb} {side} {theme.number(bound)}, outside the view"


def scale(values: Sequence[float] | NDArray[Any], direction: str = "minimize") -> Scale:
    """For results of which the good end is always shown whole, and the bad end up to where most of them are."""
    found = numpy.asarray(values, dtype=float)
    found = found[numpy.isfinite(found)]
    if not len(found):
        return Scale(log=False, low=0.0, high=0.0, outside=0)
    log = is_logarithmic(found)
    shown = numpy.log10(found) if log else found
    low, high = float(shown.min()), float(shown.max())
    if len(shown) >= _FEWEST:
        first, middle, last = numpy.quantile(shown, [0.25, 0.5, 0.75])
        if direction == "maximize":
            low = max(low, float(first - 3 * max(last - first, (last - middle) * 2)))
        else:
            high = min(high, float(last + 3 * max(last - first, (middle - first) * 2)))
    margin = 0.04 * (high - low)
    outside = int(((shown < low) | (shown > high)).sum())
    low, high = low - margin, high + margin
    if log:
        low, high = float(10.0**low), float(10.0**high)
    return Scale(log=log, low=low, high=high, outside=outside)


def is_logarithmic(values: NDArray[Any]) -> bool:
    """Whether orders of magnitude are what differs."""
    if not len(values) or values.min() <= 0:
        return False
    low, high = numpy.quantile(values, [0.0, 0.9])
    # Not their ratio: of the smallest numbers it may be beyond the largest.
    return bool(numpy.log10(high) - numpy.log10(low) > math.log10(_FACTOR))
