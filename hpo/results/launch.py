"""Launches of a campaign as its journals show them, several of which may be at work at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from hpo.journal.records import Launched, Left, Storage

Span = tuple[float, float]
"""Begin and end, in Unix seconds."""


@dataclass(kw_only=True)
class Launch:
    """Launch of a campaign. Times are Unix seconds."""

    number: int
    started: float
    updated: float
    """Time of the last record."""
    launched: Launched | None = None
    """None if the launch died before that record was written."""
    stopping: str | None = None
    """Reason why nothing more begins."""
    storage: tuple[str, float] | None = None
    """Reason why a worker waits for its storage, and since when."""
    waits: list[Storage] = field(default_factory=list)
    """Begins and ends of workers' waits for their storage."""
    left: list[Left] = field(default_factory=list)
    """Workers that the launch went on without."""
    ended: tuple[str, int] | None = None
    """Reason and exit code; None if it is running or was killed."""

    @property
    def islands(self) -> int:
        """Number of islands; 0 where it died before that was written."""
        return 0 if self.launched is None else self.launched.islands

    @property
    def workers(self) -> int:
        """Number of its workers; 0 where it died before that was written."""
        return 0 if self.launched is None else self.launched.workers


def most_workers(launches: Iterable[Launch]) -> int:
    """Greatest number of workers at work at the same time."""
    changes = [
        change for one in launches for change in ((one.started, one.workers), (one.updated, -one.workers))
    ]
    return max(accumulate((change for _, change in sorted(changes)), initial=0))


def union(spans: Iterable[Span]) -> list[Span]:
    """The times that lie in any of ``spans``, as spans in order that do not overlap."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, max(begin, end)))
    return found


def seconds_of(spans: Iterable[Span]) -> float:
    """Length of ``union``."""
    return sum(end - begin for begin, end in union(spans))
