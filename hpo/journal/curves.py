"""Learning curves on disk: reports of trials, and samples of the processor and memory that they used.

The evaluators of worker 3 of island 0 write ``DIR/curves/0001-i000-w0003.jsonl`` in the first launch: a line of JSON
for each row, with a checksum like the journal's lines. Unlike these, rows are not synced, and a campaign is whole
without them. A line that an evaluator did not finish is ended by the next evaluator, and skipped by readers.

An *attempt* is one run of an individual's evaluation, named by the time at which it began: an individual that was
retried, reopened, interrupted or paused has several, of which ``hpo.results.curves`` makes one curve."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import isfinite
from pathlib import Path

import msgspec

from hpo.errors import CampaignError
from hpo.individual import Metric, Plain
from hpo.journal.files import JournalName, journal_name
from hpo.journal.records import (
    Id,
    NotWhole,
    Number,
    check_line,
    fits_json,
    numbers_in,
    storable,
    with_checksum,
)

_FOLDER = "curves"
# A file is read in pieces of this size. No line is as long: a piece without a line's end is no curve.
_PIECE_BYTES = 1 << 24
# The first reports of an attempt are all written, however quickly they come: a short training has a whole curve.
_IN_FULL = 50
_RETRY_S = 60.0
"""Seconds until a file that could not be written is tried again."""
# Errors of a symbolic link, or something else that is neither directory nor file.
_FOREIGN = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO)


class CurveRow(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=str.lower
):
    """Base of all rows, which have a ``type``, the name of the class in lower case. Times are Unix seconds."""


class Point(CurveRow, frozen=True, kw_only=True):
    """A report of an individual's attempt that began at ``began``. ``resumed``: the attempt went on from a
    checkpoint."""

    id: Id
    step: int
    value: Number
    time: float
    began: float
    resumed: bool = False
    metrics: dict[str, Plain | list[Number]] = {}


class Sample(CurveRow, frozen=True, kw_only=True):
    """Use of a host by the evaluator of worker rank 0 and all processes that it started."""

    time: float
    host: str
    id: str = ""
    """Id of the individual under evaluation, "" between two."""
    cpu: float | None = None
    """Number of cores in use since the last sample."""
    memory: int | None = None
    """Resident bytes."""
    gpu: float | None = None
    """Share of the time in which its GPU was at work."""
    gpu_memory: int | None = None
    """Bytes of that GPU that the evaluator's torch holds, of ``gpu_memory_total``. None: not known."""
    gpu_memory_total: int | None = None


class CurveFile(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for the evaluator of a worker. ``every_s``, ``maximize``: see :class:`CurveWriter`; ``every_s`` None: no
    reports; ``system_s``: seconds between two samples, None: no samples."""

    path: str
    every_s: float | None
    maximize: bool = False
    system_s: float | None = None


_decoder: msgspec.json.Decoder[Point | Sample] = msgspec.json.Decoder(Point | Sample)


def curve_path(directory: Path, *, launch: int, island: int, worker: int) -> Path:
    """The file of a worker in a launch of the campaign in ``directory``."""
    return directory / _FOLDER / f"{launch:04d}-i{island:03d}-w{worker:04d}.jsonl"


def encode(row: CurveRow) -> bytes:
    """``row`` as a line, newline included; numbers that JSON does not have become words, as in the journal."""
    plain = not isinstance(row, Point) or (isfinite(row.value) and all(map(fits_json, row.metrics.values())))
    if plain:
        with suppress(UnicodeEncodeError):  # of a metric's name
            return with_checksum(msgspec.json.encode(row)[:-1])
    return with_checksum(msgspec.json.encode(storable(msgspec.to_builtins(row)))[:-1])


def decode(line: bytes) -> Point | Sample | None:
    """The row in ``line``; None where it is damaged, or of a type that this version does not know."""
    try:
        check_line(line)
        row = _decoder.decode(line)
    except (NotWhole, ValueError, RecursionError):
        return None
    if not isinstance(row, Point) or (b'"nan"' not in line and b'inf"' not in line):
        return row
    metrics = {name: numbers_in(value) for name, value in row.metrics.items()}
    return msgspec.structs.replace(row, value=numbers_in(row.value), metrics=metrics)


# --- writing --------------------------------------------------------------------------------------------------------


class CurveWriter:
    """Appends rows to a worker's file, which is made with its directory when first needed. Threads may share it. It
    raises no error: a curve is not worth an evaluation.

    Args:
        every_s: the least seconds between reports of an attempt that are written, besides its first 50, its last and
            its best; 0: each.
        maximize: whether the best report is the largest, else the least.
    """

    def __init__(
        self,
        path: Path,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        maximize: bool = False,
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._clock = clock
        self._sign = -1.0 if maximize else 1.0
        self._lock = threading.Lock()
        self._file: int | None = None
        self._retry_at = -float("inf")
        self._error: str | None = None
        self._id = ""
        self._began = 0.0
        self._resumed = False
        self._due = -float("inf")
        self._written = 0
        self._pending: Point | None = None
        self._least = float("inf")
        self._best: Point | None = None

    @property
    def id(self) -> str:
        """Id of the individual whose attempt goes on; "" between two."""
        return self._id

    def begin(self, identity: str, *, resumed: bool) -> None:
        """Begin an attempt."""
        self._id, self._resumed = identity, resumed
        self._began = time.time()
        self._due = -float("inf")
        self._written = 0
        self._pending = self._best = None
        self._least = float("inf")

    def add(self, step: int, value: float, metrics: dict[str, Metric]) -> None:
        """Take a report of the attempt."""
        now = self._clock()
        self._pending = Point(
            id=self._id,
            step=step,
            value=value,
            time=time.time(),
            began=self._began,
            resumed=self._resumed,
            metrics=metrics,
        )
        if self._sign * value < self._least:
            self._least, self._best = self._sign * value, self._pending
        if now >= self._due or self._written < _IN_FULL:
            self._due = now + self._every_s
            self._written += 1
            self._write_pending()

    def finish(self) -> str | None:
        """End the attempt; why rows are missing, None where none is."""
        self._write_pending()
        self._id = ""
        error, self._error = self._error, None
        return error

    def _write_pending(self) -> None:
        best, last = self._best, self._pending
        self._best = self._pending = None
        if best is not None and best is not last:
            self.write(best)
        if last is not None:
            self.write(last)

    def write(self, row: CurveRow) -> None:
        """Append ``row``."""
        with self._lock:
            if self._file is None and self._clock() < self._retry_at:
                return
            try:
                if self._file is None:
                    self._file = _open(self._path)
                line = encode(row)
                if os.write(self._file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self._error = f"{self._path}: {error.strerror or error}"
                self._retry_at = self._clock() + _RETRY_S
                self._close()

    def close(self) -> None:
        """Close the file; what is added afterwards opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)


def _open(path: Path) -> int:
    with suppress(FileExistsError):
        os.mkdir(path.parent)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(path.name, flags, 0o666, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ENXIO, "is no file")
        if found.st_size and os.pread(file, 1, found.st_size - 1) != b"\n":
            os.write(file, b"\n")  # behind the rest of a line that another evaluator left
    except OSError:
        os.close(file)
        raise
    return file


# --- reading --------------------------------------------------------------------------------------------------------


def curve_files(directory: Path) -> list[tuple[JournalName, Path]]:
    """Curve files ordered by launch, island and worker; CampaignError where they cannot be listed."""
    found = []
    try:
        folder = os.open(directory / _FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            names = os.listdir(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno == errno.ENOENT or error.errno in _FOREIGN:
            return []
        raise _unreadable(directory / _FOLDER, error) from error
    for name in names:
        path = directory / _FOLDER / name
        place = journal_name(path.name)
        if place is not None and place.part == 0:
            found.append((place, path))
    return sorted(found)


def read_from(path: Path, offset: int) -> tuple[list[Point | Sample], int]:
    """Whole rows of a file from byte ``offset`` on, without damaged lines, and the offset to go on from. One call reads
    16 MiB at most: all has been read when the offset stays. A symbolic link, a file that is gone, and anything else
    that is no file has no rows. OSError where the file cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENOENT or error.errno in _FOREIGN:
            return [], offset
        raise
    try:
        found = os.fstat(file)
        left = found.st_size - offset
        if not stat.S_ISREG(found.st_mode) or left <= 0:
            return [], offset
        data = os.pread(file, min(left, _PIECE_BYTES), offset)
    finally:
        os.close(file)
    end = data.rfind(b"\n") + 1
    if end == 0:  # a whole piece without a line's end is damage
        return [], offset + (len(data) if len(data) == _PIECE_BYTES else 0)
    rows = (decode(line) for line in data[:end].splitlines(keepends=True))
    return [row for row in rows if row is not None], offset + end


def read_rows(path: Path) -> Iterable[Point | Sample]:
    """All rows of a file (see :func:`read_from`); CampaignError where it cannot be read."""
    offset = 0
    while True:
        try:
            rows, end = read_from(path, offset)
        except OSError as error:
            raise _unreadable(path, error) from error
        yield from rows
        if end == offset:
            return
        offset = end


def _unreadable(path: Path, error: OSError) -> CampaignError:
    return CampaignError(
        f"{path} cannot be read ({error.strerror or error}). Give read access, or name another directory."
    )
