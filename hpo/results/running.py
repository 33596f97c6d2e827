"""What is being evaluated now: configuration, worker, host, since when, and its last report.

Each worker's journal of the last launch ends with it, and so does its file of reports: only their ends are read,
however long a campaign has been at work. With ``isolation = "inline"`` no start is on record, and
nothing is listed."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpo.individual import Scalar
from hpo.journal.curves import Point, curve_path, read_from
from hpo.journal.files import JournalName, journal_files, journal_name
from hpo.journal.records import Finished, Header, NotWhole, Started, decode

_TAIL_BYTES = 1 << 14
_LONGEST_TAIL = 1 << 22
"""Bytes in which the last start or end is looked for: other records may follow it."""
_TAGS = b'{"type":"started",', b'{"type":"finished",'


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An individual that is being evaluated. ``worker``: island and number of the worker that evaluates it, on
    ``host``; ``started``, ``reported``: Unix seconds; ``step``, ``value``: of its last report, None before the first.
    """

    id: str
    worker: str
    host: str
    started: float
    params: dict[str, Scalar]
    step: int | float | None = None
    value: float | None = None
    reported: float | None = None


class _Seen(NamedTuple):
    """A file as it was read. ``size``: in bytes; ``last``: its last start or end of an evaluation."""

    size: int
    host: str
    last: Started | Finished | None


class Tails:
    """The ends of the journals of the campaign in ``directory``; those that have not grown are not read again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[Path, _Seen] = {}

    def poll(self, without: Collection[str] = ()) -> list[Running]:
        """What runs in the last launch, by worker; meaningless unless the campaign is at work. ``without``: workers
        that run nothing any more, as island-worker.

        Raises:
            CampaignError: the journals cannot be listed.
        """
        files = journal_files(self._directory)
        named = [(name, path) for path in files if (name := journal_name(path)) is not None]
        launch = named[-1][0].launch if named else 0
        parts: dict[tuple[int, int], list[_Seen]] = {}
        seen: dict[Path, _Seen] = {}
        for name, path in named:
            if name.launch == launch and _worker(name) not in without:
                with suppress(OSError, ValueError):  # it is gone, or no journal
                    seen[path] = self._look(path)
                    parts.setdefault((name.island, name.worker), []).append(seen[path])
        self._seen = seen
        found: dict[str, tuple[JournalName, str, Started]] = {}
        for (island, worker), of_worker in parts.items():
            last = next((one.last for one in reversed(of_worker) if one.last), None)
            if isinstance(last, Started):
                other = found.get(last.id)
                # Of an individual that several workers have begun, one after the other, the last.
                if other is None or _order(other[2]) < _order(last):
                    found[last.id] = JournalName(launch, island, worker), of_worker[0].host, last
        return [self._running(*one) for one in found.values()]

    def _running(self, place: JournalName, host: str, record: Started) -> Running:
        point = self._last_report(place, record)
        return Running(
            id=record.id,
            worker=_worker(place),
            host=host,
            started=record.time,
            params=record.params,
            step=None if point is None else point.step,
            value=None if point is None else point.value,
            reported=None if point is None else point.time,
        )

    def _last_report(self, place: JournalName, record: Started) -> Point | None:
        path = curve_path(self._directory, launch=place.launch, island=place.island, worker=place.worker)
        with suppress(OSError):
            begin = max(0, path.stat(follow_symlinks=False).st_size - _TAIL_BYTES)
            rows, _ = read_from(path, begin)
            of_it = (one for one in reversed(rows) if isinstance(one, Point) and one.id == record.id)
            return next((one for one in of_it if one.time >= record.time), None)
        return None

    def _look(self, path: Path) -> _Seen:
        known = self._seen.get(path)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path} is no journal")
            size = found.st_size
            if known is not None and known.size == size:
                return known
            host = known.host if known is not None else _host(os.pread(handle, _TAIL_BYTES, 0))
            return _Seen(
                size, host, _last(handle, size, 0 if known is None else known.size) or (known and known.last)
            )
        finally:
            os.close(handle)


def of(directory: Path, without: Collection[str] = ()) -> list[Running]:
    """The evaluations that ``Tails.poll`` finds, once."""
    return Tails(directory).poll(without)


def _worker(name: JournalName) -> str:
    return f"{name.island}-{name.worker}"


def _order(record: Started) -> tuple[object, ...]:
    return record.run, record.retries, record.time


def _host(beginning: bytes) -> str:
    with suppress(ValueError):
        header = decode(beginning[: beginning.index(b"\n") + 1])
        return header.host if isinstance(header, Header) else ""
    return ""


def _last(handle: int, size: int, known: int) -> Started | Finished | None:
    """The last start or end after the first ``known`` bytes. A worker evaluates one individual at a time."""
    length = min(_TAIL_BYTES, max(size - known, 1))
    while True:
        begin = max(0, size - length)
        lines = os.pread(handle, size - begin, begin).splitlines(keepends=True)
        for line in reversed(lines):
            if line.startswith(_TAGS):
                with suppress(NotWhole, ValueError):  # it is being written, or began before what was read
                    record = decode(line)
                    if isinstance(record, (Started, Finished)):
                        return record
        if begin <= known or length >= _LONGEST_TAIL:
            return None
        length *= 4
