"""Estimates of the mean losses of configurations with noisy evaluations, and of their standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FEWEST = 5
"""Fewest configurations that the prior of the means is estimated from."""
# Sums of many squares of this number are still finite.
_LARGEST = 1e100
"""Largest absolute value of a loss in the estimates."""
_DOUBT = 2.0
"""Weight, in repetitions, of the prior of the noise, which is half of the variance between configurations."""
_FAR = 5.0
"""Distance from the centre, relative to that of the median configuration, at which losses are cut for the noise."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Posterior of a configuration's mean loss: its mean and standard deviation. ``noise``: variance of an evaluation
    around the mean loss."""

    mean: float
    deviation: float
    noise: float

    def after(self, more: int) -> float:
        """Standard deviation of the posterior after ``more`` evaluations; it does not depend on their results."""
        if not more or self.deviation == 0.0 or self.noise == 0.0:
            return self.deviation
        return 1 / math.sqrt(1 / self.deviation**2 + more / self.noise)


def estimates(losses: Sequence[Sequence[float]]) -> list[Estimate]:
    """Posterior of the mean loss of each configuration.

    Evaluations of a configuration are normal around its mean, with a variance that all configurations share, pooled
    from the configurations with several evaluations; the means of the better configurations are normal around the mean
    of the best quarter (empirical Bayes; Efron and Morris 1973, doi:10.1080/01621459.1973.10481350). A configuration
    that was lucky once so moves towards the others by as much as luck explains. Where each configuration was evaluated
    once, the order of the losses stays.
    """
    means = [mean_of(own) for own in losses]
    ordered = sorted(means)
    better = ordered[: max(_FEWEST, len(means) // 4)]
    centre = statistics.fmean(better)
    between = _squares(better) / len(better)
    far = _FAR * (ordered[len(ordered) // 2] - centre)
    # Evaluations that diverged say nothing about the noise of good configurations, so they are cut at this limit.
    limit = centre + far if far > 0.0 else _LARGEST
    repeated = [[max(-_LARGEST, min(one, limit)) for one in own] for own in losses if len(own) > 1]
    freedom = sum(len(own) - 1 for own in repeated)
    noise = (sum(map(_squares, repeated)) + _DOUBT * between / 2) / (freedom + _DOUBT)
    between = between or noise  # equal results of the best configurations may still differ when repeated
    if noise == 0.0:
        return [Estimate(mean, 0.0, 0.0) for mean in means]
    found = []
    for mean, own in zip(means, losses):
        precision = len(own) / noise + 1 / between
        weight = len(own) / noise / precision
        found.append(Estimate(weight * mean + (1 - weight) * centre, math.sqrt(1 / precision), noise))
    return found


def median_of(losses: Iterable[Sequence[float]]) -> float:
    """Mean loss of the median configuration."""
    ordered = sorted(map(mean_of, losses))
    return ordered[len(ordered) // 2]


def mean_of(values: Sequence[float]) -> float:
    """Mean of ``values``, each cut to ±_LARGEST so that the estimates stay finite."""
    return statistics.fmean([max(-_LARGEST, min(one, _LARGEST)) for one in values])


def _squares(values: Sequence[float]) -> float:
    """Sum of squared differences from the mean."""
    mean = statistics.fmean(values)
    return sum((one - mean) ** 2 for one in values)


def exact(losses: Sequence[Sequence[float]], least: int = 3) -> bool:
    """Whether the objective shows no noise: all repetitions gave exactly the same loss, at least ``least`` repetitions
    of at least two configurations."""
    repeated = [own for own in losses if len(own) > 1]
    return (
        len(repeated) > 1
        and sum(len(own) - 1 for own in repeated) >= least
        and all(len(set(own)) == 1 for own in repeated)
    )
