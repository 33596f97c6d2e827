"""Several breeders in one, of which those whose children are good get more of the budget."""

from __future__ import annotations

import random
from collections.abc import Mapping

from msgspec.structs import replace

from hpo.config.settings import SearchSettings
from hpo.individual import COMPLETED
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.kinds.optuna_samplers import OptunaBreeder, missing
from hpo.search.kinds.propulate_kinds import CmaesBreeder, has_propulate
from hpo.search.kinds.surrogate import SurrogateBreeder
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Offspring, SearchContext
from hpo.space.parameters import Categorical
from hpo.space.space import SearchSpace

_WINDOW = 60
_DECAY = 0.9
_LEAST = 0.03
_DOUBT = 12.0
"""The prior of a breeder's worth counts as much as this many of its individuals."""
_BELIEF = 8.0
"""How many times as much as of the others is believed of the first, until they have shown more."""
_CONTRAST = 3.0


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """The surrogate and evolution; CMA-ES where all parameters are numbers that always exist and Propulate is
    installed; TPE where Optuna is."""
    breeders: dict[str, Breeder] = {
        "surrogate": SurrogateBreeder(space, settings, allows=context.allows),
        "evolution": EvolutionBreeder(space, settings),
    }
    numbers = [one for one in space.parameters.values() if not isinstance(one, Categorical) and not one.when]
    if len(numbers) == len(space) > 1 and has_propulate():
        breeders["cmaes"] = CmaesBreeder(space)
    if not missing("tpe"):
        breeders["tpe"] = OptunaBreeder(space, "tpe")
    return PortfolioBreeder(breeders)


class PortfolioBreeder(Breeder):
    """Draws the breeder of each individual with a probability that grows with the area under its curve of ranks, the
    comparison-based credit of Fialho et al. 2010 (doi:10.1145/1830483.1830574): of the latest 60 individuals, sorted
    by loss, the one in place r is worth 0.9^r, a breeder's credit is what its own are worth in the mean, and its
    probability is in proportion to the cube of that, and 3 % at least. Only ranks count, and as the window moves, a
    breeder that has stopped to find anything loses its share.

    ``breeders``: by the name of the operator that individuals carry. The first is the incumbent, which is believed to
    be worth as much as the window's individuals in the mean, and the others an eighth of that, with the weight of
    twelve individuals: one that was lucky once gets 4 to 20 % while that is among the latest 60, and one that has
    found the best three of 60 the larger part of the budget. The first proposes as long as nothing is known of
    any other, from the same random numbers as if it were alone, and in place of one that would draw at random. All of
    them see all observations, also those of peers and migrants, and the credit comes from the same: the operator of
    each member. So nothing has to be stored, and a resumed campaign goes on with it."""

    def __init__(self, breeders: Mapping[str, Breeder]) -> None:
        self._breeders = dict(breeders)
        # Of the latest by id the operator and the loss, and the age from which on members are new.
        self._known: dict[str, tuple[str, float]] = {}
        self._next = 0

    def learn(self, member: Member) -> None:
        for breeder in self._breeders.values():
            breeder.learn(member)

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        self._observe(population)
        first = next(iter(self._breeders))
        name = first
        if self._known:
            shares = self.shares()
            (name,) = rng.choices(list(shares), list(shares.values()))
        child = self._breeders[name].breed(population, rng)
        if child.operator == "random" and name != first:  # it knows too little yet
            name = first
            child = self._breeders[name].breed(population, rng)
        if child.operator == "random":  # no breeder's merit
            return child
        return replace(child, operator=name)

    def shares(self) -> dict[str, float]:
        """With what probability each breeder proposes."""
        credit = dict.fromkeys(self._breeders, 0.0)
        uses = dict.fromkeys(credit, 0)
        for place, (operator, _) in enumerate(sorted(self._known.values(), key=lambda one: one[1])):
            credit[operator] += _DECAY**place
            uses[operator] += 1
        total = sum(uses.values())
        mean = sum(credit.values()) / total if total else 1.0
        first = next(iter(credit))
        # The mean of its own, and of a few more that were worth what it is believed to be.
        quality = {
            name: (credit[name] + _DOUBT * mean / (1.0 if name == first else _BELIEF)) / (uses[name] + _DOUBT)
            for name in credit
        }
        weights = {name: one**_CONTRAST for name, one in quality.items()}
        free = (1.0 - _LEAST * len(credit)) / sum(weights.values())
        return {name: _LEAST + free * one for name, one in weights.items()}

    def _observe(self, population: Population) -> None:
        for member in sorted(
            (*population.recent, *population.failures, *population.pruned), key=lambda one: one.age
        ):
            if member.age >= self._next and member.operator in self._breeders:
                complete = member.status == COMPLETED and member.losses is not None
                self._known[member.id] = (member.operator, member.rank if complete else float("inf"))
        self._next = population.seen
        while len(self._known) > _WINDOW:
            del self._known[next(iter(self._known))]
