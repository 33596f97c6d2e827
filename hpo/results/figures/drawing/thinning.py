"""Fewer points than there are, where a figure has more than a browser draws at ease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")


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
