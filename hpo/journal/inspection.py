"""``hpo check``: the damaged lines of a campaign's journals; with ``--repair`` the whole records are kept without them.

A repair deletes nothing: a journal that is rewritten is first kept in ``DIR/damaged/``, as its name with
``.damaged-N`` added, and a reader sees the old file or the new one at any moment."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hpo.errors import CampaignError, JournalDamaged, UsageError
from hpo.individual import FINAL
from hpo.journal import directory as directories
from hpo.journal import lock as locks
from hpo.journal.durable import sync_directory, write_atomically
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import (
    LONGEST_LINE,
    JournalName,
    excluded_parts,
    journal_files,
    journal_name,
    read_file,
)
from hpo.journal.records import (
    VERSION,
    Finished,
    Header,
    NotWhole,
    Record,
    Started,
    decode,
    encode,
)
from hpo.space.description import described_space
from hpo.space.space import SearchSpace
from hpo.steps import Steps
from hpo.terminal import one_line, quoted

DAMAGE, LOST, NOTE = "damage", "lost", "note"

_RECORD_END = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_RECORD_BEGIN = b'{"type":'
_SHOWN_FROM_BYTES = 1 << 22
_MOST_SUMMED = 1 << 28
"""Bytes of one broken line to take checksums of while whole records are looked for in it."""
_ID = re.compile(rb'"id":"([0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18})"')
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """``kind``: DAMAGE, LOST for what a repair could not keep, or NOTE for what does no harm; ``file``: relative to the
    campaign's directory; ``lines``: first and last, from 1."""

    kind: str
    file: str
    text: str
    lines: tuple[int, int] | None = None

    def __str__(self) -> str:
        place = self.file
        if self.lines is not None:
            first, last = self.lines
            place += f", line {first}" if first == last else f", lines {first} to {last}"
        return f"{self.kind:<6}  {one_line(place)}: {one_line(self.text)}"


@dataclass(kw_only=True)
class Inspection:
    """What is in a campaign's directory. ``lock``: "free", "live" or "stale"; ``unfinished``: ids of what was begun
    and not finished; ``repaired``: what was done, a sentence a file."""

    directory: Path
    task: str | None = None
    lock: str = "free"
    holder: str | None = None
    journals: int = 0
    launches: int = 0
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
        return {**asdict(self), "directory": str(self.directory), "ok": not self.damaged}

    def __str__(self) -> str:
        at_work = {
            "free": "no campaign is at work",
            "live": f"at work: {self.holder}",
            "stale": f"no campaign is at work; the lock of {self.holder} is stale and not in the way",
        }
        lines = [
            f"{self.directory}: {counted(self.journals, 'journal')} of {counted(self.launches, 'launch')}, "
            f"{counted(self.records, 'whole record')}; {at_work[self.lock]}",
            f"{counted(self.finished, 'individual')} finished, {len(self.unfinished)} begun and not finished"
            + (f", which will go on: {listed(self.unfinished)}" if self.unfinished else ""),
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
                f"Damaged. Nothing was changed. `hpo check {quoted(self.directory)} --repair` keeps all that is whole, "
                "and the damaged files aside. An individual that cannot be read is evaluated again if its begin is on "
                "record; else another takes its place."
            )
        else:
            lines.append("This command cannot repair what is still damaged: do what is said above.")
        return "\n".join(lines)


def check(directory: Path) -> Inspection:
    """What is whole and what is not in ``directory``, which may be at work; nothing is changed.

    Raises:
        CampaignError: there is no campaign, or its files cannot be listed.
    """
    return _Inspection(directory).report


def repair(directory: Path) -> Inspection:
    """Keep what is whole of damaged journals, and the damaged ones aside; then ``check``, with what was done.

    Raises:
        CampaignError: a campaign is at work, there is none, or the directory cannot be read or written.
    """
    first = check(directory)
    with locks.acquire(directory):
        inspection = _Inspection(directory, locked=True)
        try:
            done = [_rewrite(directory, journal) for journal in inspection.journals if journal.to_do]
        except OSError as error:
            raise CampaignError(
                f"{directory} cannot be repaired ({error.strerror or error}). What was whole is where it was, and "
                f"damaged files are in {directory / 'damaged'}: make room or give write access there, then give the "
                "same command again."
            ) from error
        lost = [replace(one, kind=LOST) for one in inspection.report.damaged if one.lines is not None]
        report = _Inspection(directory, locked=True).report
    report.lock, report.holder, report.repaired = first.lock, first.holder, done
    if done:
        report.findings = lost + report.findings
    return report


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a journal, at byte ``start``: a whole record with its newline (None if its type is unknown), or bytes
    that are none, for the ``reason``."""

    line: int
    start: int
    data: bytes
    record: Record | None = None
    reason: str = ""


@dataclass
class _Journal:
    """One journal; ``dropped``: where the pieces begin that a repair leaves out."""

    path: Path
    name: JournalName
    header: Header | None = None
    records: int = 0
    first_time: float | None = None
    dropped: set[int] = field(default_factory=set)
    to_do: bool = False


class _Inspection:
    """Reads all journals of a directory and writes the report."""

    def __init__(self, directory: Path, *, locked: bool = False) -> None:
        """``locked``: by this process, so that no campaign is at work."""
        self._directory = directory
        self.report = Inspection(directory=directory)
        self._space: SearchSpace | None = None
        self._objectives: set[str] = set()
        self._read_identity()
        if not locked and (holder := locks.holder(directory)) is not None:
            self.report.lock, self.report.holder = "live", str(holder)
        elif not locked and (stale := locks.stale_holder(directory)) is not None:
            self.report.lock, self.report.holder = "stale", stale
        self._evaluations = CurrentEvaluations()
        # By id and run, how it ended.
        self._ends: dict[tuple[str, tuple[int, int]], tuple[str, object]] = {}
        self._results = 0
        self._misfits: list[tuple[_Journal, _Piece, str]] = []
        self.journals = [
            _Journal(path, name)
            for path in journal_files(directory)
            if (name := journal_name(path)) is not None
        ]
        with Steps(len(self.journals), shown=self._takes_long()) as steps:
            for journal in self.journals:
                steps.begin(f"checking {journal.path.name}")
                self._read(journal)
        self._say_misfits()
        for path in excluded_parts(directory):
            self._say(NOTE, path, "begun after its worker had been given up, so that it does not count")
        report = self.report
        report.journals = len(self.journals)
        report.launches = len({journal.name.launch for journal in self.journals})
        report.records = sum(journal.records for journal in self.journals)
        report.finished = len(self._evaluations.ended_ids)
        report.unfinished = [one.record.id for one in self._evaluations.open]
        report.repairable = any(journal.to_do for journal in self.journals)

    def _read_identity(self) -> None:
        try:
            identity = directories.read_identity(self._directory)
            self.report.task = identity["task"]
            self._objectives = {*identity["objectives"]}
            self._space = described_space(identity["space"]) if identity.get("space") else None
        except CampaignError as error:
            if not (self._directory / "journal").is_dir():
                raise
            self._say(
                DAMAGE,
                "campaign.json",
                f"{error} Where there is no copy of it: `hpo run` of the same campaign file with another directory "
                "writes the same one; copy it from there.",
            )
        except (KeyError, TypeError):
            self._say(
                DAMAGE,
                "campaign.json",
                "it is JSON and describes no campaign. It is written once and never edited: restore it.",
            )

    def _say(self, kind: str, file: Path | str, text: str, lines: tuple[int, int] | None = None) -> None:
        name = str(file.relative_to(self._directory)) if isinstance(file, Path) else file
        self.report.findings.append(Finding(kind=kind, file=name, text=text, lines=lines))

    def _damage(self, journal: _Journal, pieces: list[_Piece], reason: str) -> None:
        journal.to_do = True
        journal.dropped.update(piece.start for piece in pieces)
        found = dict.fromkeys(name.decode() for piece in pieces for name in _ID.findall(piece.data))
        named = f"; it is about {listed([*found])}" if found else ""
        self._say(DAMAGE, journal.path, reason + named, (pieces[0].line, pieces[-1].line))

    def _read(self, journal: _Journal) -> None:
        try:
            next(read_file(journal.path), None)
        except JournalDamaged:
            pass
        except CampaignError as error:  # of another version, or unreadable: to be left alone
            self._say(DAMAGE, journal.path, str(error))
            return
        broken: list[_Piece] = []
        first = True
        for piece in _pieces(journal.path):
            if piece.reason == _TORN:
                if self.report.lock != "live":
                    self._say(NOTE, journal.path, _TORN, (piece.line, piece.line))
            elif piece.reason:
                if broken and broken[-1].line < piece.line - 1:
                    self._damage(journal, broken, broken[0].reason)
                    broken = []
                broken.append(piece)
            else:
                if first and not isinstance(piece.record, Header):
                    journal.to_do = True
                    self._say(
                        DAMAGE,
                        journal.path,
                        "its header is missing or damaged; the file's name says the same",
                    )
                first = False
                self._take(journal, piece)
        if broken:
            self._damage(journal, broken, broken[0].reason)

    def _take(self, journal: _Journal, piece: _Piece) -> None:
        record = piece.record
        journal.records += 1
        if isinstance(record, Header):
            journal.header = journal.header or record
        if record is not None and journal.first_time is None:
            journal.first_time = record.at
        if not isinstance(record, (Started, Finished)):
            if record is not None:
                self._evaluations.take(record)
            return
        if (misfit := self._misfit(record)) is not None:
            self._misfits.append((journal, piece, misfit))
            return
        self._results += isinstance(record, Finished)
        if isinstance(record, Finished) and record.status in FINAL:
            end = (record.status, record.objectives)
            if self._ends.setdefault((record.id, record.run), end) != end:
                self._damage(
                    journal,
                    [piece],
                    "an individual that had ended otherwise ends again; the first end counts",
                )
                return
        self._evaluations.take(record)

    def _misfit(self, record: Started | Finished) -> str | None:
        """Why an individual is none of the campaign that ``campaign.json`` describes; None if it is."""
        if self._space is None:
            return None
        try:
            self._space.validate(record.params)
        except UsageError as error:
            return "; ".join(str(error).splitlines())
        if isinstance(record, Finished) and record.objectives and {*record.objectives} != self._objectives:
            return f"its objectives are {', '.join(record.objectives)}"
        return None

    def _takes_long(self) -> bool:
        size = 0
        for journal in self.journals:
            with suppress(OSError):
                size += journal.path.stat().st_size
        return size > _SHOWN_FROM_BYTES

    def _say_misfits(self) -> None:
        if self._misfits and not self._results:
            journal, _, misfit = self._misfits[0]
            self._say(
                DAMAGE,
                "campaign.json",
                f"no journal fits it ({journal.path.name}: {misfit}). It is written once and never edited, as are "
                "journals: restore what was.",
            )
            return
        for journal, piece, misfit in self._misfits:
            self._damage(journal, [piece], f"an individual of another search space or task: {misfit}")


_TORN = (
    "this line was cut off while it was written. No result in it counted, so it is left out and does no harm"
)


def _pieces(path: Path) -> Iterator[_Piece]:
    with open(path, "rb", buffering=1 << 20) as file:
        left = os.fstat(file.fileno()).st_size
        line, start = 1, 0
        while left > 0 and (data := file.readline(min(left, LONGEST_LINE))):
            left -= len(data)
            yield from _split(_Piece(line, start, data), last=left == 0)
            start += len(data)
            line += 1


def _split(whole: _Piece, *, last: bool) -> Iterator[_Piece]:
    try:
        yield replace(whole, record=decode(whole.data))
        return
    except ValueError as error:
        reason = str(error)
        spans = [*_records_in(whole.data)] if isinstance(error, NotWhole) else []
    cut = not whole.data.endswith(b"\n") and spans in ([], [(0, len(whole.data))])
    # A power cut may leave zeros where records that did not count yet were being written.
    if last and (cut or (not spans and b"\0" in whole.data)):
        yield replace(whole, reason=_TORN)
        return
    done = 0
    for begin, end in [*spans, (len(whole.data), len(whole.data))]:
        if whole.data[done:begin].strip(b"\n"):
            yield replace(whole, start=whole.start + done, data=whole.data[done:begin], reason=reason)
        if begin < end:
            data = whole.data[begin:end] + b"\n"
            yield replace(whole, start=whole.start + begin, data=data, record=decode(data))
        done = end


def _records_in(line: bytes) -> Iterator[tuple[int, int]]:
    """Where whole records are in a line that is none, as after a lost newline."""
    done, summed = 0, 0
    for found in _RECORD_END.finditer(line):
        begin = line.rfind(_RECORD_BEGIN, done, found.start())
        while begin >= 0:
            summed += found.end() - begin
            if summed > _MOST_SUMMED:
                return
            if zlib.crc32(line[begin : found.start()]) == int(found[1], 16):
                yield begin, found.end()
                done = found.end()
                break
            begin = line.rfind(_RECORD_BEGIN, done, begin)


def _rewrite(directory: Path, journal: _Journal) -> str:
    """Put what is whole of a journal in its place, the file as it was aside; a sentence on it."""
    kept = _keep_aside(directory, journal.path)
    header = journal.header or _header(journal)
    lines = [
        piece.data
        for piece in _pieces(journal.path)
        if not piece.reason and not isinstance(piece.record, Header) and piece.start not in journal.dropped
    ]
    write_atomically(journal.path, b"".join([encode(header), *lines]))
    made = "" if journal.header is not None else ", its header made anew from its name"
    return f"{journal.path.name}: {counted(len(lines), 'record')} kept{made}; as it was, it is {kept}"


def _header(journal: _Journal) -> Header:
    """A header by the file's name; its time is that of the first record."""
    launch, island, worker, _ = journal.name
    at = journal.path.stat().st_mtime if journal.first_time is None else journal.first_time
    return Header(version=VERSION, launch=launch, island=island, worker=worker, host="unknown", time=at)


def _keep_aside(directory: Path, path: Path) -> Path:
    """The file in ``damaged/`` that now has what ``path`` has."""
    aside = directory / "damaged"
    aside.mkdir(exist_ok=True)
    number = 1
    while True:
        kept = aside / f"{path.name}.damaged-{number}"
        try:
            with open(kept, "xb") as target, open(path, "rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
        except FileExistsError:
            # A repair that was cut off has kept it already.
            if filecmp.cmp(kept, path, shallow=False):
                return kept
            number += 1
            continue
        except OSError:
            kept.unlink(missing_ok=True)
            raise
        sync_directory(aside)
        sync_directory(directory)
        return kept


def counted(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join([*names][:_LISTED]) + more
