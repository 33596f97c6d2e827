"""Evaluations of what looks best once more: where they differ by chance, the best of many is the luckiest of many."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable

from hpo.errors import UsageError
from hpo.estimates import estimates, exact
from hpo.individual import COMPLETED, REEVALUATION
from hpo.population import Member, Population
from hpo.seams import Breeder, Genome, Offspring

_MOST = 300
_ONCE = {
    "grid": "which evaluates each of its points once",
    "pbt": "whose individuals go on from checkpoints of others and so are never the same again",
}
_INITIAL = 10
_WHOLE = 50


def check(share: float, kind: str, objectives: Iterable[str]) -> None:
    """UsageError where ``[search] reevaluate`` does not suit the kind of search or the task."""
    if not share:
        return
    if kind in _ONCE:
        raise UsageError(
            f'[search] reevaluate = {share} does not suit kind = "{kind}", {_ONCE[kind]}. Remove reevaluate, or choose '
            "another kind"
        )
    if len(names := list(objectives)) > 1:
        raise UsageError(
            f"[search] reevaluate = {share} is for one objective, and the task has {', '.join(names)}. Remove it; "
            "K folds or several trainings an evaluation make each objective surer"
        )


class ReevaluatingBreeder:
    """Proposes a configuration that is known for a ``share`` of the individuals, and for the others what ``breeder``
    does. The share grows over the first 50: nothing is worth repeating while the search still finds better by far.

    It is the configuration of the lowest confidence bound: mean less k standard deviations of what is believed of its
    mean loss (``hpo.estimates``), with k drawn anew each time, so that several workers repeat different ones; what this
    one has proposed and not heard of yet counts as if it had brought the mean. Nobody waits for a repetition: each is
    an individual like any other, with a seed of its own, and the models of ``breeder`` learn from it. Where three
    repetitions, and all others, brought what was known to the last bit, nothing more is repeated. It remembers 300
    configurations, those evaluated more than once before others."""

    def __init__(self, breeder: Breeder, share: float) -> None:
        self.breeder = breeder
        self._share = share
        # By configuration the losses of its evaluations by id.
        self._known: dict[Genome, dict[str, float]] = {}
        self._ids: set[str] = set()
        # How many evaluations it will have with those that were proposed.
        self._asked: dict[Genome, int] = {}

    def learn(self, member: Member) -> None:
        self.breeder.learn(member)

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        self._observe(population)
        share = self._share * min(1.0, population.judged / _WHOLE)
        if rng.random() < share and population.judged >= _INITIAL:
            child = self._again(rng)
            if child is not None:
                return child
        return self.breeder.breed(population, rng)

    def _again(self, rng: random.Random) -> Offspring | None:
        losses = [list(own.values()) for own in self._known.values()]
        if not losses or exact(losses):
            return None
        for genome, own in zip(self._known, losses):
            own += [statistics.fmean(own)] * (self._asked.get(genome, 0) - len(own))
        caution = rng.expovariate(1.0)
        bounds = [one.mean - caution * one.deviation for one in estimates(losses)]
        place = bounds.index(min(bounds))
        genome, repeat = list(self._known)[place], len(losses[place])
        self._asked[genome] = repeat + 1
        return Offspring(genome, REEVALUATION, (next(iter(self._known[genome])),), repeat=repeat)

    def _observe(self, population: Population) -> None:
        for member in (*population.best, *population.recent):
            if member.id not in self._ids and member.status == COMPLETED and member.losses is not None:
                self._ids.add(member.id)
                self._known.setdefault(tuple(member.genome), {})[member.id] = member.losses[0]
        if len(self._known) > 2 * _MOST:
            order = sorted(
                self._known, key=lambda one: (-len(self._known[one]), min(self._known[one].values()))
            )
            for genome in order[_MOST:]:
                del self._known[genome]
                self._asked.pop(genome, None)
            # What is forgotten may come again, from the population's best.
            self._ids = {name for own in self._known.values() for name in own}
