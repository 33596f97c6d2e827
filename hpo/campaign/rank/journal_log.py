"""Log of a launch in the journals: records of the coordinator, and reading of ranks that died."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hpo.config.layout import WorkerPlacement
from hpo.islands.coordinator.commands import LeftByLaunch
from hpo.islands.coordinator.launch import DeadLeaderRecord, LaunchLog
from hpo.islands.messages import Assignment, End
from hpo.islands.resume.dead_leader import dead_leader_record
from hpo.islands.resume.fold import fold, fold_directory
from hpo.islands.resume.individuals import failures, located
from hpo.islands.resume.state import ResumeState
from hpo.journal.files import JournalWriter, PlaceInFile, opened, read_on
from hpo.journal.records import Ended, Fenced, Launched, Left, Record, Reopened, Stopping, Storage
from hpo.ledger.journals import (
    at_work,
    journal_files,
    read_directory,
    read_journals,
    worker_journals,
)
from hpo.ledger.opening import state_of
from hpo.search.campaign_end import BestOverTime
from hpo.search.population import Population
from hpo.task.task import Task


class JournalLog(LaunchLog):
    """Records of launch ``number``, whose journals began at ``began`` (Unix seconds)."""

    def __init__(
        self, writer: JournalWriter, directory: Path, task: Task, *, islands: int, number: int, began: float
    ) -> None:
        self.writer = writer
        self.number = number
        self.began = began
        self.launched: Launched | None = None
        self.left: list[Left] = []
        self.ended: Ended | None = None
        self._directory = directory
        self._task = task
        self._islands = islands
        # Bytes that count of the journals of workers that were given up, by worker and part.
        self._fenced: dict[int, tuple[int, ...]] = {}

    def begin(self, known: Sequence[Record], launched: Launched) -> None:
        """Begin the launch. ``known``: records of entered results, which precede all evaluations."""
        for record in known:
            self.writer.append(record)
        self.launched = launched
        self._put(launched)

    def _put(self, *records: Record) -> None:
        for record in records:
            self.writer.append(record)
        # Rank 0's leader, whose journal it is, tries again, and so does the launch's end.
        with suppress(OSError):
            self.writer.commit()

    def stop_begun(self, reason: str) -> None:
        self._put(Stopping(reason=reason, time=time.time()))

    def storage_changed(self, error: str | None) -> None:
        self._put(Storage(error=error, time=time.time()))

    def launch_ended(self, end: End) -> None:
        self.ended = Ended(reason=end.reason, exit=end.exit_code, time=time.time())
        self._put(self.ended)

    def reopened(self, again: Sequence[Assignment], reason: str, entry: int = 0) -> None:
        now = time.time()
        self._put(
            *(Reopened(id=one.id, number=one.reopened, reason=reason, entry=entry, time=now) for one in again)
        )

    def worker_left(self, place: WorkerPlacement, reason: str, *, may_run: bool) -> None:
        left = Left(
            island=place.island, worker=place.worker, reason=reason, time=time.time(), may_run=may_run
        )
        self.left.append(left)
        self._put(left)

    def dead_leader_record(self, place: WorkerPlacement, *, may_run: bool) -> DeadLeaderRecord:
        with at_work(self._directory):
            records = self._given_up(place.worker) if may_run else self._records_of(place.worker)[1]
        with located(self._directory):
            return dead_leader_record(
                records,
                space=self._task.space,
                islands=self._islands,
                losses=self._task.losses,
                limits=self._task.limits,
            )

    def _given_up(self, worker: int) -> list[Record]:
        """Records of a worker whose leader may run on: what it writes from now on does not count. OSError where that
        cannot be put on record."""
        if worker not in self._fenced:
            self._fenced[worker] = self._records_of(worker)[0]
        lengths = self._fenced[worker]
        self.writer.append(Fenced(worker=worker, lengths=lengths, time=time.time()))
        self.writer.commit()
        return self._records_of(worker, lengths)[1]

    def _records_of(
        self, worker: int, ends: tuple[int, ...] | None = None
    ) -> tuple[tuple[int, ...], list[Record]]:
        """Bytes that are read of each part of a worker's journal, and the records in them. ``ends``: bytes to read;
        None for all."""
        records: list[Record] = []
        lengths: list[int] = []
        for journal in worker_journals(self._directory, launch=self.number, worker=worker):
            part, place = journal.name.part, PlaceInFile()
            with opened(journal.path) as (file, size):
                end = size if ends is None else min(size, ends[part]) if part < len(ends) else 0
                records += read_on(journal.path, file, place, end)
            lengths += [0] * (part - len(lengths)) + [place.offset]
        return tuple(lengths), records

    def journal_totals(self) -> ResumeState:
        with at_work(self._directory), located(self._directory):
            return fold_directory(
                self._directory,
                space=self._task.space,
                islands=self._islands,
                losses=self._task.losses,
                limits=self._task.limits,
            )

    def evaluated(self) -> tuple[BestOverTime, Iterable[Population]]:
        """The best over time, and the populations, of all launches."""
        totals = self.journal_totals()
        return totals.tally.history, totals.populations.values()

    def left_by(self, launch: int) -> LeftByLaunch:
        """Individuals of a closed launch."""
        state = state_of(self._directory)
        with at_work(self._directory), located(self._directory):
            records = (
                record
                for _, record in read_journals(journal_files(self._directory, launch, state=state), state)
            )
            losses, limits = self._task.losses, self._task.limits
            left = fold(records, space=self._task.space, islands=self._islands, losses=losses, limits=limits)
        return LeftByLaunch({one.id: one for one in left.pending}, left.ended, left.keys)

    def failures(self) -> list[tuple[str, Assignment]]:
        """Status of each individual on record that ended in a failure, and how it would be evaluated again."""
        with at_work(self._directory):
            return failures(read_directory(self._directory), space=self._task.space)
