"""Grid search: all points of a grid over the space, in random order."""

from __future__ import annotations

import random

from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.individual import GRID, Scalar
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Genome, Offspring, SearchContext
from hpo.space.parameters import Categorical, Ordinal, Parameter, When
from hpo.space.space import SearchSpace

_LARGEST_GRID = 100_000
"""Most configurations of a grid; listing this many takes about a second."""


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    return GridBreeder(space, settings.grid_points)


class GridBreeder(Breeder):
    """Proposes all configurations of a grid in random order.

    The grid has ``grid_points`` values of each Float, and of each Int with more values, and all values of the other
    parameters. Values are equally spaced, on a logarithmic range by ratio, and include both ends and the values that
    conditions name. Configurations that others have evaluated are refused by the campaign, so that all workers and
    islands share a single grid. When it is used up, the campaign ends if the grid was the whole space, and otherwise
    continues with random search.
    """

    def __init__(self, space: SearchSpace, grid_points: int) -> None:
        self._space = space
        named: dict[str, set[Scalar]] = {}
        for conditions in space.conditions.values():
            for parent, allowed in conditions.items():
                named.setdefault(parent, set()).update(allowed)
        grid = SearchSpace(
            {
                name: _listed(parameter, grid_points, named.get(name, set()), space.conditions[name] or None)
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

    def further_attempts(self, attempts: int) -> int:
        # Configurations of this grid that others have taken come back refused, and each costs an attempt.
        return attempts + len(self._remaining())

    def unused(self, genome: Genome) -> None:
        left = self._remaining()
        if genome not in self._places:
            self._places[genome] = len(left)
            left.append(genome)

    def learn(self, member: Member) -> None:
        self._take(member.genome)

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        left = self._remaining()
        for member in population.recent[-8:]:
            self._take(member.genome)
        if not left:
            return Offspring(self._space.sample(rng), operator="random")
        genome = rng.choice(left)
        self._take(genome)
        return Offspring(genome, operator=GRID)

    def _remaining(self) -> list[Genome]:
        if self._left is None:
            found = (self._space.encode(params) for params in self._grid.enumerate())
            allowed = self._space.project_to_allowed
            self._left = [genome for genome in found if allowed(genome) == genome]
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


def _listed(parameter: Parameter, points: int, named: set[Scalar], when: When | None) -> Parameter:
    """``parameter`` restricted to the values of the grid, which exists ``when``."""
    if isinstance(parameter, Categorical):
        return type(parameter)(*parameter.choices, when=when)
    count = parameter.count
    if count is not None and count <= points:
        values = list(parameter.values())
    else:
        decode = parameter.decoder()
        # Values that conditions name are added to the grid's; testing each value of a range is impossible, as it may
        # have 2**50 whole numbers.
        values = sorted(
            {decode(index / (points - 1)) for index in range(points)} | named,
            key=float,  # type: ignore[arg-type]
        )
    return Ordinal(*dict.fromkeys(values), when=when)
