"""Configurations that were evaluated more than once, as ``[search] reevaluate`` asks for: which is the best, and how
good it is in the mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from hpo.estimates import Estimate, estimates
from hpo.individual import REEVALUATION

if TYPE_CHECKING:
    from hpo.individual import Individual

Pair = tuple[tuple[float, ...], "Individual"]
"""An individual with its losses, of one objective."""


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One configuration. ``individual``: that of its evaluations which looks best; ``values``: of all of them;
    ``estimate``: of its mean loss.
    """

    individual: Individual
    values: tuple[float, ...]
    estimate: Estimate

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single evaluation."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else None


def some(individuals: Iterable[Individual]) -> bool:
    """Whether there are repetitions among them."""
    return any(one.operator == REEVALUATION for one in individuals)


def ranked(pairs: Sequence[Pair]) -> list[Repeated]:
    """The configurations, that of the lowest estimate first; of equal ones the first."""
    groups: dict[bytes, list[Pair]] = {}
    for pair in pairs:
        key = orjson.dumps(pair[1].params, option=orjson.OPT_SORT_KEYS)
        groups.setdefault(key, []).append(pair)
    found = []
    for own, estimate in zip(
        groups.values(), estimates([[loss[0] for loss, _ in own] for own in groups.values()])
    ):
        _, best = min(own, key=lambda pair: pair[0])
        values = tuple(one.value for _, one in own if one.value is not None)
        found.append(Repeated(individual=best, values=values, estimate=estimate))
    found.sort(key=lambda one: one.estimate.mean)
    return found
