"""Follows a campaign that may be at work: what its journals and curves have more than when they were last looked at.

Journals are appended to, new ones begin with a launch or after a failure of the storage, and the journals of a worker
that hangs are replaced by copies. The state that results is that of reading everything anew (``hpo.results.record``).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpo.errors import CampaignError
from hpo.individual import FINAL
from hpo.journal import directory as directories
from hpo.journal import lock
from hpo.journal.curves import Point, Sample, curve_files, read_from
from hpo.journal.files import JournalName, PlaceInFile, journal_files, journal_name, opened, read_on
from hpo.journal.records import (
    TAIL_BYTES,
    Finished,
    Header,
    Migrated,
    Note,
    Record,
    Reopened,
    Reported,
    Started,
)
from hpo.results.curves import Curves
from hpo.results.record import CampaignRecord, Fold, collector_paused

if TYPE_CHECKING:
    import pandas

_BYTES_A_POLL = 1 << 23
"""About 20 000 records, half a second of work."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What one poll found; true where that is anything.

    ``records``: those of one journal stand together, behind its header, which comes again where it is read on;
    ``rows``: of learning curves, by what the name of their file says, in their order there;
    ``again``: what was found before counts no more, and comes again; ``more``: the next poll finds more at once."""

    records: list[Record] = field(default_factory=list)
    rows: list[tuple[JournalName, list[Point | Sample]]] = field(default_factory=list)
    again: bool = False
    more: bool = False

    def __bool__(self) -> bool:
        return bool(self.records or self.rows or self.again)


class Follower:
    """Reads the campaign in ``directory`` as it grows.

    A poll costs one listing and a look at each file where nothing has changed, and reads a bounded number of bytes
    where much has. Nothing stays open between polls. One thread at a time may use it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._files: dict[Path, _File] = {}
        self._fold = _FoldInAnyOrder()
        self._curve_files: dict[Path, _CurveFile] = {}
        self._curves = Curves()
        self._found = Changes()
        self._reading: _File | None = None
        self._again = False

    def poll(self) -> Changes:
        """What is new since the last poll; at first, what is there.

        Raises:
            JournalDamaged, CampaignError: see ``hpo.results.record.load``. What was found before that is returned by
                the next poll that succeeds.
        """
        with collector_paused():
            try:
                left = self._read()
            except _ReadAnew:
                self._begin_again()
                left = self._read()
            # Behind the journals: a reader meets an individual before its reports.
            left = self._read_curves(left) if left > 0 else left
        changes = replace(self._found, again=self._again, more=left <= 0)
        self._found, self._reading, self._again = Changes(), None, False
        return changes

    def record(self) -> CampaignRecord:
        """What ``hpo.results.record.load`` would return if the journals were as the last poll found them; where that
        left more to be read, up to there.

        Raises:
            CampaignError: there is no campaign in the directory any more.
        """
        identity = directories.read_identity(self._directory)
        alive = lock.holder(self._directory) is not None
        torn = [file.path for file in self._files.values() if file.place.torn]
        with collector_paused():
            return self._fold.fold.record(self._directory, identity, torn, alive=alive)

    def curves(self) -> pandas.DataFrame:
        """What ``hpo.results.curves.load`` would return, likewise; columns of metrics may stand in another order."""
        return self._curves.frame()

    def _read(self) -> int:
        """Read on in all journals; what is left of the bytes to read: none where there may be more."""
        names = {path: name for path in journal_files(self._directory) if (name := journal_name(path))}
        if not names:
            directories.read_identity(self._directory)
        if not self._files.keys() <= names.keys():
            raise _ReadAnew
        self._files = {  # in the order of reading
            path: self._files.get(path) or _File(path=path, name=name) for path, name in names.items()
        }
        last = max((name.launch for name in names.values()), default=0)
        left = _BYTES_A_POLL
        for file in self._files.values():
            # What an NFS client knows of a file may be a minute old, unless the file is opened.
            if file.name.launch == last or file.changed():
                left -= self._read_file(file, left)
                if left <= 0:
                    break
        return left

    def _read_file(self, file: _File, most: int) -> int:
        """Read on in one journal, about ``most`` bytes; how many were read."""
        begin = file.place.offset
        with opened(file.path) as (content, size):
            signature = _signature(os.fstat(content.fileno()))
            if signature == file.seen:
                return 0
            content.seek(file.end - len(file.tail))
            if content.read(len(file.tail)) != file.tail:
                raise _ReadAnew
            content.seek(begin)
            file.seen = None
            for record in read_on(file.path, content, file.place, size):
                if isinstance(record, Header):
                    file.header = record
                elif file.header is not None and self._reading is not file:
                    self._found.records.append(file.header)
                self._reading = file
                self._found.records.append(record)
                self._fold.add(file, record)
                if file.place.offset - begin >= most:
                    break
            else:
                file.seen = signature
            file.end = file.place.offset
            content.seek(max(0, file.end - TAIL_BYTES))
            file.tail = content.read(min(file.end, TAIL_BYTES))
        return file.place.offset - begin

    def _begin_again(self) -> None:
        self._files = {}
        self._fold = _FoldInAnyOrder()
        self._curve_files = {}
        self._curves = Curves()
        self._found, self._reading = Changes(), None
        self._again = True

    def _read_curves(self, left: int) -> int:
        """Read on in all curves; see ``_read``."""
        files = curve_files(self._directory)
        last = max((name.launch for name, _ in files), default=0)
        for name, path in files:
            file = self._curve_files.setdefault(path, _CurveFile())
            try:
                signature = _signature(path.lstat())
                if name.launch != last and signature == file.seen:
                    continue
                rows, end = read_from(path, file.offset)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CampaignError(
                    f"{path} cannot be read ({error.strerror or error}). Give read access, or name another directory."
                ) from error
            if rows:
                self._curves.add(name.launch, rows)
                self._found.rows.append((name, rows))
            left -= end - file.offset
            file.seen = signature if end == file.offset else None
            file.offset = end
            if left <= 0:
                break
        return left


class _ReadAnew(Exception):
    """What was read is not what the files hold, or stands in another order."""


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(kw_only=True)
class _File:
    """A journal. ``seen``: as it was when all of it was read; ``tail``: the checksum up to ``end`` that was read there,
    which stays where records are only added."""

    path: Path
    name: JournalName
    place: PlaceInFile = field(default_factory=PlaceInFile)
    header: Header | None = None
    seen: tuple[int, ...] | None = None
    end: int = 0
    tail: bytes = b""

    def changed(self) -> bool:
        """Whether it differs from what was read, as far as that can be known without opening it."""
        try:
            return self.seen != _signature(self.path.stat())
        except OSError:
            return True  # opening it says why


@dataclass(kw_only=True)
class _CurveFile:
    """A file of curves, read up to ``offset``; ``seen``: as it was when nothing more was there."""

    offset: int = 0
    seen: tuple[int, ...] | None = None


class _Entry(NamedTuple):
    name: JournalName
    header: Header
    record: Started | Finished | Reopened


class _FoldInAnyOrder:
    """The state that the records of all journals come to, each in its order, when the journals themselves are not read
    one after the other."""

    def __init__(self) -> None:
        self.fold = Fold()
        self._entered: Header | None = None
        self._histories: dict[str, list[_Entry]] = {}
        self._parts: dict[JournalName, int] = {}
        # Of the records that are about no individual, which rank 0 writes.
        self._last = JournalName(0, 0, 0)

    def add(self, file: _File, record: Record) -> None:
        """Raises _ReadAnew where the records so far stand in an order in which they cannot be added."""
        assert file.header is not None
        if file.header is not self._entered:
            worker = file.name._replace(part=0)
            if file.name.part < self._parts.get(worker, 0):
                raise _ReadAnew
            self._parts[worker] = file.name.part
            self.fold.add((file.header,))
            self._entered = file.header
        if isinstance(record, (Started, Finished, Reopened)):
            self.fold.add((record,))
            self._remember(_Entry(file.name, file.header, record))
        elif isinstance(record, (Header, Migrated, Note, Reported)):
            self.fold.add((record,))
        elif file.name < self._last:
            raise _ReadAnew
        else:
            self._last = file.name
            self.fold.add((record,))

    def _remember(self, entry: _Entry) -> None:
        history = self._histories.setdefault(entry.record.id, [])
        if history and entry.name < history[-1].name:
            history.insert(bisect_right(history, entry.name, key=lambda one: one.name), entry)
            self.fold.reorder(entry.record.id, [(one.header, one.record) for one in history])
            self._entered = None
        else:
            if history and _replaces(history[-1], entry):
                history.pop()
            history.append(entry)


def _replaces(before: _Entry, entry: _Entry) -> bool:
    """Whether ``before``, an evaluation's beginning, says nothing beside its end."""
    begun, ended = before.record, entry.record
    return (
        isinstance(begun, Started)
        and isinstance(ended, Finished)
        and ended.status in FINAL
        and before.name == entry.name
        and begun.run == ended.run
        and begun.retries == ended.retries
        and begun.at <= ended.at
    )
