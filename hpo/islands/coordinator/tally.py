"""Counts of how the campaign's individuals ended, the best of them, and their failures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from hpo.individual import COMPLETED, FINAL, INTERRUPTED, LOST, PRUNED, Scalar, birthplace, is_known
from hpo.islands.messages import EvaluationEnd
from hpo.search.campaign_end import BestOverTime
from hpo.search.models.pareto import dominates
from hpo.text import digits

RECENT = 64
"""Number of evaluations whose seconds are kept."""

MOST_RECENT = 256
"""Number of last ends of evaluations whose times are kept, for the pace."""


class BestSoFar(NamedTuple):
    """A completed individual; ``params`` and ``objectives`` are None where a dead rank has not sent them."""

    losses: tuple[float, ...]
    id: str
    started: float = 0.0
    params: dict[str, Scalar] | None = None
    objectives: dict[str, float] | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """Sort key: by losses, then the campaign's own before known points, then by start."""
        return self.losses, *order(self.id, self.started)


class IslandTally(NamedTuple):
    """Results of the individuals bred on an island. ``best``: the least losses that keep the limits."""

    completed: int
    best: tuple[float, ...] | None


class Failure(NamedTuple):
    status: str
    error: str
    """One line."""
    started: float


def order(identity: str, started: float | None) -> tuple[object, ...]:
    """Sort key of an individual among all."""
    return is_known(identity), started or 0.0, birthplace(identity)


@dataclass
class Tally:
    """Results of the campaign as a whole."""

    counts: dict[str, int] = field(default_factory=dict)
    """Numbers of individuals by status."""
    best: BestSoFar | None = None
    next_losses: tuple[float, ...] | None = None
    """The least losses that are greater than the best's."""
    history: BestOverTime = field(default_factory=BestOverTime)
    front: list[tuple[tuple[float, ...], str]] = field(default_factory=list)
    """Losses and ids of the Pareto front, where there are several objectives."""
    recent_s: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of the last completed evaluations by the island on which they were bred."""
    recent_ends: list[float] = field(default_factory=list)
    """Unix seconds of the last ends."""
    islands: dict[int, IslandTally] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    """Status, lost or interrupted, by id."""
    failures: dict[str, Failure] = field(default_factory=dict)
    reports: bool = False
    """Whether an individual that completed or was pruned had reported."""
    exact: bool = True
    """False once something has happened in this launch after which the journals may differ."""
    _errors: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def add(self, end: EvaluationEnd) -> None:
        outcome = end.outcome
        status, seconds = outcome.status, outcome.seconds
        self.counts[status] = self.counts.get(status, 0) + 1
        if status not in FINAL:
            self.unfinished[end.id] = status
            return
        self.unfinished.pop(end.id, None)
        self.reports = self.reports or status == PRUNED or outcome.steps is not None
        self.recent_ends.append(end.started + seconds)
        del self.recent_ends[:-MOST_RECENT]
        self.history.add(end.started + seconds, end.losses)
        if status == COMPLETED:
            island = birthplace(end.id)[0]
            recent_s = self.recent_s.setdefault(island, [])
            recent_s.append(seconds)
            del recent_s[:-RECENT]
            count, best = self.islands.get(island, (0, None))
            if end.losses:
                self.enter(BestSoFar(end.losses, end.id, end.started, end.params, outcome.objectives))
                best = end.losses if best is None else min(best, end.losses)
            self.islands[island] = IslandTally(count + 1, best)
        elif status != PRUNED:
            # Most have an error in common: kept once.
            error = self._errors.setdefault(outcome.error or "", outcome.error or "")
            self.failures[end.id] = Failure(status, error, end.started)

    def enter(self, completed: BestSoFar) -> None:
        """Count an individual that may be the best."""
        best, found = self.best, completed.losses
        if len(found) > 1 and not any(one == found or dominates(one, found) for one, _ in self.front):
            self.front = [one for one in self.front if not dominates(found, one[0])]
            self.front.append((found, completed.id))
        if best is None or (completed.losses <= best.losses and completed.order < best.order):
            self.best = completed
        for losses in (completed.losses, *(() if best is None else (best.losses,))):
            if self.best is not None and losses > self.best.losses:
                self.next_losses = min(losses, self.next_losses or losses)

    def reaching(self, goal: tuple[float, ...]) -> str | None:
        """Id of an individual without a loss above that of ``goal``."""
        best = [] if self.best is None else [(self.best.losses, self.best.id)]
        return next(
            (name for losses, name in self.front or best if all(map(float.__le__, losses, goal))), None
        )

    def best_digits(self, least: int = 4) -> list[int]:
        """Significant digits, for each objective, at which the best and the next losses differ."""
        if self.best is None:
            return []
        return [
            digits(values, least) for values in zip(self.best.losses, self.next_losses or self.best.losses)
        ]

    def reopen(self, status: str = PRUNED, number: int = 1, identity: str | None = None) -> None:
        """Take ``number`` individuals that go on from the count of ``status``; -1: put one back that does not.
        ``identity``: the id of a failure that is evaluated again, here or elsewhere; twice is as once."""
        if identity in self.unfinished:
            return
        self.counts[status] = self.counts.get(status, 0) - number
        if identity is not None:
            self.failures.pop(identity, None)
            self.unfinished[identity] = LOST

    @property
    def final(self) -> int:
        """Number of individuals that will not be evaluated again."""
        return sum(count for status, count in self.counts.items() if status in FINAL)

    @property
    def worked_and_failed(self) -> tuple[int, int]:
        """Numbers of individuals that completed or were pruned, and of failures."""
        worked = sum(self.counts.get(status, 0) for status in (COMPLETED, PRUNED))
        return worked, self.final - worked

    def standing(self, running: Collection[str] = ()) -> dict[str, int]:
        """Numbers of individuals on record by status, without those that are ``running``."""
        counts = {status: self.counts.get(status, 0) for status in FINAL}
        counts |= {LOST: 0, INTERRUPTED: 0}
        for status in self.unfinished.values():
            counts[status] += 1
        for identity in running:
            if identity in self.unfinished:
                counts[self.unfinished[identity]] -= 1
        return counts
