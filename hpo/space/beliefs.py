"""Beliefs of users in where good values of a parameter lie, as distributions over its genes.

The scales of the confidences are those of NePS (Mallik et al. 2023, arXiv:2306.12370)."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import Any, Literal

Confidence = Literal["low", "medium", "high"]

DEVIATIONS: dict[Confidence, float] = {"low": 1 / 2, "medium": 1 / 4, "high": 1 / 8}
"""Standard deviation of a number's gene, and of an ordered choice's rank relative to all ranks."""
PROBABILITIES: dict[Confidence, float] = {"low": 1 / 2, "medium": 3 / 4, "high": 7 / 8}
"""Probability of an unordered choice; the others share the rest."""

DOUBT = 0.25
"""Weight of the uniform distribution in its mixture with beliefs, as these may be wrong (as in PriorBand)."""


@dataclass(frozen=True)
class NormalBelief:
    """Normal distribution of a number's gene around ``centre``, truncated to [0, 1]."""

    centre: float
    deviation: float

    @cached_property
    def _normal(self) -> NormalDist:
        return NormalDist(self.centre, self.deviation)

    def quantile(self, share: float) -> float:
        """Gene below which the probability is ``share``, in [0, 1)."""
        low, high = self._normal.cdf(0.0), self._normal.cdf(1.0)
        return min(max(self._normal.inv_cdf(low + share * (high - low)), 0.0), 1.0)

    def log_density(self, genes: Any) -> Any:
        """Logarithm of the density at each gene, relative to the uniform density."""
        mass = self._normal.cdf(1.0) - self._normal.cdf(0.0)
        scale = math.log(mass * self.deviation * math.sqrt(2 * math.pi))
        return -0.5 * ((genes - self.centre) / self.deviation) ** 2 - scale


@dataclass(frozen=True)
class ChoiceBelief:
    """Probability of each choice; that at index ``centre`` is believed to be good."""

    centre: int
    probabilities: tuple[float, ...]

    @classmethod
    def unordered(cls, centre: int, count: int, confidence: Confidence) -> ChoiceBelief:
        others = (1 - PROBABILITIES[confidence]) / max(1, count - 1)
        own = [PROBABILITIES[confidence] if index == centre else others for index in range(count)]
        return cls(centre, tuple(own))

    @classmethod
    def ordered(cls, centre: int, count: int, confidence: Confidence) -> ChoiceBelief:
        """Truncated normal distribution over ranks, each with the probability of its part of [0, 1]."""
        normal = NormalDist((centre + 0.5) / count, DEVIATIONS[confidence])
        edges = [normal.cdf(index / count) for index in range(count + 1)]
        return cls(centre, tuple(high - low for low, high in pairwise(edges)))

    @cached_property
    def _sums(self) -> Sequence[float]:
        return list(accumulate(self.probabilities))

    def quantile(self, share: float) -> int:
        """Index of the choice up to which the probability is ``share``, in [0, 1)."""
        return min(bisect(self._sums, share * self._sums[-1]), len(self._sums) - 1)

    def log_density(self, genes: Any) -> Any:
        """Logarithm of the probability of each index, relative to the uniform probability."""
        import numpy

        probabilities = numpy.array(self.probabilities) / self._sums[-1]
        return numpy.log(probabilities * len(probabilities))[numpy.asarray(genes, dtype=int)]


Belief = NormalBelief | ChoiceBelief
