"""Bookkeeping of workers while ranks die. A worker that loses a rank is broken: its other ranks end what they run, and
idle until the launch ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpo.config.layout import WorkerPlacement

if TYPE_CHECKING:
    from hpo.islands.messages import Assignment

RANK_DIED, HANGS, NO_EVALUATORS, FAILING, DRAINED = (
    "a rank died",
    "hangs",
    "no evaluators",
    "failing",
    "drained",
)
NO_JOURNAL = "its journal cannot be written"
"""Reasons for which a worker takes no more part."""


@dataclass
class Broken:
    """A worker that lost a rank."""

    place: WorkerPlacement
    waiting: set[int]
    """Living ranks of the worker that have not yet ended what they ran."""
    held: list[Assignment] = field(default_factory=list)
    """Individuals under evaluation there, which no worker may begin before, as each has one directory."""
    open: bool = True
    """Whether the leader's account of these individuals is still to come."""


class WorkerRegistry:
    """``places``: the workers at the start; ``ended``: whether the process of a rank is known to have ended, for which
    MPI's report of its death is no proof: a broken connection is enough for that."""

    def __init__(
        self, places: Iterable[WorkerPlacement], *, ended: Callable[[int], bool] = lambda rank: False
    ) -> None:
        self.places = {place.leader: place for place in places}
        """Whole workers that can start evaluators, by leader."""
        self._benched: set[int] = set()
        self.islands = 1 + max((place.island for place in self.places.values()), default=0)
        self.dead: frozenset[int] = frozenset()
        self.hung: set[int] = set()
        """Ranks that count as dead because they were silent."""
        self._ended = ended
        self._broken: list[Broken] = []

    def leaders(self, island: int) -> list[int]:
        """Leaders of the whole workers of ``island``, those that get nothing more last."""
        found = [leader for leader, place in self.places.items() if place.island == island]
        return sorted(found, key=self._benched.__contains__)

    @property
    def at_work(self) -> list[int]:
        """Leaders of whole workers that are not benched."""
        return [leader for leader in self.places if leader not in self._benched]

    def next_with_leaders(self, island: int) -> list[int]:
        """Leaders of the first island after ``island`` that has any."""
        for step in range(1, self.islands):
            leaders = self.leaders((island + step) % self.islands)
            if leaders:
                return leaders
        return []

    def handle_rank_deaths(self, dead: Iterable[int]) -> list[WorkerPlacement]:
        """Note deaths; the workers that break by them."""
        self.dead |= frozenset(dead)
        for broken in self._broken:
            broken.waiting -= self.dead
        hit = [place for place in self.places.values() if not self.dead.isdisjoint(place.ranks)]
        for place in hit:
            self.dismiss(place.leader)
            self._broken.append(Broken(place, set(place.ranks) - self.dead))
        return hit

    def may_run(self, ranks: Iterable[int]) -> bool:
        """Whether any of these counts as dead and may still be at work."""
        return any(rank in self.dead and not self._ended(rank) for rank in ranks)

    @property
    def unaccounted(self) -> list[Broken]:
        """Broken workers whose leader is dead and did not say what it had begun."""
        return [broken for broken in self._broken if broken.open and broken.place.leader in self.dead]

    @property
    def holds(self) -> bool:
        """Whether broken workers hold individuals that no worker may begin yet."""
        return any(broken.held or broken.open for broken in self._broken)

    @property
    def number_held(self) -> int:
        """Number of these individuals."""
        return sum(len(broken.held) for broken in self._broken)

    def broken_of(self, rank: int) -> Broken | None:
        """Broken worker that waits for ``rank``."""
        return next((broken for broken in self._broken if rank in broken.waiting), None)

    def bench(self, leader: int) -> None:
        """Give a worker nothing more; what it has is still to end."""
        self._benched.add(leader)

    def dismiss(self, leader: int) -> None:
        """Remove a whole worker."""
        self.places.pop(leader, None)
        self._benched.discard(leader)

    def released(self) -> list[Assignment]:
        """Individuals of broken workers in which nothing runs any more; each is returned once."""
        done = [broken for broken in self._broken if not broken.waiting and not broken.open]
        self._broken = [broken for broken in self._broken if broken.waiting or broken.open]
        return [
            assignment.as_contested() if self.may_run(broken.place.ranks) else assignment
            for broken in done
            for assignment in broken.held
        ]
