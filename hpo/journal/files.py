"""The journals of a campaign: one append-only file per worker and launch, synced before a result counts.

``DIR/journal/0001-i000-w0003.jsonl`` is what worker 3 of island 0 wrote in the first launch. No other process writes
it, and it is never rewritten, so no file locks are needed on NFS, Lustre or GPFS. The journal of a worker that hangs
is replaced by a copy when the worker is given up."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from hpo.errors import CampaignError, JournalDamaged
from hpo.journal.durable import sync_directory, write_atomically
from hpo.journal.records import CRC_KEY, TAIL_BYTES, VERSION, Header, NotWhole, Record, decode, encode

_NAME = re.compile(r"(\d{4,})-i(\d{3,})-w(\d{4,})\.jsonl")
LONGEST_LINE = 1 << 26
"""Bytes: a file of nothing but zeros, which costs no disk, must not fill the memory."""


class JournalName(NamedTuple):
    """What the name of a journal says."""

    launch: int
    island: int
    worker: int


def journal_path(directory: Path, *, launch: int, island: int, worker: int) -> Path:
    """The file that the given worker writes in the given launch of the campaign in ``directory``."""
    return directory / "journal" / f"{launch:04d}-i{island:03d}-w{worker:04d}.jsonl"


def journal_name(path: Path) -> JournalName | None:
    """What the name of a journal says; None for another file."""
    match = _NAME.fullmatch(path.name)
    return JournalName(int(match[1]), int(match[2]), int(match[3])) if match else None


def journal_files(directory: Path, launch: int | None = None) -> list[Path]:
    """The journals of the campaign in ``directory``, or of one launch of it, by launch, island and worker; other files
    are left out.

    Raises:
        CampaignError: they cannot be listed.
    """
    found = []
    try:
        names = os.listdir(directory / "journal")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CampaignError(
            f"{directory / 'journal'} cannot be read ({error.strerror or error}). Give read access, or name another "
            "directory."
        ) from error
    for name in names:
        path = directory / "journal" / name
        place = journal_name(path)
        if place is not None and launch in (None, place.launch):
            found.append((place, path))
    return [path for _, path in sorted(found)]


def last_launch(directory: Path) -> int:
    """The number of the last launch that left a journal; 0 before the first."""
    return max((name.launch for name in map(journal_name, journal_files(directory)) if name), default=0)


class JournalWriter:
    """Writes one worker's journal of one launch: ``append`` collects records, ``commit`` puts them on disk.

    Args:
        path: from :func:`journal_path`; the file must not exist, its directories are made.
        header: it is on disk when the constructor returns.

    Raises:
        CampaignError: the file exists already or cannot be written; also by ``commit`` and ``close``. After
            that the writer takes no more: what was written of the last batch counts as far as its records are
            whole, and the torn tail is dropped by the reader.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self._batch: list[bytes] = []
        self._file: int | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed(error) from error
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            raise CampaignError(
                f"{path} exists already, and a journal is never rewritten. Another launch of the same "
                "campaign is at work in this directory: let it finish, or stop it with `hpo stop`."
            ) from None
        except OSError as error:
            raise self._failed(error) from error
        self.append(header)
        self.commit()
        sync_directory(path.parent)

    @property
    def pending(self) -> int:
        """How many records have been appended and are not yet on disk."""
        return len(self._batch)

    def append(self, record: Record) -> None:
        """Take ``record`` for the next ``commit``."""
        self._batch.append(encode(record))

    def commit(self) -> None:
        """Return when all appended records are on disk: one write and one sync however many there are."""
        if not self._batch:
            return
        if self._file is None:
            raise CampaignError(
                f"{self.path} takes no more records: it was closed, or an earlier write to it failed."
            )
        data = b"".join(self._batch)
        try:
            written = os.write(self._file, data)
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
            os.fsync(self._file)
        except OSError as error:
            # Whether the pages reach the disk after a failed sync is unknown, and a record after a torn one
            # would look like damage: so nothing may follow in this file.
            os.close(self._file)
            self._file = None
            raise self._failed(error) from error
        self._batch.clear()

    def close(self) -> None:
        """Commit what is pending and close the file; a second call does nothing."""
        if self._file is None:
            return
        self.commit()
        os.close(self._file)
        self._file = None

    def _failed(self, error: OSError) -> CampaignError:
        return CampaignError(
            f"{self.path} cannot be written ({error.strerror or error}), and no result counts before it is "
            "on disk. Make room or give write access there, then start the same campaign again: it goes on "
            "where it stopped."
        )

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fence(path: Path) -> None:
    """Put a copy in the place of a journal whose writer is given up and may not have ended: what it still writes goes
    to a file without a name, so that all readers see what was there when it was given up.

    Raises:
        OSError: as the file system says; the journal is unchanged then.
    """
    write_atomically(path, path.read_bytes())


def read_file(path: Path, torn: list[Path] | None = None) -> Iterator[Record]:
    """The records of one journal as they were written, header first; those of unknown types are left out.

    A journal that is being written may be read: only what it held when it was opened is looked at.

    Args:
        torn: gets ``path`` if the last line is torn; that line is left out. It was being written when the
            writer died (or is being written now), so it did not count.

    Raises:
        JournalDamaged: a line other than the last does not fit its checksum, a record lacks what its type has, or the
            header is missing.
        CampaignError: the journal was written by another version, or cannot be read.
    """
    for _, record in _numbered(path, torn):
        yield record


def _numbered(path: Path, torn: list[Path] | None) -> Iterator[tuple[int, Record]]:
    try:
        # Read ahead in large pieces: a read costs a round trip on a network file system.
        with open(path, "rb", buffering=1 << 20) as file:
            left = os.fstat(file.fileno()).st_size
            number = 0
            while left > 0:
                line = file.readline(min(left, LONGEST_LINE))
                left = left - len(line) if line else 0
                number += 1
                try:
                    record = decode(line)
                except NotWhole as error:
                    # A torn write never leaves a whole record with anything but a newline behind it.
                    if left > 0 or _begins_whole(line):
                        raise JournalDamaged(path, number, str(error)) from error
                    if torn is not None:
                        torn.append(path)
                    return
                except ValueError as error:
                    if number == 1:
                        _check_version(path, line)
                    raise JournalDamaged(path, number, str(error)) from error
                if number == 1:
                    if not isinstance(record, Header):
                        raise JournalDamaged(path, 1, "another record stands where the header belongs")
                    _check_version(path, line)
                if record is not None:
                    yield number, record
    except OSError as error:
        raise CampaignError(
            f"{path} cannot be read ({error.strerror or error}). Give read access, or name another directory."
        ) from error


def _begins_whole(line: bytes) -> bool:
    """Whether ``line`` begins with a whole record that is followed by something other than its newline."""
    end = line.find(CRC_KEY)
    while end >= 0:
        stop = end + TAIL_BYTES - 1
        if line[end + 8 : stop] == b'%08x"}' % zlib.crc32(line[:end]):
            return len(line) > stop
        end = line.find(CRC_KEY, end + 1)
    return False


def _check_version(path: Path, line: bytes) -> None:
    """Refuse a header of another version, whatever else that has in its header."""
    header: Any = None
    with suppress(ValueError, RecursionError):
        header = msgspec.json.decode(line)
    if isinstance(header, dict) and header.get("type") == "header" and header.get("version") != VERSION:
        raise CampaignError(
            f"{path} has version {header.get('version')!r} of the journal's format; this hpo reads version "
            f"{VERSION}. Use the hpo that wrote it, or start a campaign in a new directory."
        )


def damaged(directory: Path, wrong: Callable[[Record], bool], reason: str) -> JournalDamaged:
    """The error for the first record of the campaign in ``directory`` that is ``wrong``."""
    for path in journal_files(directory):
        for number, record in _numbered(path, None):
            if wrong(record):
                return JournalDamaged(path, number, reason)
    return JournalDamaged(directory / "journal", 1, reason)


def read_directory(directory: Path, torn: list[Path] | None = None) -> Iterator[Record]:
    """The records of all journals of the campaign in ``directory``, by launch, island and worker; the header of each
    file comes before its other records. For ``torn`` and errors see :func:`read_file`."""
    for path in journal_files(directory):
        yield from read_file(path, torn)
