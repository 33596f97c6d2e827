"""The parts of the live page: each is made, sent and drawn by itself, as seldom as its cost asks for.

A viewer gets the words, what runs now, the details of individuals, and each figure as a part. A part has a version, the
hash of what it says, so that only what changed is sent."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hpo.errors import HpoError
from hpo.results.running import Running
from hpo.terminal import one_line
from hpo.views.figures.drawing.theme import number
from hpo.views.figures.registry import FIGURES, Entry
from hpo.views.figures.source import NotDrawn, Source
from hpo.views.report.content import Content, Details, Drawn, content, details, drawn, encoded, marked
from hpo.views.report.summary import Missing, Table

WORDS, RUNNING, DETAILS = "words", "running", "details"
"""Beside the names of figures."""

_OF_REPORTS = frozenset({"curves", "budget"})
"""Figures that learning curves are in; others change with the journals alone."""
_REST = 30.0
"""The least seconds between two makings of a part, for each second of processor time that one took."""
_REST_OF_WORDS = 5.0
_MOMENT_S = 0.2
"""Of processor time, after which the files are looked at again."""
_LEAST_DETAILS_S = 5.0
"""Between two versions of what is looked up on a click."""
_LONGEST_VALUE = 40
_MOST_RUNNING = 50


@dataclass(frozen=True, kw_only=True)
class Part:
    """JSON, compressed by gzip; its ``version`` follows from what it says."""

    version: str
    data: bytes

    @classmethod
    def of(cls, value: object) -> Part:
        text = encoded(value)
        version = hashlib.blake2b(text, digest_size=9).hexdigest()
        # Without a time stamp: the same text is the same data.
        return cls(version=version, data=gzip.compress(text, 5, mtime=0))


class _Words(msgspec.Struct):
    """``figures``: the names of those that are drawn, in their order."""

    content: Content
    figures: list[str]


@dataclass(kw_only=True)
class _Task:
    """A part to be made. ``due``: when at the earliest; ``cost_s``: of the last time, in processor time, None before
    the first."""

    name: str
    make: Callable[[Source], object]
    rest: float = _REST
    least_s: float = 0.0
    stale: bool = True
    due: float = 0.0
    cost_s: float | None = None


@dataclass(kw_only=True)
class Parts:
    """All parts as they were made last, for one campaign. ``clock``, ``processor``: in seconds, for tests."""

    publish: Callable[[Mapping[str, Part]], None]
    clock: Callable[[], float] = time.monotonic
    processor: Callable[[], float] = time.thread_time
    parts: dict[str, Part] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """By part, why it could not be made: a fault of ours, which must not keep the others from being made."""
    version: str = ""
    """Of hpo."""
    _missing: dict[str, str] = field(default_factory=dict)
    _marked: dict[str, set[str]] = field(default_factory=dict)
    """By figure, the individuals that its marks stand for."""
    _running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._words = _Task(name=WORDS, make=self._make_words, rest=_REST_OF_WORDS)
        self._of_running = _Task(name=RUNNING, make=self._make_running, rest=_REST_OF_WORDS)
        self._tasks = [
            self._words,
            self._of_running,
            *(_Task(name=entry.name, make=_drawing(entry)) for entry in FIGURES),
            _Task(name=DETAILS, make=self._make_details, least_s=_LEAST_DETAILS_S),
        ]

    def changed(self) -> None:
        """All parts are to be made anew: the campaign has more on record."""
        for task in self._tasks:
            task.stale = True

    def reported(self) -> None:
        """Trials have reported more."""
        for task in self._tasks:
            task.stale |= task.name in _OF_REPORTS

    def time_passed(self) -> None:
        """What depends on the clock is to be made anew."""
        self._words.stale = True

    def set_running(self, running: list[Running]) -> None:
        """What is being evaluated."""
        if running != self._running:
            self._running = running
            self._of_running.stale = True

    @property
    def all_made(self) -> bool:
        """Whether each part has been made once, or found not to be drawn."""
        return all(task.cost_s is not None for task in self._tasks)

    def reports_due(self) -> bool:
        """Whether a part may be made now that learning curves are in."""
        return any(self.clock() >= task.due for task in self._tasks if task.name in _OF_REPORTS)

    def make(self, source: Source) -> bool:
        """Make parts that are stale and due, the words first, for a moment; publish each that came out different.
        Whether more are due."""
        began = self.processor()
        # Those that may be made often have the earliest deadlines; a costly one's turn comes as it grows old.
        waiting = sorted(
            filter(self._is_due, self._tasks),
            key=lambda one: (one is not self._words, one.due + one.rest * (one.cost_s or 0.0)),
        )
        for made, task in enumerate(waiting):
            if made and self.processor() - began >= _MOMENT_S:
                return True
            self._make(task, source)
        return self._is_due(self._words)  # which figures there are may have changed

    def _is_due(self, task: _Task) -> bool:
        return task.stale and self.clock() >= task.due

    def _make(self, task: _Task, source: Source) -> None:
        began = self.processor()
        task.stale = False
        figures, missing = self._figures(), dict(self._missing)
        self.problems.pop(task.name, None)
        self._missing.pop(task.name, None)
        try:
            made = task.make(source)
            if isinstance(made, Drawn):
                self._marked[task.name] = marked([made], 0)
            part = Part.of(made)
            if task.name not in self.parts or self.parts[task.name].version != part.version:
                self.parts = {**self.parts, task.name: part}
        except NotDrawn as reason:
            self._missing[task.name] = str(reason)
            self.parts = {name: part for name, part in self.parts.items() if name != task.name}
        except Exception as error:  # of one figure, in whatever library: the page goes on without it
            text = str(error) if isinstance(error, HpoError) else f"{type(error).__name__}: {error}"
            self.problems[task.name] = one_line(text)
        if (self._figures(), self._missing) != (figures, missing):
            self._words.stale = True
        # The first time a figure also imports what draws it.
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

    def _make_running(self, source: Source) -> Table | None:
        return _table(self._running) if self._running else None


def _drawing(entry: Entry) -> Callable[[Source], object]:
    return lambda source: drawn(entry, [source])


def _table(running: list[Running]) -> Table:
    rows = [
        [
            one.id,
            one.worker,
            one_line(one.host),
            _at(one.started),
            ""
            if one.step is None or one.value is None
            else f"{number(one.value)} at step {number(one.step)}",
            "" if one.reported is None else _at(one.reported),
            ", ".join(f"{one_line(name)} {_value(value)}" for name, value in one.params.items()),
        ]
        for one in running[:_MOST_RUNNING]
    ]
    if len(running) > _MOST_RUNNING:
        rows.append([f"and {len(running) - _MOST_RUNNING} more", *[""] * 6])
    heads = ["running", "worker", "host", "since", "last report", "at", "configuration"]
    return Table(heads, rows, [False, False, False, True, True, True, False])


def _at(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))


def _value(value: Any) -> str:
    text = number(value) if isinstance(value, float) else one_line(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
