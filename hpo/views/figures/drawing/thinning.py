"""Fewer points than there are, where a figure has more than a browser draws at ease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy
from numpy.typing import NDArray

One = TypeVar("One")
_SEEN = 1e-4
"""A smaller part of an axis is less than a pixel."""


def best_and_spread(ones: Sequence[One], most: int, *, loss: Callable[[One], float]) -> list[One]:
    """At most ``most`` of them in their order: a quarter are the best, the others evenly spread over the rest."""
    if len(ones) <= most:
        return list(ones)
    order = sorted(range(len(ones)), key=lambda index: loss(ones[index]))
    best = set(order[: most // 4])
    rest = [index for index in range(len(ones)) if index not in best]
    wanted = most - len(best)
    chosen = best.union(rest[place * len(rest) // wanted] for place in range(wanted))
    return [ones[index] for index in sorted(chosen)]


def compact(values: NDArray[Any]) -> NDArray[Any]:
    """``values`` as float32, unless one is beyond its range or they differ in digits that it does not have."""
    with numpy.errstate(over="ignore", under="ignore"):
        found = values.astype("float32")
    finite = numpy.isfinite(values)
    if not numpy.isfinite(found[finite]).all():
        return values
    error = numpy.abs(found[finite] - values[finite]).max(initial=0.0)
    extent = numpy.ptp(values[finite]) if finite.any() else 0.0
    return found if error <= _SEEN * extent or not error else values
