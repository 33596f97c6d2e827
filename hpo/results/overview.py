"""State of a campaign, as ``hpo status`` shows it: folded from the journals, or read from a launch's ``status.json``.

That file is a cache of what the launch's rank 0 knows. It is valid while the launch alone is at work and its heartbeat
keeps the file as fresh as its sign of life, and after its end until the ledger gets another entry."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from hpo.individual import COMPLETED, FAILURES, FINAL, LOST, RUNNING, STATUSES, Individual, Scalar
from hpo.islands.coordinator.tally import MOST_RECENT
from hpo.islands.coordinator.worker_registry import DRAINED, FAILING
from hpo.islands.end_reasons import FUTILE, NOTHING_COMPLETED
from hpo.journal import directory as directories
from hpo.journal.durable import read_bounded, write_atomically
from hpo.journal.records import storable
from hpo.ledger.alive import REFRESH_S, SignOfLife, alive_path, living
from hpo.ledger.opening import state_of
from hpo.results import running
from hpo.results.analysis import pareto
from hpo.results.analysis.repeated import Repeated, in_words
from hpo.results.record import CampaignRecord, load
from hpo.results.running import Running
from hpo.search.stopping_rules import without_reports
from hpo.task.limits import without_best
from hpo.task.outcome import alike, summary_line
from hpo.task.task import losses_of
from hpo.terminal import one_line
from hpo.text import digits

_MOST_BYTES = 1 << 22
_IN_STEP_S = 3 * REFRESH_S  # one thread refreshes both files one after the other
_MOST_ERRORS = 3
_RUN_ON = DRAINED, FAILING  # such workers get nothing more, and finish what they have

Value = int | float | dict[str, int | float]


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best individual."""

    value: Value | None  # value, or all values by name with several objectives
    params: dict[str, Scalar]
    id: str
    digits: list[int] = []  # significant digits of each objective that distinguish it from the next best
    mean: str = ""  # mean of the configuration's evaluations, in words


class Island(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the individuals that were bred on an island."""

    completed: int
    best: int | float | None  # best value in the first objective


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a campaign at work. Times are Unix seconds."""

    recent: int  # number of evaluations that have ended after ``since``
    since: float
    ends_at: float | None = None  # the deadline
    grace_until: float | None = None
    """End of the time in which running evaluations may save themselves, as the launch is stopping."""
    waiting: int = 0  # number of workers that wait for their storage
    islands: dict[int, Island] = {}

    def per_hour(self, now: float) -> float | None:
        """Evaluations per hour; None before the first has ended."""
        return 3600 * self.recent / (now - self.since) if self.recent and now > self.since else None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """State of a campaign. Times are Unix seconds."""

    evaluations: dict[str, int]  # number of individuals by status, without those that are running
    running: int
    budget: int | None
    deadline_s: float | None  # seconds from the launch
    rank_hours_limit: float | None = None
    rank_hours: float = 0.0  # hours of all evaluations that have ended, each times the ranks of its worker
    ended_early: str = ""  # why the campaign has ended before its budget was used up
    best: Best | None
    islands: int
    workers: int
    started: float | None
    updated: float | None
    seconds: float  # time in which at least one launch was at work, up to ``taken`` if one is
    worker_hours: float = 0.0  # time at work of the workers of all launches, in hours
    taken: float
    launches: int = 0  # number of launches at work
    left: list[tuple[str, str]]  # workers that the launches go on without, with reasons
    alive: bool
    stopping: str | None  # reason why nothing more begins
    paused: bool
    storage: tuple[str, float] | None  # reason why a worker waits for its storage, and since when
    ended: (
        tuple[str, int] | None
    )  # reason and exit code of the launch that ended last; None while one is at work
    known: int  # number of known points
    codes: dict[int, str]  # hash of the task's code by launch
    errors: list[str]
    torn: list[str]  # journals whose last line is left out
    stop_pending: bool = False
    waiting: int = 0  # number of commands that are not applied yet
    pace: Pace | None = None  # only while the campaign is at work
    individuals: list[Running] = []
    remarks: list[str] = []  # sentences on settings without effect

    @property
    def final(self) -> int:
        """Number of evaluations that count for the budget."""
        return sum(self.evaluations.get(status, 0) for status in FINAL)

    @property
    def state(self) -> str:
        """``running``, ``paused``, ``stopping``, ``stopped`` (or cut off), ``failed`` (ended because evaluations fail)
        or ``done``."""
        if not self.alive and self.ended is not None and self.ended[0] in (FUTILE, NOTHING_COMPLETED):
            return "failed"
        if not self.alive and self.ended_early:
            return "done"
        if not self.alive:
            return "done" if self.ended is not None and self.ended[1] == 0 else "stopped"
        if self.stop_pending or self.stopping or self.ended_early:
            return "stopping"
        return "paused" if self.paused else "running"

    def table(self) -> dict[str, object]:
        """The object that ``hpo status --json`` prints."""
        best = self.best
        return {
            "evaluations": {name: self.evaluations.get(name, 0) for name in STATUSES if name != RUNNING},
            "budget": {
                "evaluations": self.budget,
                "deadline": self.deadline_s,
                "rank_hours": self.rank_hours_limit,
            },
            "running": self.running,
            "best": None if best is None else {"value": best.value, "params": best.params, "id": best.id},
            **{name: getattr(self, name) for name in ("islands", "workers", "started", "updated", "seconds")},
            "worker_hours": self.worker_hours,
            "rank_hours": self.rank_hours,
            "left": [{"worker": worker, "reason": reason} for worker, reason in self.left],
            "state": self.state,
            "running_individuals": [storable(msgspec.to_builtins(one)) for one in self.individuals],
            "remarks": self.remarks,
        }


def folded(record: CampaignRecord) -> Overview:
    """State of the campaign of ``record``. With several objectives, ``best`` is the member of the front that is best in
    the first."""
    counts = dict.fromkeys(STATUSES, 0)
    for individual in record.individuals:
        waits = individual.status in FINAL and individual.id in record.ledger.pool  # after `hpo retry`
        counts[LOST if waits else individual.status] += 1
    running = counts.pop(RUNNING)
    launches = record.current
    failed = FAILURES
    if record.ended is not None and record.ended[0] == FUTILE:
        failed |= {LOST}  # their errors are the cause, and the next launch evaluates them again
    repeated = pareto.repeated(record)
    top = pareto.best(record, 1)
    return Overview(
        evaluations=counts,
        running=running,
        budget=record.ledger.limits.evaluations,
        deadline_s=record.ledger.limits.deadline_s,
        rank_hours_limit=record.ledger.limits.rank_hours,
        rank_hours=round(record.rank_s / 3600, 6),
        ended_early=record.ledger.end_reason,
        best=_best(record, top[0], repeated) if top else None,
        islands=max((one.islands for one in launches), default=0),
        workers=sum(one.workers for one in launches),
        started=record.started,
        updated=record.updated,
        seconds=record.seconds,
        worker_hours=record.worker_hours,
        taken=record.taken,
        launches=len(record.at_work),
        left=[(f"{one.island}-{one.worker}", one.reason) for launch in launches for one in launch.left],
        alive=record.alive,
        stopping=launches[0].stopping if launches and all(one.stopping for one in launches) else None,
        paused=record.ledger.paused,
        storage=next((one.storage for one in launches if one.storage), None),
        ended=record.ended,
        known=len(record.known),
        codes=record.code_versions,
        errors=errors(
            (one.id, one.status, summary_line(one.error or ""))
            for one in record.individuals
            if one.status in failed and (one.error or one.status != LOST)
        ),
        torn=[path.name for path in record.torn],
        stop_pending=record.ledger.is_stopping,
        waiting=record.ledger.unseen_commands,
        pace=_pace(record) if record.alive else None,
        remarks=remarks(record),
    )


def remarks(record: CampaignRecord) -> list[str]:
    """Sentences on settings of the last launch that have no effect."""
    launched = record.launches[-1].launched if record.launches else None
    completed = sum(one.status == COMPLETED for one in record.individuals)
    if launched is None:
        return []
    found = without_reports(launched.pruner, completed, record.reports)
    return found if pareto.best(record, 1) else [*found, *without_best(record.limits, completed)]


def _pace(record: CampaignRecord) -> Pace | None:
    launches = {one.number: one.launched for one in record.current if one.launched is not None}
    if not launches:
        return None
    ended = (one for one in record.individuals if one.launch in launches and one.status in FINAL)
    ends = sorted(one.finished for one in ended if one.finished is not None)[-MOST_RECENT:]
    deadlines = [one.time + one.deadline_s for one in launches.values() if one.deadline_s is not None]
    name, direction = next(iter(record.objectives.items()))
    better = max if direction == "maximize" else min
    values: dict[int, list[Individual]] = {}
    for one in record.individuals:
        if one.status == COMPLETED and one.objectives and name in one.objectives:
            values.setdefault(one.island, []).append(one)
    return Pace(
        recent=len(ends),
        since=recent_since(ends, min(one.started for one in record.current)),
        ends_at=max(deadlines) if len(deadlines) == len(launches) else None,
        waiting=sum(one.storage is not None for one in record.current),
        islands={
            island: Island(
                completed=len(own),
                best=better(((one.objectives or {})[name] for one in own if one.fit), default=None),
            )
            for island, own in values.items()
        },
    )


def recent_since(ends: Sequence[float], began: float) -> float:
    """Begin of the time in which the recent ``ends`` of a launch lie: the first end, or the launch's begin if there
    were no others."""
    return ends[0] if len(ends) >= MOST_RECENT else began


def _best(record: CampaignRecord, one: Individual, repeated: list[Repeated]) -> Best:
    losses = losses_of(one.objectives or {}, record.objectives)
    next_losses = min((found for found, _ in pareto.with_losses(record) if found > losses), default=losses)
    return Best(
        value=one.objectives if one.value is None else one.value,
        params=one.params,
        id=one.id,
        digits=[digits(values) for values in zip(losses, next_losses)],
        mean=in_words(repeated[0]) if repeated else "",
    )


def errors(failures: Iterable[tuple[str, str, str]]) -> list[str]:
    """Lines on the most frequent errors. ``failures``: id, status and error, in the order in which they started; errors
    that differ only in numbers count as the same."""
    found: dict[tuple[str, str], tuple[int, str, str]] = {}
    for identity, status, error in failures:
        key = status, alike(error)
        number, *_ = found.get(key, (0, "", ""))
        found[key] = number + 1, identity, error
    ordered = sorted(found.items(), key=lambda entry: -entry[1][0])
    lines = [
        f"{number} {status}, {latest} the latest: {one_line(error)}"
        for (status, _), (number, latest, error) in ordered[:_MOST_ERRORS]
    ]
    rest = sum(number for _, (number, _, _) in ordered[_MOST_ERRORS:])
    return lines + ([f"{rest} more; `hpo export` writes each in full"] if rest else [])


# --- launches/NNNN/status.json ----------------------------------------------------------------------------------------


class _StatusFile(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    token: str  # token of the sign of life of the launch that wrote the file
    entries: int  # number of the ledger's entries when the launch was over, 0 before
    overview: Overview


_decoder = msgspec.json.Decoder(_StatusFile)


def write(directory: Path, overview: Overview, sign: SignOfLife, *, over: bool = False) -> None:
    """Write ``status.json`` of the launch of ``sign``; OSError if that fails. ``over``: the launch is closed."""
    entries = state_of(directory).entries if over else 0
    data = msgspec.json.encode(_StatusFile(token=sign.holder.token, entries=entries, overview=overview))
    if len(data) <= _MOST_BYTES:
        write_atomically(directories.status_path(directory, sign.launch), data + b"\n", durable=False)


def keep_alive(directory: Path, launch: int) -> None:
    """Confirm that ``status.json`` of ``launch`` is still right."""
    os.utime(directories.status_path(directory, launch), follow_symlinks=False)


def read(directory: Path) -> Overview | None:
    """Content of the ``status.json`` that is valid; None where there is none.

    Raises:
        CampaignError: there is no campaign in ``directory``.
    """
    directories.read_identity(directory)
    ledger = state_of(directory)
    holders = living(directory, ledger)
    if len(holders) > 1:  # each launch knows its own part alone
        return None
    launch = next(iter(holders or reversed(ledger.closed)), 0)
    holder = holders.get(launch)
    try:
        data, stamp = read_bounded(directories.status_path(directory, launch), _MOST_BYTES)
        found = _decoder.decode(data)
        if holder is None:
            holds = not ledger.open and found.entries == ledger.entries
        else:
            in_step = abs(alive_path(directory, launch).stat().st_mtime - stamp) <= _IN_STEP_S
            holds = in_step and found.token == holder.token and not found.entries
    except (OSError, ValueError, RecursionError):
        return None
    if not holds or (found.overview.ended or ("",))[0] == FUTILE:
        # The errors of evaluations that will be repeated are in the journals alone.
        return None
    overview, alive = found.overview, holder is not None
    later_s = max(0.0, time.time() - overview.taken) if alive else 0.0
    return msgspec.structs.replace(
        overview,
        alive=alive,
        budget=ledger.limits.evaluations,
        deadline_s=ledger.limits.deadline_s,
        rank_hours_limit=ledger.limits.rank_hours,
        ended_early=ledger.end_reason,
        paused=ledger.paused,
        seconds=overview.seconds + later_s,
        worker_hours=overview.worker_hours + overview.workers * later_s / 3600,
        stop_pending=ledger.is_stopping,
        waiting=ledger.unseen_commands,
    )


def of(directory: str | os.PathLike[str]) -> Overview:
    """State of the campaign in ``directory``, which may be at work. Raises errors as ``hpo.results.record.load``."""
    directory = Path(directory)
    found = read(directory) or folded(load(directory))
    return with_running(found, running.Tails(directory))


def with_running(overview: Overview, tails: running.Tails) -> Overview:
    if not overview.alive or overview.ended is not None:
        return overview
    gone = [worker for worker, reason in overview.left if reason not in _RUN_ON]
    found = tails.poll(gone)
    # Counted again, as the number that the launch has shown is some seconds old.
    return msgspec.structs.replace(overview, individuals=found, running=len(found))
