"""Surrogate search: many children are bred by evolution, and models choose the most promising child."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpo.config.settings import SearchSettings
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.beliefs import BeliefWeighting
from hpo.search.models.ensemble import FrontEnsemble, ModelEnsemble, import_in_background
from hpo.search.models.feasibility import LimitedEnsemble
from hpo.search.models.observations import Observations
from hpo.search.models.transfer import FEWEST, TransferEnsemble
from hpo.search.population import Member, OtherTasks, Population
from hpo.search.proposals import beside
from hpo.search.protocols import Breeder, Offspring, SearchContext
from hpo.space.space import SearchSpace
from hpo.task.known_point import Allows

INITIAL = 10
"""Completed individuals of the island before the first model."""
_DRAWN = 150
"""Children of the first round."""
_CHANCE = 4.0
"""Ratio of the share of random children to the setting ``random``."""
_COARSE = (0.01, 1 / 3)
"""Least and largest widths of mutations of numbers in the first round."""
_FINER = ((0.01, 0.3), (0.003, 0.3), (0.001, 0.1), (0.0003, 0.1))
"""The same in the later rounds, whose parents are the best children so far."""
_REFINED = 75
"""Children of each later round."""
# Parents of a later round, without a parameter of unordered choices, and for each choice of such a parameter.
_PARENTS, _NICHE = 10, 3
# A model that has seen a choice only together with badly tuned numbers may never propose that choice again.
_ELSEWHERE = 0.5
"""Share of proposals with another choice of an unordered parameter than the most promising, while the best stalls."""
_FIRST = 200
"""Individuals of a campaign that the default kind chooses by models, however short evaluations are."""
_WORKERS_PER_CORE = 2
"""Most workers for each core with which models are used from the beginning."""
_SHARE_OF_TIME = 0.05
"""Largest share of the time that models may take after the first individuals."""
_IMPORT_S = 1.0
"""Seconds that the import of scikit-learn counts for."""
# The import takes several seconds where the files are not in the cache of a cluster's file system.
_IMPORT_LIMIT_S = 30.0
"""Most seconds that breeding waits for the import, once."""


_DEFAULTS = SearchSettings()


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Breeder of the kinds "surrogate" and "default", which uses models within a budget of time if there is a clock."""
    if settings.kind == "surrogate":
        return SurrogateBreeder(
            space, settings, allows=context.allows, reported=context.reported, tasks=context.tasks
        )
    if context.clock is None:
        return EvolutionBreeder(space, settings)
    return TimeBudgetedSurrogate(
        space,
        settings,
        allows=context.allows,
        reported=context.reported,
        tasks=context.tasks,
        clock=context.clock,
        first=first_of_worker(context),
        # No thread beside inline evaluations, which may import the same libraries at the same time; and none for a
        # campaign so short that all its individuals are random.
        background=not context.inline
        and (context.evaluations is None or context.evaluations > INITIAL * context.islands),
    )


class SurrogateBreeder(EvolutionBreeder):
    """Proposes the most promising of many children, by the predictions of models.

    40 % of the first children are random and the others bred as by ``EvolutionBreeder``; four further rounds breed from
    the most promising children. The child with the lowest confidence bound is proposed: predicted mean minus k standard
    deviations (``hpo.search.models.ensemble.ModelEnsemble``), with a random k for each proposal.

    The most promising children always include some with each choice of an unordered parameter, drawn for each proposal;
    otherwise children with the leading choice would crowd out those with other choices whose own parameters are not
    tuned yet. While the best result stalls, half of the proposals take another choice than the leading one of that
    parameter. Configurations that were proposed or observed before are not proposed, nor are configurations that a
    constraint refuses: models have no observations of these, and next to a good configuration predict good losses.

    With several objectives, the most promising child is that whose bounds add most to the hypervolume of the front
    (``hpo.search.models.ensemble.FrontEnsemble``). ``reported``: number of the objective that pruned individuals have
    reported. With ``tasks``, their results help to predict (``hpo.search.models.transfer.TransferEnsemble``), from the
    third individual on.
    """

    operator = "surrogate"

    def __init__(
        self,
        space: SearchSpace,
        settings: SearchSettings = _DEFAULTS,
        *,
        allows: Allows | None = None,
        reported: int = 0,
        tasks: OtherTasks | None = None,
    ) -> None:
        super().__init__(space, settings)
        # The mapping itself: a search of its own may get results after this is made.
        self._tasks = {} if tasks is None else tasks
        self._allows = allows
        self._genomes = VectorisedGenomes(space)
        self._known = Observations(self._genomes, reported)
        self._beliefs = BeliefWeighting(space, self._genomes)
        self._ensemble: ModelEnsemble | FrontEnsemble | LimitedEnsemble | None = None

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        best = population.best
        if population.judged < (FEWEST if self._tasks else INITIAL) or len(best) < 2:
            return Offspring(self._space.sample(rng), operator="random")
        if self._ensemble is None:
            self._ensemble = self._new_ensemble(best[0])
        self._ensemble.learn(self._known.observe(population))
        if population.judged < INITIAL and rng.random() < self._ensemble.share_of_chance(rng):
            return Offspring(self._space.sample(rng), operator="random")
        self._beliefs.learn([*population], self._known.arrived)
        if self._beliefs.refuted and population.judged < 2 * INITIAL:
            # Models that know only the surroundings of bad configurations stay long in the first basin that they find.
            return Offspring(self._genomes.uniform(rng), operator="random")
        pool, judge = self._fittest(population), self._ensemble.judge(self._known, rng)
        state = rng.getstate()
        child = self._searched(pool, judge, rng)
        if self._allows is not None and not self._allows(self._space.decode(child.genome)):
            # Constraints are checked in a second search only, because that calls them for tens to hundreds of
            # configurations, and a constraint may have to build a network.
            rng.setstate(state)
            child = self._searched(pool, judge, rng, self._allows)
        return child

    def _new_ensemble(self, member: Member) -> ModelEnsemble | FrontEnsemble | LimitedEnsemble:
        """Models for as many objectives and limits as ``member`` has."""
        genomes, objectives, limits = self._genomes, len(member.losses or ()), len(member.excess)

        def model(objective: int | None = None) -> ModelEnsemble:
            if self._tasks:
                return TransferEnsemble(genomes, self._tasks, objective)
            return ModelEnsemble(genomes, objective)

        inner = FrontEnsemble([*map(model, range(objectives))]) if objectives > 1 else model()
        if not limits:
            return inner
        return LimitedEnsemble(inner, genomes, objectives=objectives, limits=limits)

    def _searched(
        self,
        pool: Sequence[Member],
        judge: Callable[[Any], Any],
        rng: random.Random,
        allows: Allows | None = None,
    ) -> Offspring:
        """Child with the lowest bound; with ``allows``, of allowed children, bred from allowed parents if there are
        enough of these."""
        import numpy

        children, known = self._genomes, self._known
        generator = numpy.random.default_rng(rng.getrandbits(64))
        parents = numpy.array([member.genome for member in pool], dtype=float)
        at_random = int(_DRAWN * min(1.0, _CHANCE * self._random_rate))
        bred, picked = children.children(parents, _DRAWN - at_random, generator, self._crossover, _COARSE)
        # Constraints that refuse nearly all of the space allow few random children.
        near = at_random // 2 if allows else 0
        sources = [rng.randrange(len(pool)) for _ in range(near)]
        close = [beside(self._space, pool[place], pool, rng) for place in sources]
        drawn = children.drawn(at_random - near, generator, self._beliefs.weight)
        genomes = numpy.concatenate([bred, *([numpy.array(close, dtype=float)] if close else []), drawn])
        # Places of each child's parents in the pool, -1 for random children.
        others = numpy.array(sources + [-1] * len(drawn), dtype=int)
        origins = numpy.concatenate([picked, numpy.stack([others, others], axis=1)])
        bounds = self._bounds(genomes, judge)
        looked_at = numpy.zeros(len(genomes), dtype=bool)
        niche = rng.choice(children.unordered) if children.unordered else None
        elsewhere = niche is not None and rng.random() < _ELSEWHERE and known.stalled
        for steps in _FINER:
            promising = self._chosen(partial(_promising, niche=niche), genomes, bounds, looked_at, allows)
            genomes, bounds, origins = genomes[promising], bounds[promising], origins[promising]
            looked_at = looked_at[promising]
            more, picked = children.children(genomes, _REFINED, generator, self._crossover, steps)
            genomes = numpy.concatenate([genomes, more])
            bounds = numpy.concatenate([bounds, self._bounds(more, judge)])
            origins = numpy.concatenate([origins, origins[picked[:, 0]]])
            looked_at = numpy.concatenate([looked_at, numpy.zeros(len(more), dtype=bool)])
        index = int(self._chosen(_lowest, genomes, bounds, looked_at, allows)[0])
        if niche is not None and elsewhere:
            other = partial(_elsewhere, niche=niche, index=index, rng=rng)
            index = int(self._chosen(other, genomes, bounds, looked_at, allows)[0])
        known.use(children.rows(genomes[index : index + 1]))
        ids = tuple(dict.fromkeys(pool[one].id for one in origins[index].tolist() if one >= 0))
        return Offspring(children.genome(genomes[index].tolist()), operator=self.operator, parents=ids)

    def _chosen(
        self,
        choose: Callable[[Any, Any], Any],
        genomes: Any,
        bounds: Any,
        looked_at: Any,
        allows: Allows | None,
    ) -> Any:
        """Places of allowed genomes that ``choose(genomes, bounds)`` returns; ``bounds`` become infinite for refused
        genomes, and ``looked_at`` true for those whose constraints have been checked."""
        # Only chosen candidates are checked, and the choice is repeated while it has refused candidates.
        while True:
            chosen = choose(genomes, bounds)
            if allows is None:
                return chosen
            refused = []
            for place in chosen.tolist():
                if not looked_at[place] and math.isfinite(bounds[place]):
                    looked_at[place] = True
                    genome = self._genomes.genome(genomes[place].tolist())
                    if not allows(self._space.decode(genome)):
                        refused.append(place)
            if not refused:
                return chosen
            bounds[refused] = math.inf

    def _bounds(self, genomes: Any, judge: Callable[[Any], Any]) -> Any:
        """Bound of each genome; infinite for configurations that were proposed or observed before."""
        import numpy

        rows = self._genomes.rows(genomes)
        fresh = self._known.new(rows)
        bounds = numpy.full(len(genomes), numpy.inf)
        if fresh.any():
            gains = not isinstance(self._ensemble, ModelEnsemble)
            found = judge(rows[fresh])
            bounds[fresh] = self._beliefs(found, genomes[fresh], gains=gains)
        return bounds


def _lowest(genomes: Any, bounds: Any) -> Any:
    """Place of the lowest bound, in an array of length 1."""
    return bounds.argmin(keepdims=True)


def _elsewhere(genomes: Any, bounds: Any, *, niche: int, index: int, rng: random.Random) -> Any:
    """Place of the lowest bound with another, random choice in the column ``niche`` than ``index`` has, in an array of
    length 1."""
    import numpy

    fresh = numpy.isfinite(bounds)
    others = [one for one in numpy.unique(genomes[fresh, niche]).tolist() if one != genomes[index, niche]]
    if not others:
        return numpy.array([index])
    return numpy.where(genomes[:, niche] == rng.choice(others), bounds, numpy.inf).argmin(keepdims=True)


def _promising(genomes: Any, bounds: Any, niche: int | None) -> Any:
    """Places of the lowest bounds, lowest first, with some for each choice in the column ``niche``."""
    import numpy

    order = numpy.argsort(bounds, kind="stable")
    if niche is None:
        return order[:_PARENTS]
    values = genomes[order, niche]
    place = numpy.empty(len(order), dtype=int)
    for value in numpy.unique(values):
        here = values == value
        place[here] = numpy.arange(here.sum())
    return order[(place < _NICHE) | (numpy.arange(len(order)) < _PARENTS // 2)]


class TimeBudgetedSurrogate(SurrogateBreeder):
    """Surrogate search for the first individuals, and later while models take at most a twentieth of the time.

    Beyond that share of the time since the first individual, it proposes as ``EvolutionBreeder`` does. So models are
    used throughout a campaign of a few evaluations, however short these are, and throughout a campaign with evaluations
    of minutes; and rarely in a campaign with a hundred thousand evaluations of microseconds. The time for the first
    individuals does not count; the import of scikit-learn does. ``first``: number of the worker's first individuals;
    ``background``: whether scikit-learn is imported in a thread while the first, random individuals are evaluated.
    """

    def __init__(
        self,
        space: SearchSpace,
        settings: SearchSettings = _DEFAULTS,
        *,
        allows: Allows | None = None,
        clock: Callable[[], float],
        first: int = _FIRST,
        background: bool = False,
        reported: int = 0,
        tasks: OtherTasks | None = None,
    ) -> None:
        super().__init__(space, settings, allows=allows, reported=reported, tasks=tasks)
        self._clock = clock
        self._first = first
        self._background = background
        self._limit_s = _IMPORT_LIMIT_S
        self._began: float | None = None
        self._spent = _IMPORT_S
        self._screened = 0
        self._sequence = 0

    def begin_proposal(self, sequence: int) -> None:
        self._sequence = sequence

    @property
    def may_breed_ahead(self) -> bool:
        # The later an individual is bred that models choose, the more results the models have.
        return not self._screens

    @property
    def _screens(self) -> bool:
        """Whether models choose the next individual, whatever time that takes."""
        # Bounded twice: in a finite space that is nearly used up, an individual may take many proposals.
        return self._sequence < self._first and self._screened < 2 * self._first

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        now = self._clock()
        if self._began is None:
            self._began = now
        screens = self._screens
        self._sequence += 1
        if screens and self._imported(population):
            self._screened += 1
            return super().breed(population, rng)
        if screens or self._spent > _SHARE_OF_TIME * (now - self._began):
            return EvolutionBreeder.breed(self, population, rng)
        offspring = super().breed(population, rng)
        self._spent += self._clock() - now
        return offspring

    def evaluation_started(self, parents: Sequence[str]) -> None:
        # Not earlier, because starting evaluator processes need the cores.
        if self._background and self._screens:
            import_in_background()

    def _imported(self, population: Population) -> bool:
        """Whether models can be used; waits for the import at the first individual that needs them."""
        # Random individuals need no model.
        if not self._background or (population.judged < INITIAL and not self._tasks):
            return True
        thread = import_in_background()
        thread.join(self._limit_s)
        self._limit_s = 0.0
        return not thread.is_alive()


def first_of_worker(context: SearchContext) -> int:
    """Number of first individuals of the worker that models choose, its share of the campaign's first 200.

    It is 0 where more than two workers share a core, because each of them would have to import scikit-learn.
    """
    crowded = context.local_workers > _WORKERS_PER_CORE * context.cores
    return 0 if crowded else math.ceil(_FIRST / context.all_workers)
