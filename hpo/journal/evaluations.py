"""The fold of records on evaluations: which of them counts, in whatever order the journals are read.

Journals are in no order of time: an individual may have been begun on one worker and ended on another, twice after a
death, and again after a pause. The rules, once for all readers:

- The runs of an individual are numbered by how often it was reopened, and by the step at which each was resumed; a
  later run replaces an earlier one. What was reopened is unfinished until a later run has ended.
- Within a run the first end that is final stays: another can only be that of an evaluation that was thought lost.
- Of what is not final, the latest counts: by retries, then by launch, then by time."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from hpo.individual import COMPLETED, FINAL, PRUNED, Attempt
from hpo.journal.records import Finished, Header, Record, Reopened, Started

_Run = tuple[int, int]
_End = tuple[_Run, str]
"""Run and status of an individual that has ended."""


class Change(NamedTuple):
    """Effect of a record on its individual."""

    counts: bool
    """False where a later run or an end of this run is on record."""
    ends: bool = False
    reopens: str | None = None
    """Status of an earlier run's end that counted before."""


class _Open(NamedTuple):
    order: tuple[_Run, int, int, float]
    record: Started | Finished

    @classmethod
    def of(cls, launch: int, record: Started | Finished) -> _Open:
        attempt = record.attempt
        return cls((attempt.run, attempt.retries, launch, record.at), record)


class Unfinished(NamedTuple):
    """An individual to be evaluated: its latest record with the launch of that, and its next run."""

    launch: int
    record: Started | Finished
    attempt: Attempt


class CurrentEvaluations(msgspec.Struct):
    """Takes records as they are read, and keeps those of unfinished individuals."""

    # Place in ``_ends`` by id: few ends differ among millions of individuals.
    _ended: dict[str, int] = {}
    _ends: list[_End] = []
    _places: dict[_End, int] = {}
    _open: dict[str, _Open] = {}
    _failures: dict[str, _Open] = {}
    _reopened: dict[str, int] = {}
    _launch: int = 0

    @property
    def ended_ids(self) -> Collection[str]:
        return self._ended.keys()

    @property
    def open(self) -> list[Unfinished]:
        found = []
        for identity, one in self._open.items():
            attempt, reopened = one.record.attempt, self._reopened.get(identity, 0)
            begun_since = reopened <= attempt.reopened
            following = replace(attempt, resumed=True) if begun_since else Attempt(reopened=reopened)
            found.append(Unfinished(one.order[2], one.record, following))
        return found

    @property
    def failures(self) -> list[Unfinished]:
        """Failures that may be reopened, with the runs that would follow."""
        return [
            Unfinished(one.order[2], one.record, Attempt(reopened=one.record.reopened + 1))
            for one in self._failures.values()
        ]

    def take(self, record: Record) -> Change | None:
        """Count ``record``; None where it is about no evaluation. A header comes before the records of its journal."""
        if isinstance(record, (Started, Finished)):
            return self._add(record)
        if isinstance(record, Reopened):
            return self._reopen(record)
        if isinstance(record, Header):
            self._launch = record.launch
        return None

    def _end(self, identity: str) -> _End | None:
        place = self._ended.get(identity)
        return None if place is None else self._ends[place]

    def _reopen(self, record: Reopened) -> Change:
        # The failure itself may be read later.
        identity = record.id
        if self._reopened.get(identity, 0) >= record.number:
            return Change(counts=False)
        self._reopened[identity] = record.number
        ended = self._end(identity)
        if ended is None or ended[0][0] >= record.number or identity not in self._failures:
            return Change(counts=False)
        del self._ended[identity]
        self._open[identity] = self._failures.pop(identity)
        return Change(counts=True, reopens=ended[1])

    def _add(self, record: Started | Finished) -> Change:
        identity, run = record.id, record.run
        ended = self._end(identity)
        open_ = self._open.get(identity)
        if (ended is not None and run <= ended[0]) or (open_ is not None and run < open_.order[0]):
            return Change(counts=False)
        before = None if ended is None else ended[1]
        self._failures.pop(identity, None)
        if isinstance(record, Finished) and (status := record.status) in FINAL:
            failure = status not in (COMPLETED, PRUNED)
            if not failure or self._reopened.get(identity, 0) <= record.reopened:
                end = run, status
                if end not in self._places:
                    self._places[end] = len(self._ends)
                    self._ends.append(end)
                self._ended[identity] = self._places[end]
                self._open.pop(identity, None)
                if failure:
                    self._failures[identity] = _Open.of(self._launch, record)
                return Change(counts=True, ends=True, reopens=before)
        found = _Open.of(self._launch, record)
        if open_ is None or found.order >= open_.order:
            self._open[identity] = found
        self._ended.pop(identity, None)
        return Change(counts=True, reopens=before)
