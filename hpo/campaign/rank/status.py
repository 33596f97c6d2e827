"""State that rank 0 keeps in its launch's ``status.json``, so that ``hpo status`` reads no journals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from hpo.campaign.rank.journal_log import JournalLog
from hpo.errors import CampaignError
from hpo.individual import COMPLETED
from hpo.islands.coordinator import tally
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.resume.state import ResumeState
from hpo.ledger.alive import SignOfLife
from hpo.ledger.entries import Limits
from hpo.results import overview
from hpo.results.launch import seconds_of, union
from hpo.results.overview import Best, Island, Overview, Pace, recent_since
from hpo.search.stopping_rules import without_reports
from hpo.task.limits import without_best
from hpo.task.task import MAXIMIZE

_INTERVAL_S = 2.0
_WATCHED_S = 1.0
_FAREWELL_S = 5.0
# Most of rank 0's time for this: campaigns with very many failures have much to sort.
_SHARE = 0.02


class Status:
    """Writer of the state: ``update`` takes note on rank 0's loop, and the heartbeat of ``alive`` writes it, whatever
    rank 0 does then; a launch that stops, pauses, waits for its storage or loses a worker is written at once.

    Nothing is written unless ``knows_all()``: where configurations are evaluated repeatedly on purpose, the best is
    known by all of their evaluations; and beside other launches, this launch knows its own part alone.

    Args:
        limits: the limits that hold.
        objectives: direction by name.
        watched: a panel shows the state, so news are written within a second.
    """

    def __init__(
        self,
        directory: Path,
        alive: SignOfLife,
        *,
        earlier: ResumeState,
        log: JournalLog,
        limits: Callable[[], Limits],
        objectives: Mapping[str, str],
        knows_all: Callable[[], bool],
        watched: bool = False,
    ) -> None:
        self._directory = directory
        self._alive = alive
        self._earlier = earlier
        self._log = log
        self._limits = limits
        self._several = len(objectives) > 1
        self._sign = -1.0 if next(iter(objectives.values())) == MAXIMIZE else 1.0
        self._watched = watched
        self._knows_all = knows_all
        self._next = 0.0
        self._shown: tuple[str | None, bool, str | None, int] | None = None
        # Two threads write, and neither waits long for the other's storage.
        self._writing = threading.Lock()
        self._newest: Overview | None = None
        self._written: Overview | None = None
        before = [times for number, times in sorted(earlier.launches.items()) if number != log.number]
        self._started = before[0].began if before else log.began
        self._spans = union((one.began, one.updated) for one in before)
        self._worker_s = sum(one.workers * (one.updated - one.began) for one in before)
        alive.heartbeat.register(self._refresh)

    def update(self, coordinator: Coordinator, now: float) -> None:
        shown = coordinator.stopping, coordinator.paused, coordinator.storage_error, len(self._log.left)
        changed = shown != self._shown
        if not self._knows_all():
            self._newest = None
            return
        if now < self._next and not changed:
            return
        begun = time.perf_counter()
        found = self._found(coordinator, now)
        # The file keeps its time where nothing but that would be new.
        same = {"updated": now, "seconds": 0, "taken": now}
        known, newest = (one and msgspec.structs.replace(one, **same) for one in (self._newest, found))
        if newest is None or known != newest:
            self._newest = found
        if changed:
            self._shown = shown
            with suppress(OSError):
                self._write(wait_s=0)
        elif self._watched and self._newest is not self._written:
            self._alive.heartbeat.hasten()
        interval_s = _WATCHED_S if self._watched else _INTERVAL_S
        self._next = now + max(interval_s, (time.perf_counter() - begun) / _SHARE)

    def _refresh(self) -> None:
        # Storage that fails is reported where results wait for it; without this file `hpo status` reads the journals.
        with suppress(OSError):
            self._write()

    def _found(self, coordinator: Coordinator, now: float) -> Overview | None:
        """State of the launch; None where only the journals have the best: a dead rank has not sent it."""
        log, launched, best = self._log, self._log.launched, coordinator.tally.best
        if launched is None or (best is not None and (best.params is None or best.objectives is None)):
            return None
        limits = self._limits()
        waits = coordinator.waited_for_storage(now)
        failures = coordinator.tally.failures
        failed = sorted(failures, key=lambda one: tally.order(one, failures[one].started))
        codes = dict(self._earlier.codes)
        if launched.code:
            codes[log.number] = launched.code
        completed = coordinator.tally.counts.get(COMPLETED, 0)
        unkept = [] if best is not None else without_best(launched.limits, completed)
        return Overview(
            evaluations=coordinator.standing,
            running=coordinator.busy,
            budget=limits.evaluations,
            deadline_s=limits.deadline_s,
            rank_hours_limit=limits.rank_hours,
            rank_hours=round(coordinator.rank_hours, 6),
            ended_early="" if coordinator.ended_early is None else coordinator.ended_early.reason,
            best=None if best is None else self._best_of(best, coordinator.tally.best_digits()),
            islands=launched.islands,
            workers=launched.workers,
            started=self._started,
            updated=now,
            seconds=seconds_of([*self._spans, (log.began, now)]),
            worker_hours=(self._worker_s + launched.workers * (now - log.began)) / 3600,
            taken=now,
            launches=1,
            left=[(f"{one.island}-{one.worker}", one.reason) for one in log.left],
            alive=True,
            stopping=coordinator.stopping,
            paused=coordinator.paused,
            storage=None if waits is None else (waits[0], now - waits[1]),
            ended=None,
            known=sum(
                count for source, count in self._earlier.sources.items() if source not in self._earlier.tasks
            ),
            codes=codes,
            errors=overview.errors((one, failures[one].status, failures[one].error) for one in failed),
            torn=self._earlier.torn,
            pace=self._pace(coordinator),
            remarks=self.remarks(coordinator) + unkept,
        )

    def remarks(self, coordinator: Coordinator) -> list[str]:
        launched = self._log.launched
        completed = coordinator.tally.counts.get(COMPLETED, 0)
        return (
            [] if launched is None else without_reports(launched.pruner, completed, coordinator.tally.reports)
        )

    def _pace(self, coordinator: Coordinator) -> Pace:
        ends = [one for one in coordinator.tally.recent_ends if one >= self._log.began]
        until = coordinator.grace_until
        return Pace(
            recent=len(ends),
            since=recent_since(ends, self._log.began),
            ends_at=coordinator.deadline,
            grace_until=until if coordinator.busy else None,
            waiting=coordinator.waiting,
            islands={
                island: Island(
                    completed=one.completed, best=None if one.best is None else self._sign * one.best[0]
                )
                for island, one in sorted(coordinator.tally.islands.items())
            },
        )

    def _best_of(self, best: tally.BestSoFar, digits: list[int]) -> Best:
        objectives = best.objectives or {}
        value = objectives if self._several else next(iter(objectives.values()))
        return Best(value=value, params=best.params or {}, id=best.id, digits=digits)

    def _write(self, *, wait_s: float = _FAREWELL_S) -> None:
        if not self._writing.acquire(timeout=wait_s):
            return
        try:
            newest = self._newest
            if newest is not None and newest is self._written:
                overview.keep_alive(self._directory, self._alive.launch)
            elif newest is not None:
                self._written = None
                overview.write(self._directory, newest, self._alive)
                self._written = newest
        finally:
            self._writing.release()

    def finish(self, coordinator: Coordinator) -> None:
        """Write the state after the last record of this launch; what is not certain is left to the journals."""
        ended, self._newest = self._log.ended, None
        if ended is None or not coordinator.exact or not self._knows_all():
            return
        found = self._found(coordinator, ended.time)
        if found is None:
            return
        last = msgspec.structs.replace(
            found,
            running=0,
            storage=None,
            launches=0,
            ended=(ended.reason, ended.exit),
            alive=False,
            pace=None,
        )
        if self._writing.acquire(timeout=_FAREWELL_S):
            with suppress(OSError, CampaignError):
                overview.write(self._directory, last, self._alive, over=True)
            self._writing.release()
