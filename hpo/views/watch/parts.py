"""Parts of the live page: words, running evaluations, details of individuals, and each figure.

Each part is made, sent and drawn by itself, as seldom as its cost asks for. Its version is the hash of its content, so
that only changes are sent."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from hpo.errors import HpoError
from hpo.results.running import Running
from hpo.terminal import one_line
from hpo.views.figures.drawing.theme import number
from hpo.views.figures.registry import FIGURES, Entry
from hpo.views.figures.source import NotDrawn, Source
from hpo.views.report.content import Content, Details, Drawn, content, details, drawn, encoded, marked
from hpo.views.report.summary import Missing, PageTable

WORDS, RUNNING, DETAILS = "words", "running", "details"  # parts beside the figures

_OF_REPORTS = frozenset(
    {"curves", "budget"}
)  # figures of learning curves; others change with the journals alone
_REST = (
    30.0  # least seconds between two makings of a part, for each second of processor time that the part took
)
_REST_OF_WORDS = 5.0
_MOMENT_S = 0.2  # processor time after which the files are looked at again
_LEAST_DETAILS_S = 5.0
_LONGEST_VALUE = 40
_MOST_RUNNING = 50


@dataclass(frozen=True, kw_only=True)
class PagePart:
    """JSON, compressed by gzip, with a version that follows from the content."""

    version: str
    data: bytes

    @classmethod
    def of(cls, value: object) -> PagePart:
        text = encoded(value)
        version = hashlib.blake2b(text, digest_size=9).hexdigest()
        # Without a time stamp, the same text gives the same data.
        return cls(version=version, data=gzip.compress(text, 5, mtime=0))


class _Words(msgspec.Struct):
    content: Content
    figures: list[str]  # names of the figures that are drawn, in order


@dataclass(kw_only=True)
class _PartTask:
    name: str
    make: Callable[[Source], object]
    rest: float = _REST
    least_s: float = 0.0
    stale: bool = True
    due: float = 0.0  # earliest time at which the part is made
    cost_s: float | None = None  # processor time of the last making


@dataclass(kw_only=True)
class Parts:
    """All parts of a campaign's page. ``clock`` and ``processor`` return seconds, for tests."""

    publish: Callable[[Mapping[str, PagePart]], None]
    clock: Callable[[], float] = time.monotonic
    processor: Callable[[], float] = time.thread_time
    parts: dict[str, PagePart] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Fault by part, which must not keep the other parts from being made."""
    version: str = ""  # version of hpo
    _missing: dict[str, str] = field(default_factory=dict)
    _marked: dict[str, set[str]] = field(default_factory=dict)  # individuals that marks stand for, by figure
    _running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._words = _PartTask(name=WORDS, make=self._make_words, rest=_REST_OF_WORDS)
        self._of_running = _PartTask(name=RUNNING, make=self._make_running, rest=_REST_OF_WORDS)
        self._tasks = [
            self._words,
            self._of_running,
            *(_PartTask(name=entry.name, make=partial(_draw, entry)) for entry in FIGURES),
            _PartTask(name=DETAILS, make=self._make_details, least_s=_LEAST_DETAILS_S),
        ]

    def changed(self) -> None:
        """Mark all parts as stale, as the campaign has new records."""
        for task in self._tasks:
            task.stale = True

    def reported(self) -> None:
        """Mark figures of learning curves as stale."""
        for task in self._tasks:
            task.stale |= task.name in _OF_REPORTS

    def time_passed(self) -> None:
        """Mark the words as stale, which depend on the clock."""
        self._words.stale = True

    def set_running(self, running: list[Running]) -> None:
        """Set the evaluations that run."""
        if running != self._running:
            self._running = running
            self._of_running.stale = True

    @property
    def all_made(self) -> bool:
        """Whether each part has been made once, or lacks data."""
        return all(task.cost_s is not None for task in self._tasks)

    def reports_due(self) -> bool:
        """Whether a figure of learning curves may be made now."""
        return any(self.clock() >= task.due for task in self._tasks if task.name in _OF_REPORTS)

    def make(self, source: Source) -> bool:
        """Make stale parts that are due for a moment, the words first; returns whether more are due."""
        began = self.processor()
        # Cheap parts have the earliest deadlines; the turn of a costly part comes as it grows old.
        waiting = sorted(
            filter(self._is_due, self._tasks),
            key=lambda one: (one is not self._words, one.due + one.rest * (one.cost_s or 0.0)),
        )
        for made, task in enumerate(waiting):
            if made and self.processor() - began >= _MOMENT_S:
                return True
            self._make(task, source)
        return self._is_due(self._words)  # the list of figures may have changed

    def _is_due(self, task: _PartTask) -> bool:
        return task.stale and self.clock() >= task.due

    def _make(self, task: _PartTask, source: Source) -> None:
        began = self.processor()
        task.stale = False
        figures, missing = self._figures(), dict(self._missing)
        self.problems.pop(task.name, None)
        self._missing.pop(task.name, None)
        try:
            made = task.make(source)
            if isinstance(made, Drawn):
                self._marked[task.name] = marked([made], 0)
            part = PagePart.of(made)
            if task.name not in self.parts or self.parts[task.name].version != part.version:
                self.parts = {**self.parts, task.name: part}
        except NotDrawn as reason:
            self._missing[task.name] = str(reason)
            self.parts = {name: part for name, part in self.parts.items() if name != task.name}
        except Exception as error:  # the page goes on without a figure in which any library failed
            text = str(error) if isinstance(error, HpoError) else f"{type(error).__name__}: {error}"
            self.problems[task.name] = one_line(text)
        if (self._figures(), self._missing) != (figures, missing):
            self._words.stale = True
        # The first making also imports modules, and does not count.
        rest = 0.0 if task.cost_s is None else task.rest
        task.cost_s = self.processor() - began
        task.due = self.clock() + max(task.least_s, rest * task.cost_s)
        self.publish(self.parts)

    def _figures(self) -> list[str]:
        return [entry.name for entry in FIGURES if entry.name in self.parts]

    def _make_words(self, source: Source) -> _Words:
        found = content([source], self.version, figures=[])
        titles = {entry.name: entry.title for entry in FIGURES}
        found.campaigns[0].missing.extend(
            Missing(title, self._missing[name]) for name, title in titles.items() if name in self._missing
        )
        return _Words(content=found, figures=self._figures())

    def _make_details(self, source: Source) -> list[Details]:
        return [details(source, set().union(*self._marked.values()))]

    def _make_running(self, source: Source) -> PageTable | None:
        return _table(self._running) if self._running else None


def _draw(entry: Entry, source: Source) -> Drawn:
    return drawn(entry, [source])


def _table(running: list[Running]) -> PageTable:
    rows = []
    for one in running[:_MOST_RUNNING]:
        report = f"{number(one.value)} at step {number(one.step)}" if one.step is not None else ""
        reported = "" if one.reported is None else _at(one.reported)
        params = ", ".join(f"{one_line(name)} {_value(value)}" for name, value in one.params.items())
        rows.append([one.id, one.worker, one_line(one.host), _at(one.started), report, reported, params])
    if len(running) > _MOST_RUNNING:
        rows.append([f"and {len(running) - _MOST_RUNNING} more", *[""] * 6])
    heads = ["running", "worker", "host", "since", "last report", "at", "configuration"]
    return PageTable(heads, rows, [False, False, False, True, True, True, False])


def _at(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def _value(value: Any) -> str:
    text = number(value) if isinstance(value, float) else one_line(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
