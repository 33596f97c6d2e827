"""How a campaign stands, as ``hpo status`` shows it: folded from the journals, or read from ``DIR/status.json``.

That file is a cache of what rank 0 knows. It counts while the campaign is at work and its heartbeat keeps the file as
fresh as the lock; and after that as long as the journals are of the sizes that they had when it was written."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from hpo.individual import COMPLETED, FINAL, LOST, PRUNED, RUNNING, STATUSES, Individual, Scalar
from hpo.islands.coordinator.tally import MOST_RECENT
from hpo.islands.coordinator.worker_registry import DRAINED, FAILING
from hpo.islands.end_reasons import FUTILE, NOTHING_COMPLETED
from hpo.journal import commands, lock
from hpo.journal import directory as directories
from hpo.journal.durable import write_atomically
from hpo.journal.files import journal_files
from hpo.journal.records import storable
from hpo.results import running
from hpo.results.analysis import pareto
from hpo.results.analysis.repeated import Repeated, in_words
from hpo.results.record import CampaignRecord, load
from hpo.results.running import Running
from hpo.search.stopping_rules import without_reports
from hpo.task.outcome import alike, summary_line
from hpo.task.task import losses_of
from hpo.terminal import one_line
from hpo.text import digits

_MOST_BYTES = 1 << 22
_IN_STEP_S = 3 * lock.REFRESH_S
"""By how much the stamps of lock and status may differ, which one thread refreshes one after the other."""
_MOST_ERRORS = 3
_RUN_ON = DRAINED, FAILING
"""Why a worker may get nothing more, and evaluates what it has."""

Value = int | float | dict[str, int | float]


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The best individual. ``value``: of several objectives all by name; ``digits``: how many of each objective it
    takes to tell it from the next best; ``mean``: what evaluations of the same configuration were in the mean, in
    words."""

    value: Value | None
    params: dict[str, Scalar]
    id: str
    digits: list[int] = []
    mean: str = ""


class Island(msgspec.Struct, frozen=True, kw_only=True):
    """What the individuals of an island, by where they were bred, have come to; ``best``: in the first objective."""

    completed: int
    best: int | float | None


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How a campaign at work gets on. ``recent``: how many have ended ``since`` then; ``ends_at``: of the deadline;
    ``grace_until``: until when what runs may save itself, as the launch is stopping; ``waiting``: workers that wait for
    their storage. Times are Unix seconds."""

    recent: int
    since: float
    ends_at: float | None = None
    grace_until: float | None = None
    waiting: int = 0
    islands: dict[int, Island] = {}

    def per_hour(self, now: float) -> float | None:
        """Evaluations; None before the first has ended."""
        return 3600 * self.recent / (now - self.since) if self.recent and now > self.since else None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """``evaluations``: individuals by status without those ``running``; ``budget``: of evaluations; ``deadline_s``:
    from the launch; ``seconds``: at work in all launches, up to ``taken`` where the campaign is ``alive``; ``left``:
    workers that take no more part, with the reason; ``stopping``: why nothing more begins; ``storage``: what a worker
    waits for, and since when; ``ended``: reason and exit code of the last launch; ``waiting``: commands not applied
    yet; ``known``: points; ``codes``: the hash of the task's code by launch; ``errors``: a line each; ``torn``:
    journals whose last line is left out; ``pace``: while it is at work; ``individuals``: those that run, which are read
    from the ends of the journals; ``remarks``: a sentence each on what does not work as its setting says. Times are
    Unix seconds."""

    evaluations: dict[str, int]
    running: int
    budget: int | None
    deadline_s: float | None
    best: Best | None
    islands: int
    workers: int
    started: float | None
    updated: float | None
    seconds: float
    taken: float
    left: list[tuple[str, str]]
    alive: bool
    stopping: str | None
    paused: bool
    storage: tuple[str, float] | None
    ended: tuple[str, int] | None
    known: int
    codes: dict[int, str]
    errors: list[str]
    torn: list[str]
    stop_pending: bool = False
    waiting: int = 0
    pace: Pace | None = None
    individuals: list[Running] = []
    remarks: list[str] = []

    @property
    def final(self) -> int:
        """How many count for the budget."""
        return sum(self.evaluations.get(status, 0) for status in FINAL)

    @property
    def state(self) -> str:
        """``running``, ``paused``, ``stopping``, ``stopped`` (also where it was cut off), ``failed`` (ended because
        evaluations fail) or ``done``."""
        if not self.alive and self.ended is not None and self.ended[0] in (FUTILE, NOTHING_COMPLETED):
            return "failed"
        if not self.alive:
            return "done" if self.ended is not None and self.ended[1] == 0 else "stopped"
        if self.stop_pending or self.stopping:
            return "stopping"
        return "paused" if self.paused else "running"

    def table(self) -> dict[str, object]:
        """What ``hpo status --json`` prints."""
        best = self.best
        return {
            "evaluations": {name: self.evaluations.get(name, 0) for name in STATUSES if name != RUNNING},
            "budget": {"evaluations": self.budget, "deadline": self.deadline_s},
            "running": self.running,
            "best": None if best is None else {"value": best.value, "params": best.params, "id": best.id},
            "islands": self.islands,
            "workers": self.workers,
            "started": self.started,
            "updated": self.updated,
            "seconds": self.seconds,
            "left": [{"worker": worker, "reason": reason} for worker, reason in self.left],
            "state": self.state,
            "running_individuals": [storable(msgspec.to_builtins(one)) for one in self.individuals],
            "remarks": self.remarks,
        }


def folded(record: CampaignRecord) -> Overview:
    """How the campaign of ``record`` stands. With several objectives, ``best`` is the individual of the front that is
    best in the first one."""
    counts = dict.fromkeys(STATUSES, 0)
    for individual in record.individuals:
        counts[individual.status] += 1
    running = counts.pop(RUNNING)
    launch = record.launches[-1] if record.launches else None
    launched = launch.launched if launch else None
    failed = FINAL - {COMPLETED, PRUNED}
    if record.ended is not None and record.ended[0] == FUTILE:
        failed |= {LOST}  # what the next launch evaluates anew, and what went wrong
    repeated = pareto.repeated(record)
    top = pareto.best(record, 1)
    return Overview(
        evaluations=counts,
        running=running,
        budget=launched.evaluations if launched else None,
        deadline_s=launched.deadline_s if launched else None,
        best=_best(record, top[0], repeated) if top else None,
        islands=launched.islands if launched else 0,
        workers=launched.workers if launched else 0,
        started=record.started,
        updated=record.updated,
        seconds=record.seconds,
        taken=time.time(),
        left=[(f"{one.island}-{one.worker}", one.reason) for one in (launch.left if launch else ())],
        alive=record.alive,
        stopping=launch.stopping if launch else None,
        paused=record.standing.paused,
        storage=launch.storage if launch else None,
        ended=record.ended,
        known=len(record.known),
        codes=record.code_versions,
        errors=errors(
            (one.id, one.status, summary_line(one.error or ""))
            for one in record.individuals
            if one.status in failed and (one.error or one.status != LOST)
        ),
        torn=[path.name for path in record.torn],
        stop_pending=record.stop_pending,
        waiting=record.waiting,
        pace=_pace(record) if record.alive else None,
        remarks=remarks(record),
    )


def remarks(record: CampaignRecord) -> list[str]:
    """Sentences for settings of the last launch that have no effect."""
    launched = record.launches[-1].launched if record.launches else None
    completed = sum(one.status == COMPLETED for one in record.individuals)
    return [] if launched is None else without_reports(launched.pruner, completed, record.reports)


def _pace(record: CampaignRecord) -> Pace | None:
    if not record.launches or record.launches[-1].launched is None:
        return None
    launch, launched = record.launches[-1], record.launches[-1].launched
    ends = sorted(
        one.finished
        for one in record.individuals
        if one.launch == launch.number and one.status in FINAL and one.finished is not None
    )[-MOST_RECENT:]
    name, direction = next(iter(record.objectives.items()))
    better = max if direction == "maximize" else min
    islands: dict[int, Island] = {}
    for one in record.individuals:
        if one.status == COMPLETED and one.objectives and name in one.objectives:
            value, found = one.objectives[name], islands.get(one.island)
            best = value if found is None or found.best is None else better(value, found.best)
            islands[one.island] = Island(completed=1 + (found.completed if found else 0), best=best)
    return Pace(
        recent=len(ends),
        since=recent_since(ends, launch.started),
        ends_at=None if launched.deadline_s is None else launched.time + launched.deadline_s,
        waiting=int(launch.storage is not None),
        islands=islands,
    )


def recent_since(ends: Sequence[float], began: float) -> float:
    """From when the ``ends`` of a launch count that ``began`` then: the first of them where there were others."""
    return ends[0] if len(ends) >= MOST_RECENT else began


def _best(record: CampaignRecord, one: Individual, repeated: list[Repeated]) -> Best:
    value = one.objectives if one.value is None else one.value
    mean = in_words(repeated[0]) if repeated else ""
    losses = losses_of(one.objectives or {}, record.objectives)
    next_losses = min((found for found, _ in pareto.with_losses(record) if found > losses), default=losses)
    shown = [digits(values) for values in zip(losses, next_losses)]
    return Best(value=value, params=one.params, id=one.id, digits=shown, mean=mean)


def errors(failures: Iterable[tuple[str, str, str]]) -> list[str]:
    """What went wrong, the most frequent first: how often, the latest to meet it, and a line of its error; errors that
    differ by numbers alone are one. ``failures``: id, status and error, in the order in which they started."""
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


# --- status.json ------------------------------------------------------------------------------------------------------


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """``token``: of the lock of the launch that wrote it; ``journals``: their digest when it was over, "" before."""

    version: Literal[1] = 1
    token: str
    journals: str
    overview: Overview


_decoder = msgspec.json.Decoder(_File)


def write(directory: Path, overview: Overview, *, token: str, over: bool = False) -> None:
    """Keep ``overview`` in ``directory``, by the holder of the lock with that ``token``. ``over``: nothing more is
    written to journals in this launch.

    Raises:
        OSError: as the file system says.
    """
    data = msgspec.json.encode(
        _File(token=token, journals=_digest(directory) if over else "", overview=overview)
    )
    if len(data) <= _MOST_BYTES:
        write_atomically(directory / _NAME, data + b"\n", durable=False)


def keep_alive(directory: Path) -> None:
    """What was written last still holds."""
    os.utime(directory / _NAME, follow_symlinks=False)


_NAME = "status.json"


def read(directory: Path) -> Overview | None:
    """What rank 0 of the campaign in ``directory`` wrote, where that still holds.

    Raises:
        CampaignError: there is no campaign in ``directory``.
    """
    directories.read_identity(directory)
    holder = lock.holder(directory)
    try:
        data, stamp = _content(directory / _NAME)
        found = _decoder.decode(data)
        if holder is None:
            holds = bool(found.journals) and found.journals == _digest(directory)
        else:
            in_step = abs((directory / "lock").stat().st_mtime - stamp) <= _IN_STEP_S
            holds = in_step and found.token == holder.token and not found.journals
    except (OSError, ValueError, RecursionError):
        return None
    if not holds or (found.overview.ended or ("",))[0] == FUTILE:
        # Errors of what is to be evaluated anew, which are the cause, stand in the journals alone.
        return None
    overview, alive = found.overview, holder is not None
    return msgspec.structs.replace(
        overview,
        alive=alive,
        seconds=overview.seconds + (max(0.0, time.time() - overview.taken) if alive else 0.0),
        stop_pending=commands.stop_pending(directory),
        waiting=commands.waiting(directory),
    )


def of(directory: str | os.PathLike[str]) -> Overview:
    """State of the campaign in ``directory``, which may be at work. Raises errors as ``hpo.results.record.load``."""
    directory = Path(directory)
    found = read(directory) or folded(load(directory))
    return with_running(found, running.Tails(directory))


def with_running(overview: Overview, tails: running.Tails) -> Overview:
    """``overview`` with the individuals that run."""
    if not overview.alive or overview.ended is not None:
        return overview
    gone = [worker for worker, reason in overview.left if reason not in _RUN_ON]
    return msgspec.structs.replace(overview, individuals=tails.poll(gone))


def _content(path: Path) -> tuple[bytes, float]:
    """What the file holds, and when it was last refreshed."""
    # Neither waits for whoever might write into a pipe, nor follows a link out of the directory.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise ValueError(f"{path} is no file of ours")
        return file.read(_MOST_BYTES + 1), found.st_mtime


def _digest(directory: Path) -> str:
    """Of the names and sizes of all journals."""
    digest = hashlib.blake2b(digest_size=16)
    for path in journal_files(directory):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
    return digest.hexdigest()
