"""Facts on a campaign's launches in the journals: whether the budget is complete, how a launch ended, and how many in a
row got nothing done.

Restarts and requeues are decided by these and not by exit codes: a launcher returns 137 where one rank of many was
killed, and 0 where a node died."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpo.errors import CampaignError, StorageFailed
from hpo.individual import COMPLETED, FINAL, INTERRUPTED, PRUNED
from hpo.journal.directory import DAMAGED
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import read_file
from hpo.journal.records import Ended, Finished, Header, Launched
from hpo.ledger.closing import closing
from hpo.ledger.entries import Completed, Limits
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import first_journals, journal_files, last_launch, read_directory, read_journals
from hpo.ledger.opening import state_of

# Launches in a row that got nothing done, after which no other is started: their cause will not go away by itself.
MOST_IDLE_LAUNCHES = 3

_LOOK_S = 0.5
T = TypeVar("T")


@dataclass(kw_only=True)
class LaunchOnRecord:
    """One launch in rank 0's journal."""

    number: int
    job: str = ""
    """Attempt at a Slurm job, "" outside Slurm."""
    began: float | None = None
    """Unix seconds of its start; None where it died before that was written."""
    end: tuple[str, int] | None = None
    """Reason and exit code of its end; None where it runs or was killed."""


def read_launch(directory: Path, number: int) -> LaunchOnRecord | None:
    """Launch ``number``; None where it never began."""
    files = first_journals(directory, number)
    if not files:
        return None
    launch = LaunchOnRecord(number=number)
    for record in (one for journal in files for one in read_file(journal.path, end=journal.end)):
        if isinstance(record, Header):
            launch.job = record.job
        elif isinstance(record, Launched):
            launch.began = record.time
        elif isinstance(record, Ended):
            launch.end = record.reason, record.exit
    return launch


def read_launch_patiently(
    directory: Path, patience_s: float, number: int | None = None, *, job: str = ""
) -> LaunchOnRecord | None:
    """Launch ``number``, None for the last, or the last of the Slurm ``job`` (see ``read_launch``); errors as of
    ``patiently``."""

    def last() -> int:
        joined = state_of(directory).joined
        own = [one for one in joined if _is_of_job(joined[one].job, job)]
        return max(own, default=0) if job and joined else last_launch(directory)

    return patiently(lambda: read_launch(directory, last() if number is None else number), patience_s)


def _is_of_job(attempt: str, job: str) -> bool:
    """Whether ``attempt``, such as "123.0", is an attempt at the Slurm ``job`` "123"."""
    return attempt.partition(".")[0] == job


def patiently(read: Callable[[], T], patience_s: float) -> T:
    """Call ``read`` again while storage fails.

    Raises:
        StorageFailed: it failed for ``patience_s``.
        CampaignError: a journal or the ledger is damaged, or of another version.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            return read()
        except CampaignError as error:
            if not isinstance(error.__cause__, OSError):
                raise
            if time.monotonic() >= end:
                raise StorageFailed(
                    f"{error} Nothing that was recorded is lost: once it can be read, give the same command again to "
                    "go on."
                ) from error
        time.sleep(_LOOK_S)


@dataclass(frozen=True, kw_only=True)
class BudgetUse:
    """Use of a campaign's budget."""

    budget: int | None
    """Budget of the latest ``hpo set`` or the campaign file; None where there is only a deadline."""
    final: int
    """Number of individuals that have ended for good."""
    worked: bool
    """Whether any individual has completed or was pruned."""
    early: Completed | None = None
    """Entry by which the campaign has ended before that."""

    @property
    def complete(self) -> bool:
        """Whether the budget is used up, or the campaign has ended early, and not on failures alone."""
        used_up = self.budget is not None and self.final >= self.budget
        return self.worked and (used_up or self.early is not None)


def budget_use(directory: Path, in_file: Limits) -> BudgetUse:
    """Count by the ledger, and by the journals of open launches. ``in_file``: limits of the campaign file."""
    state = state_of(directory)
    open_now = (closing(directory, repr, state, launch, by=0, reason="") for launch in state.open)
    return BudgetUse(
        budget=state.limits_with(in_file).evaluations,
        early=state.end_with(in_file),
        # A repair leaves out what the ledger still counts, until a launch counts again.
        final=_final_in_journals(directory, state)
        if (directory / DAMAGED).exists()
        else state.final + sum(one.final for one in open_now),
        worked=any(
            isinstance(record, Finished) and record.status in (COMPLETED, PRUNED)
            # A launch at a time: the first will do, and names of all journals take long to sort.
            for launch in range(1, state.launches + 1)
            for _, record in read_journals(journal_files(directory, launch, state=state), state)
        ),
    )


def _final_in_journals(directory: Path, state: LedgerState) -> int:
    """Number of individuals that have ended for good by all journals."""
    current = CurrentEvaluations()
    for record in read_directory(directory, [], state=state):
        current.take(record)
    # Failures that ``hpo retry`` names still stand on record until a launch reopens them.
    again = {*state.pool}.union(*({*one.ids, *one.again} for one in state.open.values()))
    return len(current.ended_ids) - sum(one.record.id in again for one in current.failures)


def is_complete(directory: Path, in_file: Limits) -> bool:
    """See ``BudgetUse.complete``; arguments as of ``budget_use``."""
    return budget_use(directory, in_file).complete


def made_progress(directory: Path, launch: int) -> bool:
    """Whether anything was finished in the launch, or saved for the next."""
    state = state_of(directory)
    return any(
        record.status in FINAL or (record.status == INTERRUPTED and record.error is None)
        for _, record in read_journals(journal_files(directory, launch, state=state), state)
        if isinstance(record, Finished)
    )


def consecutive_idle_launches(directory: Path, job: str = "") -> int:
    """Number of the last launches in a row that got nothing done. ``job``: count launches of this Slurm job alone."""
    count, joined = 0, state_of(directory).joined
    for number in range(last_launch(directory), 0, -1):
        if job and number in joined and not _is_of_job(joined[number].job, job):
            continue
        launch = read_launch(directory, number)
        if launch is not None and job and not _is_of_job(launch.job, job):
            break
        if made_progress(directory, number):
            break
        count += launch is not None
    return count
