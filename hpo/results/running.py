"""Evaluations that run now, from the ends of journals and curves, so that the length of a campaign does not matter.

With ``isolation = "inline"`` no start is on record, and nothing is listed."""

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
from hpo.journal.files import JournalName
from hpo.journal.records import Finished, Header, NotWhole, Started, decode
from hpo.ledger.alive import living
from hpo.ledger.journals import journal_files
from hpo.ledger.opening import FollowedLedger

_TAIL_BYTES = 1 << 14
_LONGEST_TAIL = 1 << 22  # bytes searched for the last start or end: other records may follow it
_TAGS = b'{"type":"started",', b'{"type":"finished",'


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """An individual that is being evaluated. Times are Unix seconds."""

    id: str
    worker: str  # island and number of the worker, such as "0-3"
    host: str
    started: float
    params: dict[str, Scalar]
    step: int | float | None = None  # step of the last report; None before the first
    value: float | None = None
    reported: float | None = None


class _Seen(NamedTuple):
    size: int
    host: str
    last: Started | Finished | None  # last start or end of an evaluation


class Tails:
    """Ends of the journals of the campaign in ``directory``; journals that have not grown are not read again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[Path, _Seen] = {}
        self._ledger = FollowedLedger(directory)

    def poll(self, without: Collection[str] = ()) -> list[Running]:
        """Evaluations by worker of the launches that are at work; CampaignError if the journals cannot be listed.
        ``without``: workers that run nothing any more, such as "0-3"."""
        state = self._ledger.state()
        at_work = living(self._directory, state)
        files = journal_files(self._directory, state=state, without=state.closed)
        seen: dict[Path, _Seen] = {}
        latest: dict[JournalName, tuple[str, Started | Finished]] = {}
        for path, name, _ in files:
            if name.launch in at_work and _worker(name) not in without:
                with suppress(OSError, ValueError):  # it is gone, or no journal
                    seen[path] = self._look(path)
                    if (last := seen[path].last) is not None:
                        latest[name._replace(part=0)] = seen[path].host, last
        self._seen = seen
        found: dict[str, tuple[JournalName, str, Started]] = {}
        for place, (host, last) in latest.items():
            # If several workers have begun the individual one after the other, the last run counts.
            if isinstance(last, Started):
                other = found.get(last.id)
                if other is None or _order(other[2]) < _order(last):
                    found[last.id] = place, host, last
        return [self._running(*one) for one in found.values()]

    def _running(self, place: JournalName, host: str, record: Started) -> Running:
        running = Running(
            id=record.id, worker=_worker(place), host=host, started=record.time, params=record.params
        )
        point = self._last_report(place, record)
        if point is None:
            return running
        return msgspec.structs.replace(running, step=point.step, value=point.value, reported=point.time)

    def _last_report(self, place: JournalName, record: Started) -> Point | None:
        path = curve_path(self._directory, launch=place.launch, island=place.island, worker=place.worker)
        with suppress(OSError):
            begin = max(0, path.stat(follow_symlinks=False).st_size - _TAIL_BYTES)
            rows, _ = read_from(path, begin)
            own = (one for one in reversed(rows) if isinstance(one, Point) and one.id == record.id)
            return next((one for one in own if one.time >= record.time), None)
        return None

    def _look(self, path: Path) -> _Seen:
        known = self._seen.get(path)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path} is no journal")
            size = found.st_size
            if known is None:
                return _Seen(size, _host(os.pread(handle, _TAIL_BYTES, 0)), _last(handle, size, 0))
            if known.size == size:
                return known
            return _Seen(size, known.host, _last(handle, size, known.size) or known.last)
        finally:
            os.close(handle)


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
    """The last start or end behind the first ``known`` bytes. A worker evaluates one individual at a time."""
    length = min(_TAIL_BYTES, max(size - known, 1))
    while True:
        begin = max(0, size - length)
        lines = os.pread(handle, size - begin, begin).splitlines(keepends=True)
        for line in reversed(lines):
            if line.startswith(_TAGS):
                with suppress(NotWhole, ValueError):  # the line is being written, or began before the tail
                    record = decode(line)
                    if isinstance(record, (Started, Finished)):
                        return record
        if begin <= known or length >= _LONGEST_TAIL:
            return None
        length *= 4
