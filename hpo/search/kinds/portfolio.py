"""Portfolio of breeders: those whose individuals are better get a larger share of the evaluations."""

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
from hpo.search.population import Member, Population, keep_latest
from hpo.search.protocols import Breeder, Offspring, SearchContext
from hpo.space.parameters import Categorical
from hpo.space.space import SearchSpace

_WINDOW = 60
"""Latest individuals that count for the credit."""
_DECAY = 0.9
"""Ratio of the worths of two successive ranks."""
_LEAST = 0.03
"""Least probability of a breeder."""
_DOUBT = 12.0
"""Weight of the prior of a breeder's credit, in individuals."""
_BELIEF = 8.0
"""Ratio of the prior credit of the first breeder to that of the others."""
_CONTRAST = 3.0
"""Power of the credit that probabilities are proportional to."""


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Portfolio of surrogate and evolution; with CMA-ES and TPE where these are possible.

    CMA-ES needs Propulate, and a space of numbers without conditions; TPE needs Optuna.
    """
    breeders: dict[str, Breeder] = {
        "surrogate": SurrogateBreeder(
            space, settings, allows=context.allows, reported=context.reported, tasks=context.tasks
        ),
        "evolution": EvolutionBreeder(space, settings),
    }
    numbers = [one for one in space.parameters.values() if not isinstance(one, Categorical) and not one.when]
    if len(numbers) == len(space) > 1 and has_propulate():
        breeders["cmaes"] = CmaesBreeder(space)
    if not missing("tpe"):
        breeders["tpe"] = OptunaBreeder(space, "tpe", reported=context.reported)
    return PortfolioBreeder(breeders)


class PortfolioBreeder(Breeder):
    """Draws the breeder of each individual with a probability that grows with the credit of the breeder's individuals.

    The credit is the comparison-based area under the curve of ranks (Fialho et al. 2010, doi:10.1145/1830483.1830574):
    of the latest 60 individuals, sorted by loss, the individual at place r is worth 0.9^r. A breeder's credit is the
    mean worth of its individuals, and its probability is proportional to the cube of the credit, at least 3 %. Only
    ranks count, and as the window moves, a breeder without further improvements loses its share.

    The prior of a breeder's credit has the weight of twelve individuals: for the first breeder, the incumbent, it is
    the mean worth of the window, for the others an eighth of that. So a breeder with a single lucky individual gets 4
    to 20 % while that is in the window, and a breeder that has found the best three of 60 gets the larger share. The
    first breeder proposes as long as there are no individuals of any other, with the same random numbers as if it were
    alone, and in place of a breeder that would draw at random. All breeders see all observations, also those of peers
    and migrants, and the credit is computed from the same members by their operators: a resumed campaign needs no other
    state. ``breeders``: by the name of the operator that their individuals carry, the incumbent first.
    """

    def __init__(self, breeders: Mapping[str, Breeder]) -> None:
        self._breeders = dict(breeders)
        self._known: dict[str, tuple[str, float]] = {}
        """Operators and losses of the latest individuals, by id."""
        self._next = 0
        """Age from which on members of a population are new."""

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
        # A breeder with too few observations draws at random, which the first breeder may do better.
        if child.operator == "random" and name != first:
            name = first
            child = self._breeders[name].breed(population, rng)
        # Random individuals keep their operator, so that they count for no breeder.
        if child.operator == "random":
            return child
        return replace(child, operator=name)

    def shares(self) -> dict[str, float]:
        """Probability of each breeder, by name."""
        credit = dict.fromkeys(self._breeders, 0.0)
        uses = dict.fromkeys(credit, 0)
        for place, (operator, _) in enumerate(sorted(self._known.values(), key=lambda one: one[1])):
            credit[operator] += _DECAY**place
            uses[operator] += 1
        mean = sum(credit.values()) / len(self._known) if self._known else 1.0
        first = next(iter(credit))
        # Mean worth of a breeder's individuals and of _DOUBT more with the worth of its prior.
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
        keep_latest(self._known, _WINDOW)
