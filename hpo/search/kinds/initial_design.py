"""Initial designs: the first individuals of an island as a space-filling set of points."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hpo.individual import birthplace
from hpo.search.population import Population
from hpo.search.protocols import Breeder, Offspring, WrappingBreeder
from hpo.space.space import SearchSpace

if TYPE_CHECKING:
    from hpo.config.settings import Initial

_FIRST = 10
"""Points of a design beyond a point for each worker."""
_FEWEST = 16
"""Fewest points of a design."""


class InitialDesign(WrappingBreeder):
    """Takes the first individuals of an island from a space-filling design, and later individuals from ``breeder``.

    The design is a scrambled Sobol sequence or a Latin hypercube, with ten more points than workers and at least 16, of
    quantiles of the beliefs where there are any; each worker takes every ``workers``-th point. A point depends on the
    seed, the island, the worker and the number of its proposal alone, so that a resumed campaign continues with the
    next point.
    """

    def __init__(self, breeder: Breeder, space: SearchSpace, kind: Initial, *, workers: int) -> None:
        super().__init__(breeder)
        self._kind = kind
        self._workers = workers
        self._size = max(_FEWEST, workers + _FIRST)
        self._space = space
        self._points: dict[str, list[list[float]]] = {}
        self._sequence = 0

    def begin_proposal(self, sequence: int) -> None:
        self._sequence = sequence
        super().begin_proposal(sequence)

    def propose_first(
        self, identity: str, seed: int, population: Population, rng: random.Random
    ) -> Offspring | None:
        island, worker, _ = birthplace(identity)
        point = self._point(f"{seed}/{island}", worker)
        return point or super().propose_first(identity, seed, population, rng)

    def _point(self, seed: str, worker: int) -> Offspring | None:
        """Point of the design for the next individual of a worker; None after the end of the design."""
        # The workers of an island have consecutive numbers.
        place = self._sequence * self._workers + worker % self._workers
        if place >= self._size:
            return None
        point = self._drawn(seed)[place]
        return Offspring(self._space.at_quantiles(point), operator=self._kind)

    def _drawn(self, seed: str) -> list[list[float]]:
        if seed not in self._points:
            import numpy
            from scipy.stats import qmc

            generator = numpy.random.default_rng(random.Random(f"design/{seed}").getrandbits(64))
            if self._kind == "sobol":
                # A Sobol sequence is balanced for powers of two only: the next power is drawn, and its first points
                # are used.
                sampler = qmc.Sobol(len(self._space), seed=generator)
                points = sampler.random_base2((self._size - 1).bit_length())
            else:
                points = qmc.LatinHypercube(len(self._space), seed=generator).random(self._size)
            self._points = {seed: points.tolist()}
        return self._points[seed]
