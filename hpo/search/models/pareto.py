"""Pareto dominance of losses of several objectives, fronts and crowding distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Generic, TypeVar

from hpo.errors import UsageError
from hpo.task.metrics import as_number
from hpo.text import excerpt

Losses = tuple[float, ...]
_Item = TypeVar("_Item")


def dominates(first: tuple[float, ...] | None, second: tuple[float, ...] | None) -> bool:
    """Whether ``first`` is in no loss worse, and in at least one better, than ``second``; None is worse than any."""
    if first is None or second is None:
        return second is None and first is not None
    return all(a <= b for a, b in zip(first, second)) and first != second


def dominators(losses: Any) -> Any:
    """Number of rows of the array ``losses`` that dominate each row."""
    no_worse = (losses[:, None, :] <= losses[None, :, :]).all(axis=2)
    return (no_worse & ~no_worse.T).sum(axis=0)


def best_first(losses: Sequence[Losses]) -> list[int]:
    """Places of ``losses``, best first: by the loss, or with several objectives by the number of losses that dominate
    it; equals stay in their order."""
    import numpy

    table = numpy.array(losses)
    order = dominators(table) if table.shape[1:] > (1,) else table.reshape(-1)
    return list(map(int, numpy.argsort(order, kind="stable")))


def crowding(losses: Sequence[Losses]) -> list[float]:
    """Crowding distance of each member of a front (Deb et al. 2002, doi:10.1109/4235.996017, section III-B): larger the
    fewer members are close, and infinite for the best and the worst in any objective."""
    distances = [0.0] * len(losses)
    for objective in range(len(losses[0]) if losses else 0):
        order = sorted(range(len(losses)), key=lambda index: losses[index][objective])
        low, high = losses[order[0]][objective], losses[order[-1]][objective]
        distances[order[0]] = distances[order[-1]] = inf
        # Without a finite range there are no relative distances; the ends alone count in this objective.
        if not isfinite(high - low) or high == low:
            continue
        for before, index, after in zip(order, order[1:], order[2:]):
            distances[index] += (losses[after][objective] - losses[before][objective]) / (high - low)
    return distances


def reference_losses(reference: Mapping[str, float], objectives: Mapping[str, str]) -> Losses | None:
    """Losses of ``[search] reference``, None for an empty reference; UsageError where it does not have a finite number
    for each of several objectives."""
    if not isinstance(reference, Mapping):
        raise UsageError(f"reference = {excerpt(reference)}: must map each objective to a number.")
    if not reference:
        return None
    numbers = {name: as_number(value) for name, value in reference.items()}
    finite = {name: value for name, value in numbers.items() if value is not None and isfinite(value)}
    if len(objectives) < 2 or not set(finite) == set(numbers) == set(objectives):
        raise UsageError(
            f"[search] reference = {excerpt(dict(reference))}: must have a finite number for each objective, which are "
            f"{', '.join(objectives)}, and is for several objectives. Correct or remove it."
        )
    return tuple(-finite[name] if way == "maximize" else finite[name] for name, way in objectives.items())


class Front(Generic[_Item]):
    """Pareto front of all added items; items with equal losses stay."""

    def __init__(self) -> None:
        self._items: dict[Losses, list[_Item]] = {}

    def add(self, losses: Losses, item: _Item) -> None:
        if losses in self._items:
            self._items[losses].append(item)
        elif not any(dominates(other, losses) for other in self._items):
            for other in [one for one in self._items if dominates(losses, one)]:
                del self._items[other]
            self._items[losses] = [item]

    @property
    def items(self) -> list[_Item]:
        """Items sorted by the first objective, best first; older items first among equals in all objectives."""
        return [item for losses in sorted(self._items) for item in self._items[losses]]
