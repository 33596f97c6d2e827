"""Text and JSON of ``hpo show``: everything about one individual."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import RUNNING, Individual, Scalar, is_known
from hpo.journal.records import storable
from hpo.results import curves as learning_curves
from hpo.results import result as results
from hpo.results.analysis import pareto
from hpo.results.record import CampaignRecord, load
from hpo.spelling import suggestion
from hpo.task.trial_directory import OUTPUT
from hpo.terminal import one_line, visible
from hpo.text import digits, plural
from hpo.views import text
from hpo.views.terminal.history import EvaluationRun, history

if TYPE_CHECKING:
    import pandas

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60  # characters of a curve
_LAST_ROWS = 5
_MOST_COLUMNS = 8
_MOST_LISTED = 20
_MOST_COMPARED = 2000  # ids that a misspelt one is compared with
_LONGEST_METRIC = 500


@dataclass(frozen=True, kw_only=True)
class ShownIndividual:
    """An individual and what is shown beside it."""

    record: CampaignRecord
    one: Individual
    best: Individual | None
    default: Individual | None
    parents: Mapping[str, Individual | None]  # none for parents that are not on record
    children: Sequence[str]
    schedule: Sequence[Individual]  # intervals that led to the individual, with kind "pbt"
    steps: Mapping[str, tuple[int, int]]
    runs: Sequence[EvaluationRun]
    events: Sequence[tuple[float, str]]  # times and events between the runs
    curve: pandas.DataFrame
    directory: Path | None
    output: Sequence[Path]


def show(directory: Path, identity: str) -> ShownIndividual:
    """Collect everything about the individual ``identity``.

    Raises:
        UsageError: there is no such individual.
        CampaignError: there is no campaign in ``directory``, or it cannot be read.
    """
    record = load(directory)
    by_id = {one.id: one for one in (*record.known, *record.individuals)}
    if identity not in by_id:
        raise UsageError(
            f"{directory}: there is no individual {one_line(identity)[:80]}. {_near(identity, record)}"
        )
    one = by_id[identity]
    schedule = results.schedule(record, identity) if one.inherits else [one]
    curves = learning_curves.load(directory, {each.id for each in schedule})
    (direction, *others) = record.objectives.values()
    runs, events = history(directory, identity, direction=None if others else direction)
    home = EvaluationDirectories(directory).existing(identity)
    return ShownIndividual(
        record=record,
        one=one,
        best=next(iter(pareto.best(record, 1)), None),
        default=next((each for each in record.individuals if each.operator == "default"), None),
        parents={parent: by_id.get(parent) for parent in one.parents},
        children=[
            each.id for each in record.individuals if identity in each.parents or each.inherits == identity
        ],
        schedule=schedule,
        steps=step_ranges(curves),
        runs=runs,
        events=events,
        curve=curves[curves["id"] == identity],
        directory=home,
        output=[] if home is None else _output(home),
    )


def _output(home: Path) -> list[Path]:
    with suppress(OSError):
        return [home / name for name in sorted(os.listdir(home)) if name.startswith(OUTPUT)]
    return []


def step_ranges(curves: pandas.DataFrame) -> dict[str, tuple[int, int]]:
    """First and last step of each individual in a table of learning curves."""
    if not len(curves):
        return {}
    steps = curves.groupby("id")["step"].agg(["min", "max"])
    return {name: (int(first), int(last)) for name, first, last in steps.itertuples()}


def _near(identity: str, record: CampaignRecord) -> str:
    if is_known(identity) and record.known:
        return f"Known points are {record.known[0].id} to {record.known[-1].id}."
    if not record.individuals:
        return "None has started yet."
    return suggestion(identity, [one.id for one in record.individuals[-_MOST_COMPARED:]])


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _MOST_LISTED
    return ", ".join(words[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def as_text(shown: ShownIndividual, now: float) -> str:
    """Text of ``hpo show``. ``now``: Unix seconds."""
    return "\n".join(line for part in _parts(shown, now) for line in part)


def _parts(shown: ShownIndividual, now: float) -> Iterator[list[str]]:
    one = shown.one
    yield text.table(list(_facts(shown, now)))
    yield ["", *_configuration(shown)]
    if one.metrics:
        metrics = {one_line(name): one_line(value) for name, value in one.metrics.items()}
        cut = {k: v if len(v) <= _LONGEST_METRIC else f"{v[:_LONGEST_METRIC]} …" for k, v in metrics.items()}
        yield ["", "metrics", *text.table([(f"    {name}", value) for name, value in cut.items()])]
    if len(shown.schedule) > 1:
        schedule = text.schedule(shown.schedule, results.changed(shown.schedule), shown.steps)
        yield ["", *schedule.splitlines()]
    if len(shown.runs) > 1 or shown.events:
        yield ["", "history", *_history(shown)]
    if len(shown.curve):
        yield ["", *_curve(shown.curve)]
    if one.error:
        yield ["", "error", *(f"    {line}" for line in visible(one.error).rstrip().splitlines())]
    if shown.directory:
        output = [("" if number else "output", one_line(path)) for number, path in enumerate(shown.output)]
        yield ["", *text.table([("directory", one_line(shown.directory)), *output])]


def _facts(shown: ShownIndividual, now: float) -> Iterator[tuple[str, str]]:
    record, one = shown.record, shown.one
    yield "individual", f"{one.id} of {one_line(record.directory)}"
    yield "status", one.status
    for name, value in (one.objectives or {}).items():
        yield one_line(name), f"{value!r}{_beside(shown, name)}"
    if one.breaks:
        yield "breaks", f"{', '.join(map(one_line, one.breaks))} ({one_line(record.limits)})"
    if is_known(one.id):
        yield "source", one_line(one.metrics.get("source"))
    if one.started is not None:
        runs = one.status == RUNNING
        end = now if runs else one.finished
        took = "" if end is None else f", {'for' if runs else 'took'} {text.duration(end - one.started)}"
        yield "started", f"{text.when(one.started)}{took}"
    if shown.runs:
        last = shown.runs[-1]
        on = f" on {one_line(last.host)}" if last.host else ""
        yield "worker", f"{last.worker}{on}, launch {last.launch}"
    parents = [_parent(identity, parent) for identity, parent in shown.parents.items()]
    yield "operator", one_line(one.operator) + (f" of {', '.join(parents)}" if parents else "")
    if one.inherits:
        yield "goes on from", one.inherits
    if shown.children:
        yield "children", f"{len(shown.children)}: {_listed(shown.children)}"
    if one.migrations:
        yield "migrations", ", ".join(f"{source} to {target}" for source, target in one.migrations)
    if one.retries:
        yield "retries", f"its processes died {plural(one.retries, 'time')}"
    if note := text.code(record, one) if not is_known(one.id) else "":
        yield "code", note


def _parent(identity: str, parent: Individual | None) -> str:
    values = list((parent.objectives or {}).values()) if parent is not None else []
    return f"{identity} ({' '.join(map(text.short, values))})" if values else identity


def _beside(shown: ShownIndividual, name: str) -> str:
    parts = []
    for what, other in ("best", shown.best), ("default", shown.default):
        if other is not None and other.id == shown.one.id:
            return f"    (the {what})" if what == "best" else ""
        if other is not None and other.objectives and name in other.objectives:
            value = other.objectives[name]
            count = digits((value, (shown.one.objectives or {}).get(name)))
            parts.append(f"{what} {text.short(value, count)} by {other.id}")
    return f"    ({', '.join(parts)})" if parts else ""


def _configuration(shown: ShownIndividual) -> list[str]:
    columns: list[tuple[str, Mapping[str, Scalar]]] = [(shown.one.id, shown.one.params)]
    for name, other in ("best", shown.best), ("default", shown.default):
        if other is not None and other.id != shown.one.id:
            columns.append((f"{name} {other.id}", other.params))
    names = list(dict.fromkeys(name for _, params in columns for name in params))
    rows = [["configuration", *(head for head, _ in columns)]]
    for name in names:
        values = [one_line(repr(params[name])) if name in params else "–" for _, params in columns]
        rows.append([f"    {one_line(name)}", *values])
    return text.table(rows)


def _history(shown: ShownIndividual) -> list[str]:
    lines = list(shown.events)
    for run in shown.runs:
        what = f"launch {run.launch}, worker {run.worker}{f' on {one_line(run.host)}' if run.host else ''}: "
        running = shown.one.status == RUNNING and run is shown.runs[-1]
        what += run.status or ("running" if running else "begun, and never ended")
        if run.started is not None and run.finished is not None:
            what += f" after {text.duration(run.finished - run.started)}"
        what += f", from step {run.resumed_at_step} on" if run.resumed_at_step else ""
        lines.append((run.started or run.finished or 0.0, what))
    return [f"    {text.when(at)}  {what}" for at, what in sorted(lines)]


def _curve(curve: pandas.DataFrame) -> list[str]:
    values = [float(value) for value in curve["value"]]
    finite = [value for value in values if math.isfinite(value)]
    steps = text.steps_of(curve["step"].iloc[0], curve["step"].iloc[-1])
    head = f"curve: {steps}, {plural(len(curve), 'report')}"
    if finite:
        count = digits((min(finite), max(finite)))
        head += f", from {text.short(min(finite), count)} to {text.short(max(finite), count)}"
    last = curve.drop(columns=["id", "time"]).tail(_LAST_ROWS)
    last = last.dropna(axis="columns", how="all").iloc[:, :_MOST_COLUMNS]
    columns = [
        [one_line(name), *(text.short(value, digits(last[name].tolist())) for value in last[name].tolist())]
        for name in last.columns
    ]
    rows = [[f"    {step}", *values] for step, *values in zip(*columns)]
    return [head, *([f"    {sparkline(values)}"] if len(curve) > 1 else []), *text.table(rows)]


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A line of bars for ``values``, or for means of several values; a space where no value is finite."""
    count = min(width, len(values))
    bounds = [len(values) * place // count for place in range(count + 1)] if count else [0]
    means = []
    for begin, end in pairwise(bounds):
        finite = [value for value in values[begin:end] if math.isfinite(value)]
        means.append(sum(value / len(finite) for value in finite) if finite else math.nan)
    known = [value for value in means if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high / 2 - low / 2  # the difference of two finite numbers may be infinite

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return _BARS[min(7, int(8 * ((value / 2 - low / 2) / span))) if span else 3]

    return "".join(map(bar, means))


_COLUMNS = (
    *("id", "island", "worker", "sequence", "status", "value", "objectives", "params", "metrics"),
    *("started", "finished", "seconds", "operator", "retries", "error"),
)


def as_json(shown: ShownIndividual) -> str:
    """JSON of ``hpo show``: the columns of the export, and what the text shows beside them."""
    one = shown.one
    table: dict[str, object] = {name: getattr(one, name) for name in _COLUMNS}
    table |= {
        "parents": [
            {"id": name, "objectives": each and each.objectives} for name, each in shown.parents.items()
        ],
        "children": list(shown.children),
        "inherits": one.inherits or None,
        "migrations": [list(move) for move in one.migrations],
        "best": _point(shown.best),
        "default": _point(shown.default),
        "runs": [vars(run) for run in shown.runs],
        "events": [{"time": at, "what": what} for at, what in shown.events],
        "curve": [_row(row) for row in shown.curve.drop(columns="id").to_dict("records")],
        "directory": None if shown.directory is None else str(shown.directory),
        "output": [str(path) for path in shown.output],
    }
    if len(shown.schedule) > 1:
        table["schedule"] = [
            {
                "id": each.id,
                "objectives": each.objectives,
                "changed": changed,
                "steps": shown.steps.get(each.id),
            }
            for each, changed in zip(shown.schedule, results.changed(shown.schedule))
        ]
    return json.dumps(storable(table), indent=2)


def _row(row: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value for name, value in row.items() if name == "value" or not (value is None or value != value)
    }


def _point(one: Individual | None) -> dict[str, object] | None:
    return None if one is None else {"id": one.id, "objectives": one.objectives, "params": one.params}


def printed(directory: Path, identity: str, *, as_table: bool) -> str:
    """Output of ``hpo show``, as JSON if ``as_table``. Raises the errors of :func:`show`."""
    found = show(directory, identity)
    return as_json(found) if as_table else as_text(found, time.time())
