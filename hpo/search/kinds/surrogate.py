"""Offspring of the typed evolution, judged by models: of many children the most promising one is proposed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpo.config.settings import SearchSettings
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.ensemble import AcquisitionFunction, ModelEnsemble, import_in_background
from hpo.search.models.observations import Observations
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Offspring, SearchContext
from hpo.space.space import SearchSpace
from hpo.task.known_point import Allows

INITIAL = 10
"""Completed individuals of the island before the first model."""
_DRAWN = 150
_CHANCE = 4.0
_COARSE = (0.01, 1 / 3)
_FINER = ((0.01, 0.3), (0.003, 0.3), (0.001, 0.1), (0.0003, 0.1))
"""Least and largest steps of numbers: in the first children, and in each round of the children of their best."""
_REFINED = 75
_PARENTS = 10
_NICHE = 3
_ELSEWHERE = 0.5
"""Share of the proposals that take another than the most promising value of one unordered parameter, once the best
has stalled: a model that has seen a value only beside badly tuned numbers may never propose it again."""
_FIRST = 200
"""Individuals of a campaign that the default kind screens however short evaluations are."""
_WORKERS_PER_CORE = 2
_SHARE_OF_TIME = 0.05
_IMPORT_S = 1.0
_IMPORT_LIMIT_S = 30.0
"""How long breeding waits for the import, once: with cold files of a cluster it takes several seconds."""


_DEFAULTS = SearchSettings()


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Evolution, screened by models: always, or within a budget of time where there is a clock."""
    if settings.kind == "surrogate":
        return SurrogateBreeder(space, settings, allows=context.allows)
    if context.clock is None:
        return EvolutionBreeder(space, settings)
    return TimeBudgetedSurrogate(
        space,
        settings,
        allows=context.allows,
        clock=context.clock,
        # Of several objectives there are no models.
        first=first_of_worker(context) if context.objectives == 1 else 0,
        # Inline, evaluations may import the same libraries at the same time; and a few are all random.
        background=not context.inline
        and (context.evaluations is None or context.evaluations > INITIAL * context.islands),
    )


class SurrogateBreeder(EvolutionBreeder):
    """Draws many children, 40 in a hundred at random and the others as the typed evolution does, breeds from the most
    promising of them in four rounds, and proposes the one of the lowest confidence bound of all: mean less k standard
    deviations of a model's prediction (``hpo.search.models.ensemble.ModelEnsemble``), with k drawn anew each time.

    Among the most promising are always some of each value of one unordered parameter, for else children of the
    leading value crowd out those of others whose own parameters are not tuned yet; and while the best stalls, half of
    the proposals take another value than the leading one. What was proposed or seen before is not proposed. Nor is
    what a constraint refuses: models never see anything of it, and where the best lies beside it, expect the best of
    it. With several objectives it is the typed evolution. The setting ``random`` is a quarter of the share that is
    drawn at random. ``allows``: the constraints, None where there are none."""

    operator = "surrogate"

    def __init__(
        self, space: SearchSpace, settings: SearchSettings = _DEFAULTS, *, allows: Allows | None = None
    ) -> None:
        super().__init__(space, settings)
        self._allows = allows
        self._genomes = VectorisedGenomes(space)
        self._known = Observations(self._genomes)
        self._ensemble = ModelEnsemble(self._genomes)

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        best = population.best
        if len(best) > 0 and len(best[0].losses or ()) > 1:
            return super().breed(population, rng)
        if population.judged < INITIAL or len(best) < 2:
            return Offspring(self._space.sample(rng), operator="random")
        self._ensemble.learn(self._known.observe(population))
        pool, judge = self._fittest(population), self._ensemble.judge(self._known, rng)
        state = rng.getstate()
        child = self._searched(pool, judge, rng)
        if self._allows is not None and not self._allows(self._space.decode(child.genome)):
            # Only now: a constraint may have to build a network, and this gives it tens to hundreds of configurations.
            rng.setstate(state)
            child = self._searched(pool, judge, rng, self._allows)
        return child

    def _searched(
        self,
        pool: Sequence[Member],
        judge: AcquisitionFunction,
        rng: random.Random,
        allows: Allows | None = None,
    ) -> Offspring:
        """The lowest bound that is found; with ``allows`` of what that allows, from which is bred as far as there is
        enough of it."""
        import numpy

        children, known = self._genomes, self._known
        generator = numpy.random.default_rng(rng.getrandbits(64))
        parents = numpy.array([member.genome for member in pool], dtype=float)
        at_random = int(_DRAWN * min(1.0, _CHANCE * self._random_rate))
        bred, picked = children.children(parents, _DRAWN - at_random, generator, self._crossover, _COARSE)
        genomes = numpy.concatenate([bred, children.drawn(at_random, generator)])
        # Of each child its parents' places in the pool, -1 for none.
        origins = numpy.concatenate([picked, numpy.full((at_random, 2), -1)])
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
        """The places that ``choose(genomes, bounds)`` returns once there is none among them that is not allowed; the
        bounds of those become infinite. ``looked_at``: of which ``genomes`` that is known."""
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

    def _bounds(self, genomes: Any, judge: AcquisitionFunction) -> Any:
        """Infinite for what is not new."""
        import numpy

        rows = self._genomes.rows(genomes)
        fresh = self._known.new(rows)
        bounds = numpy.full(len(genomes), numpy.inf)
        if fresh.any():
            bounds[fresh] = judge(rows[fresh])
        return bounds


def _lowest(genomes: Any, bounds: Any) -> Any:
    """The place of the lowest bound, alone in an array."""
    return bounds.argmin(keepdims=True)


def _elsewhere(genomes: Any, bounds: Any, *, niche: int, index: int, rng: random.Random) -> Any:
    """The place of the lowest bound among those with another value in the column ``niche`` than ``index`` has, which is
    drawn at random, alone in an array."""
    import numpy

    fresh = numpy.isfinite(bounds)
    others = [one for one in numpy.unique(genomes[fresh, niche]).tolist() if one != genomes[index, niche]]
    if not others:
        return numpy.array([index])
    return numpy.where(genomes[:, niche] == rng.choice(others), bounds, numpy.inf).argmin(keepdims=True)


def _promising(genomes: Any, bounds: Any, niche: int | None) -> Any:
    """Places of the lowest bounds, lowest first; ``niche``: a column of each of whose values some are taken."""
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
    """Screens the first individuals of the campaign, and later ones as long as that takes no more than a twentieth of
    the time since the first individual, all of which would else go to evaluations; beyond that, it is the typed
    evolution.

    So a campaign of a few evaluations finds what models find however short they are, one of evaluations of minutes
    screens every individual, and one of a hundred thousand that take microseconds hardly any. What the first ones cost
    does not count for the twentieth; the import of scikit-learn does.

    ``clock``: seconds; virtual ones in a simulation, so that there the same seeds breed the same. ``first``: how many
    individuals its worker screens at first. ``background``: import scikit-learn in a thread while
    the first, random individuals are evaluated; only where evaluations run in other processes."""

    def __init__(
        self,
        space: SearchSpace,
        settings: SearchSettings = _DEFAULTS,
        *,
        allows: Allows | None = None,
        clock: Callable[[], float],
        first: int = _FIRST,
        background: bool = False,
    ) -> None:
        super().__init__(space, settings, allows=allows)
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
        # The later an individual that is screened is bred, the more the models know.
        return not self._screens

    @property
    def _screens(self) -> bool:
        """Whether the next individual is screened whatever that costs."""
        # In a finite space that is nearly used up, one individual may take many proposals.
        return self._sequence < self._first and self._screened < 2 * self._first

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        now = self._clock()
        if self._began is None:
            self._began = now
        screens = self._screens
        self._sequence += 1
        if screens:
            if self._imported(population):
                self._screened += 1
                return super().breed(population, rng)
            return EvolutionBreeder.breed(self, population, rng)
        if self._spent > _SHARE_OF_TIME * (now - self._began):
            return EvolutionBreeder.breed(self, population, rng)
        offspring = super().breed(population, rng)
        self._spent += self._clock() - now
        return offspring

    def evaluation_started(self, parents: Sequence[str]) -> None:
        # Not before: evaluators that start need the cores.
        if self._background and self._screens:
            import_in_background()

    def _imported(self, population: Population) -> bool:
        """Whether models can be grown; waits for the import once they are needed."""
        if not self._background or population.judged < INITIAL:  # what is random needs no model
            return True
        thread = import_in_background()
        thread.join(self._limit_s)
        self._limit_s = 0.0
        return not thread.is_alive()


def first_of_worker(context: SearchContext) -> int:
    """How many individuals the breeder's worker screens however short evaluations are: its share of the campaign's
    first 200, or none where more than two workers share a core, for each of them has to import scikit-learn."""
    crowded = context.local_workers > _WORKERS_PER_CORE * context.cores
    return 0 if crowded else math.ceil(_FIRST / context.all_workers)
