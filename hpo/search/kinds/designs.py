"""What needs no observations: the first individuals spread over the space, and all points of a grid."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Genome, Offspring
from hpo.space.parameters import Categorical, Ordinal, Parameter
from hpo.space.restricted import RestrictedSpace
from hpo.space.space import SearchSpace

if TYPE_CHECKING:
    from hpo.config.settings import Initial

_FIRST = 10
_FEWEST = 16
_LARGEST_GRID = 100_000
"""Listing so many takes about a second."""


class Designed:
    """``breeder``, but for the first individuals of an island: those are points of one Sobol sequence (scrambled) or
    one Latin hypercube, each worker taking every ``workers``-th.

    A point follows from (seed, island, worker, sequence) alone, so that a resumed campaign goes on with the next. There
    are as many points as workers and ten more, at least 16."""

    def __init__(self, breeder: Breeder, space: SearchSpace, kind: Initial, *, workers: int = 1) -> None:
        self.breeder = breeder
        self._kind = kind
        self._workers = workers
        self._size = max(_FEWEST, workers + _FIRST)
        self._counts = [p.count if isinstance(p, Categorical) else None for p in space.parameters.values()]
        self._points: dict[str, list[list[float]]] = {}

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        return self.breeder.breed(population, rng)

    def learn(self, member: Member) -> None:
        self.breeder.learn(member)

    def first(self, seed: int, island: int, worker: int, sequence: int) -> Offspring | None:
        """The point of an individual; None where it comes after those of the design."""
        place = sequence * self._workers + worker
        if worker >= self._workers or place >= self._size:
            return None
        point = self._drawn(f"{seed}/{island}")[place]
        genome = tuple(
            gene if count is None else min(count - 1, int(gene * count))
            for gene, count in zip(point, self._counts)
        )
        return Offspring(genome, self._kind)

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


class GridBreeder:
    """All configurations of a grid, in random order: ``grid_points`` values of each Float, and of each Int that has
    more (equally spaced, on a logarithmic range by ratio; both ends, and the values that conditions name, are among
    them), all choices of the others.

    What others have evaluated is refused to it, so that workers and islands share one grid. When it is used up, the
    campaign ends where that was the whole space, and else goes on at random.

    Raises UsageError for a grid of more than 100 000."""

    def __init__(self, space: SearchSpace, grid_points: int = 5) -> None:
        self._space = space
        named: dict[str, set[object]] = {}
        for parameter in space.parameters.values():
            for parent, allowed in parameter.when.items():
                named.setdefault(parent, set()).update(allowed)
        grid = SearchSpace(
            {
                name: _listed(parameter, grid_points, named.get(name, set()))
                for name, parameter in space.parameters.items()
            }
        )
        size = grid.size or 0
        if size > _LARGEST_GRID:
            raise UsageError(
                f'[search] kind = "grid": grid_points = {grid_points} makes {size} configurations, and 100000 are '
                'the limit. Lower it, search fewer parameters, or use kind = "random" with initial = "sobol".'
            )
        self._grid = grid
        self._left: list[Genome] | None = None
        self._places: dict[Genome, int] = {}

    @property
    def patience(self) -> int:
        """How many proposals in a row may turn out to be known before others are worth trying."""
        return len(self._remaining())

    def learn(self, member: Member) -> None:
        self._take(member.genome)

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        left = self._remaining()
        for member in population.recent[-8:]:
            self._take(member.genome)
        if not left:
            return Offspring(self._space.sample(rng), "random")
        genome = rng.choice(left)
        self._take(genome)
        return Offspring(genome, "grid")

    def _remaining(self) -> list[Genome]:
        if self._left is None:
            encode, project_to_allowed = self._space.encode, self._space.project_to_allowed
            found = (encode(params) for params in self._grid.enumerate())
            restricted = isinstance(self._space, RestrictedSpace)
            self._left = [
                genome for genome in found if not restricted or project_to_allowed(genome) == genome
            ]
            self._places = {genome: place for place, genome in enumerate(self._left)}
        return self._left

    def _take(self, genome: Genome) -> None:
        left = self._remaining()
        place = self._places.pop(genome, None)
        if place is not None:
            last = left.pop()
            if last != genome:
                left[place] = last
                self._places[last] = place


def _listed(parameter: Parameter, points: int, named: set[object]) -> Parameter:
    """``parameter`` with the grid's values only."""
    if isinstance(parameter, Categorical):
        return parameter
    count = parameter.count
    if count is not None and count <= points:
        values = list(parameter.values())
    else:
        decode = parameter.decoder()
        # Those that conditions name are asked for one by one: a range may hold 2**50 whole numbers.
        values = sorted(
            {decode(index / (points - 1)) for index in range(points)}
            | {parameter.canonical(value) for value in named},
            key=float,  # type: ignore[arg-type]
        )
    return Ordinal(*dict.fromkeys(values), when=parameter.when or None)
