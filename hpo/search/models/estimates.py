"""Estimates of the mean loss of configurations whose evaluations are noisy, with their standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_FEWEST = 5
_LARGEST = 1e100
"""Its square, and a sum of many, is still a number."""
_DOUBT = 2.0
"""The prior of the noise, half of the variance between configurations, counts as much as this many repetitions."""
_FAR = 5.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean and standard deviation of what is believed of a configuration's mean loss; ``noise``: the variance of an
    evaluation."""

    mean: float
    deviation: float
    noise: float

    def after(self, more: int) -> float:
        """What the deviation will be after ``more`` evaluations, whatever they bring."""
        if not more or self.deviation == 0.0 or self.noise == 0.0:
            return self.deviation
        return 1 / math.sqrt(1 / self.deviation**2 + more / self.noise)


def estimates(losses: Sequence[Sequence[float]]) -> list[Estimate]:
    """For each configuration, from the losses of its evaluations, one or more: its posterior.

    Evaluations of one configuration are taken as normal around its mean, with a variance that all share and that is
    pooled from those evaluated more than once; the means of the better configurations as normal around that of the
    best quarter (empirical Bayes; Efron and Morris 1973, doi:10.1080/01621459.1973.10481350). So what was lucky once
    moves towards the others by as much as luck explains. What lies further from that centre than five times the median
    configuration counts as that far in the variance: what diverged does not say how much the good ones vary. Where
    each was evaluated once, the order stays that of the losses."""
    means = [mean_of(own) for own in losses]
    ordered = sorted(means)
    better = ordered[: max(_FEWEST, len(means) // 4)]
    centre = statistics.fmean(better)
    between = _squares(better) / len(better)
    far = _FAR * (ordered[len(ordered) // 2] - centre)
    limit = centre + far if far > 0.0 else _LARGEST
    repeated = [[max(-_LARGEST, min(one, limit)) for one in own] for own in losses if len(own) > 1]
    freedom = sum(len(own) - 1 for own in repeated)
    noise = (sum(map(_squares, repeated)) + _DOUBT * between / 2) / (freedom + _DOUBT)
    between = between or noise  # the best may be equal, and differ all the same when they are repeated
    if noise == 0.0:
        return [Estimate(mean, 0.0, 0.0) for mean in means]
    found = []
    for mean, own in zip(means, losses):
        precision = len(own) / noise + 1 / between
        weight = len(own) / noise / precision
        found.append(Estimate(weight * mean + (1 - weight) * centre, math.sqrt(1 / precision), noise))
    return found


def median_of(losses: Iterable[Sequence[float]]) -> float:
    """The mean of the median configuration."""
    ordered = sorted(map(mean_of, losses))
    return ordered[len(ordered) // 2]


def mean_of(values: Sequence[float]) -> float:
    """The mean; of values too large for it, one as large as can be worked with."""
    return statistics.fmean([max(-_LARGEST, min(one, _LARGEST)) for one in values])


def _squares(values: Sequence[float]) -> float:
    """Sum of squared differences from the mean."""
    mean = statistics.fmean(values)
    return sum((one - mean) ** 2 for one in values)


def exact(losses: Sequence[Sequence[float]], least: int = 3) -> bool:
    """Whether evaluations do not differ by chance, as far as is known: ``least`` repetitions or more, of at least two
    configurations, and each like the one before."""
    repeated = [own for own in losses if len(own) > 1]
    return (
        len(repeated) > 1
        and sum(len(own) - 1 for own in repeated) >= least
        and all(len(set(own)) == 1 for own in repeated)
    )
