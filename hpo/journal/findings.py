"""What ``hpo check`` tells: its findings, and its report in words and as JSON."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpo.terminal import one_line, quoted

DAMAGE, LOST, NOTE = "damage", "lost", "note"

_LISTED = 8


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
        return f"{self.kind:<6}  {one_line(place)}: {one_line(self.text)}"


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
            f"{self.directory}: {counted(self.journals, 'journal')} of {counted(self.legs, 'launch')}, "
            f"{counted(self.records, 'whole record')}; {told[self.lock]}",
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
                "and the damaged files aside."
            )
        else:
            lines.append("What is still damaged this command cannot repair: do what is said above.")
        return "\n".join(lines)


def when(seconds: float | None) -> str:
    if seconds is not None:
        with suppress(ValueError, OverflowError, OSError):
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    return "at an unknown time"


def counted(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{number} {noun if number == 1 else plural}"


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
