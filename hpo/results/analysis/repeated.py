"""Estimates of the mean results of configurations that were repeated because of ``[search] reevaluate``."""

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
"""Losses, of a single objective, and their individual."""


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """A configuration with all its evaluations."""

    individuals: tuple[Individual, ...]
    """Completed evaluations, best result first."""
    failed: int
    """Number of failed repetitions."""
    estimate: Estimate
    """Estimate of the mean loss."""

    @property
    def individual(self) -> Individual:
        """The repeat with the best result."""
        return self.individuals[0]

    @property
    def values(self) -> tuple[float, ...]:
        """Results of the evaluations, best first."""
        return tuple(one.value for one in self.individuals if one.value is not None)

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for a single evaluation."""
        count, mean = len(self.values), self.mean
        if count < 2:
            return None
        # A product, because ``** 2`` raises OverflowError where a product is infinite.
        return math.sqrt(mean_of([(one - mean) * (one - mean) for one in self.values]) / (count - 1))


def ranked(pairs: Sequence[Pair], failures: Iterable[Individual]) -> list[Repeated]:
    """Configurations by their estimates, best first. Failed repetitions (``failures``) count with the loss of the
    median configuration."""
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
    """Text with the number of a configuration's evaluations and the mean of their results."""
    failed = f", {repeated.failed} more failed" if repeated.failed else ""
    if repeated.error is None:
        return f"evaluated once{failed}"
    return f"of {len(repeated.values)} evaluations{failed}; their mean {repeated.mean:.6g} ± {repeated.error:.2g}"
