"""History of one individual: its evaluations over all launches, and what happened between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hpo.journal.files import read_lines_about
from hpo.journal.records import Finished, Header, Note, Reopened, Reported, Started
from hpo.ledger.journals import journal_files
from hpo.task.outcome import summary_line
from hpo.task.task import MAXIMIZE
from hpo.terminal import one_line


@dataclass(frozen=True, kw_only=True)
class EvaluationRun:
    """An evaluation of the individual on one worker. Times are Unix seconds."""

    launch: int
    worker: str  # island and number of the worker, such as "0-3"
    host: str
    started: float | None
    finished: float | None = None
    status: str | None = None  # none while it runs, or if its launch died
    retries: int = 0
    resumed_at_step: int = 0
    reopened: int = 0


def history(
    directory: Path, identity: str, *, direction: str | None = None
) -> tuple[list[EvaluationRun], list[tuple[float, str]]]:
    """Evaluations of the individual and other events by time. ``direction``: direction of a single objective."""
    runs: list[EvaluationRun] = []
    events: list[tuple[float, str]] = []
    for journal in journal_files(directory):
        header: Header | None = None
        open_run: EvaluationRun | None = None
        for record in read_lines_about(journal.path, identity, journal.end):
            if isinstance(record, Header):
                header = record
            if header is None or getattr(record, "id", None) != identity:
                continue
            match record:
                case Started():
                    runs += [open_run] if open_run else []
                    open_run = _run(header, record, record.time)
                case Finished():
                    ended = _run(header, record, record.started)
                    runs.append(replace(ended, finished=record.finished, status=record.status))
                    open_run = None
                case Note() if open_run is not None:
                    runs.append(replace(open_run, finished=record.time, status=record.status))
                    open_run = None
                    if record.error:
                        error = one_line(summary_line(record.error))
                        events.append((record.time, f"tried again after: {error}"))
                case Reopened():
                    text = f"its failure does not count: evaluated again ({record.reason})"
                    events.append((record.time, text))
                case Reported():
                    events.append((record.time, _compared(record, direction)))
        runs += [open_run] if open_run else []
    # After a write that failed, a few records may be in two files.
    unique = {
        (one.launch, one.worker, one.started): one
        for one in sorted(runs, key=lambda one: one.finished or 0.0)
    }
    ordered = sorted(unique.values(), key=lambda one: (one.launch, one.started or one.finished or 0.0))
    return ordered, sorted(dict.fromkeys(events))


def _run(header: Header, record: Started | Finished, started: float | None) -> EvaluationRun:
    return EvaluationRun(
        launch=header.launch,
        worker=f"{header.island}-{header.worker}",
        host=header.host,
        started=started,
        retries=record.retries,
        resumed_at_step=record.resumed_at_step,
        reopened=record.reopened,
    )


def _compared(record: Reported, direction: str | None) -> str:
    name, sign = ("loss", 1) if direction is None else ("value", -1 if direction == MAXIMIZE else 1)
    number = "not finite" if record.loss is None else f"{sign * record.loss:.4g}"
    return f"compared by the pruner after step {record.step}: {name} {number}"
