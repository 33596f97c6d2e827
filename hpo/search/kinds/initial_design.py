"""Initial designs: the first individuals of an island as a space-filling set of points."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hpo.search.population import Population
from hpo.search.protocols import Breeder, Offspring, WrappingBreeder
from hpo.space.parameters import Categorical
from hpo.space.space import SearchSpace

if TYPE_CHECKING:
    from hpo.config.settings import Initial

_FIRST = 10
_FEWEST = 16


class InitialDesign(WrappingBreeder):
    """``breeder``, but for the first individuals of an island: those are points of one Sobol sequence (scrambled) or
    one Latin hypercube, each worker taking every ``workers``-th.

    A point follows from (seed, island, worker, sequence) alone, so that a resumed campaign goes on with the next. There
    are as many points as workers and ten more, at least 16."""

    def __init__(self, breeder: Breeder, space: SearchSpace, kind: Initial, *, workers: int) -> None:
        super().__init__(breeder)
        self._kind = kind
        self._workers = workers
        self._size = max(_FEWEST, workers + _FIRST)
        self._counts = [p.count if isinstance(p, Categorical) else None for p in space.parameters.values()]
        self._points: dict[str, list[list[float]]] = {}

    def propose_first(
        self, identity: str, seed: int, population: Population, rng: random.Random
    ) -> Offspring | None:
        island, worker, sequence = (int(part) for part in identity.split("-"))
        point = self._point(seed, island, worker, sequence)
        return point or super().propose_first(identity, seed, population, rng)

    def _point(self, seed: int, island: int, worker: int, sequence: int) -> Offspring | None:
        """The point of an individual; None where it comes after those of the design."""
        place = sequence * self._workers + worker
        if worker >= self._workers or place >= self._size:
            return None
        point = self._drawn(f"{seed}/{island}")[place]
        genome = tuple(
            gene if count is None else min(count - 1, int(gene * count))
            for gene, count in zip(point, self._counts)
        )
        return Offspring(genome, operator=self._kind)

    def _drawn(self, seed: str) -> list[list[float]]:
        if seed not in self._points:
            import numpy
            from scipy.stats import qmc

            generator = numpy.random.default_rng(random.Random(f"design/{seed}").getrandbits(64))
            if self._kind == "sobol":
                # Balanced in powers of two only: draw the next one, of which the first are used.
                sampler = qmc.Sobol(len(self._counts), seed=generator)
                points = sampler.random_base2((self._size - 1).bit_length())
            else:
                points = qmc.LatinHypercube(len(self._counts), seed=generator).random(self._size)
            self._points = {seed: points.tolist()}
        return self._points[seed]
