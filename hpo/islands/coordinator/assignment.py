"""What is granted to workers: individuals to evaluate, and the count of how they ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hpo.individual import COMPLETED, FINAL, PRUNED, Scalar


@dataclass(slots=True)
class Assignment:
    """Something to evaluate in place of what a leader bred: an individual of an earlier launch, or a given
    point.

    ``id`` is None for a point, which takes the id of the leader that evaluates it. ``admitted``: it already
    counts. ``promoted``: steps after which it had paused; ``inherits``: whose checkpoint it goes on from; ``rests``:
    pruned, counted as that, and granted to go on."""

    params: dict[str, Scalar]
    key: str
    operator: str
    id: str | None = None
    parents: tuple[str, ...] = ()
    retries: int = 0
    resumed: bool = False
    admitted: bool = False
    promoted: int = 0
    inherits: str = ""
    rests: bool = False

    @classmethod
    def from_wire(cls, fields: list[Any]) -> Assignment:
        """An individual that was begun; raises TypeError for anything else."""
        identity, params, key, operator, parents, retries, resumed, promoted, inherits = fields
        return cls(
            id=identity,
            params=params,
            key=key,
            operator=operator,
            parents=tuple(parents),
            retries=retries,
            resumed=resumed,
            admitted=True,
            promoted=promoted,
            inherits=inherits,
        )

    def to_wire(self) -> list[object]:
        """What ``from_wire`` takes, and a candidate of a leader is made of."""
        whence = [self.operator, list(self.parents), self.retries, self.resumed, self.promoted, self.inherits]
        return [self.id, self.params, self.key, *whence]


@dataclass
class Tally:
    """What the campaign as a whole has reached. ``counts``: individuals by status; ``best``: (losses, id);
    ``recent_s``: what the last completed ones took."""

    counts: dict[str, int] = field(default_factory=dict)
    best: tuple[tuple[float, ...], str] | None = None
    busy_s: float = 0.0
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, identity: str, status: str, losses: list[float] | None, seconds: float) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        self.busy_s += seconds
        if status == COMPLETED:
            self.recent_s.append(seconds)
        if status == COMPLETED and losses and (self.best is None or losses[0] < self.best[0][0]):
            self.best = (tuple(losses), identity)

    def reopen(self, number: int = 1) -> None:
        """So many pruned ones go on, and count as what they will become; -1: one does not after all."""
        self.counts[PRUNED] = self.counts.get(PRUNED, 0) - number

    @property
    def final(self) -> int:
        """Individuals that will not be evaluated again."""
        return sum(count for status, count in self.counts.items() if status in FINAL)
