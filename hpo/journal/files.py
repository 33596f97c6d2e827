"""The journals of a campaign: one append-only file per worker and launch, synced before a result counts.

Worker 3 of island 0 writes ``DIR/launches/0001/journal/0001-i000-w0003.jsonl`` in the first launch. No other process
writes it, and it is never rewritten, so no file locks are needed on NFS, Lustre or GPFS. Where a write or sync failed,
the journal goes on in ``0001-i000-w0003-r1.jsonl``, ``-r2`` and so on. Earlier versions wrote those of all launches to
``DIR/journal/``. How much of each file counts: ``hpo.ledger.journals``."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from hpo.errors import CampaignError, JournalDamaged
from hpo.journal.directory import launch_folder
from hpo.journal.durable import sync_directory
from hpo.journal.records import CRC_KEY, TAIL_BYTES, VERSION, Header, NotWhole, Record, decode, encode

_NAME = re.compile(r"(\d{4,})-i(\d{3,})-w(\d{4,})(?:-r(\d{1,9}))?\.jsonl")
_LAUNCH = re.compile(r"\d{4,9}")
# Bytes: a file of nothing but zeros, which costs no disk, must not fill the memory.
LONGEST_LINE = 1 << 26


class JournalName(NamedTuple):
    """Numbers in a journal's name. ``part``: 0, or the number of the file in which the journal went on."""

    launch: int
    island: int
    worker: int
    part: int = 0


def journal_path(directory: Path, *, launch: int, island: int, worker: int) -> Path:
    """The file that a worker writes in a launch of the campaign in ``directory``."""
    folder = launch_folder(directory, launch) / "journal"
    return folder / f"{launch:04d}-i{island:03d}-w{worker:04d}.jsonl"


def journal_name(name: str) -> JournalName | None:
    """Numbers in a journal's name; None for another file."""
    match = _NAME.fullmatch(name)
    return JournalName(int(match[1]), int(match[2]), int(match[3]), int(match[4] or 0)) if match else None


def journal_part(path: Path, part: int) -> Path:
    """The file of part ``part`` of the journal that began in ``path``."""
    return path.with_name(f"{path.stem}-r{part}{path.suffix}") if part else path


def listed(
    directory: Path, launch: int | None = None, *, without: Container[int] = ()
) -> list[tuple[JournalName, Path]]:
    """Journals in the campaign's ``directory`` in order, of all launches or of one; CampaignError where they cannot be
    listed. ``without``: launches whose journals are left out."""
    found = [one for one in _in(directory / "journal") if launch in (None, one[0].launch)]
    for number in launch_folders(directory):
        if launch in (None, number) and number not in without:
            # A file of another launch's name is a copy from elsewhere.
            folder = launch_folder(directory, number) / "journal"
            found += (one for one in _in(folder) if one[0].launch == number)
    return sorted(one for one in found if one[0].launch not in without)


def launch_folders(directory: Path) -> list[int]:
    """Numbers of the launches that have a folder in the campaign's ``directory``; CampaignError where they cannot be
    listed."""
    folders = (one.name for one in _entries(directory / "launches") if one.is_dir(follow_symlinks=False))
    return [int(name) for name in folders if _LAUNCH.fullmatch(name)]


def _in(folder: Path) -> list[tuple[JournalName, Path]]:
    names = ((journal_name(one.name), folder / one.name) for one in _entries(folder))
    return [(numbers, path) for numbers, path in names if numbers is not None]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CampaignError(
            f"{folder} cannot be read ({error.strerror or error}). Give read access, or name another directory."
        ) from error


class JournalWriter:
    """Writes one worker's journal of one launch: ``append`` collects records, ``commit`` puts them on disk.

    After a failure nothing is known of the file's last pages, and a record behind a torn record would look like damage.
    So the next ``commit`` writes all that is not yet on disk to a new part, which begins with the same header. Some
    records may be in the former part, too: readers take a record that comes twice for one record.

    The constructor makes the file ``path`` and its directories, and syncs ``header``, unless that fails (``error``). It
    raises CampaignError where the file exists already.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.error: OSError | None = None
        """Why the last ``commit`` failed; None after one that succeeded."""
        self._header = encode(header)
        self._batch: list[bytes] = []
        self._file: int | None = None
        self._closed = False
        self._fresh = True
        """Whether the present part, or the next if there is none, holds nothing that counts."""
        self._part = 0
        self.discarded = False
        """Whether ``discard`` has given up records, which may be on disk all the same."""
        try:
            self._open()
            self._fresh = False
        except OSError as error:
            if isinstance(error, FileExistsError) and error.filename == os.fspath(path):
                raise CampaignError(
                    f"{path} exists already, and a journal is never rewritten. Another launch of the same "
                    "campaign is at work in this directory: let it finish, or stop it with `hpo stop`."
                ) from None
            self._failed(error)

    @property
    def pending(self) -> int:
        """Number of records that have been appended and are not yet on disk."""
        return len(self._batch)

    def append(self, record: Record) -> None:
        """Take ``record`` for the next ``commit``."""
        self._batch.append(encode(record))

    def commit(self) -> None:
        """Put all appended records on disk by one write and one sync. OSError: they may not be there; the next call
        tries again, in a new file."""
        if not self._batch and self.error is None:
            return
        if self._closed:
            raise ValueError(f"{self.path} was closed")
        try:
            if self._file is None:
                self._open()
            self._write(b"".join(self._batch))
        except OSError as error:
            self._failed(error)
            raise
        self._batch.clear()
        self._fresh = False
        self.error = None

    def discard(self) -> None:
        """Give up all records that are not on disk for certain."""
        self.discarded |= bool(self._batch)
        self._batch.clear()
        self.error = None

    def close(self) -> None:
        """Commit, with its errors, and close the file; a second call does nothing."""
        if self._closed:
            return
        try:
            self.commit()
        finally:
            self._closed = True
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _open(self) -> None:
        path = journal_part(self.path, self._part)
        # Not for later parts: made in the place of a directory that is gone, it would be in the way when that
        # comes back.
        if self._part == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._write(self._header)
        # The first part may have made all folders from the campaign's directory on.
        for folder in path.parents[: 1 if self._part else 4]:
            sync_directory(folder)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        written = os.write(self._file, data) if data else 0
        while written < len(data):
            written += os.write(self._file, memoryview(data)[written:])
        os.fsync(self._file)

    def _failed(self, error: OSError) -> None:
        path = journal_part(self.path, self._part)
        if error.filename is None:  # a write knows a number alone
            error.filename = os.fspath(path)
        self.error = error
        if self._file is None:  # it could not be made, or is there already
            self._part += isinstance(error, FileExistsError) and error.filename == os.fspath(path)
            return
        with suppress(OSError):
            os.close(self._file)
        self._file = None
        if self._fresh:  # a disk that stays full must not be littered with parts
            with suppress(OSError):
                path.unlink()
                return
        self._part += 1
        self._fresh = True

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_file(path: Path, torn: list[Path] | None = None, end: int | None = None) -> Iterator[Record]:
    """Records of one journal in order, header first, without those of unknown types. A journal that is being written is
    read as far as it was written when it was opened.

    Args:
        torn: gets ``path`` if the last line is torn; that line, which did not count, is left out.
        end: the number of bytes to read; None: all.

    Raises:
        JournalDamaged: a line other than the last does not fit its checksum, a record lacks what its type has, or the
            header is missing.
        CampaignError: the journal was written by another version, or cannot be read.
    """
    for _, record in numbered_records(path, torn, end):
        yield record


def numbered_records(
    path: Path, torn: list[Path] | None = None, end: int | None = None
) -> Iterator[tuple[int, Record]]:
    """``read_file`` with the number of each record's line."""
    place = PlaceInFile()
    with opened(path) as (file, size):
        for record in read_on(path, file, place, size if end is None else min(size, end)):
            yield place.line, record
    if place.torn and torn is not None:
        torn.append(path)


@dataclass(kw_only=True)
class PlaceInFile:
    """Position of a reader: behind ``line`` lines, at byte ``offset``. ``torn``: whether a line that is cut off
    follows."""

    line: int = 0
    offset: int = 0
    torn: bool = False


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its present size in bytes; CampaignError where it cannot be read, in the context either."""
    try:
        # Read ahead in large pieces: a read costs a round trip on a network file system.
        with open(path, "rb", buffering=1 << 20) as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be read ({error.strerror or error}). Give read access, or name another directory."
        ) from error


def read_on(path: Path, file: BinaryIO, place: PlaceInFile, size: int) -> Iterator[Record]:
    """Records from ``place``, where ``file`` stands, to byte ``size``; ``place`` is behind each record that is yielded.
    Raises the errors of :func:`read_file`."""
    place.torn = False
    while place.offset < size:
        line = file.readline(min(size - place.offset, LONGEST_LINE))
        number, end = place.line + 1, place.offset + len(line) if line else size
        try:
            record = decode(line)
        except NotWhole as error:
            # A torn write never leaves a whole record with anything but a newline behind it.
            if end < size or _begins_whole(line):
                raise JournalDamaged(path, number, str(error)) from error
            place.torn = True
            return
        except ValueError as error:
            if number == 1:
                _check_version(path, line)
            raise JournalDamaged(path, number, str(error)) from error
        if number == 1:
            if not isinstance(record, Header):
                raise JournalDamaged(path, 1, "another record stands where the header belongs")
            _check_version(path, line)
        place.line, place.offset = number, end
        if record is not None:
            yield record


def _begins_whole(line: bytes) -> bool:
    end = line.find(CRC_KEY)
    while end >= 0:
        stop = end + TAIL_BYTES - 1
        if line[end + 8 : stop] == b'%08x"}' % zlib.crc32(line[:end]):
            return len(line) > stop
        end = line.find(CRC_KEY, end + 1)
    return False


def _check_version(path: Path, line: bytes) -> None:
    # A header of another version may have any fields.
    header: Any = None
    with suppress(ValueError, RecursionError):
        header = msgspec.json.decode(line)
    if isinstance(header, dict) and header.get("type") == "header" and header.get("version") != VERSION:
        raise CampaignError(
            f"{path} has version {header.get('version')!r} of the journal's format; this hpo reads version "
            f"{VERSION}. Use the hpo that wrote it, or start a campaign in a new directory."
        )


def read_lines_about(path: Path, identity: str, end: int | None = None) -> Iterator[Record]:
    """Header of a journal and its records that name an individual, without damaged lines; CampaignError where it cannot
    be read. ``end``: number of bytes to read, None for all."""
    needle = b'"%b"' % identity.encode("utf-8", "replace")
    with opened(path) as (file, size):
        left, first = size if end is None else end, True
        while left > 0 and (line := file.readline(min(left, LONGEST_LINE))):
            left -= len(line)
            if first or needle in line:
                with suppress(ValueError):
                    record = decode(line)
                    if record is not None:
                        yield record
            first = False
