"""The live page: follows the campaign's files in a thread, and makes the parts of the page once for all viewers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpo.errors import CampaignError
from hpo.results.follow import CurveFollower, Follower
from hpo.results.record import CampaignRecord
from hpo.results.running import Running, Tails
from hpo.terminal import one_line, write
from hpo.views.figures.source import Source
from hpo.views.watch.parts import PagePart, Parts

_LOOK_S = 0.5
_UNWATCHED_S = 5.0
_VIEWER_S = 5.0  # a viewer that has not looked for so long has gone
_BEAT_S = 10.0  # after this time, a campaign at work that writes nothing is looked at again
_SHARE = 1 / 3  # largest share of a core, in the mean
_LONGEST_REST_S = 10.0


@dataclass(frozen=True, kw_only=True)
class View:
    """The page at one moment."""

    parts: Mapping[str, PagePart] = field(default_factory=dict)
    problem: str = ""  # reason why the page may differ from the files
    reading: bool = True  # whether the campaign has not been read whole yet


class Page:
    """The live page of the campaign in ``directory``, which is made only for viewers: ``view`` is its present state."""

    def __init__(self, directory: Path, *, version: str = "") -> None:
        self.view = View()
        self._directory = directory
        self._follower = Follower(directory)
        self._curves = CurveFollower(directory)
        self._tails = Tails(directory)
        self._parts = Parts(publish=self._publish, version=version)
        self._source: Source | None = None
        self._new_records = self._new_rows = self._more = False
        self._beat = 0.0
        self._said = ""
        self._looked = -_VIEWER_S
        """Time of the last look of any viewer, by the monotonic clock."""
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread without waiting for it, as it may be reading from storage that hangs."""
        self._closed.set()
        self._wake.set()

    def look(self) -> None:
        """Note that a viewer looks at the page, as each does every second."""
        if not self._is_viewed:
            self._wake.set()
        self._looked = time.monotonic()

    @property
    def _is_viewed(self) -> bool:
        return time.monotonic() - self._looked < _VIEWER_S

    def _run(self) -> None:
        while not self._closed.is_set():
            first, began = not self._parts.all_made, time.thread_time()
            self.step()
            # The first viewer waits, and imports take much of the time.
            rest = 0.0 if first else min((time.thread_time() - began) * (1 / _SHARE - 1), _LONGEST_REST_S)
            if not self._more:
                rest = max(rest, _LOOK_S if self._is_viewed else _UNWATCHED_S)
            self._wake.wait(0.0 if self.view.reading else rest)
            self._wake.clear()

    def step(self) -> None:
        """Look at the files once, and make what is due."""
        reading = self._more = False
        try:
            journals = self._follower.poll()
            self._new_records |= journals.new
            reading = journals.more
            if not reading:  # curves are read behind the journals, which have their individuals
                rows = self._curves.poll(self._follower.open_launches)
                self._new_rows |= rows.new
                reading = rows.more
            if not reading and self._is_viewed:
                self._make()
            problem = next(iter(self._parts.problems.values()), "")
        except (CampaignError, OSError) as error:
            problem = str(error)
        except Exception as error:  # viewers must see that a fault of the page has stopped it
            problem = f"the page is as it was before {type(error).__name__}: {error}"
        self._show(problem=problem, reading=reading)

    def _make(self) -> None:
        now = time.monotonic()
        if self._new_records or now >= self._beat or (self._new_rows and self._parts.reports_due()):
            self._look(now)
        if self._source is not None:
            self._parts.set_running(self._running(self._source.record))
            self._more = self._parts.make(self._source)

    def _look(self, now: float) -> None:
        before = self._source
        new_rows = self._new_rows and self._parts.reports_due()
        curves = self._curves.frame() if before is None or new_rows else before.curves
        if before is None or self._new_records or now >= self._beat:
            record = self._follower.record()
            self._beat = now + _BEAT_S
        else:
            record = before.record
        if before is None or self._new_records or _signs(before.record) != _signs(record):
            self._parts.changed()
        if new_rows:
            self._parts.reported()
            self._new_rows = False
        if record.alive:
            self._parts.time_passed()
        self._source = Source(name=self._directory.absolute().name, record=record, curves=curves)
        self._new_records = False

    def _running(self, record: CampaignRecord) -> list[Running]:
        if not record.alive:
            return []
        left = (one for launch in record.current for one in launch.left)
        return self._tails.poll({f"{one.island}-{one.worker}" for one in left})

    def _publish(self, parts: Mapping[str, PagePart]) -> None:
        self.view = replace(self.view, parts=parts)

    def _show(self, *, problem: str, reading: bool = False) -> None:
        if problem and problem != self._said:
            self._said = problem
            write(f"hpo watch: {one_line(problem)}", sys.stderr, flush=True)
        self.view = replace(self.view, problem=problem, reading=reading)


def _signs(record: CampaignRecord) -> tuple[bool, int]:
    return record.alive, record.ledger.entries
