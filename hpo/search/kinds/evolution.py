"""Random search, and steady-state evolution with operators for each kind of parameter."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hpo.config.settings import SearchSettings
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Offspring, SearchContext
from hpo.space.parameters import Categorical, Ordinal
from hpo.space.space import SearchSpace

_INITIAL = 10
"""Fewest random individuals of an island before it breeds."""
_DEFAULTS = SearchSettings()


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Breeder of the kinds "random" and "evolution"."""
    return RandomBreeder(space) if settings.kind == "random" else EvolutionBreeder(space, settings)


class RandomBreeder(Breeder):
    """Draws configurations uniformly from the space."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        return Offspring(self._space.sample(rng), operator="random")


def reflect(value: float) -> float:
    """``value`` reflected at the borders of [0, 1]; 0.5 for a value that is not finite."""
    # Not finite after a degenerate covariance of CMA-ES; the individual is as good as a random one.
    if not math.isfinite(value):
        return 0.5
    value = math.fmod(abs(value), 2.0)
    return 2.0 - value if value > 1.0 else value


class EvolutionBreeder(RandomBreeder):
    """Steady-state evolution with operators for each kind of parameter.

    Parents are chosen by binary tournament among the best fifth and combined by uniform crossover. About 1.2 of the
    active parameters are mutated: numbers by a normal step whose width is drawn log-uniformly between 1/100 and 1/3 of
    the (log-scaled) range, ordered choices to a neighbour, other choices to any other choice. A child is drawn again,
    up to three times, where it is closer to a failed configuration, or to one of the worse half of pruned
    configurations, than to any completed configuration.
    """

    def __init__(self, space: SearchSpace, settings: SearchSettings = _DEFAULTS) -> None:
        super().__init__(space)
        self._pool = settings.pool
        self._crossover = settings.crossover
        self._random_rate = settings.random
        self._names = list(space.limits)
        self._counts = [
            None if isinstance(low, float) else int(high) + 1 for low, high in space.limits.values()
        ]
        self._open = [one.count != 1 for one in space.parameters.values()]
        self._unordered = [
            isinstance(one, Categorical) and not isinstance(one, Ordinal) for one in space.parameters.values()
        ]

        self.initial = max(_INITIAL, min(2 * len(self._names), 2 * _INITIAL))
        """Random individuals of the island before it breeds."""

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        few = population.judged < self.initial or len(population.best) < 2
        if few or rng.random() < self._random_rate:
            return Offspring(self._space.sample(rng), operator="random")
        pool = self._fittest(population)
        for _ in range(4):
            offspring = self._child(pool, rng)
            if not self._near_failure(offspring.genome, population):
                break
        return offspring

    def _fittest(self, population: Population) -> list[Member]:
        # ``judged`` counts pruned individuals too, which are worse than all completed: with many of them, the best
        # fifth of all individuals may be most of the completed.
        size = self._pool or max(5, population.judged // 5)
        return population.best[: max(2, size)]

    def _child(self, pool: Sequence[Member], rng: random.Random) -> Offspring:
        """Child of parents from ``pool``, which has the best first."""
        first, second = self._tournament(pool, rng), self._tournament(pool, rng)
        parents: tuple[str, ...] = (first.id,)
        genes = list(first.genome)
        if first is not second and rng.random() < self._crossover:
            parents = (first.id, second.id)
            genes = [a if rng.random() < 0.5 else b for a, b in zip(first.genome, second.genome)]
        present = self._space.decode(genes)
        active = [index for index, name in enumerate(self._names) if name in present]
        open_ = [index for index in active if self._open[index]]
        mutated = [index for index in open_ if rng.random() < 1.2 / len(open_)]
        if not mutated and open_ and tuple(genes) in (first.genome, second.genome):
            mutated = [rng.choice(open_)]
        for index in mutated:
            genes[index] = self._mutate(index, genes[index], rng)
        return Offspring(self._space.project_to_allowed(tuple(genes)), operator="evolution", parents=parents)

    @staticmethod
    def _tournament(pool: Sequence[Member], rng: random.Random) -> Member:
        # The smaller of two random places is the winner, as the pool is sorted with the best first.
        return pool[min(rng.randrange(len(pool)), rng.randrange(len(pool)))]

    def _mutate(self, index: int, gene: float, rng: random.Random) -> float:
        count: int | None = self._counts[index]
        if count is None:
            width = math.exp(rng.uniform(math.log(0.01), math.log(1 / 3)))
            return reflect(gene + rng.gauss(0.0, width))
        if self._unordered[index]:
            return (int(gene) + rng.randrange(1, count)) % count
        step = 1 + int(rng.expovariate(1.5))
        moved = int(gene) + (step if rng.random() < 0.5 else -step)
        if not 0 <= moved < count:
            moved = int(gene) + (step if moved < 0 else -step)
        return min(count - 1, max(0, moved))

    def _near_failure(self, genome: Sequence[float], population: Population) -> bool:
        pruned = sorted(population.pruned, key=_promise)
        bad = [*population.failures, *pruned[: len(pruned) // 2]]
        if not bad:
            return False
        nearest = min(self._distance(genome, member.genome) for member in bad)
        return all(self._distance(genome, member.genome) > nearest for member in population)

    def _distance(self, first: Sequence[float], second: Sequence[float]) -> float:
        total = 0.0
        for a, b, count, unordered in zip(first, second, self._counts, self._unordered):
            if a != b:
                total += 1.0 if unordered else abs(a - b) if count is None else abs(a - b) / (count - 1)
        return total


def _promise(pruned: Member) -> tuple[int, float]:
    """Sort key of a pruned individual, least promising first: last step, then loss there, as in Optuna's TPE."""
    step, loss = pruned.progress or (0, math.inf)
    return step, -loss
