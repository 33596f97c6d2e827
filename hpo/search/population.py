"""Individuals of an island that a leader keeps: bounded, so that breeding costs the same at the hundredth and the
millionth evaluation."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hpo.individual import COMPLETED, PRUNED
from hpo.search.models.pareto import crowding, dominates

BEST_KEPT = 64
"""Individuals that a population keeps to breed from, the best of its island."""
_MOST_ENTERED = 256
_VIOLATED = 1e300
"""Rank that a violation of nearly 0 has."""
_BEYOND = 1_000_000
"""Number added to the ranks of members beyond the reference, more than any population has members."""

if TYPE_CHECKING:
    Progress = tuple[int, float]
else:
    # JSON, in which members travel, has null in place of infinity.
    Progress = tuple[int, float | None]


TaskResult = tuple[tuple[float | int, ...], tuple[float, ...]]
"""Genome and losses of a result of another task."""
OtherTasks = Mapping[str, Sequence[TaskResult]]
"""Results of other tasks by their sources."""


class Member(msgspec.Struct, eq=False, array_like=True):
    """An evaluated individual as breeding sees it, here and on its way to other leaders. A population that takes it in
    sets ``age``, ``rank`` and ``dominators``."""

    id: str
    genome: tuple[float | int, ...]
    losses: tuple[float, ...] | None
    """Finite numbers to be minimised, by objective; None unless it completed."""
    status: str
    history: tuple[int, ...] = ()
    """Islands that it left."""
    progress: Progress | None = None
    """Steps and loss of the last report, where it was pruned or completed."""
    operator: str = ""
    age: int = 0
    """Number of members that the population had seen before it."""
    rank: float = 0.0
    """Number by which the population sorts it, lowest first."""
    dominators: int = 0
    """Number of the best that dominate it."""
    excess: tuple[float, ...] = ()
    """Excess over each limit of outcomes, above 0 where it is broken (``hpo.task.limits``); empty without limits."""

    @property
    def violation(self) -> float:
        """Sum of the excesses over broken limits, 0 where all are kept."""
        return sum(one for one in self.excess if one > 0.0)

    def __post_init__(self) -> None:
        if self.progress is not None:
            steps, loss = self.progress
            self.progress = steps, math.inf if loss is None else loss


class Population:
    """The best, the most recent, the last pruned and the last failed members of an island.

    ``best`` is sorted, best first: by the loss, or with several objectives by the number of kept members that dominate
    it (Fonseca and Fleming 1993), the least crowded first where that is equal (Deb et al. 2002). Members with any loss
    beyond ``reference`` come after all others. Members that break limits of outcomes come last, by their violation (Deb
    2000, doi:10.1016/S0045-7825(99)00389-8). Ties go to the older member."""

    def __init__(
        self,
        *,
        best: int = BEST_KEPT,
        recent: int = 64,
        failures: int = 64,
        pruned: int = 64,
        reference: tuple[float, ...] | None = None,
    ) -> None:
        self.reference = reference
        self.best: list[Member] = []
        # Ranks of the best, in their order: a list of plain values is searched without a call.
        self._ranks: list[float] = []
        self._ids: set[str] = set()
        self._best_limit = best
        self._recent_limit = self._recent_least = recent
        self._failure_limit = failures
        self._pruned_limit = pruned
        self._recent: dict[str, Member] = {}
        self._failures: dict[str, Member] = {}
        self._pruned: dict[str, Member] = {}
        self.completed = 0
        """Number of completed members that have come, kept or not."""
        self.native = 0
        """Number of these that had not come from another island."""
        self.judged = 0
        """Number of members that completed, or were pruned as worse than others."""
        self.seen = 0

    def __iter__(self) -> Iterator[Member]:
        """The best first, then the recent members that are not among them."""
        yield from self.best
        kept = set(self._ids)
        yield from (member for member in self._recent.values() if member.id not in kept)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def everyone(self) -> list[Member]:
        """All members that are kept, each once, the best first."""
        members = (*self.best, *self._recent.values(), *self._failures.values(), *self._pruned.values())
        return list({member.id: member for member in members}.values())

    @property
    def recent(self) -> list[Member]:
        """Completed members in order of arrival, oldest first."""
        return list(self._recent.values())

    @property
    def failures(self) -> list[Member]:
        """The last members that neither completed nor were pruned after a report, oldest first."""
        return list(self._failures.values())

    @property
    def pruned(self) -> list[Member]:
        """The last pruned members with a report, oldest first."""
        return list(self._pruned.values())

    def restore(
        self,
        best: Sequence[Member],
        recent: Iterable[Member],
        pruned: Iterable[Member],
        failures: Iterable[Member],
    ) -> None:
        """Take over the members that another population has kept; nothing is counted but their ages."""
        self.best, self._ids = [*best], {one.id for one in best}
        self._ranks = [one.rank for one in best]
        self._recent, self._pruned, self._failures = (
            {one.id: one for one in members} for members in (recent, pruned, failures)
        )
        self.seen = 1 + max((one.age for one in self.everyone), default=-1)

    def enter(self, member: Member) -> None:
        """Take in ``member``, which was evaluated before this population received any.

        The window of recent members is wider for these, up to a bound, until others have come in their place: otherwise
        only the last few of a large table would ever be seen."""
        self._recent_limit = min(self._recent_limit + 1, self._recent_least + _MOST_ENTERED)
        self._add(member)

    def add(self, member: Member) -> None:
        """Take in ``member``; cost does not depend on how many there have been."""
        self._recent_limit = max(self._recent_least, self._recent_limit - 1)
        self._add(member)

    def _add(self, member: Member) -> None:
        # A member may come twice, from its own leader and by a leader that takes over its work.
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
            keep_latest(self._pruned, self._pruned_limit)
            return
        if losses is None or member.status != COMPLETED:
            self._failures[member.id] = member
            keep_latest(self._failures, self._failure_limit)
            return
        self.completed += 1
        self.native += not member.history
        self.judged += 1
        self._recent[member.id] = member
        keep_latest(self._recent, self._recent_limit)
        if len(losses) == 1:
            member.rank = losses[0]
            if violation := member.violation:
                member.rank = _VIOLATED * violation_factor(violation)
            # Searched from the right, so that the older of equal members stays in front.
            if len(self._ranks) < self._best_limit or member.rank < self._ranks[-1]:
                self._insert(bisect_right(self._ranks, member.rank), member)
                if len(self._ranks) > self._best_limit:
                    self._remove(-1)
        else:
            self._add_by_domination(member)

    def discard(self, identity: str) -> None:
        """Forget an individual that emigrated or is evaluated again; it may be long out of the bounds, and unknown."""
        for members in (self._recent, self._pruned, self._failures):
            members.pop(identity, None)
        if identity in self._ids:
            index = next(index for index, one in enumerate(self.best) if one.id == identity)
            member = self.best[index]
            self._remove(index)
            if member.losses is not None and len(member.losses) > 1:
                for other in self.best:
                    other.dominators -= _dominates(member, other)
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
            member.dominators += _dominates(other, member)
            other.dominators += _dominates(member, other)
        self._insert(len(self.best), member)
        self._sort()
        if len(self.best) > self._best_limit:
            # The dominators of all others stay the same: a member that the last dominates comes behind it.
            self._remove(-1)
            self._sort()

    def _sort(self) -> None:
        """Sort by domination, which is the whole part of a rank, and then by crowding, which is its fraction."""
        alike: dict[float, list[Member]] = {}
        for member in self.best:
            limits = zip(member.losses or (), self.reference or ())
            is_beyond = any(loss > limit for loss, limit in limits)
            rank: float = member.dominators + _BEYOND * is_beyond
            if violation := member.violation:
                rank = _VIOLATED * violation_factor(violation)
            alike.setdefault(rank, []).append(member)
        self.best = []
        for rank, members in sorted(alike.items()):
            # Sorted by age first: the sort by distance is stable, so that the older of equal members stays in front.
            members.sort(key=lambda member: member.age)
            distances = dict(
                zip((one.id for one in members), crowding([one.losses or () for one in members]))
            )
            members.sort(key=lambda member: -distances[member.id])
            for place, member in enumerate(members):
                member.rank = rank + place / len(members)
            self.best += members
        self._ranks = [member.rank for member in self.best]


def violation_factor(violation: float) -> float:
    """Number from 1 to 2 that grows with the violation: times a number that no loss reaches, it orders what breaks
    limits behind all else."""
    return 1.0 + violation / (1.0 + violation)


def _dominates(first: Member, second: Member) -> bool:
    """Whether ``first`` is better in the order of losses among those that keep all limits; others dominate none."""
    return not first.violation and not second.violation and dominates(first.losses, second.losses)


def keep_latest(entries: dict[Any, Any], most: int) -> None:
    """Remove the oldest of ``entries`` beyond ``most``."""
    while len(entries) > most:
        del entries[next(iter(entries))]
