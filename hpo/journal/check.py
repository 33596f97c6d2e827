"""``hpo check``: is a campaign's directory whole, and what of it can be kept where it is not. Nothing is changed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import orjson

from hpo.errors import CampaignError
from hpo.journal import directory as directories
from hpo.journal import records as journal
from hpo.journal.evidence import Gap, JournalFile
from hpo.journal.findings import DAMAGE, NOTE, Finding, Report, counted, listed, when

_OURS = frozenset({"campaign.json", "journal", "evaluations", "damaged", "lock", "stop"})


def check(directory: Path) -> Report:
    """What is whole and what is not in ``directory``, which may be at work; nothing is changed.

    Raises:
        CampaignError: there is no campaign, or its files cannot be read.
    """
    return Inspection(directory).report


class Inspection:
    """A directory's files and what is to be said of them."""

    def __init__(self, directory: Path, *, ours: bool = False) -> None:
        """``ours``: the lock is held by this process, so nobody else is at work."""
        self.directory = directory
        self.report = Report(directory=directory)
        self.finals: dict[str, tuple[bytes, JournalFile]] = {}
        self.begun: dict[str, tuple[bytes, JournalFile]] = {}
        identity = self._identity()
        if not ours:
            self._lock()
        try:
            self.files = [
                JournalFile(path, place, identity)
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
                "edited, as are journals: restore what was.",
            )
            for file in strange:
                file.misfit = ""
        created = identity.get("created")
        self._journal_totals(created if isinstance(created, (int, float)) else None)
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
                NOTE, "journal", f"launch {listed(list(map(str, gone)))} has no journal: they were removed"
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

    def _journal_totals(self, created: float | None) -> None:
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
                f"{when(at)})"
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

    def _count(self) -> tuple[str, list[JournalFile]] | None:
        """Fill ``finals`` and ``begun``; the first individual whose configuration differs between two files."""
        clash: tuple[str, list[JournalFile]] | None = None
        ends: dict[tuple[str, int], tuple[bytes, JournalFile]] = {}
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

    def _judge(self, file: JournalFile) -> None:
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

    def fate(self, file: JournalFile, gap: Gap) -> str:
        """What becomes of the individuals of a gap."""
        if file.headless and gap.start == 0 and gap.last == 1 and not gap.names and not gap.blank:
            return "No individual was in it"
        names = dict.fromkeys(gap.names)
        safe = [name for name in names if name in self.finals]
        again = [name for name in names if name in self.begun and name not in self.finals]
        gone = [name for name in names if name not in self.begun]
        parts = []
        if safe:
            parts.append(f"{listed(safe)}: finished and on record elsewhere, nothing lost")
        if again:
            parts.append(f"{listed(again)}: begun on record, will be evaluated again")
        if gone:
            parts.append(f"{listed(gone)}: not on record any more, others are evaluated in their place")
        if not names or gap.blank:
            parts.append(
                "individuals in it cannot be named: those that are on record as begun will be evaluated again, others "
                "in place of the rest"
            )
        return "; ".join(parts)

    def _individuals(self) -> None:
        by_params: dict[bytes, int] = {}
        again = {entry.id for file in self.files for entry in file.entries if entry.again}
        for name, (params, _) in self.begun.items():
            if name in again:
                continue
            by_params[params] = by_params.get(params, 0) + 1
        twice = sum(1 for count in by_params.values() if count > 1)
        if twice:
            self._say(
                NOTE,
                "journal",
                f"{counted(twice, 'configuration')} belong{'s' * (twice == 1)} to more than one individual. Whether "
                "the campaign allows that (duplicates = true) is not on record; nothing else would explain it",
            )
        unknown = sorted(
            {name for file in self.files if file.counts for name in file.migrated if name not in self.begun}
        )
        if unknown:
            self._say(NOTE, "journal", f"{listed(unknown)} migrated, and nothing else is on record of them")
