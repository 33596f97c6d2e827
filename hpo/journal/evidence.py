"""What can still be read in the journals of a campaign, however damaged: whole records, and the gaps between them."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from hpo.individual import FINAL, REEVALUATION
from hpo.journal import records as journal

_LONGEST = 1 << 26
_RECORD = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_BEGIN = b'{"type":'
_MOST_SUMMED = 1 << 28
"""Bytes to take checksums of while whole records are looked for in one broken line."""
_NAMED = re.compile(rb'"id":"([0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18})"')
_MOST_NAMED = 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a journal: a whole record with its newline, or bytes that are none, for the ``reason``."""

    line: int
    start: int
    data: bytes
    record: journal.Record | None = None
    reason: str = ""
    torn: bool = False


def pieces(path: Path) -> Iterator[Piece]:
    with open(path, "rb", buffering=1 << 20) as file:
        left = os.fstat(file.fileno()).st_size
        line, start = 1, 0
        while left > 0:
            data = file.readline(min(left, _LONGEST))
            if not data:
                return
            left -= len(data)
            yield from _split(line, start, data, last=left == 0)
            start += len(data)
            line += 1


def _split(line: int, start: int, data: bytes, *, last: bool) -> Iterator[Piece]:
    try:
        record = journal.decode(data)
        reason = journal.flaw(record) or ""
    except ValueError as error:
        reason = str(error)
    else:
        yield Piece(line, start, data, None if reason else record, reason)
        return
    spans = list(_inside(data))
    if last and (
        (not data.endswith(b"\n") and spans in ([], [(0, len(data))]))
        # A power cut may leave zeros where a batch that nobody counted was being written.
        or (not spans and b"\0" in data)
    ):
        yield Piece(line, start, data, None, reason, torn=True)
        return
    done = 0
    for begin, end in spans:
        if begin > done:
            yield Piece(line, start + done, data[done:begin], None, reason)
        whole = data[begin:end] + b"\n"
        record = journal.decode(whole)
        flaw = journal.flaw(record) or ""
        yield Piece(line, start + begin, whole, None if flaw else record, flaw)
        done = end
    if data[done:].strip(b"\n") or not spans:
        yield Piece(line, start + done, data[done:], None, reason)


def _inside(data: bytes) -> Iterator[tuple[int, int]]:
    """Where whole records lie in a broken line; their number and length are bounded by the work allowed."""
    done, left = 0, _MOST_SUMMED
    for found in _RECORD.finditer(data):
        begin = data.find(_BEGIN, done, found.start())
        while begin >= 0 and left > 0:
            left -= found.start() - begin
            if b"%08x" % zlib.crc32(memoryview(data)[begin : found.start()]) == found[1]:
                with suppress(ValueError):
                    journal.decode(data[begin : found.end()] + b"\n")
                    yield begin, found.end()
                    done = found.end()
                    break
            begin = data.find(_BEGIN, begin + 1, found.start())
        if left <= 0:
            return


@dataclass
class Gap:
    """Lines of a journal that are no whole records, and the individuals that can still be read in them."""

    first: int
    last: int
    start: int
    stop: int
    reason: str
    names: list[str]
    blank: bool
    """Whether blocks of it are zeros, in which others may have been."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a whole record says of an individual; ``result``: of its end, if it has ended for good; ``turn``: steps
    after which it had paused and went on; ``again``: others may have its parameters, as it goes on from another's
    checkpoint or is an evaluation of the same once more."""

    id: str
    start: int
    params: bytes
    result: bytes | None
    turn: int
    again: bool


class JournalFile:
    """One journal, read once."""

    def __init__(self, path: Path, place: tuple[int, int, int], identity: Mapping[str, Any]) -> None:
        self.path = path
        self.place = place
        self.header: journal.Record | None = None
        self.records = 0
        self.gaps: list[Gap] = []
        self.torn: Piece | None = None
        self.entries: list[Entry] = []
        self.migrated: set[str] = set()
        self.earliest: float | None = None
        self.headless = False
        self.other_version = False
        self.misfit = ""
        """Why it belongs to another campaign."""
        self.elsewhere: Path | None = None
        """Where a file with this header belongs."""
        self.doubled: set[int] = set()
        """Offsets of records of individuals that had finished otherwise before."""
        for piece in pieces(path):
            if piece.record is None:
                if piece.torn:
                    self.torn = piece
                else:
                    self._lost(piece)
            elif piece.record["type"] == "header":
                self._header(piece, piece.record)
            else:
                self._record(piece, piece.record, identity)
            if self.other_version:
                return
        self.headless = self.header is None and bool(self.records or self.gaps)

    @property
    def to_do(self) -> bool:
        """Whether a repair changes something here."""
        return not self.other_version and bool(
            self.gaps or self.headless or self.misfit or self.elsewhere or self.doubled
        )

    @property
    def counts(self) -> bool:
        """Whether its records are the campaign's."""
        return not (self.other_version or self.misfit)

    def _header(self, piece: Piece, record: journal.Record) -> None:
        if self.header is not None:
            self._lost(piece, "a second header")
            return
        self.header = record
        self.records += 1
        if record["version"] != journal.VERSION:
            self.other_version = True
        given = (record["leg"], record["island"], record["worker"])
        if given != self.place:
            leg, island, worker = given
            self.elsewhere = self.path.with_name(
                journal.journal_path(Path(), leg=leg, island=island, worker=worker).name
            )

    def _record(self, piece: Piece, record: journal.Record, identity: Mapping[str, Any]) -> None:
        self.records += 1
        now = record.get("started" if record["type"] == "finished" else "time")
        if isinstance(now, (int, float)) and (self.earliest is None or now < self.earliest):
            self.earliest = now
        if record["type"] == "migrated":
            self.migrated.add(record["id"])
        if record["type"] not in ("started", "finished"):
            return
        self.misfit = self.misfit or _misfit(record, identity)
        final = record["type"] == "finished" and record["status"] in FINAL
        self.entries.append(
            Entry(
                record["id"],
                piece.start,
                _digest(record["params"]),
                _digest([record["status"], record["objectives"]]) if final else None,
                record.get("promoted", 0),
                bool(record.get("inherits")) or record["operator"] == REEVALUATION,
            )
        )

    def _lost(self, piece: Piece, reason: str = "") -> None:
        stop = piece.start + len(piece.data)
        names = list({name.decode(): None for name in _NAMED.findall(piece.data)})[:_MOST_NAMED]
        if self.gaps and self.gaps[-1].stop == piece.start:
            gap = self.gaps[-1]
            gap.last, gap.stop = piece.line, stop
            gap.blank |= bytes(16) in piece.data
            gap.names += names[: _MOST_NAMED - len(gap.names)]
        else:
            self.gaps.append(
                Gap(
                    first=piece.line,
                    last=piece.line,
                    start=piece.start,
                    stop=stop,
                    reason=reason or piece.reason,
                    names=names,
                    blank=bytes(16) in piece.data,
                )
            )


def _misfit(record: journal.Record, identity: Mapping[str, Any]) -> str:
    """Why an individual is none of the campaign that ``campaign.json`` describes; empty if it is."""
    objectives = identity.get("objectives")
    if objectives and record.get("objectives") and set(record["objectives"]) != set(objectives):
        return f"its objectives are {', '.join(record['objectives'])}"
    space = identity.get("space")
    if not space:
        return ""
    params = record["params"]
    for name, value in params.items():
        rule = space.get(name)
        if not isinstance(rule, Mapping):
            return f"{name} is no parameter of this campaign"
        if not _exists(name, space, params):
            return f"{name} = {value!r} is there where it does not exist in this campaign"
        whole = rule.get("type") == "int"
        if "low" in rule and type(value) not in ((int,) if whole else (int, float)):
            return f"{name} = {value!r} is no {'whole ' if whole else ''}number"
        choices, low, high = rule.get("choices"), rule.get("low"), rule.get("high")
        if isinstance(choices, list) and not _among(value, choices):
            return f"{name} = {value!r} is none of this campaign's choices"
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            slack = 1e-6 * (high - low)  # nobody's journal is moved for a rounding
            if not (isinstance(value, (int, float)) and low - slack <= value <= high + slack):
                return f"{name} = {value!r} is outside of this campaign's range"
    for name in space:
        if name not in params and _exists(name, space, params):
            return f"{name} is missing in a configuration"
    return ""


def _exists(name: str, space: Mapping[str, Any], params: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a parameter exists in a configuration, by the conditions in ``campaign.json``."""
    when = space[name].get("when")
    if not isinstance(when, Mapping) or depth > len(space):
        return True
    return all(
        parent in params
        and isinstance(allowed, list)
        and _among(params[parent], allowed)
        and (not isinstance(space.get(parent), Mapping) or _exists(parent, space, params, depth + 1))
        for parent, allowed in when.items()
    )


def _among(value: object, choices: list[object]) -> bool:
    """Whether ``value`` is one of ``choices``, where true is not 1."""
    return any(choice == value and isinstance(choice, bool) is isinstance(value, bool) for choice in choices)


def _digest(value: object) -> bytes:
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()
