"""``hpo check``: the damaged lines of a campaign's journals; with ``--repair`` the whole lines are kept without them.

A repair deletes nothing: a journal that is rewritten is first copied to ``DIR/damaged/NAME.damaged-N``, and a reader
sees the old file or the new file at any moment."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path

from hpo.errors import CampaignError, JournalDamaged, UsageError
from hpo.individual import FINAL
from hpo.journal import directory as directories
from hpo.journal.durable import sync_directory, write_atomically
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import LONGEST_LINE, JournalName, PlaceInFile, launch_folders, opened, read_on
from hpo.journal.files import listed as listed_journals
from hpo.journal.records import VERSION, Finished, Header, Record, Started, decode, encode
from hpo.ledger.alive import signs_of
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import Bounds, excluded_journals, journal_files, snapshot_path
from hpo.ledger.opening import FOLDER, state_of
from hpo.space.space import SearchSpace, described_space
from hpo.steps import Steps
from hpo.terminal import one_line, quoted
from hpo.text import plural

DAMAGE, LOST, NOTE = "damage", "lost", "note"

_SHOWN_FROM_BYTES = 1 << 22
_ID = re.compile(rb'"id":"([0-9]{1,9}-[0-9]{1,9}-[0-9]{1,18})"')
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence about a file, which is relative to the campaign's directory."""

    kind: str
    """Kind of finding: DAMAGE, LOST for lines that a repair could not keep, or NOTE where no harm is done."""
    file: str
    text: str
    lines: tuple[int, int] | None = None
    """First and last line, from 1."""

    def __str__(self) -> str:
        place = self.file
        if self.lines is not None:
            first, last = self.lines
            place += f", line {first}" if first == last else f", lines {first} to {last}"
        return f"{self.kind:<6}  {one_line(place)}: {one_line(self.text)}"


@dataclass(kw_only=True)
class Inspection:
    """Content of a campaign's directory."""

    directory: Path
    task: str | None = None
    lock: str = "free"
    """Whether a launch is at work: "live", none is: "free", or "stale" where one has died and was not closed."""
    holder: str | None = None
    journals: int = 0
    launches: int = 0
    records: int = 0
    finished: int = 0
    unfinished: list[str] = field(default_factory=list)
    """Ids of individuals that were begun and not finished."""
    findings: list[Finding] = field(default_factory=list)
    repairable: bool = False
    repaired: list[str] | None = None
    """Sentences about the files that were repaired."""

    @property
    def damaged(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == DAMAGE]

    @property
    def exit_code(self) -> int:
        return 1 if self.damaged else 0

    def to_json(self) -> dict[str, object]:
        """Output of ``hpo check --json``."""
        return {**asdict(self), "directory": str(self.directory), "ok": not self.damaged}

    def __str__(self) -> str:
        at_work = {
            "free": "no campaign is at work",
            "live": f"at work: {self.holder}",
            "stale": f"no campaign is at work; {self.holder} has died, and the next launch closes what it left",
        }
        lines = [
            f"{self.directory}: {plural(self.journals, 'journal')} of {plural(self.launches, 'launch')}, "
            f"{plural(self.records, 'whole record')}; {at_work[self.lock]}",
            f"{plural(self.finished, 'individual')} finished, {len(self.unfinished)} begun and not finished"
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
    """Look for damage in the campaign in ``directory``, which may be at work; nothing is changed.

    Raises:
        CampaignError: there is no campaign, or its files cannot be listed.
    """
    return _Inspection(directory).report


def repair(directory: Path) -> Inspection:
    """Keep the whole lines of damaged journals, and the damaged files aside; then ``check``, with the repairs.

    Raises:
        CampaignError: a campaign is at work, there is none, or the directory cannot be read or written.
    """
    first = check(directory)
    if first.lock == "live":
        raise CampaignError(
            f"{directory} is in use by {first.holder}. Let it finish, or stop it with `hpo stop {quoted(directory)}`."
        )
    inspection = _Inspection(directory)
    if any(one.file == FOLDER for one in inspection.report.damaged):
        # Nobody can tell whether a launch is at work.
        inspection.report.repaired = []
        return inspection.report
    try:
        to_do = [journal for journal in inspection.journals if journal.to_do]
        if to_do:  # caches may hold what a repair leaves out
            statuses = (directories.status_path(directory, one) for one in launch_folders(directory))
            for cache in (snapshot_path(directory), *statuses):
                cache.unlink(missing_ok=True)
        done = [_rewrite(directory, journal) for journal in to_do]
    except OSError as error:
        raise CampaignError(
            f"{directory} cannot be repaired ({error.strerror or error}). What was whole is where it was, and damaged "
            f"files are in {directory / directories.DAMAGED}: make room or give write access there, then give the same "
            "command again."
        ) from error
    lost = [replace(one, kind=LOST) for one in inspection.report.damaged if one.lines is not None]
    report = _Inspection(directory).report
    report.repaired = done
    if done:
        report.findings = lost + report.findings
    return report


@dataclass
class _Journal:
    path: Path
    name: JournalName
    end: int | None
    """Bytes that count; None: all."""
    header: Header | None = None
    records: int = 0
    first_time: float | None = None
    dropped: set[int] = field(default_factory=set)
    """Numbers of the lines that a repair leaves out."""
    to_do: bool = False


class _Inspection:
    """Reads all journals of a directory and writes the report."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.report = report = Inspection(directory=directory)
        self._space: SearchSpace | None = None
        self._objectives: set[str] = set()
        self._read_identity()
        state = self._read_ledger()
        signs = [sign for sign in signs_of(directory, state).values() if sign.holder is not None]
        if signs:
            alive = [sign for sign in signs if sign.alive]
            report.lock = "live" if alive else "stale"
            report.holder = ", ".join(str(sign.holder) for sign in alive or signs)
        self._evaluations = CurrentEvaluations()
        # How each run of an individual ended.
        self._ends: dict[tuple[str, tuple[int, int]], tuple[str, object]] = {}
        self._results = 0
        self._misfits: list[tuple[_Journal, int, str, str]] = []
        self._bounds = Bounds(state)
        self.journals = [_Journal(*journal) for journal in journal_files(directory, state=state)]
        with Steps(len(self.journals), shown=_bytes(self.journals) > _SHOWN_FROM_BYTES) as steps:
            for journal in self.journals:
                steps.begin(f"checking {journal.path.name}")
                try:
                    self._read(journal)
                except CampaignError as error:  # another version's, or unreadable: to be left alone
                    self._report(DAMAGE, journal.path, str(error))
        self._report_misfits()
        for path in excluded_journals(directory, state=state):
            self._report(
                NOTE,
                path,
                "written after its worker was given up or its launch was closed, or by no launch: it does not count",
            )
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
            if not listed_journals(self._directory):
                raise
            self._report(
                DAMAGE,
                "campaign.json",
                f"{error} Where there is no copy of it: `hpo run` of the same campaign file with another directory "
                "writes the same one; copy it from there.",
            )
        except (KeyError, TypeError):
            self._report(
                DAMAGE,
                "campaign.json",
                "it is JSON and describes no campaign. It is written once and never edited: restore it.",
            )

    def _read_ledger(self) -> LedgerState:
        try:
            return state_of(self._directory)
        except JournalDamaged:  # of a campaign without a ledger
            return LedgerState()
        except CampaignError as error:
            self._report(DAMAGE, FOLDER, str(error))
            return LedgerState()

    def _report(self, kind: str, file: Path | str, text: str, lines: tuple[int, int] | None = None) -> None:
        name = str(file.relative_to(self._directory)) if isinstance(file, Path) else file
        self.report.findings.append(Finding(kind=kind, file=name, text=text, lines=lines))

    def _drop(self, journal: _Journal, first: int, last: int, reason: str, ids: Iterable[str]) -> None:
        """Lines of a journal do not count: a repair leaves them out."""
        journal.to_do = True
        journal.dropped.update(range(first, last + 1))
        found = dict.fromkeys(ids)
        named = f"; it is about {listed(found)}" if found else ""
        self._report(DAMAGE, journal.path, reason + named, (first, last))

    def _read(self, journal: _Journal) -> None:
        place = PlaceInFile()
        damaged: list[tuple[int, str, list[str]]] = []
        with opened(journal.path) as (file, written):
            journal.end = self._bounds.end(journal.name)
            size = written if journal.end is None else min(written, journal.end)
            if journal.end is not None and written < journal.end and not self._was_repaired(journal):
                gone = f"{journal.end - written} bytes that counted are gone from its end: restore it from a backup"
                self._report(DAMAGE, journal.path, gone)
            while place.offset < size:
                try:
                    for record in read_on(journal.path, file, place, size):
                        self._take(journal, place.line, record)
                    if not place.torn:
                        break
                    error = "the checksum does not fit"
                except JournalDamaged as damage:
                    error = str(damage.__cause__)
                file.seek(place.offset)
                line = file.readline(LONGEST_LINE)
                place.line, place.offset = place.line + 1, place.offset + len(line)
                # A power cut may leave zeros where records that did not count yet were being written.
                if place.torn and (not line.endswith(b"\n") or b"\0" in line):
                    if self.report.lock != "live":
                        self._report(NOTE, journal.path, _TORN, (place.line, place.line))
                    break
                with suppress(ValueError):
                    whole = decode(line)  # in the place of the header
                    if whole is not None:
                        self._take(journal, place.line, whole)
                    continue
                damaged.append((place.line, error, [name.decode() for name in _ID.findall(line)]))
        # Damaged lines that follow one another are one finding.
        for _, group in groupby(enumerate(damaged), lambda entry: entry[1][0] - entry[0]):
            lines = [entry for _, entry in group]
            ids = [identity for _, _, found in lines for identity in found]
            self._drop(journal, lines[0][0], lines[-1][0], lines[0][1], ids)

    def _was_repaired(self, journal: _Journal) -> bool:
        return (self._directory / directories.DAMAGED / f"{journal.path.name}.damaged-1").exists()

    def _take(self, journal: _Journal, line: int, record: Record) -> None:
        self._bounds.take(journal.name.launch, record)
        if not journal.records and not isinstance(record, Header):
            journal.to_do = True
            self._report(
                DAMAGE, journal.path, "its header is missing or damaged; the file's name says the same"
            )
        journal.records += 1
        if isinstance(record, Header):
            journal.header = journal.header or record
        if journal.first_time is None:
            journal.first_time = record.at
        if isinstance(record, (Started, Finished)):
            if (misfit := self._misfit(record)) is not None:
                self._misfits.append((journal, line, misfit, record.id))
                return
            self._results += isinstance(record, Finished)
            if isinstance(record, Finished) and record.status in FINAL:
                end = (record.status, record.objectives)
                if self._ends.setdefault((record.id, record.run), end) != end:
                    reason = "an individual that had ended otherwise ends again; the first end counts"
                    self._drop(journal, line, line, reason, [record.id])
                    return
        self._evaluations.take(record)

    def _misfit(self, record: Started | Finished) -> str | None:
        """Why an individual does not belong to the campaign that ``campaign.json`` describes; None if it does."""
        if self._space is None:
            return None
        try:
            self._space.validate(record.params)
        except UsageError as error:
            return "; ".join(str(error).splitlines())
        if isinstance(record, Finished) and record.objectives and {*record.objectives} != self._objectives:
            return f"its objectives are {', '.join(record.objectives)}"
        return None

    def _report_misfits(self) -> None:
        if self._misfits and not self._results:
            journal, _, misfit, _ = self._misfits[0]
            self._report(
                DAMAGE,
                "campaign.json",
                f"no journal fits it ({journal.path.name}: {misfit}). It is written once and never edited, as are "
                "journals: restore what was.",
            )
            return
        for journal, line, misfit, identity in self._misfits:
            reason = f"an individual of another search space or task: {misfit}"
            self._drop(journal, line, line, reason, [identity])


_TORN = (
    "this line was cut off while it was written. No result in it counted, so it is left out and does no harm"
)


def _bytes(journals: Iterable[_Journal]) -> int:
    size = 0
    for journal in journals:
        with suppress(OSError):
            size += journal.path.stat().st_size
    return size


def _rewrite(directory: Path, journal: _Journal) -> str:
    """Replace a journal by its whole records, keep the file as it was aside, and say so in a sentence."""
    kept = _keep_aside(directory, journal.path)
    launch, island, worker, _ = journal.name
    at = journal.path.stat().st_mtime if journal.first_time is None else journal.first_time
    by_name = Header(version=VERSION, launch=launch, island=island, worker=worker, time=at)
    lines = [encode(journal.header or by_name)]
    with opened(journal.path) as (file, size):
        left = size if journal.end is None else journal.end
        number = 0
        while left > 0 and (line := file.readline(min(left, LONGEST_LINE))):
            number, left = number + 1, left - len(line)
            with suppress(ValueError):  # a line that was cut off
                if number not in journal.dropped and not isinstance(decode(line), Header):
                    lines.append(line)
    write_atomically(journal.path, b"".join(lines))
    made = "" if journal.header is not None else ", its header made from its name"
    return f"{journal.path.name}: {plural(len(lines) - 1, 'record')} kept{made}; as it was, it is {kept}"


def _keep_aside(directory: Path, path: Path) -> Path:
    """Copy ``path`` to a new file in ``damaged/``, unless a file there has its content; that file."""
    aside = directory / directories.DAMAGED
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
            if filecmp.cmp(kept, path, shallow=False):
                return kept  # by a repair that was cut off
            number += 1
            continue
        except OSError:
            kept.unlink(missing_ok=True)
            raise
        sync_directory(aside)
        sync_directory(directory)
        return kept


def listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join([*names][:_LISTED]) + more
