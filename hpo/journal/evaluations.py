"""Which of the records on an individual counts, in whatever order the journals are read.

Journals are in no order of time: an individual may have been begun on one worker and ended on another, twice after a
death, and again after a pause. The rules, once for all readers:

- The runs of an individual are numbered by the step at which each was resumed; a later run replaces an earlier one.
- Within a run the first end that is final stays: another can only be that of an evaluation that was thought lost.
- Of what is not final, the latest counts: by retries, then by launch, then by time."""

from __future__ import annotations

from typing import NamedTuple

from hpo.individual import FINAL
from hpo.journal.records import Finished, Header, Started


class Change(NamedTuple):
    """What a record changed for its individual."""

    counts: bool
    """False where a later run or an end of this run is on record."""
    ends: bool = False
    """It has ended, for now."""
    reopens: bool = False
    """An end of it that counted before was that of an earlier run."""


class _Open(NamedTuple):
    order: tuple[int, int, int, float]
    record: Started | Finished


class CurrentEvaluations:
    """Takes records as they are read, and keeps those of unfinished individuals."""

    def __init__(self) -> None:
        # By id, the number of the run that ended.
        self._ended: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self._launch = 0

    @property
    def ended(self) -> int:
        """How many individuals have ended."""
        return len(self._ended)

    @property
    def open(self) -> list[tuple[int, Started | Finished]]:
        """The latest record of each unfinished individual, with its launch."""
        return [(one.order[2], one.record) for one in self._open.values()]

    def enter_launch(self, header: Header) -> None:
        """The records that follow are of the launch of ``header``."""
        self._launch = header.launch

    def add(self, record: Started | Finished) -> Change:
        identity, run = record.id, record.resumed_at_step
        ended = self._ended.get(identity)
        open_ = self._open.get(identity)
        if (ended is not None and run <= ended) or (open_ is not None and run < open_.order[0]):
            return Change(counts=False)
        if isinstance(record, Finished) and record.status in FINAL:
            self._ended[identity] = run
            self._open.pop(identity, None)
            return Change(counts=True, ends=True, reopens=ended is not None)
        order = (run, record.retries, self._launch, record.at)
        if open_ is None or order >= open_.order:
            self._open[identity] = _Open(order, record)
        self._ended.pop(identity, None)
        return Change(counts=True, reopens=ended is not None)
