"""Breeders of an island: of its search kind, of phases, which open parts of the search space in turn, and of children
that continue what their parents have trained.

A phase ends with the number of individuals that the coordinator has granted: that follows from the journals, so that a
resumed campaign continues in the phase in which it was.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from msgspec.structs import replace

from hpo.config.settings import SearchSettings, Settings
from hpo.errors import UsageError
from hpo.search.kinds.initial_design import InitialDesign
from hpo.search.kinds.reevaluation import ReevaluatingBreeder
from hpo.search.population import Population
from hpo.search.protocols import Breeder, Offspring, SearchContext, WrappingBreeder
from hpo.space.restricted import restricted
from hpo.space.space import Genome, SearchSpace

_LATEST_KEPT = 8
"""Checkpoints of a worker's latest individuals that are kept for children, beside those of its best."""
_NO_CAMPAIGN = SearchContext()


def make_breeder(
    space: SearchSpace, settings: SearchSettings, context: SearchContext = _NO_CAMPAIGN
) -> Breeder:
    """Breeder of ``settings.kind``, with reevaluations and an initial design where the settings want them; UsageError
    where the space does not suit the kind, or a library that it needs is not installed."""
    # Imported only now, as kinds use libraries that may be missing, or take seconds to import.
    module = import_module(f"hpo.search.kinds.{settings.traits.module}")
    breeder: Breeder = module.breeder(space, settings, context)
    if settings.reevaluate:
        breeder = ReevaluatingBreeder(space, breeder, settings.reevaluate)
    # Outermost, because the points of the design come before all that the other breeders would propose.
    if settings.initial != "random":
        breeder = InitialDesign(breeder, space, settings.initial, workers=context.workers)
    return breeder


class Phases:
    """The campaign's phases, for the coordinator. ``ends``: numbers of granted individuals at which they end,
    ascending; after the last phase the whole space is open."""

    def __init__(self, ends: Sequence[int] = ()) -> None:
        self._ends = ends
        # First phase in which an island had anything new left when it last found out, by island.
        self._used_up: dict[int | None, int] = {}

    def at(self, granted: int, island: int | None = None) -> int:
        """Number of the next individual's phase, from 0, after ``granted`` individuals; ``island`` may have come
        further, as it has used up its part of a phase."""
        return max(self._used_up.get(island, 0), bisect_right(self._ends, granted))

    def name(self, phase: int) -> str:
        """Name of a phase in messages."""
        return f"phase {phase + 1}" if phase < len(self._ends) else "the whole space"

    def skip(self, phase: int, island: int) -> bool:
        """Begin the phase after ``phase`` for ``island``, for which nothing new is left; False if it is the last."""
        if phase < len(self._ends):
            self._used_up[island] = max(self._used_up.get(island, 0), phase + 1)
        return phase < len(self._ends)


class PhasedSpace(SearchSpace):
    """The parts ``spaces[i]`` of a space in phase i; genomes mean the same in all of them."""

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
    """Uses one breeder per phase, made by ``make`` for the part of the space that is open. Each begins with the
    population alone, as in a campaign that is resumed there."""

    def __init__(self, space: PhasedSpace, make: Callable[[SearchSpace], Breeder]) -> None:
        super().__init__(make(space.current))
        self._space = space
        self._make = make

    def begin_phase(self, phase: int) -> None:
        self._space.begin_phase(phase)
        self.breeder = self._make(self._space.current)


class InheritingBreeder(WrappingBreeder):
    """Breeds as ``breeder`` does; children continue from the checkpoint of the parent that ``offers`` names. Parents of
    other islands have none to offer, as their checkpoints may be removed. A child without a checkpoint is a
    configuration like others, which is not evaluated twice."""

    def __init__(self, breeder: Breeder, offers: Callable[[Sequence[str]], str]) -> None:
        super().__init__(breeder)
        self._offers = offers
        self.checkpoints_for_others = _LATEST_KEPT

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        child = self.breeder.breed(population, rng)
        # Checkpoints of immigrants are removed by the island where they were evaluated.
        native = {member.id for member in population if not member.history}
        parent = self._offers([name for name in child.parents if name in native])
        return replace(child, inherits=parent) if parent else child


def searched(
    space: SearchSpace, settings: Settings, island: int, context: SearchContext
) -> tuple[SearchSpace, Breeder]:
    """Part of ``space`` that ``island`` uses, in phases where there are any, and its breeder; UsageError where the
    settings do not suit the space."""
    search = settings.search_of(island)

    def make(part: SearchSpace) -> Breeder:
        return make_breeder(part, search, context)

    parts = [_open(space, settings, island, number) for number in (*range(len(settings.phase)), None)]
    used = parts[0] if len(parts) == 1 else PhasedSpace(parts)
    breeder = PhasedBreeder(used, make) if isinstance(used, PhasedSpace) else make(used)
    return used, InheritingBreeder(breeder, context.offers) if settings.inherits(island) else breeder


def problems(space: SearchSpace, settings: Settings, island: int) -> Iterator[str]:
    """A sentence for each setting of ``island`` that does not suit ``space`` or another setting."""
    search = settings.search_of(island)
    if search.traits.needs_checkpoints and settings.phase:
        yield (
            f'[[phase]]: kind = "{search.kind}" continues its individuals, whatever is open. Remove the phases, or '
            "choose another kind"
        )
    elif search.traits.needs_checkpoints and search.inherit is not None:
        yield f'[search] inherit = {search.inherit}: kind = "{search.kind}" decides that itself. Remove it'
    if search.reevaluate and settings.inherits(island):
        yield (
            f"[search] reevaluate = {search.reevaluate} and children that continue from their parents' checkpoints "
            "exclude each other: they are never the same again. Remove it, or set inherit = false"
        )
    for number in (None, *range(len(settings.phase))):
        try:
            make_breeder(_open(space, settings, island, number), search)
        except UsageError as error:
            yield from str(error).splitlines()


def _open(space: SearchSpace, settings: Settings, island: int, number: int | None) -> SearchSpace:
    """Part of the space that is open to ``island`` in the phase ``number``, None after the last; UsageError that names
    the phase."""
    search = settings.search_of(island)
    if number is None:
        return restricted(space, search.only)
    only, title = settings.phase[number].only, f"[[phase]] number {number + 1},"
    both: dict[str, Sequence[object]] = {**search.only, **only}
    for name in search.only.keys() & only.keys():
        both[name] = [choice for choice in only[name] if choice in search.only[name]]
        if only[name] and not both[name]:
            raise UsageError(
                f"{title} only: {name} = {only[name]!r} has none of the choices of island {island}, "
                f"{search.only[name]!r}. Name some of these."
            )
    try:
        return restricted(space, both)
    except UsageError as error:
        raise UsageError(str(error).replace("[search]", title)) from None
