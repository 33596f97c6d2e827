"""What a configuration is worth whose evaluations differ by chance: its mean loss, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_FEWEST = 5
_LARGEST = 1e100
"""Its square, and a sum of many, is still a number."""
_DOUBT = 2.0
"""So many repetitions that had differed by half as much as configurations do count beside those that were made."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean and standard deviation of what is believed of a configuration's mean loss."""

    mean: float
    deviation: float


def estimates(losses: Sequence[Sequence[float]]) -> list[Estimate]:
    """For each configuration, from the losses of its evaluations, one or more: its posterior.

    Evaluations of one configuration are taken as normal around its mean, with a variance that all share and that is
    pooled from those evaluated more than once; the means of the better configurations as normal around that of the
    best quarter (empirical Bayes; Efron and Morris 1973, doi:10.1080/01621459.1973.10481350). So what was lucky once
    moves towards the others by as much as luck explains. In that variance losses beyond the median count as the
    median: what diverged does not say how much the good ones vary. Where each was evaluated once, the order stays that
    of the losses."""
    losses = [[max(-_LARGEST, min(one, _LARGEST)) for one in own] for own in losses]
    means = [statistics.fmean(own) for own in losses]
    better = sorted(means)[: max(_FEWEST, len(means) // 4)]
    centre = statistics.fmean(better)
    between = _squares(better) / len(better)
    middle = statistics.median_low([one for own in losses for one in own])
    repeated = [[min(one, middle) for one in own] for own in losses if len(own) > 1]
    freedom = sum(len(own) - 1 for own in repeated)
    noise = (sum(map(_squares, repeated)) + _DOUBT * between / 2) / (freedom + _DOUBT)
    if noise == 0.0 or between == 0.0:
        return [Estimate(mean, 0.0) for mean in means]
    found = []
    for mean, own in zip(means, losses):
        precision = len(own) / noise + 1 / between
        weight = len(own) / noise / precision
        found.append(Estimate(weight * mean + (1 - weight) * centre, math.sqrt(1 / precision)))
    return found


def _squares(values: Sequence[float]) -> float:
    """Sum of squared differences from the mean."""
    mean = statistics.fmean(values)
    return sum((one - mean) ** 2 for one in values)


def exact(losses: Sequence[Sequence[float]], least: int = 3) -> bool:
    """Whether evaluations do not differ by chance: ``least`` repetitions or more, and each like the one before."""
    repeated = [own for own in losses if len(own) > 1]
    return sum(len(own) - 1 for own in repeated) >= least and all(len(set(own)) == 1 for own in repeated)
