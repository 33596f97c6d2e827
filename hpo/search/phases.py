"""Phases, which open parts of the search space in turn, and children that go on from what their parents have trained.

A phase ends with the number of individuals that the coordinator has granted: that follows from the journals, and a
resumed campaign goes on in the phase in which it was.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from hpo.config.settings import Settings
from hpo.errors import UsageError
from hpo.individual import Scalar
from hpo.search.population import Population
from hpo.search.protocols import Breeder, Offspring, SearchContext, WrappingBreeder
from hpo.search.registry import make_breeder
from hpo.space.restricted import restricted
from hpo.space.space import Genome, SearchSpace

_LATEST_KEPT = 8
"""Checkpoints of a worker's latest individuals that are kept for children, beside those of its best."""


class Phases:
    """Which phase the campaign is in, for the coordinator. ``ends``: how many individuals have been granted when each
    ends, ascending; after the last one the whole space is open."""

    def __init__(self, ends: Sequence[int] = ()) -> None:
        self._ends = ends
        # By island, the first phase in which it had anything new left when it last found out.
        self._used_up: dict[int | None, int] = {}

    def at(self, granted: int, island: int | None = None) -> int:
        """The number of the phase, from 0, of the next individual where this many have been ``granted``; ``island``
        may have come further, as it has used up its part of a phase."""
        return max(self._used_up.get(island, 0), bisect_right(self._ends, granted))

    def name(self, phase: int) -> str:
        """As it is called in messages."""
        return f"phase {phase + 1}" if phase < len(self._ends) else "the whole space"

    def skip(self, phase: int, island: int) -> bool:
        """Nothing new is left for ``island`` in ``phase``: the next one begins for it; False where there is none."""
        if phase < len(self._ends):
            self._used_up[island] = max(self._used_up.get(island, 0), phase + 1)
        return phase < len(self._ends)


class PhasedSpace(SearchSpace):
    """``spaces[i]`` in phase i: of one space, so that genomes mean the same in all of them."""

    def __init__(self, spaces: Sequence[SearchSpace]) -> None:
        super().__init__(spaces[0].parameters)
        self._spaces = spaces
        self.current = spaces[0]

    def begin_phase(self, phase: int) -> None:
        self.current = self._spaces[phase]

    def sample(self, rng: random.Random) -> Genome:
        return self.current.sample(rng)

    def project_to_allowed(self, genome: Genome) -> Genome:
        return self.current.project_to_allowed(genome)


class PhasedBreeder(WrappingBreeder):
    """In each phase the breeder that ``make`` makes for what is open of the ``space``. Each begins with what the
    population knows, as in a campaign that is resumed there."""

    def __init__(self, space: PhasedSpace, make: Callable[[SearchSpace], Breeder]) -> None:
        super().__init__(make(space.current))
        self._space = space
        self._make = make

    def begin_phase(self, phase: int) -> None:
        self._space.begin_phase(phase)
        self.breeder = self._make(self._space.current)


class InheritingBreeder(WrappingBreeder):
    """Breeds as ``breeder`` does; children go on from the checkpoint of the parent that ``offers`` names. An individual
    of another island gives none: its checkpoint may be gone. A child without is a configuration like others, which is
    not evaluated twice."""

    def __init__(self, breeder: Breeder, offers: Callable[[Sequence[str]], str]) -> None:
        super().__init__(breeder)
        self._offers = offers
        self.checkpoints_for_others = _LATEST_KEPT

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        child = self.breeder.breed(population, rng)
        native = {member.id for member in population if not member.history}
        parent = self._offers([one for one in child.parents if one in native])
        return replace(child, inherits=parent) if parent else child


def searched(
    space: SearchSpace, settings: Settings, island: int, context: SearchContext
) -> tuple[SearchSpace, Breeder]:
    """What ``island`` uses of ``space``, in phases where there are any, and its breeder; UsageError where the settings
    do not suit the space."""
    search = settings.search_of(island)

    def make(part: SearchSpace) -> Breeder:
        return make_breeder(part, search, context)

    used = restricted(space, search.only)
    if not settings.phase:
        breeder = make(used)
    else:
        parts = [_open(space, settings, island, number) for number in range(len(settings.phase))]
        used = phased = PhasedSpace([*parts, used])
        breeder = PhasedBreeder(phased, make)
    return used, InheritingBreeder(breeder, context.offers) if settings.inherits(island) else breeder


def problems(space: SearchSpace, settings: Settings, island: int) -> Iterator[str]:
    """What does not suit ``space``, or each other, in the settings of ``island``: a sentence each."""
    search = settings.search_of(island)
    if search.traits.needs_checkpoints and settings.phase:
        yield (
            f'[[phase]]: kind = "{search.kind}" goes on with what it has begun, whatever is open. Remove the phases, '
            "or choose another kind"
        )
    elif search.traits.needs_checkpoints and search.inherit is not None:
        yield f'[search] inherit = {search.inherit}: kind = "{search.kind}" decides that itself. Remove it'
    if search.reevaluate and settings.inherits(island):
        yield (
            f"[search] reevaluate = {search.reevaluate} and children that go on from their parents' checkpoints "
            "exclude each other: they are never the same again. Remove it, or set inherit = false"
        )
    for number in (None, *range(len(settings.phase))):
        try:
            part = (
                restricted(space, search.only) if number is None else _open(space, settings, island, number)
            )
            make_breeder(part, search)
        except UsageError as error:
            yield from str(error).splitlines()


def _open(space: SearchSpace, settings: Settings, island: int, number: int) -> SearchSpace:
    """What is open to ``island`` in the phase ``number``; UsageError that names the phase."""
    search, only = settings.search_of(island), settings.phase[number].only
    title = f"[[phase]] number {number + 1},"
    both: dict[str, Sequence[Scalar]] = {**search.only, **only}
    for name in search.only.keys() & only.keys():
        both[name] = [choice for choice in only[name] if choice in search.only[name]]
        if only[name] and not both[name]:
            raise UsageError(
                f"{title} only: {name} = {only[name]!r} has none of the choices of island {island}, "
                f"{search.only[name]!r}. "
                "Name some of these."
            )
    try:
        return restricted(space, both)
    except UsageError as error:
        raise UsageError(str(error).replace("[search]", title)) from None
