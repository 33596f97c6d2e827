"""Fewer points than there are, for figures with more than a browser draws easily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy
from numpy.typing import NDArray

Item = TypeVar("Item")


def thinned(count: int, most: int, keep: Sequence[int] = ()) -> NDArray[Any]:
    """About ``most`` of the indices from 0 to ``count``, evenly spread, with those of ``keep``."""
    if count <= most:
        return numpy.arange(count)
    even = numpy.linspace(0, count - 1, most).round().astype(int)
    return numpy.union1d(even, numpy.asarray(keep, dtype=int))


def best_and_spread(items: Sequence[Item], most: int, *, loss: Callable[[Item], float]) -> list[Item]:
    """At most ``most`` items in their order: a quarter are the best, the others evenly spread over the rest."""
    if len(items) <= most:
        return list(items)
    order = sorted(range(len(items)), key=lambda index: loss(items[index]))
    best = set(order[: most // 4])
    rest = [index for index in range(len(items)) if index not in best]
    wanted = most - len(best)
    chosen = best.union(rest[place * len(rest) // wanted] for place in range(wanted))
    return [items[index] for index in sorted(chosen)]
