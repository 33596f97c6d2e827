"""How many individuals of the campaign have ended in which way, the best of them, and what went wrong."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from hpo.individual import COMPLETED, FINAL, INTERRUPTED, LOST, PRUNED, Scalar, birthplace, is_known
from hpo.islands.messages import EvaluationEnd
from hpo.journal.records import Number
from hpo.text import digits

_RECENT = 64

MOST_RECENT = 256
"""The number of last ends of evaluations whose times are kept; the pace follows from them."""


class Best(NamedTuple):
    """The best individual; ``params`` and ``objectives`` are None where a dead rank has not sent them."""

    losses: tuple[float, ...]
    id: str
    started: float = 0.0
    params: dict[str, Scalar] | None = None
    objectives: dict[str, Number] | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """The better one first; of equal ones the campaign's own before known points, then that which started first."""
        return self.losses, *order(self.id, self.started)


class IslandTally(NamedTuple):
    """What individuals of one island, by where they were bred, have come to. ``best``: the least losses."""

    completed: int
    best: tuple[float, ...] | None


class Failure(NamedTuple):
    """``error``: one line."""

    status: str
    error: str
    started: float


def order(identity: str, started: float | None) -> tuple[object, ...]:
    """The place of an individual among all: by when it started."""
    return is_known(identity), started or 0.0, birthplace(identity)


@dataclass
class Tally:
    """What the campaign as a whole has reached. ``counts``: individuals by status; ``recent_s``: what the last
    completed ones took; ``recent_ends``: when the last ones ended, Unix seconds; ``unfinished``: by id those that are
    on record as lost or interrupted; ``failures``: by id. ``reports``: whether an individual that
    completed or was pruned had reported; ``exact``: unless something has happened in this launch after which the
    journals may say otherwise; ``next_losses``: the least that are greater than the best's."""

    counts: dict[str, int] = field(default_factory=dict)
    best: Best | None = None
    next_losses: tuple[float, ...] | None = None
    busy_s: float = 0.0
    recent_s: list[float] = field(default_factory=list)
    recent_ends: list[float] = field(default_factory=list)
    islands: dict[int, IslandTally] = field(default_factory=dict)
    unfinished: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    reports: bool = False
    exact: bool = True
    _errors: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def add(self, end: EvaluationEnd) -> None:
        outcome = end.outcome
        status, seconds = outcome.status, outcome.seconds
        self.counts[status] = self.counts.get(status, 0) + 1
        self.busy_s += seconds
        if status not in FINAL:
            self.unfinished[end.id] = status
            return
        self.unfinished.pop(end.id, None)
        self.reports = self.reports or status == PRUNED or outcome.steps is not None
        self.recent_ends.append(end.started + seconds)
        del self.recent_ends[:-MOST_RECENT]
        if status == COMPLETED:
            self.recent_s.append(seconds)
            del self.recent_s[:-_RECENT]
            if end.losses:
                self.enter(Best(end.losses, end.id, end.started, end.params, outcome.objectives))
                island = birthplace(end.id)[0]
                count, best = self.islands.get(island, (0, None))
                better = best is None or end.losses < best
                self.islands[island] = IslandTally(count + 1, end.losses if better else best)
        elif status != PRUNED:
            # Most have an error in common: kept once.
            error = self._errors.setdefault(outcome.error or "", outcome.error or "")
            self.failures[end.id] = Failure(status, error, end.started)

    def enter(self, completed: Best) -> None:
        """One that may be the best."""
        best = self.best
        if best is None or (completed.losses <= best.losses and completed.order < best.order):
            self.best = completed
        for losses in (completed.losses, *(() if best is None else (best.losses,))):
            if self.best is not None and losses > self.best.losses:
                self.next_losses = min(losses, self.next_losses or losses)

    def best_digits(self, least: int = 4) -> list[int]:
        """Significant digits, for each objective, at which the best and the next losses differ."""
        if self.best is None:
            return []
        return [
            digits(values, least) for values in zip(self.best.losses, self.next_losses or self.best.losses)
        ]

    def reopen(self, status: str = PRUNED, number: int = 1, identity: str | None = None) -> None:
        """``number`` individuals that had ended as ``status`` go on, and count as what they will become; -1: one does
        not after all. ``identity``: of a failure, which is on record as reopened."""
        self.counts[status] = self.counts.get(status, 0) - number
        if identity is not None:
            self.failures.pop(identity, None)
            self.unfinished[identity] = LOST

    @property
    def final(self) -> int:
        """Individuals that will not be evaluated again."""
        return sum(count for status, count in self.counts.items() if status in FINAL)

    @property
    def worked_and_failed(self) -> tuple[int, int]:
        """How many individuals completed or were pruned, and how many ended otherwise."""
        worked = sum(self.counts.get(status, 0) for status in (COMPLETED, PRUNED))
        return worked, self.final - worked

    def standing(self, running: Collection[str] = ()) -> dict[str, int]:
        """How many individuals are on record with each status that counts, while those ``running`` are evaluated."""
        counts = {status: self.counts.get(status, 0) for status in FINAL}
        counts |= {LOST: 0, INTERRUPTED: 0}
        for status in self.unfinished.values():
            counts[status] += 1
        for identity in running:
            if identity in self.unfinished:
                counts[self.unfinished[identity]] -= 1
        return counts
