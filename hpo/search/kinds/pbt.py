"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846) on an asynchronous island.

An individual is an interval of training: it continues from the checkpoint of the individual that it inherits, and its
fitness is the result at the interval's end. A worker continues its own lineages, unless they have fallen behind."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Offspring, SearchContext
from hpo.space.parameters import Categorical, Ordinal
from hpo.space.ranges import Float, Int
from hpo.space.space import SearchSpace
from hpo.spelling import suggestion

_LINEAGES = 10
"""Lineages of an island without the setting ``pool``."""
# Truncation selection and perturbation as in section 4.1 of the paper.
_TRUNCATED = 5
"""Reciprocal of the share of lineages that are worst, and exploit the same share of best lineages."""
_RESAMPLED = 0.25
"""Probability that a parameter gets a random value."""
_FACTORS = (0.8, 1.2)
"""Factors of a perturbed number."""


def breeder(space: SearchSpace, settings: SearchSettings, context: SearchContext) -> Breeder:
    """Breeder of the kind "pbt"; UsageError where the space has nothing to perturb."""
    return PbtBreeder(space, pool=settings.pool, perturb=settings.perturb, workers=context.workers)


class PbtBreeder(Breeder):
    """Proposes the next interval of a lineage.

    The first ``pool`` individuals of an island are random. Then this leader's lineage that has waited longest continues
    unchanged; or, where its last individual failed or is among the worst fifth of the island's latest ``pool``
    individuals, with the checkpoint and the parameters of an individual of the best fifth. Of these parameters, those
    in ``perturb`` change (None: all numbers): each gets a random value with probability 1/4; otherwise a number is
    multiplied by 0.8 or 1.2, or moved by a tenth of its range where that begins below zero, and an ordered choice moves
    to a neighbour. All other parameters stay, because the checkpoint may depend on them. Individuals of other islands
    are never parents, as their checkpoints may be removed.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        pool: int | None = None,
        perturb: Sequence[str] | None = None,
        workers: int = 1,
    ) -> None:
        self._space = space
        self._pool = pool or _LINEAGES
        # Twice this worker's share of the checkpoints that may be chosen, and two more: other leaders may choose from
        # a slightly older state of the island.
        self.checkpoints_for_others = 2 + -(-4 * self._pool // max(1, workers))
        for name in perturb or ():
            if name not in space.parameters:
                raise UsageError(
                    f"[search] perturb: {name!r} is no parameter. {suggestion(name, space.names)}"
                )
        chosen = [
            name
            for name, parameter in space.parameters.items()
            if (isinstance(parameter, (Float, Int)) if perturb is None else name in perturb)
        ]
        if not chosen:
            raise UsageError(
                '[search] kind = "pbt" needs parameters that may change while a model trains, and the space has no '
                "numbers. Name some: perturb = [...], or choose another kind"
            )
        self._perturbed = [(index, name) for index, name in enumerate(space.parameters) if name in chosen]
        self._leaves: deque[Member] = deque(maxlen=self._pool)

    @property
    def may_breed_ahead(self) -> bool:
        # The checkpoint that a lineage continues from exists only when its last individual has finished.
        return False

    def learn(self, member: Member) -> None:
        # The individual's lineage waits to continue.
        self._leaves.append(member)

    def evaluation_started(self, parents: Sequence[str]) -> None:
        # The lineage of the last parent has continued, and waits no longer.
        waiting = [one for one in self._leaves if one.id not in parents[-1:]]
        self._leaves = deque(waiting, self._pool)

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        latest = [member for member in population.recent if not member.history][-self._pool :]
        latest.sort(key=lambda member: (member.rank, member.age))
        if population.native < self._pool or not latest:
            return Offspring(self._space.sample(rng), operator="random")
        part = max(1, len(latest) // _TRUNCATED)
        leaf = self._leaves[0] if self._leaves else None
        self._leaves.rotate(-1)  # where this proposal is not evaluated, the next is for another lineage
        if leaf is not None and leaf.losses is not None:
            worst = latest[-part]
            behind = len(latest) > 1 and (leaf.rank, leaf.age) >= (worst.rank, worst.age)
            if not behind:
                return Offspring(leaf.genome, operator="continue", parents=(leaf.id,), inherits=leaf.id)
        parent = latest[rng.randrange(part)]
        parents = (parent.id,) if leaf is None or leaf.id == parent.id else (parent.id, leaf.id)
        return Offspring(
            self._explored(parent.genome, rng), operator="exploit", parents=parents, inherits=parent.id
        )

    def _explored(self, genome: Sequence[float], rng: random.Random) -> tuple[float, ...]:
        present = self._space.decode(genome)
        genes = list(genome)
        drawn = self._space.sample(rng)
        for index, name in self._perturbed:
            if name not in present:
                continue
            parameter = self._space.parameters[name]
            if rng.random() < _RESAMPLED:
                genes[index] = drawn[index]
            elif isinstance(parameter, Ordinal):
                genes[index] = min(max(round(genes[index]) + rng.choice((-1, 1)), 0), parameter.count - 1)
            elif isinstance(parameter, (Float, Int)):
                genes[index] = _moved(parameter, genes[index], rng)
            elif isinstance(parameter, Categorical):
                continue  # without an order there is no neighbour: such a choice changes by random values only
        return tuple(genes)


def _moved(parameter: Float | Int, gene: float, rng: random.Random) -> float:
    factor = rng.choice(_FACTORS)
    decode, encode = parameter.decoder(), parameter.encoder()
    value = parameter.canonical(decode(gene))
    if parameter.low < 0:
        moved = min(max(gene + (factor - 1.0) / 2, 0.0), 1.0)
    else:
        moved = encode(min(max(value * factor, parameter.low), parameter.high))
    if parameter.step is not None and decode(moved) == value:
        value += parameter.step if factor > 1 else -parameter.step
        moved = encode(min(max(value, parameter.low), parameter.high))
    return moved
