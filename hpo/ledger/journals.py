"""The journals of a campaign as far as they count.

All of an open launch's journals counts, except those of workers that the launch has given up (``Fenced``). Of a closed
launch's journals the bytes count that its ``Closed`` entry names, whatever its processes write later."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hpo.errors import CampaignError, JournalDamaged
from hpo.journal.files import JournalName, listed, numbered_records, read_file
from hpo.journal.records import Fenced, Record
from hpo.ledger.fold import LedgerState
from hpo.ledger.opening import state_of


class CountedJournal(NamedTuple):
    """A part of a worker's journal."""

    path: Path
    name: JournalName
    end: int | None = None
    """Number of bytes that count; None: all that is written."""


class Bounds:
    """Bytes that count of each journal. ``state``: of the ledger; ``take`` gets the records of the launches' first
    workers before the journals of their other workers are read."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self._fenced: dict[tuple[int, int], tuple[int, ...]] = {}

    def take(self, launch: int, record: Record) -> None:
        """Note what a record of ``launch`` says of journals."""
        if isinstance(record, Fenced):
            self._fenced.setdefault((launch, record.worker), record.lengths)

    def end(self, name: JournalName) -> int | None:
        """Number of bytes that count of the part ``name``; None: all that is written."""
        state = self._state
        if name.launch in state.closed:
            lengths = state.closed[name.launch].lengths.get(name.worker, ())
        elif (name.launch, name.worker) in self._fenced:
            lengths = self._fenced[name.launch, name.worker]
        elif state.opened is None or name.launch <= state.opened.launches:
            return None
        else:
            own = name.launch in state.open and state.open[name.launch].has(name.worker)
            return None if own else 0
        return lengths[name.part] if name.part < len(lengths) else 0


def snapshot_path(directory: Path) -> Path:
    """Cache of what the journals of closed launches hold: see ``hpo.islands.resume.snapshot``."""
    return directory / "launches" / "closed"


def journal_files(
    directory: Path,
    launch: int | None = None,
    *,
    state: LedgerState | None = None,
    without: Container[int] = (),
) -> list[CountedJournal]:
    """Journals of the campaign in ``directory``, or of one launch, that count, by launch, island, worker and part.

    Args:
        state: of the ledger; None to read it.
        without: launches whose journals are left out.

    Raises:
        CampaignError: they, or the ledger, cannot be read.
    """
    state = state_of(directory) if state is None else state
    bounds = Bounds(state)
    files = listed(directory, launch, without=without)
    found = (CountedJournal(path, name, bounds.end(name)) for name, path in files)
    return [one for one in found if one.end != 0]


def excluded_journals(directory: Path, *, state: LedgerState) -> list[Path]:
    """Parts of which nothing counts; CampaignError as ``journal_files``."""
    counting = {one.path for one in journal_files(directory, state=state)}
    return [path for _, path in listed(directory) if path not in counting]


def worker_journals(directory: Path, *, launch: int, worker: int) -> list[CountedJournal]:
    """Parts of a worker's journal in order; CampaignError where they cannot be listed."""
    return [one for one in journal_files(directory, launch) if one.name.worker == worker]


def first_journals(directory: Path, launch: int) -> list[CountedJournal]:
    """Parts of the journal of a launch's first worker, which rank 0 leads; CampaignError where they cannot be
    listed."""
    files = journal_files(directory, launch)
    first = min((one.name.worker for one in files), default=0)
    return [one for one in files if one.name.worker == first]


def last_launch(directory: Path) -> int:
    """Number of the last launch that left a journal; 0 before the first."""
    bounds = Bounds(state_of(directory))
    return max((name.launch for name, _ in listed(directory) if bounds.end(name) != 0), default=0)


def read_journals(
    journals: list[CountedJournal], state: LedgerState, torn: list[Path] | None = None
) -> Iterator[tuple[CountedJournal, Record]]:
    """Records of ``journals``, which are ordered as by ``journal_files``, each with its journal. ``torn`` and errors:
    see ``hpo.journal.files.read_file``."""
    bounds = Bounds(state)
    for journal in journals:
        for record in read_file(journal.path, torn, bounds.end(journal.name)):
            bounds.take(journal.name.launch, record)
            yield journal, record


def read_directory(
    directory: Path, torn: list[Path] | None = None, *, state: LedgerState | None = None
) -> Iterator[Record]:
    """Records of all journals that count by launch, island and worker, each file's header before its other records.
    ``torn`` and errors: see ``hpo.journal.files.read_file``; ``state``: of the ledger, None to read it."""
    state = state_of(directory) if state is None else state
    for _, record in read_journals(journal_files(directory, state=state), state, torn):
        yield record


def damaged(directory: Path, wrong: Callable[[Record], bool], reason: str) -> JournalDamaged:
    """Error for the campaign's first record that is ``wrong``."""
    for journal in journal_files(directory):
        for number, record in numbered_records(journal.path, end=journal.end):
            if wrong(record):
                return JournalDamaged(journal.path, number, reason)
    return JournalDamaged(directory / "launches", 1, reason)


@contextmanager
def at_work(directory: Path) -> Iterator[None]:
    """Context that reads journals while the campaign is at work: it raises OSError, which may pass, where they cannot
    be read for now, or ``directory`` is not there."""
    (directory / "campaign.json").stat()
    try:
        yield
    except CampaignError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise
