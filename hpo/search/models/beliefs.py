"""Weight of beliefs in the choice of proposals, which falls with the number of results (πBO; Hvarfner et al. 2022,
arXiv:2204.11051)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.observations import normal_scores
from hpo.search.population import Member
from hpo.space.beliefs import DOUBT
from hpo.space.space import SearchSpace

# The paper's weight is _LASTING / results. With its square, beliefs in the worst of a thousand configurations delay the
# search by less, and beliefs near the optimum help as much (tests/benchmarks/priors.py).
_LASTING = 10.0
"""Results with which the weight of beliefs is 1."""
_REFUTED = -0.3
"""Rank correlation of the density of beliefs with how good results are from which on beliefs have no weight; from 0 on
they have all of it."""


class BeliefWeighting:
    """Raises the bounds of configurations that the beliefs of ``space`` consider unlikely to be good.

    The density is that from which random individuals are drawn, a mixture with the uniform density: a belief that is
    wrong in all parameters has a bounded influence. Beliefs have no weight where they order the results wrongly.
    """

    def __init__(self, space: SearchSpace, genomes: VectorisedGenomes) -> None:
        beliefs = enumerate(one.belief for one in space.parameters.values())
        self._beliefs = [(column, belief) for column, belief in beliefs if belief is not None]
        self._genomes = genomes
        self.weight = 0.0
        """Weight for the next proposal."""
        self.refuted = False
        """Whether results are the worse the more they were believed to be good."""

    def learn(self, members: Sequence[Member], results: int) -> None:
        """Set the weight after ``results`` results, of which ``members`` have completed."""
        import numpy

        if not self._beliefs:
            return
        unlikely = self._unlikely(numpy.array([one.genome for one in members], dtype=float))
        unlikely, ranks = normal_scores(unlikely), normal_scores([one.rank for one in members])
        spread = math.sqrt(float((unlikely**2).sum() * (ranks**2).sum()))
        correlation = float((unlikely * ranks).sum()) / max(spread, 1e-9)
        trust = min(1.0, max(0.0, 1.0 - correlation / _REFUTED))
        self.refuted = trust == 0.0
        self.weight = trust * (_LASTING / results) ** 2

    def __call__(self, bounds: Any, genomes: Any, *, gains: bool) -> Any:
        """Raised ``bounds`` of ``genomes``; ``gains``: whether negative bounds are gains with the opposite sign, whose
        scale falls as the search goes on."""
        import numpy

        if not self.weight:
            return bounds
        penalty = self.weight * self._unlikely(genomes)
        if gains:
            return numpy.where(bounds < 0.0, bounds * numpy.exp(-penalty), bounds + penalty)
        return bounds + penalty

    def _unlikely(self, genomes: Any) -> Any:
        """Logarithm of the ratio of the density at the centres to that of each genome."""
        import numpy

        active = self._genomes.active(genomes)
        # Relative to the centres of the active parameters, so that no choice is preferred for their number.
        found, most = numpy.zeros((2, len(genomes)))
        for column, belief in self._beliefs:
            here = active[:, column]
            found += numpy.where(here, belief.log_density(genomes[:, column]), 0.0)
            most += numpy.where(here, belief.log_density(belief.centre), 0.0)
        found, most = (numpy.logaddexp(math.log(1 - DOUBT) + one, math.log(DOUBT)) for one in (found, most))
        return most - found
