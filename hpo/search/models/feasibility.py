"""Models of limits of outcomes, and proposals that are likely to keep them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.ensemble import FrontEnsemble, Model, ModelEnsemble
from hpo.search.models.observations import Observations, limit_scores
from hpo.search.models.pareto import Losses

_NARROWEST = 1e-3
"""Least standard deviation of a score."""
_AVERSION = 4.0
"""Weight of the probability that a limit is broken where no gain is expected, or that an evaluation fails."""


class LimitedEnsemble:
    """An ensemble of models of the excess over each limit beside ``inner``, that of the objectives.

    The acquisition function is the gain over the best that keeps all limits, times the probability of keeping them
    (Schonlau et al. 1998). Until an individual keeps them, it is the sum of the predicted violations. ``objectives``,
    ``limits``: numbers of them.
    """

    def __init__(
        self,
        inner: ModelEnsemble | FrontEnsemble,
        sampler: VectorisedGenomes,
        *,
        objectives: int,
        limits: int,
    ) -> None:
        self._inner = inner
        self._several = objectives > 1
        self._limits = [ModelEnsemble(sampler, objectives + number, limit_scores) for number in range(limits)]

    def learn(self, news: Sequence[tuple[Any, Losses]]) -> None:
        """See ``ModelEnsemble.learn``."""
        for ensemble in (self._inner, *self._limits):
            ensemble.learn(news)

    def share_of_chance(self, rng: random.Random) -> float:
        """See ``ModelEnsemble.share_of_chance``."""
        return self._inner.share_of_chance(rng)

    def judge(self, known: Observations, rng: random.Random) -> Callable[[Any], Any]:
        """Acquisition function with a random model for each objective and limit."""
        import numpy

        models = [ensemble.draw(known, rng)[0] for ensemble in self._limits]
        fit = known.fit
        if not fit.any():
            failing, caution = self._limits[0].failing(known, rng), rng.expovariate(1.0)
            return lambda rows: _violation(models, failing, rows, caution)
        judge = self._inner.judge(known, rng)
        # The gain in hypervolume of several objectives is measured from the front.
        origin = 0.0 if self._several else float(judge(known.rows[fit]).min())

        def limited(rows: Any) -> Any:
            gain, chance = origin - judge(rows), _chance(models, rows)
            return numpy.where(gain > 0.0, -gain * chance, _AVERSION * (1.0 - chance) - gain)

        return limited


def _chance(models: Sequence[Model], rows: Any) -> Any:
    """Probability that each row keeps all limits."""
    import numpy
    from scipy.special import ndtr

    chance = numpy.ones(len(rows))
    for model in models:
        mean, deviation = model(rows)
        chance *= ndtr(-mean / numpy.maximum(deviation, _NARROWEST))
    return chance


def _violation(models: Sequence[Model], failing: Model | None, rows: Any, caution: float) -> Any:
    """Sum of the excesses over all limits at ``caution`` standard deviations below their means, minus the probability
    of keeping all; more where an evaluation is likely to fail."""
    import numpy

    total = -_chance(models, rows) + (0.0 if failing is None else _AVERSION * failing(rows)[0])
    for model in models:
        mean, deviation = model(rows)
        total += numpy.maximum(mean - caution * deviation, 0.0)
    return total
