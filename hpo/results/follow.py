"""Follow a campaign that may be at work: read only what its journals and curves have gained since the last look.

Records stay in memory by file, and ``Follower.record`` folds them in the order in which the directory is read. Folding
takes a third of the time of reading, and needs no rules of its own for journals that grow side by side."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpo.errors import CampaignError
from hpo.journal import directory as directories
from hpo.journal.curves import curve_files, read_from
from hpo.journal.files import PlaceInFile, opened, read_on
from hpo.journal.records import TAIL_BYTES, Fenced, Record
from hpo.ledger.alive import living
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import Bounds, journal_files
from hpo.ledger.opening import FollowedLedger
from hpo.results.curves import Curves
from hpo.results.record import CampaignRecord, Fold, collector_paused

if TYPE_CHECKING:
    import pandas

_BYTES_A_POLL = 1 << 23  # about 20 000 records, half a second of work


class Poll(NamedTuple):
    """Result of one look at the files."""

    new: bool  # whether something was found
    more: bool  # whether the bound on bytes was met, so that the next poll finds more at once


class Follower:
    """Reads the journals of the campaign in ``directory`` as they grow.

    Without changes a poll costs one listing and a look at each file; with many it reads a bounded number of bytes.
    Nothing stays open between polls. Only one thread at a time may use it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._journals: dict[Path, _FollowedJournal] = {}
        self._ledger = FollowedLedger(self._directory)
        self._state = LedgerState()
        self._new = False

    def poll(self) -> Poll:
        """Read on in all journals.

        Raises:
            JournalDamaged, CampaignError: see ``hpo.results.record.load``. The next poll that succeeds reports what was
                read before the error.
        """
        self._state = self._ledger.state()
        names = {path: name for path, name, _ in journal_files(self._directory, state=self._state)}
        if not names:
            directories.read_identity(self._directory)
        # A journal of a closed launch may not count.
        self._new |= not self._journals.keys() <= names.keys()
        self._journals = {path: self._journals.get(path) or _FollowedJournal(path) for path in names}
        growing = {*self._state.open, max((name.launch for name in names.values()), default=0)}
        left, bounds = _BYTES_A_POLL, Bounds(self._state)
        with collector_paused():
            for path, journal in self._journals.items():
                if (most := bounds.end(names[path])) != journal.most:
                    journal.most, journal.seen = most, None
                # The size that an NFS client knows may be a minute old, unless the file is opened.
                if left > 0 and (names[path].launch in growing or journal.changed()):
                    left -= self._read_on(journal, left)
                if journal.most is not None and journal.place.offset >= journal.most:
                    journal.place.torn = False
                for record in journal.fences:
                    bounds.take(names[path].launch, record)
        new, self._new = self._new, False
        return Poll(new, left <= 0)

    @property
    def open_launches(self) -> Collection[int]:
        """Numbers of the launches that were open at the last poll."""
        return self._state.open.keys()

    def record(self) -> CampaignRecord:
        """The record that ``hpo.results.record.load`` would return if the journals held only what was polled.

        Raises:
            CampaignError: the directory holds no campaign any more.
        """
        identity = directories.read_identity(self._directory)
        state = self._state
        at_work = living(self._directory, state)
        torn = [journal.path for journal in self._journals.values() if journal.place.torn]
        fold = Fold()
        with collector_paused():
            for journal in self._journals.values():
                fold.add(journal.records)
            return fold.record(self._directory, identity, state, torn, at_work)

    def _read_on(self, journal: _FollowedJournal, most: int) -> int:
        """Read about ``most`` bytes of a journal; returns how many were read."""
        with opened(journal.path) as (content, size):
            signature = _signature(os.fstat(content.fileno()))
            if journal.most is not None:
                size = min(size, journal.most)
            if signature == journal.seen and journal.end <= size:
                return 0
            content.seek(journal.end - len(journal.tail))
            if journal.end > size or content.read(len(journal.tail)) != journal.tail:
                # Records that were read do not count any more, or the file was repaired.
                journal.begin_again()
                self._new = True
            begin = journal.place.offset
            content.seek(begin)
            journal.seen = None
            for record in read_on(journal.path, content, journal.place, size):
                journal.records.append(record)
                if isinstance(record, Fenced):
                    journal.fences.append(record)
                self._new = True
                if journal.place.offset - begin >= most:
                    break
            else:
                journal.seen = signature
            journal.end = journal.place.offset
            content.seek(max(0, journal.end - TAIL_BYTES))
            journal.tail = content.read(min(journal.end, TAIL_BYTES))
        return journal.place.offset - begin


class CurveFollower:
    """Reads the learning curves of the campaign in ``directory`` as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[Path, _CurveFile] = {}
        self._curves = Curves()

    def poll(self, open_launches: Collection[int] = ()) -> Poll:
        """Read on in all files; CampaignError where a file cannot be read. ``open_launches``: numbers of launches that
        may write."""
        files = curve_files(self._directory)
        growing = {*open_launches, max((name.launch for name, _ in files), default=0)}
        left, new = _BYTES_A_POLL, False
        for name, path in files:
            file = self._files.setdefault(path, _CurveFile())
            try:
                signature = _signature(path.lstat())
                if left <= 0 or (name.launch not in growing and signature == file.seen):
                    continue
                rows, end = read_from(path, file.offset)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CampaignError(
                    f"{path} cannot be read ({error.strerror or error}). Give read access, or name another directory."
                ) from error
            self._curves.add(name.launch, rows)
            new |= bool(rows)
            left -= end - file.offset
            file.seen = signature if end == file.offset else None
            file.offset = end
        return Poll(new, left <= 0)

    def frame(self) -> pandas.DataFrame:
        """The table of ``hpo.results.curves.load``; columns of metrics may have another order."""
        return self._curves.frame()


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass
class _FollowedJournal:
    path: Path
    place: PlaceInFile = field(default_factory=PlaceInFile)
    records: list[Record] = field(default_factory=list)
    seen: tuple[int, ...] | None = None  # signature of the file when all of it was read
    fences: list[Fenced] = field(default_factory=list)
    most: int | None = None  # bytes that count; None: all that is written
    end: int = 0
    tail: bytes = b""  # the checksum that ends at ``end``; it stays where records are only appended

    def begin_again(self) -> None:
        self.place, self.records, self.fences, self.end, self.tail = PlaceInFile(), [], [], 0, b""

    def changed(self) -> bool:
        """Whether the file differs from what was read, as far as that is known without opening it."""
        try:
            outgrown = self.most is not None and self.end > self.most
            return outgrown or self.seen != _signature(self.path.stat())
        except OSError:
            return True  # opening it says why


@dataclass
class _CurveFile:
    offset: int = 0
    seen: tuple[int, ...] | None = None
