"""Several objectives: which losses dominate which others, and how crowded a front is."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

Losses = tuple[float, ...]


def dominates(first: tuple[float, ...] | None, second: tuple[float, ...] | None) -> bool:
    """Whether ``first`` is nowhere worse and somewhere better than ``second`` (all to be minimised)."""
    if first is None or second is None:
        return second is None and first is not None
    return all(a <= b for a, b in zip(first, second)) and first != second


def crowding(losses: Sequence[Losses]) -> list[float]:
    """The crowding distance of each (Deb et al. 2002, doi:10.1109/4235.996017, section III-B): the larger, the more
    alone; infinite for the first and the last in any objective."""
    distances = [0.0] * len(losses)
    for objective in range(len(losses[0]) if losses else 0):
        order = sorted(range(len(losses)), key=lambda index: losses[index][objective])
        low, high = losses[order[0]][objective], losses[order[-1]][objective]
        distances[order[0]] = distances[order[-1]] = inf
        if not isfinite(high - low) or high == low:
            continue
        for before, index, after in zip(order, order[1:], order[2:]):
            distances[index] += (losses[after][objective] - losses[before][objective]) / (high - low)
    return distances
