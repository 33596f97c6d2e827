"""How many individuals of the campaign have ended in which way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpo.individual import COMPLETED, FINAL, PRUNED


@dataclass
class Tally:
    """What the campaign as a whole has reached. ``counts``: individuals by status; ``best``: (losses, id);
    ``recent_s``: what the last completed ones took."""

    counts: dict[str, int] = field(default_factory=dict)
    best: tuple[tuple[float, ...], str] | None = None
    busy_s: float = 0.0
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, identity: str, status: str, losses: Sequence[float] | None, seconds: float) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        self.busy_s += seconds
        if status == COMPLETED:
            self.recent_s.append(seconds)
        if status == COMPLETED and losses and (self.best is None or losses[0] < self.best[0][0]):
            self.best = (tuple(losses), identity)

    def reopen(self, status: str = PRUNED, number: int = 1) -> None:
        """``number`` individuals that had ended as ``status`` go on, and count as what they will become; -1: one does
        not after all."""
        self.counts[status] = self.counts.get(status, 0) - number

    @property
    def final(self) -> int:
        """Individuals that will not be evaluated again."""
        return sum(count for status, count in self.counts.items() if status in FINAL)
