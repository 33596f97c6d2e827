"""What the journals say of one individual: its evaluations over all launches, and what happened between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hpo.journal.files import journal_files, read_lines_about
from hpo.journal.records import Finished, Header, Note, Record, Reopened, Reported, Started
from hpo.task.outcome import summary_line
from hpo.task.task import MAXIMIZE
from hpo.terminal import one_line


@dataclass(frozen=True, kw_only=True)
class Run:
    """An evaluation of the individual, from its start to its end. ``worker``: island-worker that evaluated it on
    ``host``; ``status``: None while it runs, or where its launch died; times in Unix seconds."""

    launch: int
    worker: str
    host: str
    started: float | None
    finished: float | None = None
    status: str | None = None
    retries: int = 0
    resumed_at_step: int = 0
    reopened: int = 0


def history(
    directory: Path, identity: str, *, direction: str | None = None
) -> tuple[list[Run], list[tuple[float, str]]]:
    """The evaluations of the individual, and what happened between, in the order of time. ``direction``: of the
    campaign's one objective; None: it has several.
    """
    runs: list[Run] = []
    events: list[tuple[float, str]] = []
    for path in journal_files(directory):
        header: Header | None = None
        begun: Started | None = None
        for record in read_lines_about(path, identity):
            if isinstance(record, Header):
                header = record
            elif header is not None and isinstance(record, Started) and record.id == identity:
                if begun is not None:
                    runs.append(_run(header, begun, None))
                begun = record
            elif header is not None and isinstance(record, Finished) and record.id == identity:
                runs.append(_run(header, begun, record))
                begun = None
            elif (
                header is not None
                and begun is not None
                and isinstance(record, Note)
                and record.id == identity
            ):
                ended = replace(_run(header, begun, None), finished=record.time, status=record.status)
                runs.append(ended)
                begun = None
                if record.error:
                    events.append((record.time, f"tried again after: {one_line(summary_line(record.error))}"))
            elif (event := _event(record, identity, direction)) is not None:
                events.append(event)
        if header is not None and begun is not None:
            runs.append(_run(header, begun, None))
    # After a write that failed a few records stand in two files.
    unique = {
        (one.launch, one.worker, one.started): one
        for one in sorted(runs, key=lambda one: one.finished or 0.0)
    }
    ordered = sorted(unique.values(), key=lambda one: (one.launch, one.started or one.finished or 0.0))
    return ordered, sorted(dict.fromkeys(events))


def _run(header: Header, begun: Started | None, ended: Finished | None) -> Run:
    record = ended or begun
    assert record is not None
    return Run(
        launch=header.launch,
        worker=f"{header.island}-{header.worker}",
        host=header.host,
        started=ended.started if ended is not None else begun.time if begun is not None else None,
        finished=None if ended is None else ended.finished,
        status=None if ended is None else ended.status,
        retries=record.retries,
        resumed_at_step=record.resumed_at_step,
        reopened=record.reopened,
    )


def _event(record: Record, identity: str, direction: str | None) -> tuple[float, str] | None:
    if isinstance(record, Reopened) and record.id == identity:
        return record.time, f"its failure does not count: evaluated again ({record.reason})"
    if isinstance(record, Reported) and record.id == identity:
        name, sign = ("loss", 1) if direction is None else ("value", -1 if direction == MAXIMIZE else 1)
        number = "not finite" if record.loss is None else f"{sign * record.loss:.4g}"
        return record.time, f"compared by the pruner after step {record.step}: {name} {number}"
    return None
