"""How an objective's axis is drawn: which values it shows, and whether by orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hpo.views.figures.drawing import theme

_FACTOR = 30.0
"""Positive values of which the best nine tenths span more than this factor are drawn by the logarithm."""
_MOST = 0.9
_FAR = 3.0
"""Multiple of the extent of the best nine tenths beyond which worse values are not drawn to scale."""
_THIRD = 1 / 3
_HUGE = 1e3
"""Multiple of all of the better third, and of 1, beyond which a value has diverged."""
_MARGIN = 0.04
_LARGEST = 1e304
"""Larger numbers are drawn as this number: plotly draws none beyond 1.8e304."""
_NARROWEST = 1e-300
"""Plotly scales no axis of a much smaller extent."""


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """``best`` and ``worst`` that are drawn to scale; ``log``: by the logarithm; ``outside``: how many values are worse
    than ``worst``; ``clipped``: whether there are values that are too large to be drawn as they are.
    """

    best: float
    worst: float
    log: bool
    outside: int = 0
    clipped: bool = False

    def inside(self, value: float) -> float:
        """``value``, or the border where it lies beyond."""
        low, high = sorted((self.best, self.worst))
        return min(high, max(low, value))

    def beyond(self, steps: float) -> float:
        """A place outside, next to the worst, ``steps`` hundredths of the range away."""
        return self.value_at(self.place(self.worst) + steps / 100 * self._width)

    @property
    def _width(self) -> float:
        """The extent in the axis's own unit, below 0 where the best is the largest; never too small to be drawn."""
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
        """For plotly's layout: type, range and, by the logarithm, ticks; ``steps`` hundredths more on the side of the
        worst.
        """
        best, worst, width = self.place(self.best), self.place(self.worst), self._width
        low, high = sorted((best - _MARGIN * width, worst + (_MARGIN + steps / 100) * width))
        if not self.log:
            return {"type": "linear", "range": [low, high]}
        if high - low < 1.5:  # between two powers of ten there would be one tick or none
            return {"type": "log", "range": [low, high], "dtick": "D2"}
        every = max(1, round((high - low) / 6))
        powers = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1, every)]
        ticks = {"tickvals": powers, "ticktext": [theme.number(one) for one in powers]}
        return {"type": "log", "range": [low, high], **ticks}

    def note(self, noun: str = "") -> str:
        """How many values lie outside, and whether larger numbers are drawn as the largest; empty where there are none.
        ``noun``: of a single value.
        """
        found = [f"larger numbers are drawn as {theme.number(_LARGEST)}"] if self.clipped else []
        if self.outside:
            one = self.outside == 1
            what = f" {noun}{'' if one else 's'}" if noun else ""
            side = "below" if self.worst < self.best else "above"
            where = f"{'lies' if one else 'lie'} {side} {theme.number(self.worst)}"
            found.insert(0, f"{self.outside} worse{what} {where}, outside the view")
        return "; ".join(found)


def drawable(values: NDArray[Any]) -> NDArray[Any]:
    """``values`` whose finite numbers are those of a figure: too large a number becomes the largest."""
    return numpy.where(numpy.isfinite(values), numpy.clip(values, -_LARGEST, _LARGEST), values)


def value_range(
    values: Iterable[float] | NDArray[Any], direction: str, default: float | None = None
) -> ValueRange | None:
    """The range for the finite ``values``; None where there are none. The best is always inside, and so is ``default``,
    the default's value, unless it has diverged.
    """
    sign = -1.0 if direction == "maximize" else 1.0
    found = numpy.asarray(values if isinstance(values, numpy.ndarray) else list(values), dtype=float)
    finite = found[numpy.isfinite(found)]
    ordered = sign * numpy.sort(sign * drawable(finite))
    if not len(ordered):
        return None
    count = len(ordered)
    ordered = ordered[: _converged(ordered)]
    most = ordered[: int(_MOST * (len(ordered) - 1)) + 1]
    # Not their ratio: of the smallest numbers it may be beyond the largest.
    log = bool(ordered.min() > 0 and numpy.ptp(numpy.log10(most)) > math.log10(_FACTOR))
    losses = sign * (numpy.log10(ordered) if log else ordered)
    extent = losses[len(most) - 1] - losses[0]
    # Where nine tenths are equal, all are shown.
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
        clipped=bool((numpy.abs(finite) > _LARGEST).any()),
    )


def _converged(ordered: NDArray[Any]) -> int:
    """How many of the values, best first, lie before the first that has diverged, such as a loss of 1e30: all where
    they rather spread over orders of magnitude."""
    fewest = max(2, math.ceil(_THIRD * len(ordered)))
    size = numpy.abs(ordered)
    with numpy.errstate(over="ignore"):
        diverged = size[1:] > _HUGE * numpy.maximum(1.0, numpy.maximum.accumulate(size)[:-1])
    if ordered.min() > 0:
        places = numpy.log10(ordered)
        diverged &= numpy.diff(places) > _FAR * numpy.abs(places[:-1] - places[0])
    found = numpy.flatnonzero(diverged[fewest - 1 :])
    return fewest + int(found[0]) if len(found) else len(ordered)
