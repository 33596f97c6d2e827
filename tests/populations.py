"""Populations and searches of one worker, for tests of breeders."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import hpo
from hpo.individual import COMPLETED, FAILED, Configuration
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Offspring


def population_of(
    rows: Iterable[tuple[Any, Any]], *, into: Population | None = None, worker: str = "0-0", **facts: Any
) -> Population:
    """A population, or ``into``, with a member for each genome and its loss or losses; None: it failed."""
    population = Population() if into is None else into
    for number, (genome, loss) in enumerate(rows):
        losses = loss if loss is None or isinstance(loss, tuple) else (float(loss),)
        status = FAILED if loss is None else COMPLETED
        population.add(Member(f"{worker}-{number}", tuple(genome), losses, status, **facts))
    return population


def populated(space: hpo.SearchSpace, losses: Iterable[Any], seed: int = 0) -> Population:
    """A population of random configurations with these losses."""
    rng = random.Random(seed)
    return population_of((space.sample(rng), loss) for loss in losses)


def searched_alone(
    breeder: Breeder,
    value: Callable[[Offspring, int], float | tuple[float, ...] | None],
    individuals: int,
    seed: object = 0,
    into: Population | None = None,
) -> list[Offspring]:
    """Children of one worker in turn; ``value``: the loss or losses of a child and its number, None: it fails."""
    population, children = Population() if into is None else into, []
    for number in range(individuals):
        rng, name = random.Random(f"{seed}/{number}"), f"0-0-{number}"
        breeder.begin_proposal(number)
        child = breeder.propose_first(name, 0, population, rng) or breeder.breed(population, rng)
        loss = value(child, number)
        status = COMPLETED if loss is not None else FAILED
        losses = loss if loss is None or isinstance(loss, tuple) else (loss,)
        member = Member(name, tuple(child.genome), losses, status, operator=child.operator)
        population.add(member)
        breeder.learn(member)
        children.append(child)
    return children


def asked_and_told(
    search: hpo.Search, count: int, value: Callable[[Configuration, int], Any]
) -> list[Configuration]:
    """Configurations that ``search`` proposes, each evaluated before the next by ``value(configuration, number)``."""
    asked = []
    for number in range(count):
        asked.append(search.ask())
        search.tell(asked[-1], value(asked[-1], number))
    return asked


class Around(Breeder):
    """Proposes one gene from ``place`` to ``width`` beyond it; ``learnt``: its own that have ended."""

    def __init__(self, place: float, width: float = 0.1) -> None:
        self.place, self.width = place, width
        self.learnt: list[str] = []

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        return Offspring((self.place + self.width * rng.random(),), operator="whatever")

    def learn(self, member: Member) -> None:
        self.learnt.append(member.id)
