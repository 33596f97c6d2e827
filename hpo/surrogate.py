"""Offspring of the typed evolution, screened by a forest: of many children the most promising one is proposed.

Imports scikit-learn when the first forest is grown, for that takes a second; so do not import this module's
libraries at its top."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from hpo.breeding import TypedBreeder
from hpo.individual import COMPLETED
from hpo.parameters import Categorical, Ordinal
from hpo.population import Member, Population
from hpo.seams import Genome, Offspring
from hpo.space import SearchSpace

_INITIAL = 10
"""Completed individuals of the island before the first forest."""
_SCREENED = 150
_REFINED = 75
_PARENTS = 10
_CAUTION = 2.0
_CHANCE = 4.0
_TREES = 40
_SHARE_OF_COLUMNS = 0.35
"""Columns tried at each split. Fewer make trees differ more, which is what their spread is read for."""
_REFIT = 100
"""A forest stays while fewer than one in so many of the observations are new: up to so many, none."""
_MOST_BEST, _MOST_LATEST, _MOST_FAILED = 300, 120, 80
"""Observations that a forest is grown on. Those of a population's bounds are among them, or they would come again
and again."""
_SLACK = 50
_MOST_USED = 20_000
_LARGEST_ONE_HOT = 32
_SHARE_OF_TIME = 0.05
_IMPORT_S = 1.0


@lru_cache(maxsize=1)
def _sklearn() -> tuple[Any, Any]:
    return importlib.import_module("sklearn"), importlib.import_module("sklearn.tree").ExtraTreeRegressor


class Features:
    """Configurations as rows of numbers: a column a number or ordered choice, a column a choice where there is no
    order; -1 where the parameter does not exist."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._columns: list[tuple[str, int, float, int]] = []
        self.width = 0
        for name, parameter in space.parameters.items():
            count = parameter.count if isinstance(parameter, Categorical) else None
            unordered = count is not None and not isinstance(parameter, Ordinal)
            one_hot = count if count is not None and unordered and 2 < count <= _LARGEST_ONE_HOT else 0
            scale = 1.0 if count is None else 1.0 / max(1, count - 1)
            self._columns.append((name, self.width, scale, one_hot))
            self.width += one_hot or 1

    def __call__(self, genomes: Sequence[Sequence[float]]) -> tuple[Any, list[Genome]]:
        """An array of a row each, and of each genome the one that stands for its configuration."""
        import numpy

        rows = numpy.zeros((len(genomes), self.width), dtype=numpy.float32)
        same = []
        for row, genome in zip(rows, genomes):
            params = self._space.decode(genome)
            canonical = self._space.encode(params)
            same.append(canonical)
            for gene, (name, start, scale, one_hot) in zip(canonical, self._columns):
                if name not in params:
                    row[start : start + (one_hot or 1)] = -1.0
                elif one_hot:
                    row[start + int(gene)] = 1.0
                else:
                    row[start] = gene * scale
        return rows, same


class Forest:
    """Extremely randomised trees (Geurts et al. 2006, doi:10.1007/s10994-006-6226-1), each on all observations."""

    def __init__(self, rows: Any, goals: Any, rng: random.Random) -> None:
        import numpy

        sklearn, tree = _sklearn()
        state = numpy.random.RandomState(rng.getrandbits(32))
        # Checking a tree's parameters costs twice what growing it does.
        with sklearn.config_context(skip_parameter_validation=True):
            self._trees = [
                tree(max_features=_SHARE_OF_COLUMNS, random_state=state)
                .fit(rows, goals, check_input=False)
                .tree_
                for _ in range(_TREES)
            ]

    def __call__(self, rows: Any) -> tuple[Any, Any]:
        """Mean of what the trees say of each row, and its standard deviation between trees."""
        import numpy

        said = numpy.array([tree.predict(rows)[:, 0] for tree in self._trees])
        return said.mean(axis=0), said.std(axis=0)


def normal_scores(losses: Sequence[float]) -> Any:
    """For each loss the quantile of the normal distribution at its rank, ties at their middle rank: neither scale
    nor outliers matter."""
    import numpy
    from scipy.special import ndtri

    values = numpy.asarray(losses, dtype=float)
    ordered = numpy.sort(values)
    below = numpy.searchsorted(ordered, values, "left")
    not_above = numpy.searchsorted(ordered, values, "right")
    return ndtri((below + not_above) / (2 * len(values)))


class SurrogateBreeder(TypedBreeder):
    """Draws many children, 40 in a hundred at random and the others as the typed evolution does, breeds more from the
    most promising of them, and proposes the one of the lowest confidence bound of all: mean less k standard
    deviations of a forest's prediction.

    k is drawn anew each time from an exponential distribution of mean 2, for several workers propose from nearly
    the same knowledge. Failed individuals count as the worst there are. What was proposed or seen before is not
    proposed. With several objectives it is the typed evolution. ``random_rate``: a quarter of the share that is
    drawn at random.

    It remembers more than a population does: the best 300, the latest 120 and the last 80 failed of all that its
    populations have shown it."""

    operator = "surrogate"

    def __init__(
        self, space: SearchSpace, *, pool: int | None = None, crossover: float = 0.7, random_rate: float = 0.1
    ) -> None:
        super().__init__(space, pool=pool, crossover=crossover, random_rate=random_rate)
        self._features = Features(space)
        # By id: the row and the loss, None for failed ones. In order of arrival.
        self._completed: dict[str, tuple[Any, float]] = {}
        self._failed: dict[str, Any] = {}
        self._used: dict[Genome, None] = {}
        self._new = 0
        self._forest: Forest | None = None

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        best = population.best
        if len(best) > 0 and len(best[0].losses or ()) > 1:
            return super().breed(population, rng)
        if population.completed < _INITIAL or len(best) < 2:
            return Offspring(self._space.sample(rng), "random")
        self._observe(population)
        forest, caution = self._grown(rng), rng.expovariate(1.0 / _CAUTION)
        pool = self._fittest(population)
        drawn = [self._draw(pool, rng) for _ in range(_SCREENED)]
        ranked = self._ranked(drawn, forest, caution)
        if not ranked:
            return drawn[0]
        # The most promising children breed in their turn, as if they had been evaluated.
        grown_up = [
            Member("".join(child.parents[:1]), child.genome, (bound,), COMPLETED)
            for bound, child, _ in ranked[:_PARENTS]
        ]
        refined = [self._child(grown_up, rng) for _ in range(_REFINED)]
        ranked = sorted(ranked[:1] + self._ranked(refined, forest, caution)[:1], key=lambda one: one[0])
        _, child, same = ranked[0]
        self._use(same)
        parents = tuple(dict.fromkeys(one for one in child.parents if one))
        return Offspring(child.genome, self.operator if parents else "random", parents)

    def _draw(self, pool: Sequence[Member], rng: random.Random) -> Offspring:
        if rng.random() < _CHANCE * self._random_rate:
            return Offspring(self._space.sample(rng), "random")
        return self._child(pool, rng)

    def _ranked(
        self, children: Sequence[Offspring], forest: Forest, caution: float
    ) -> list[tuple[float, Offspring, Genome]]:
        """Those that are new, the lowest bound first, with what stands for their configurations."""
        rows, same = self._features([child.genome for child in children])
        fresh = [index for index, genome in enumerate(same) if genome not in self._used]
        if not fresh:
            return []
        mean, deviation = forest(rows[fresh])
        bounds = (mean - caution * deviation).tolist()
        ranked = [(bound, children[index], same[index]) for bound, index in zip(bounds, fresh)]
        ranked.sort(key=lambda one: one[0])
        return ranked

    def _grown(self, rng: random.Random) -> Forest:
        import numpy

        if self._forest is None or self._new * _REFIT >= len(self._completed) + len(self._failed):
            rows = [row for row, _ in self._completed.values()] + list(self._failed.values())
            losses = [loss for _, loss in self._completed.values()] + [float("inf")] * len(self._failed)
            self._forest = Forest(numpy.array(rows), normal_scores(losses), rng)
            self._new = 0
        return self._forest

    def _observe(self, population: Population) -> None:
        shown: dict[str, Member] = {}
        for members in (population.best, population.recent, population.failures):
            shown.update((one.id, one) for one in members)
        fresh = [
            one for one in shown.values() if one.id not in self._completed and one.id not in self._failed
        ]
        if not fresh:
            return
        fresh.sort(key=lambda one: one.age)
        rows, same = self._features([one.genome for one in fresh])
        for member, row, genome in zip(fresh, rows, same):
            self._use(genome)
            if member.losses is None or member.status != COMPLETED:
                self._failed[member.id] = row
            else:
                self._completed[member.id] = (row, member.losses[0])
        self._new += len(fresh)
        _forget(self._failed, list(self._failed)[:-_MOST_FAILED])
        if len(self._completed) > _MOST_BEST + _MOST_LATEST + _SLACK:
            # The sort is stable: of equal ones the older stays, as in a population.
            old = sorted(list(self._completed)[:-_MOST_LATEST], key=lambda one: self._completed[one][1])
            _forget(self._completed, old[_MOST_BEST:])

    def _use(self, genome: Genome) -> None:
        self._used[genome] = None
        if len(self._used) > _MOST_USED:
            del self._used[next(iter(self._used))]


class ThriftyBreeder(SurrogateBreeder):
    """Screens as long as that takes no more than a twentieth of the time since the first individual, all of which
    would else go to evaluations; beyond that, it is the typed evolution.

    So where evaluations take minutes every individual is screened, where they take milliseconds one now and then,
    and a campaign that is over in 20 s does not even import what grows the forest. ``clock``: seconds; virtual ones
    in a simulation, so that there the same seeds breed the same."""

    def __init__(self, space: SearchSpace, *, clock: Callable[[], float], **settings: Any) -> None:
        super().__init__(space, **settings)
        self._clock = clock
        self._began: float | None = None
        self._spent = _IMPORT_S

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        now = self._clock()
        if self._began is None:
            self._began = now
        if self._spent > _SHARE_OF_TIME * (now - self._began):
            return TypedBreeder.breed(self, population, rng)
        offspring = super().breed(population, rng)
        self._spent += self._clock() - now
        return offspring


def _forget(remembered: dict[str, Any], identities: Iterable[str]) -> None:
    for identity in identities:
        del remembered[identity]
