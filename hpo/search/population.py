"""The individuals of an island that a leader keeps: bounded, so that breeding costs the same at the hundredth and the
millionth evaluation."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hpo.individual import COMPLETED, PRUNED
from hpo.search.models.pareto import crowding, dominates

BEST_KEPT = 64
"""Individuals that a population keeps to breed from, the best of its island."""
_MOST_ENTERED = 256
_BEYOND = 1_000_000

if TYPE_CHECKING:
    Progress = tuple[int, float]
else:
    # JSON, in which members travel, has null in place of infinity.
    Progress = tuple[int, float | None]


class Member(msgspec.Struct, eq=False, array_like=True):
    """An evaluated individual as breeding sees it, here and on its way to other leaders. A population that takes it in
    sets ``age``, ``rank`` and ``dominators``."""

    id: str
    genome: tuple[float | int, ...]
    """One gene a parameter, in the unit cube or an index."""
    losses: tuple[float, ...] | None
    """One finite number an objective, to be minimised; None unless it completed."""
    status: str
    history: tuple[int, ...] = ()
    """Islands that it left."""
    progress: Progress | None = None
    """Steps and loss of the last report, where it was pruned or completed."""
    operator: str = ""
    """The name of what proposed it."""
    age: int = 0
    """How many members the population had seen before it."""
    rank: float = 0.0
    """The number by which the population sorts it, lowest first."""
    dominators: int = 0
    """How many of the best dominate it."""

    def __post_init__(self) -> None:
        if self.progress is not None:
            steps, loss = self.progress
            self.progress = steps, math.inf if loss is None else loss


class PopulationState(NamedTuple):
    """The members of a ``Population``, each kind in its order, and what it has counted."""

    best: list[Member]
    recent: list[Member]
    failures: list[Member]
    pruned: list[Member]
    recent_limit: int
    completed: int
    native: int
    judged: int
    seen: int


class Population:
    """The best, the most recent, the last pruned and the last failed members of one island.

    ``best`` is sorted, best first: by the loss, or with several objectives by how many of the kept members dominate
    one (Fonseca and Fleming 1993), and of those that equally many dominate, the least crowded first (Deb et al. 2002).
    With a ``reference``, losses beyond which nothing is wanted, those that are beyond it in any come after all others.
    Ties go to the older member, so that order does not depend on the order of arrival within equal values."""

    def __init__(
        self,
        *,
        best: int = BEST_KEPT,
        recent: int = 64,
        failures: int = 64,
        pruned: int = 64,
        reference: tuple[float, ...] | None = None,
    ) -> None:
        self._reference = reference
        self.best: list[Member] = []
        # Of the best, in their order: a list of plain values is searched without a call.
        self._ranks: list[float] = []
        self._ids: set[str] = set()
        self._best_limit = best
        self._recent_limit = self._recent_least = recent
        self._failure_limit = failures
        self._pruned_limit = pruned
        self._recent: OrderedDict[str, Member] = OrderedDict()
        self._failures: OrderedDict[str, Member] = OrderedDict()
        self._pruned: OrderedDict[str, Member] = OrderedDict()
        self.completed = 0
        """How many completed ones have come, whatever became of them."""
        self.native = 0
        """How many of these had not come from another island."""
        self.judged = 0
        """How many have come that completed, or were pruned as worse than others."""
        self.seen = 0

    @property
    def state(self) -> PopulationState:
        """What ``restore`` takes."""
        members = (self.best, self.recent, self.failures, self.pruned)
        return PopulationState(
            *members, self._recent_limit, self.completed, self.native, self.judged, self.seen
        )

    def restore(self, state: PopulationState) -> None:
        """Be what the population of ``state`` was, whose bounds this one has."""
        self.best, recent, failures, pruned, *numbers = state
        self._recent_limit, self.completed, self.native, self.judged, self.seen = numbers
        self._ranks = [member.rank for member in self.best]
        self._ids = {member.id for member in self.best}
        self._recent, self._failures, self._pruned = (
            OrderedDict((member.id, member) for member in members) for members in (recent, failures, pruned)
        )

    def __iter__(self) -> Iterator[Member]:
        """The best first, then the recent ones that are not among them."""
        yield from self.best
        kept = set(self._ids)
        for member in self._recent.values():
            if member.id not in kept:
                yield member

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def recent(self) -> list[Member]:
        """Completed members in order of arrival, oldest first."""
        return list(self._recent.values())

    @property
    def failures(self) -> list[Member]:
        """The last members that did not complete, but for pruned ones, oldest first."""
        return list(self._failures.values())

    @property
    def pruned(self) -> list[Member]:
        """The last pruned members with a report, oldest first."""
        return list(self._pruned.values())

    def enter(self, member: Member) -> None:
        """Take in ``member``, which was evaluated before this population received any.

        The window of recent ones is wider for such members, up to a bound, until others have come in their place:
        else of a large table only the last few would ever be seen."""
        self._recent_limit = min(self._recent_limit + 1, self._recent_least + _MOST_ENTERED)
        self._add(member)

    def add(self, member: Member) -> None:
        """Take in ``member``; cost does not depend on how many there have been."""
        self._recent_limit = max(self._recent_least, self._recent_limit - 1)
        self._add(member)

    def _add(self, member: Member) -> None:
        if member.id in self._recent or member.id in self._ids:
            return
        member.age = self.seen
        if self._pruned.pop(member.id, None) is not None:  # it was promoted, and is known already
            self.judged -= 1
        elif self._failures.pop(member.id, None) is None:  # else it was reopened, and is known already
            self.seen += 1
        losses = member.losses
        if member.status == PRUNED and member.progress is not None:
            self.judged += 1
            self._pruned[member.id] = member
            if len(self._pruned) > self._pruned_limit:
                self._pruned.popitem(last=False)
            return
        if losses is None or member.status != COMPLETED:
            self._failures[member.id] = member
            if len(self._failures) > self._failure_limit:
                self._failures.popitem(last=False)
            return
        self.completed += 1
        self.native += not member.history
        self.judged += 1
        self._recent[member.id] = member
        while len(self._recent) > self._recent_limit:
            self._recent.popitem(last=False)
        if len(losses) == 1:
            member.rank = losses[0]
            if len(self._ranks) < self._best_limit or member.rank < self._ranks[-1]:
                self._insert(bisect_right(self._ranks, member.rank), member)
                if len(self._ranks) > self._best_limit:
                    self._remove(-1)
        else:
            self._add_by_domination(member)

    def discard(self, identity: str) -> None:
        """Forget the individual (it emigrated, or is evaluated anew); unknown ones are ignored, they may be long out of
        the bounds."""
        self._recent.pop(identity, None)
        self._pruned.pop(identity, None)
        self._failures.pop(identity, None)
        if identity in self._ids:
            index = next(index for index, one in enumerate(self.best) if one.id == identity)
            member = self.best[index]
            self._remove(index)
            if member.losses is not None and len(member.losses) > 1:
                for other in self.best:
                    other.dominators -= dominates(member.losses, other.losses)
                self._sort()

    def _insert(self, index: int, member: Member) -> None:
        self.best.insert(index, member)
        self._ranks.insert(index, member.rank)
        self._ids.add(member.id)

    def _remove(self, index: int) -> None:
        self._ids.remove(self.best[index].id)
        del self.best[index], self._ranks[index]

    def _add_by_domination(self, member: Member) -> None:
        member.dominators = 0
        for other in self.best:
            member.dominators += dominates(other.losses, member.losses)
            other.dominators += dominates(member.losses, other.losses)
        self._insert(len(self.best), member)
        self._sort()
        if len(self.best) > self._best_limit:
            # No member is dominated by one less: those that the last one dominated, its dominators dominate too, so it
            # would come behind the last.
            self._remove(-1)
            self._sort()

    def _sort(self) -> None:
        """By domination, then by crowding, in which the whole part and the fraction of a rank differ."""
        alike: dict[tuple[bool, int], list[Member]] = {}
        for member in self.best:
            alike.setdefault((self._is_beyond(member), member.dominators), []).append(member)
        self.best = []
        for beyond, dominators in sorted(alike):
            members = alike[beyond, dominators]
            members.sort(key=lambda member: member.age)
            distances = dict(
                zip((one.id for one in members), crowding([one.losses or () for one in members]))
            )
            members.sort(key=lambda member: -distances[member.id])
            for place, member in enumerate(members):
                member.rank = dominators + _BEYOND * beyond + place / len(members)
            self.best += members
        self._ranks = [member.rank for member in self.best]

    def _is_beyond(self, member: Member) -> bool:
        if self._reference is None or member.losses is None:
            return False
        return any(loss > limit for loss, limit in zip(member.losses, self._reference))
