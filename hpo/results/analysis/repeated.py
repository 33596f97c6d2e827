"""Configurations that were evaluated more than once, as ``[search] reevaluate`` asks for: which is the best, and how
good it is in the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from hpo.search.models.estimates import Estimate, estimates, mean_of, median_of

if TYPE_CHECKING:
    from hpo.individual import Individual

Pair = tuple[tuple[float, ...], "Individual"]
"""An individual with its losses, of one objective."""


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """One configuration. ``individuals``: its completed evaluations, that which looks best first; ``failed``: how many
    of its repetitions failed; ``estimate``: of its mean loss.
    """

    individuals: tuple[Individual, ...]
    failed: int
    estimate: Estimate

    @property
    def individual(self) -> Individual:
        """That of the evaluations which looks best."""
        return self.individuals[0]

    @property
    def values(self) -> tuple[float, ...]:
        """What the evaluations brought, the best first."""
        return tuple(one.value for one in self.individuals if one.value is not None)

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single evaluation."""
        count, mean = len(self.values), self.mean
        if count < 2:
            return None
        # Multiplied, as a power that is too large is an error.
        return math.sqrt(mean_of([(one - mean) * (one - mean) for one in self.values]) / (count - 1))


def ranked(pairs: Sequence[Pair], failures: Iterable[Individual]) -> list[Repeated]:
    """The configurations, that of the lowest estimate first; of equal ones the first. ``failures``: repetitions that
    failed, each of which counts as if it had been as good as the median configuration.
    """
    groups: dict[bytes, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(_key(pair[1]), []).append(pair)
    failed = Counter(_key(one) for one in failures)
    losses = [[loss[0] for loss, _ in own] for own in groups.values()]
    middle = median_of(losses)
    counted = [own + [middle] * failed[key] for key, own in zip(groups, losses)]
    found = [
        Repeated(
            individuals=tuple(one for _, one in sorted(own, key=lambda pair: pair[0])),
            failed=failed[key],
            estimate=estimate,
        )
        for (key, own), estimate in zip(groups.items(), estimates(counted))
    ]
    found.sort(key=lambda one: one.estimate.mean)
    return found


def _key(one: Individual) -> bytes:
    return msgspec.json.encode(one.params, order="sorted")


def in_words(repeated: Repeated) -> str:
    """How often a configuration was evaluated, and what that brought in the mean."""
    failed = f", {repeated.failed} more failed" if repeated.failed else ""
    if repeated.error is None:
        return f"evaluated once{failed}"
    return f"of {len(repeated.values)} evaluations{failed}; their mean {repeated.mean:.6g} ± {repeated.error:.2g}"
