"""Stretches of evaluations by worker: the parts that the runs of evaluations left in the workers' journals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hpo.individual import LOST, RUNNING
from hpo.journal.records import Finished, Header, Note, Started

Place = tuple[int, int, int]
"""Launch, island and worker of a journal."""


class Part(NamedTuple):
    """Stretch of one evaluation on one worker, in Unix seconds."""

    id: str
    place: Place
    started: float
    finished: float | None  # none where the journal has no end, and ``status`` is "running" or "lost"
    status: str
    resumed: bool = False  # whether it is not the individual's first part


_Event = tuple[Place, str, "float | None", "float | None", str]
"""Place, id, start, end and status: a begin has neither end nor status; an end without a start ends what began last."""


class PartsFold:
    """Parts in the records of journals, which are added with each journal's header first."""

    def __init__(self) -> None:
        self.hosts: dict[Place, str] = {}
        self._place: Place = (0, 0, 0)
        self._events: list[_Event] = []

    def enter(self, header: Header) -> None:
        """Begin a journal: the records that follow belong to it."""
        self._place = (header.launch, header.island, header.worker)
        self.hosts[self._place] = header.host

    def add(self, record: Started | Finished | Note) -> None:
        if isinstance(record, Started):
            self._events.append((self._place, record.id, record.time, None, ""))
        elif isinstance(record, Finished):
            self._events.append((self._place, record.id, record.started, record.finished, record.status))
        else:
            self._events.append((self._place, record.id, None, record.time, record.status))

    def parts(self, running: Mapping[str, float]) -> list[Part]:
        """All parts by begin. ``running``: begins of the individuals that are evaluated now; any other part without an
        end is lost."""
        found: dict[tuple[Place, str, float], Part] = {}
        for part in self._ended(running):
            # A record may be in two files after a write that failed; a part with an end counts.
            key = part.place, part.id, part.started
            if key not in found or part.finished is not None:
                found[key] = part
        ordered = sorted(found.values(), key=lambda one: (one.started, one.place))
        seen: set[str] = set()
        for index, part in enumerate(ordered):
            if part.id in seen:
                ordered[index] = part._replace(resumed=True)
            seen.add(part.id)
        return ordered

    def _ended(self, running: Mapping[str, float]) -> Iterable[Part]:
        begun: dict[Place, tuple[str, float]] = {}
        for place, identity, started, finished, status in self._events:
            before, since = begun.pop(place, ("", 0.0))
            # A begin has no end if another individual's record follows, or a later begin of the same individual.
            if before and (before != identity or (finished is None and since != started)):
                yield _open(place, before, since, running)
            if finished is None:
                begun[place] = identity, started or 0.0
            elif started is not None:
                yield Part(identity, place, started, finished, status)
            elif before == identity:
                yield Part(identity, place, since, finished, status)
        for place, (identity, since) in begun.items():
            yield _open(place, identity, since, running)


def _open(place: Place, identity: str, since: float, running: Mapping[str, float]) -> Part:
    return Part(identity, place, since, None, RUNNING if running.get(identity) == since else LOST)
