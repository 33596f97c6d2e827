"""Repeated evaluations of the best configurations, for noisy objectives.

With noise, the best of many single results is mostly luck; repetitions show which configuration is best."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

from hpo.config.search_kinds import KINDS
from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAULTS, REEVALUATION
from hpo.search.models.estimates import estimates, exact, median_of
from hpo.search.population import Population
from hpo.search.protocols import Breeder, Genome, Offspring, WrappingBreeder
from hpo.space.space import SearchSpace

_MOST = 300
"""Configurations that are remembered."""
_INITIAL = 10
"""Individuals of the island before the first repetition."""
_WHOLE = 50
"""Individuals of the island from which on the whole share is used."""
_SELDOM = 0.1
"""Part of the share that is used where the objective shows no noise."""
_FORGOTTEN = 500
"""Individuals after which a repetition without a result is given up."""


def check(share: float, kind: str, objectives: Iterable[str]) -> None:
    """Raise UsageError where ``[search] reevaluate`` does not suit the kind of search or the task."""
    if not share:
        return
    if reason := KINDS[kind].no_reevaluation:
        raise UsageError(
            f'[search] reevaluate = {share} does not suit kind = "{kind}", {reason}. Remove reevaluate, or choose '
            "another kind"
        )
    if len(names := list(objectives)) > 1:
        raise UsageError(
            f"[search] reevaluate = {share} is for one objective, and the task has {', '.join(names)}. Remove it; "
            "K folds or several trainings an evaluation make each objective less noisy"
        )


class ReevaluatingBreeder(WrappingBreeder):
    """Repeats known configurations in a ``share`` of the individuals, and otherwise breeds as ``breeder`` does.

    The configuration with the lowest confidence bound is repeated: posterior mean of its loss minus k standard
    deviations (``hpo.search.models.estimates``), with a random k each time, so that several workers repeat different
    configurations. A running repetition reduces the deviation and leaves the mean; a failed repetition counts as the
    loss of the median configuration. A repetition is an individual like any other, with a seed of its own: no worker
    waits for it, and the models of ``breeder`` learn from it.

    The share grows over the first 50 individuals, as long as the search still finds much better configurations. It is
    reduced to a tenth where repetitions have given exactly the same results. 300 configurations are remembered, those
    evaluated more than once first. Configurations from other islands that the island's ``space`` does not allow are not
    repeated.
    """

    def __init__(self, space: SearchSpace, breeder: Breeder, share: float) -> None:
        super().__init__(breeder)
        self._space = space
        self._share = share
        self._known: dict[Genome, dict[str, float]] = {}
        """Losses by id of the evaluation, for each configuration."""
        self._ids: set[str] = set()
        """Ids of the evaluations that were observed."""
        self._assumed: set[str] = set()
        """Ids of failed repetitions, whose assumed losses hold until the individual is evaluated again."""
        self._begun: dict[Genome, dict[str, int]] = {}
        """Repetitions without a result by configuration: number of individuals seen at the proposal, by id."""

    def propose_first(
        self, identity: str, seed: int, population: Population, rng: random.Random
    ) -> Offspring | None:
        return self._repetition(identity, population, rng) or super().propose_first(
            identity, seed, population, rng
        )

    def _repetition(self, identity: str, population: Population, rng: random.Random) -> Offspring | None:
        """Repetition proposed as the individual ``identity``; None where it is to be bred."""
        self._observe(population)
        share = self._share * min(1.0, population.judged / _WHOLE)
        if rng.random() >= share or population.judged < _INITIAL or not self._known:
            return None
        losses = [list(own.values()) for own in self._known.values()]
        if exact(losses) and rng.random() >= _SELDOM:
            return None
        caution = rng.expovariate(1.0)
        bounds = [
            one.mean - caution * one.after(len(self._begun.get(genome, ())))
            for genome, one in zip(self._known, estimates(losses))
        ]
        least = min(bounds)
        genome = rng.choice([genome for genome, bound in zip(self._known, bounds) if bound == least])
        self._begun.setdefault(genome, {})[identity] = population.seen
        return Offspring(genome, operator=REEVALUATION, parents=(next(iter(self._known[genome])),))

    def best_first(self, own: Sequence[tuple[float, str]], population: Population) -> list[tuple[float, str]]:
        """Pairs of loss and id, sorted by the estimated losses of their configurations; the first repeat of each
        configuration comes before all second repeats."""
        self._observe(population)
        believed: dict[str, tuple[float, Genome]] = {}
        losses = [list(each.values()) for each in self._known.values()]
        for (genome, each), one in zip(self._known.items(), estimates(losses) if losses else ()):
            believed.update((name, (one.mean, genome)) for name in each)
        met: set[Genome] = set()
        first: list[tuple[float, str]] = []
        rest: list[tuple[float, str]] = []
        # Forgotten configurations come last, as only bad configurations are forgotten.
        for pair in sorted(own, key=lambda pair: (believed.get(pair[1], (math.inf,))[0], pair)):
            genome = believed[pair[1]][1] if pair[1] in believed else ()
            (rest if genome in met else first).append(pair)
            if genome:
                met.add(genome)
        return first + rest

    def _observe(self, population: Population) -> None:
        for member in (*population.best, *population.recent):
            known = member.id in self._ids and member.id not in self._assumed
            if known or member.status != COMPLETED or member.losses is None or member.violation:
                continue
            genome = tuple(member.genome)
            self._ids.add(member.id)
            self._assumed.discard(member.id)
            if self._space.project_to_allowed(genome) == genome:
                self._known.setdefault(genome, {})[member.id] = member.losses[0]
        failed = {member.id for member in population.failures if member.status in FAULTS}
        failed |= {member.id for member in population.recent if member.violation}
        for genome in list(self._begun):
            for identity in failed.intersection(self._begun[genome]):
                self._ids.add(identity)
                self._assumed.add(identity)
                if genome in self._known:
                    self._known[genome][identity] = median_of(
                        list(own.values()) for own in self._known.values()
                    )
            # A proposal that was given back before its evaluation began never gets a result.
            self._begun[genome] = {
                name: seen
                for name, seen in self._begun[genome].items()
                if name not in self._ids and population.seen - seen < _FORGOTTEN
            }
            if not self._begun[genome]:
                del self._begun[genome]
        if len(self._known) > 2 * _MOST:
            order = sorted(
                self._known, key=lambda one: (-len(self._known[one]), min(self._known[one].values()))
            )
            for genome in order[_MOST:]:
                del self._known[genome]
            # Forgotten configurations may be observed again, among the population's best.
            self._ids = {name for own in self._known.values() for name in own}
