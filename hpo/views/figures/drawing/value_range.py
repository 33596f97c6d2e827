"""Range of an objective's axis: the values that it shows, and whether it is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hpo.views.figures.drawing import theme

_FACTOR = 30.0  # positive values whose best nine tenths span a larger factor get a logarithmic axis
_MOST = 0.9
_FAR = 3.0  # values beyond this multiple of the extent of the best nine tenths are outside
_THIRD = 1 / 3
_HUGE = 1e3  # a value beyond this multiple of all of the better third, and of 1, has diverged
_MARGIN = 0.04
_LARGEST = 1e304  # plotly draws nothing beyond 1.8e304
_NARROWEST = 1e-300  # plotly scales no axis of a much smaller extent


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """Range of an axis, from the best to the worst value that are drawn to scale."""

    best: float
    worst: float
    log: bool
    outside: int = 0  # number of values that are worse than ``worst``

    def inside(self, value: float) -> float:
        """``value``, or the border if the value lies beyond."""
        low, high = sorted((self.best, self.worst))
        return min(high, max(low, value))

    def beyond(self, steps: float) -> float:
        """Value of a place ``steps`` hundredths of the range beyond the worst."""
        return self.value_at(self.place(self.worst) + steps / 100 * self._width)

    @property
    def _width(self) -> float:
        best = self.place(self.best)
        width = (self.place(self.worst) - best) or abs(best) or 1.0
        return math.copysign(max(abs(width), _NARROWEST), width)

    def place(self, value: float) -> float:
        """``value`` in the axis's own unit."""
        return math.log10(value) if self.log else value

    def value_at(self, place: float) -> float:
        """The value at a place in the axis's own unit."""
        return 10.0**place if self.log else place

    def axis(self, steps: float = 0.0) -> dict[str, Any]:
        """Type, range and ticks for plotly's layout, with ``steps`` hundredths more on the side of the worst."""
        best, worst, width = self.place(self.best), self.place(self.worst), self._width
        low, high = sorted((best - _MARGIN * width, worst + (_MARGIN + steps / 100) * width))
        if not self.log:
            return {"type": "linear", "range": [low, high]}
        if high - low < 1.5:  # there may be no power of ten to have a tick
            return {"type": "log", "range": [low, high], "dtick": "D2"}
        every = max(1, round((high - low) / 6))
        powers = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)]
        ticks = {"tickvals": powers, "ticktext": [theme.number(one) for one in powers]}
        return {"type": "log", "range": [low, high], **ticks}

    def note(self, noun: str = "") -> str:
        """Sentence on the values outside; empty if there are none. ``noun``: name of a single value."""
        if not self.outside:
            return ""
        one = self.outside == 1
        what = f" {noun}{'' if one else 's'}" if noun else ""
        side = "below" if self.worst < self.best else "above"
        lie = "lies" if one else "lie"
        return f"{self.outside} worse{what} {lie} {side} {theme.number(self.worst)}, outside the view"


def drawable(values: NDArray[Any]) -> NDArray[Any]:
    """``values``, whose finite numbers are clipped to those that plotly draws."""
    return numpy.where(numpy.isfinite(values), numpy.clip(values, -_LARGEST, _LARGEST), values)


def value_range(
    values: Iterable[float] | NDArray[Any], direction: str, default: float | None = None
) -> ValueRange | None:
    """Range for the finite ``values``; None if there are none.

    The best value is always inside, and so is ``default``, the value of the default, unless it has diverged."""
    sign = -1.0 if direction == "maximize" else 1.0
    found = numpy.asarray(values if isinstance(values, numpy.ndarray) else list(values), dtype=float)
    finite = found[numpy.isfinite(found)]
    ordered = sign * numpy.sort(sign * drawable(finite))
    if not len(ordered):
        return None
    count = len(ordered)
    ordered = ordered[: _converged(ordered)]
    most = ordered[: int(_MOST * (len(ordered) - 1)) + 1]
    # The ratio of the smallest numbers may be beyond the largest number, so logarithms are compared.
    log = bool(ordered.min() > 0 and numpy.ptp(numpy.log10(most)) > math.log10(_FACTOR))
    losses = sign * (numpy.log10(ordered) if log else ordered)
    extent = losses[len(most) - 1] - losses[0]
    # If nine tenths are equal, all values are shown.
    far = losses[len(most) - 1] + _FAR * extent if extent > 0 else math.inf
    shown_too = None if default is None else float(drawable(numpy.array(default)))
    if shown_too is not None and shown_too in ordered:
        far = max(far, sign * (numpy.log10(shown_too) if log else shown_too))
    shown = int((losses <= far).sum())
    return ValueRange(
        best=float(ordered[0]),
        worst=float(ordered[shown - 1]),
        log=log,
        outside=count - shown,
    )


def _converged(ordered: NDArray[Any]) -> int:
    """Number of values, best first, before the first that has diverged, such as a loss of 1e30; all of them if they
    spread evenly over orders of magnitude."""
    fewest = max(2, math.ceil(_THIRD * len(ordered)))
    size = numpy.abs(ordered)
    with numpy.errstate(over="ignore"):
        diverged = size[1:] > _HUGE * numpy.maximum(1.0, numpy.maximum.accumulate(size)[:-1])
    if ordered.min() > 0:
        places = numpy.log10(ordered)
        diverged &= numpy.diff(places) > _FAR * numpy.abs(places[:-1] - places[0])
    found = numpy.flatnonzero(diverged[fewest - 1 :])
    return fewest + int(found[0]) if len(found) else len(ordered)
