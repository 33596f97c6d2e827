"""``hpo check``: is a campaign's directory whole, and what of it can be kept where it is not.

Nothing is ever deleted. A journal that is replaced is first kept aside, in ``DIR/damaged/`` under its name with
``.damaged-N`` added, and a reader sees the old file or the new one at any moment.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from hpo import directory as directories
from hpo import journal
from hpo.errors import CampaignError
from hpo.individual import FINAL

DAMAGE, LOST, NOTE = "damage", "lost", "note"

_LONGEST = 1 << 26
_RECORD = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_BEGIN = b'{"type":'
_MOST_SUMMED = 1 << 28
"""Bytes to take checksums of while whole records are looked for in one broken line."""
_NAMED = re.compile(rb'"id":"([0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18})"')
_MOST_NAMED = 1000
_LISTED = 8
_OURS = frozenset({"campaign.json", "journal", "evaluations", "damaged", "lock", "stop"})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to tell. ``kind``: DAMAGE, LOST for what a repair could not keep, or NOTE for what does no harm;
    ``file``: relative to the campaign's directory; ``lines``: first and last, from 1; ``bytes``: the first, and the
    one after the last, from 0."""

    kind: str
    file: str
    text: str
    lines: tuple[int, int] | None = None
    bytes: tuple[int, int] | None = None

    def __str__(self) -> str:
        place = self.file
        if self.lines is not None:
            first, last = self.lines
            place += f", line {first}" if first == last else f", lines {first} to {last}"
        if self.bytes is not None:
            place += f", bytes {self.bytes[0]} to {self.bytes[1] - 1}"
        return f"{self.kind:<6}  {place}: {self.text}"


@dataclass(kw_only=True)
class Report:
    """What is in a campaign's directory. ``lock``: "free", "live" or "stale"; ``unfinished``: ids of what was begun
    and not finished; ``repaired``: what was done, a sentence a file."""

    directory: Path
    task: str | None = None
    lock: str = "free"
    holder: str | None = None
    journals: int = 0
    legs: int = 0
    records: int = 0
    finished: int = 0
    unfinished: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    repairable: bool = False
    repaired: list[str] | None = None

    @property
    def damaged(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == DAMAGE]

    @property
    def exit_code(self) -> int:
        return 1 if self.damaged else 0

    def to_json(self) -> dict[str, object]:
        """What ``hpo check --json`` prints."""
        return {
            "directory": str(self.directory),
            "ok": not self.damaged,
            "task": self.task,
            "lock": self.lock,
            "holder": self.holder,
            "journals": self.journals,
            "legs": self.legs,
            "records": self.records,
            "finished": self.finished,
            "unfinished": self.unfinished,
            "findings": [
                {
                    "kind": one.kind,
                    "file": one.file,
                    "lines": one.lines,
                    "bytes": one.bytes,
                    "text": one.text,
                }
                for one in self.findings
            ],
            "repairable": self.repairable,
            "repaired": self.repaired,
        }

    def __str__(self) -> str:
        told = {
            "free": "nobody is at work",
            "live": f"at work: {self.holder}",
            "stale": f"nobody is at work; the lock of {self.holder} is stale and not in the way",
        }
        lines = [
            f"{self.directory}: {_counted(self.journals, 'journal')} of {_counted(self.legs, 'launch')}, "
            f"{_counted(self.records, 'whole record')}; {told[self.lock]}",
            f"{_counted(self.finished, 'individual')} finished, {len(self.unfinished)} begun and not finished"
            + (f", which will go on: {_listed(self.unfinished)}" if self.unfinished else ""),
            *map(str, self.findings),
            *(f"done    {sentence}" for sentence in self.repaired or ()),
        ]
        if not self.damaged:
            lines.append(
                "Nothing is damaged, so nothing was changed."
                if self.repaired == []
                else "Nothing is damaged. The same `hpo run` goes on."
            )
        elif self.repairable and self.repaired is None:
            lines.append(
                f"Damaged. Nothing was changed. `hpo check {self.directory} --repair` keeps all that is whole, and the "
                "damaged files aside."
            )
        else:
            lines.append("What is still damaged this command cannot repair: do what is said above.")
        return "\n".join(lines)


def check(directory: Path) -> Report:
    """What is whole and what is not in ``directory``, which may be at work; nothing is changed.

    Raises:
        CampaignError: there is no campaign, or its files cannot be read.
    """
    return _Inspection(directory).report


def repair(directory: Path) -> Report:
    """Keep what is whole of damaged journals, and the damaged ones aside; then ``check``, with what was done.

    Raises:
        CampaignError: a campaign is at work, there is none, or the directory cannot be read or written.
    """
    first = check(directory)
    lock = directories.acquire(directory)
    try:
        inspection = _Inspection(directory, ours=True)
        try:
            done = [_mend(directory, file, inspection) for file in inspection.files if file.to_do]
        except OSError as error:
            raise CampaignError(
                f"{directory} cannot be repaired ({error.strerror or error}). What was whole is where it was, and "
                f"damaged files are in {directory / 'damaged'}: make room or give write access there, then give the "
                "same command again."
            ) from error
        lost = [one for one in inspection.report.findings if one.lines is not None and one.kind == DAMAGE]
        report = _Inspection(directory, ours=True).report if done else inspection.report
    finally:
        lock.release()
    report.lock, report.holder = first.lock, first.holder
    if done:
        # What is gone was told of the damaged file, which is another one now.
        report.findings = [replace(one, kind=LOST) for one in lost] + report.findings
    report.repaired = done
    return report


# --- reading ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a journal: a whole record with its newline, or bytes that are none, for the ``reason``."""

    line: int
    start: int
    data: bytes
    record: journal.Record | None = None
    reason: str = ""
    torn: bool = False


def _pieces(path: Path) -> Iterator[_Piece]:
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


def _split(line: int, start: int, data: bytes, *, last: bool) -> Iterator[_Piece]:
    try:
        record = journal.decode(data)
        reason = journal.flaw(record) or ""
    except ValueError as error:
        reason = str(error)
    else:
        yield _Piece(line, start, data, None if reason else record, reason)
        return
    spans = list(_inside(data))
    if last and (
        (not data.endswith(b"\n") and spans in ([], [(0, len(data))]))
        # A power cut may leave zeros where a batch that nobody counted was being written.
        or (not spans and b"\0" in data)
    ):
        yield _Piece(line, start, data, None, reason, torn=True)
        return
    done = 0
    for begin, end in spans:
        if begin > done:
            yield _Piece(line, start + done, data[done:begin], None, reason)
        whole = data[begin:end] + b"\n"
        record = journal.decode(whole)
        flaw = journal.flaw(record) or ""
        yield _Piece(line, start + begin, whole, None if flaw else record, flaw)
        done = end
    if data[done:].strip(b"\n") or not spans:
        yield _Piece(line, start + done, data[done:], None, reason)


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
class _Gap:
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
class _Entry:
    """What a whole record says of an individual; ``result``: of its end, if it has ended for good; ``turn``: steps
    after which it had paused and went on."""

    id: str
    start: int
    params: bytes
    result: bytes | None
    turn: int


class _File:
    """One journal, read once."""

    def __init__(self, path: Path, place: tuple[int, int, int], identity: Mapping[str, Any]) -> None:
        self.path = path
        self.place = place
        self.header: journal.Record | None = None
        self.records = 0
        self.gaps: list[_Gap] = []
        self.torn: _Piece | None = None
        self.entries: list[_Entry] = []
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
        for piece in _pieces(path):
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

    def _header(self, piece: _Piece, record: journal.Record) -> None:
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

    def _record(self, piece: _Piece, record: journal.Record, identity: Mapping[str, Any]) -> None:
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
            _Entry(
                record["id"],
                piece.start,
                _digest(record["params"]),
                _digest([record["status"], record["objectives"]]) if final else None,
                record.get("promoted", 0),
            )
        )

    def _lost(self, piece: _Piece, reason: str = "") -> None:
        stop = piece.start + len(piece.data)
        names = list({name.decode(): None for name in _NAMED.findall(piece.data)})[:_MOST_NAMED]
        if self.gaps and self.gaps[-1].stop == piece.start:
            gap = self.gaps[-1]
            gap.last, gap.stop = piece.line, stop
            gap.blank |= bytes(16) in piece.data
            gap.names += names[: _MOST_NAMED - len(gap.names)]
        else:
            self.gaps.append(
                _Gap(
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
    for name, value in record["params"].items():
        rule = space.get(name)
        if not isinstance(rule, Mapping):
            return f"{name} is no parameter of this campaign"
        choices, low, high = rule.get("choices"), rule.get("low"), rule.get("high")
        if isinstance(choices, list) and value not in choices:
            return f"{name} = {value!r} is none of this campaign's choices"
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            slack = 1e-6 * (high - low)  # nobody's journal is moved for a rounding
            if not (isinstance(value, (int, float)) and low - slack <= value <= high + slack):
                return f"{name} = {value!r} is outside of this campaign's range"
    return ""


def _digest(value: object) -> bytes:
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


# --- judging ------------------------------------------------------------------------------------------------


class _Inspection:
    """A directory's files and what is to be said of them."""

    def __init__(self, directory: Path, *, ours: bool = False) -> None:
        """``ours``: the lock is held by this process, so nobody else is at work."""
        self.directory = directory
        self.report = Report(directory=directory)
        self.finals: dict[str, tuple[bytes, _File]] = {}
        self.begun: dict[str, tuple[bytes, _File]] = {}
        identity = self._identity()
        if not ours:
            self._lock()
        try:
            self.files = [
                _File(path, place, identity)
                for path in journal.journal_files(directory)
                if (place := journal.journal_place(path)) is not None
            ]
            strays = self._strays()
        except OSError as error:
            raise CampaignError(
                f"{error.filename or directory} cannot be read ({error.strerror or error}). Give read access, or name "
                "another directory."
            ) from error
        strange = [file for file in self.files if file.misfit]
        if strange and len(strange) == sum(1 for file in self.files if file.entries):
            self._say(
                DAMAGE,
                "campaign.json",
                f"no journal fits it ({strange[0].path.name}: {strange[0].misfit}). It is written once and never "
                "edited: restore it.",
            )
            for file in strange:
                file.misfit = ""
        created = identity.get("created")
        self._census(created if isinstance(created, (int, float)) else None)
        for file in self.files:
            self._judge(file)
        self._individuals()
        for name in strays:
            self._say(NOTE, name, "is no file of a campaign, and is left alone")
        report = self.report
        report.journals = len(self.files)
        legs = {file.place[0] for file in self.files}
        report.legs = len(legs)
        gone = sorted(set(range(1, max(legs, default=0) + 1)) - legs)
        if gone:
            self._say(
                NOTE, "journal", f"launch {_listed(list(map(str, gone)))} has no journal: they were removed"
            )
        report.records = sum(file.records for file in self.files)
        report.finished = len(self.finals)
        report.unfinished = [name for name in self.begun if name not in self.finals]
        report.repairable = any(file.to_do for file in self.files)

    def _say(
        self,
        kind: str,
        file: Path | str,
        text: str,
        lines: tuple[int, int] | None = None,
        bytes: tuple[int, int] | None = None,
    ) -> None:
        name = str(file.relative_to(self.directory)) if isinstance(file, Path) else file
        self.report.findings.append(Finding(kind=kind, file=name, text=text, lines=lines, bytes=bytes))

    def _identity(self) -> directories.Identity:
        try:
            identity = directories.read_identity(self.directory)
        except CampaignError as error:
            if not (self.directory / "journal").is_dir():
                raise
            self._say(
                DAMAGE,
                "campaign.json",
                f"{error} Where there is no copy of it: `hpo run` of the same campaign file with another directory "
                "writes the same one; copy it from there.",
            )
            return {}
        task, objectives, space = identity.get("task"), identity.get("objectives"), identity.get("space", {})
        self.report.task = task if isinstance(task, str) else None
        fits = (
            isinstance(task, str)
            and isinstance(objectives, dict)
            and bool(objectives)
            and all(way in ("minimize", "maximize") for way in objectives.values())
            and isinstance(space, dict)
            and all(isinstance(rule, dict) for rule in space.values())
        )
        if not fits:
            self._say(
                DAMAGE,
                "campaign.json",
                "it is JSON and describes no campaign. It is written once and never edited: restore it.",
            )
            return {}
        return identity

    def _lock(self) -> None:
        path = self.directory / "lock"
        holder = directories.holder(self.directory)
        if holder is not None:
            self.report.lock, self.report.holder = "live", str(holder)
        elif path.exists():
            self.report.lock, self.report.holder = "stale", "a process that cannot be read"
            with suppress(OSError, ValueError, TypeError, OverflowError):
                self.report.holder = str(directories.Holder(**orjson.loads(path.read_bytes())))

    def _strays(self) -> list[str]:
        strays = sorted(
            name
            for name in os.listdir(self.directory)
            if name not in _OURS and not name.startswith((".lock.", ".campaign.json."))
        )
        with suppress(FileNotFoundError, NotADirectoryError):
            strays += sorted(
                f"journal/{name}"
                for name in os.listdir(self.directory / "journal")
                if journal.journal_place(Path(name)) is None
            )
        return strays

    def _census(self, created: float | None) -> None:
        """Who is known, from all journals; those that contradict others and are older than the campaign are none
        of it."""
        while True:
            self.finals.clear()
            self.begun.clear()
            clash = self._count()
            if clash is None:
                return
            name, pair = clash
            began = [float(file.header["time"]) if file.header else None for file in pair]
            older = [
                file
                for file, at in zip(pair, began, strict=True)
                if created is not None and at is not None and at < created
            ]
            if len(older) == 1:
                older[0].misfit = f"it was begun before this campaign, and its {name} is another individual"
                continue
            texts = [
                f"{file.path.name} (of {file.header.get('host') if file.header else 'an unknown host'}, "
                f"{_when(at)})"
                for file, at in zip(pair, began, strict=True)
            ]
            self._say(
                DAMAGE,
                pair[1].path,
                f"{name} is one configuration in {texts[0]} and another in {texts[1]}: journals of two campaigns are "
                f"mixed. Move those that do not belong here out of {self.directory / 'journal'}; until then the first "
                "counts.",
            )
            return

    def _count(self) -> tuple[str, list[_File]] | None:
        """Fill ``finals`` and ``begun``; the first individual whose configuration differs between two files."""
        clash: tuple[str, list[_File]] | None = None
        ends: dict[tuple[str, int], tuple[bytes, _File]] = {}
        turns: dict[str, int] = {}
        for file in self.files:
            file.doubled.clear()
            if not file.counts or (file.elsewhere is not None and file.elsewhere.exists()):
                continue
            for entry in file.entries:
                params, first = self.begun.setdefault(entry.id, (entry.params, file))
                if params != entry.params:
                    clash = clash or (entry.id, [first, file])
                    continue
                turns[entry.id] = max(entry.turn, turns.get(entry.id, 0))
                if entry.result is None:
                    continue
                result, _ = ends.setdefault((entry.id, entry.turn), (entry.result, file))
                if result != entry.result:
                    file.doubled.add(entry.start)
        # One that was promoted ends anew, and has not ended before that.
        self.finals.update((name, end) for (name, turn), end in ends.items() if turn == turns[name])
        return clash

    def _judge(self, file: _File) -> None:
        if file.other_version and file.header is not None:
            self._say(
                DAMAGE,
                file.path,
                f"version {file.header['version']!r} of the journal's format; this hpo reads version "
                f"{journal.VERSION}. Use the hpo that wrote it.",
            )
            return
        if file.misfit:
            self._say(DAMAGE, file.path, f"a journal of another campaign: {file.misfit}")
        elif file.elsewhere is not None:
            self._say(
                DAMAGE, file.path, f"its header is that of {file.elsewhere.name}: it was copied or renamed"
            )
        elif file.headless:
            self._say(
                DAMAGE,
                file.path,
                "its header is missing or damaged; the file's name says what is needed of it",
            )
        for gap in file.gaps:
            self._say(
                DAMAGE,
                file.path,
                f"{gap.reason}. {self.fate(file, gap)}",
                lines=(gap.first, gap.last),
                bytes=(gap.start, gap.stop),
            )
        for start in sorted(file.doubled):
            self._say(
                DAMAGE,
                file.path,
                f"at byte {start} an individual ends that had ended otherwise before; the first end counts",
            )
        if file.torn is not None and self.report.lock != "live":
            what = "its first" if file.torn.line == 1 else "the last"
            self._say(
                NOTE,
                file.path,
                f"{what} line was cut off while it was written. Nobody counted it: it is left out, and does no harm",
                lines=(file.torn.line, file.torn.line),
            )

    def fate(self, file: _File, gap: _Gap) -> str:
        """What becomes of the individuals of a gap."""
        if file.headless and gap.start == 0 and gap.last == 1 and not gap.names and not gap.blank:
            return "No individual was in it"
        names = dict.fromkeys(gap.names)
        safe = [name for name in names if name in self.finals]
        again = [name for name in names if name in self.begun and name not in self.finals]
        gone = [name for name in names if name not in self.begun]
        parts = []
        if safe:
            parts.append(f"{_listed(safe)}: finished and on record elsewhere, nothing lost")
        if again:
            parts.append(f"{_listed(again)}: begun on record, will be evaluated again")
        if gone:
            parts.append(f"{_listed(gone)}: not on record any more, others are evaluated in their place")
        if not names or gap.blank:
            parts.append(
                "individuals in it cannot be named: those that are on record as begun will be evaluated again, others "
                "in place of the rest"
            )
        return "; ".join(parts)

    def _individuals(self) -> None:
        by_params: dict[bytes, int] = {}
        for params, _ in self.begun.values():
            by_params[params] = by_params.get(params, 0) + 1
        twice = sum(1 for count in by_params.values() if count > 1)
        if twice:
            self._say(
                NOTE,
                "journal",
                f"{_counted(twice, 'configuration')} belong{'s' * (twice == 1)} to more than one individual. Whether "
                "the campaign allows that (duplicates = true) is not on record; nothing else would explain it",
            )
        unknown = sorted(
            {name for file in self.files if file.counts for name in file.migrated if name not in self.begun}
        )
        if unknown:
            self._say(NOTE, "journal", f"{_listed(unknown)} migrated, and nothing else is on record of them")


# --- repairing ----------------------------------------------------------------------------------------------


def _mend(directory: Path, file: _File, inspection: _Inspection) -> str:
    """Put what is whole of ``file`` in its place, the file as it was aside; a sentence on it."""
    kept = _keep_aside(directory, file.path)
    name = file.path.name
    if file.misfit or (file.elsewhere is not None and file.elsewhere.exists()):
        file.path.unlink()
        journal.sync_directory(file.path.parent)
        ends = {entry.id for entry in file.entries if entry.result is not None} - set(inspection.finals)
        why = "of another campaign" if file.misfit else "a copy"
        return f"{name}, {why}, moved to {kept}; {_counted(len(ends), 'finished individual')} in it count no more"
    target = file.elsewhere or file.path
    first = file.header
    if first is None:
        first = _header(file, inspection.files)
    lines = [journal.encode(first)]
    lines += [
        piece.data
        for piece in _pieces(file.path)
        if piece.record is not None and piece.record["type"] != "header" and piece.start not in file.doubled
    ]
    directories.write_atomically(target, b"".join(lines))
    if target != file.path:
        file.path.unlink()
        journal.sync_directory(file.path.parent)
    gone = sum(gap.stop - gap.start for gap in file.gaps)
    parts = [f"{_counted(len(lines) - 1, 'record')} kept"]
    if file.gaps:
        parts.append(f"{_counted(gone, 'byte')} in {_counted(len(file.gaps), 'place')} left out")
    if file.header is None:
        parts.append("its header made anew from its name")
    if target != file.path:
        parts.append(f"it is {target.name} now")
    if file.doubled:
        parts.append(f"{_counted(len(file.doubled), 'second end')} of individuals left out")
    return f"{name}: {', '.join(parts)}; as it was, it is {kept}"


def _header(file: _File, files: Iterable[_File]) -> journal.Record:
    """A header by the file's name; its time is that of the launch as far as it can be known."""
    leg, island, worker = file.place
    times = [float(one.header["time"]) for one in files if one.header is not None and one.place[0] == leg]
    if file.earliest is not None:
        times.append(file.earliest)
    at = min(times) if times else file.path.stat().st_mtime
    fields = {"leg": leg, "island": island, "worker": worker, "host": "unknown", "pid": 0, "time": at}
    return {"type": "header", "version": journal.VERSION, **fields}


def _keep_aside(directory: Path, path: Path) -> Path:
    """The file in ``damaged/`` that now has what ``path`` has."""
    aside = directory / "damaged"
    aside.mkdir(exist_ok=True)
    number = 1
    while True:
        kept = aside / f"{path.name}.damaged-{number}"
        # A repair that was cut off has kept it already.
        if kept.exists() and filecmp.cmp(kept, path, shallow=False):
            return kept
        try:
            os.link(path, kept)
        except FileExistsError:
            number += 1
            continue
        except OSError:  # a file system without links
            if not _copied(path, kept):
                number += 1
                continue
        journal.sync_directory(aside)
        journal.sync_directory(directory)
        return kept


def _copied(path: Path, kept: Path) -> bool:
    """Copy ``path`` to ``kept``, durably; False if that exists."""
    try:
        with open(kept, "xb") as target, open(path, "rb") as source:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
    except FileExistsError:
        return False
    except OSError:
        kept.unlink(missing_ok=True)
        raise
    return True


def _when(seconds: float | None) -> str:
    if seconds is not None:
        with suppress(ValueError, OverflowError, OSError):
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return "at an unknown time"


def _counted(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
