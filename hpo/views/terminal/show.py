"""What ``hpo show`` says: all of one individual."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import RUNNING, Individual, Scalar, is_known
from hpo.journal.records import storable
from hpo.results import result as results
from hpo.results.analysis import pareto
from hpo.results.curves import of_individuals
from hpo.results.record import CampaignRecord, load
from hpo.spelling import suggestion
from hpo.task.trial_directory import OUTPUT
from hpo.terminal import one_line, visible
from hpo.text import digits
from hpo.views import text
from hpo.views.terminal.history import Run, history

if TYPE_CHECKING:
    import pandas

_ID = re.compile(r"(\d{1,9})-(\d{1,9})-(\d{1,18})")
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_LAST_ROWS = 5
_MOST_COLUMNS = 8
_MOST_LISTED = 20
_MOST_COMPARED = 2000


@dataclass(frozen=True, kw_only=True)
class Shown:
    """``default``, ``best``: to compare with, None where there is none; ``parents``: with None for one that is not on
    record; ``schedule``: with kind "pbt" the intervals that led to it; ``events``: time and what happened between its
    runs; ``curve``: its rows."""

    record: CampaignRecord
    one: Individual
    best: Individual | None
    default: Individual | None
    parents: Mapping[str, Individual | None]
    children: Sequence[str]
    schedule: Sequence[Individual]
    steps: Mapping[str, tuple[int, int]]
    runs: Sequence[Run]
    events: Sequence[tuple[float, str]]
    curve: pandas.DataFrame
    directory: Path | None
    output: Sequence[Path] = field(default_factory=list)


def show(directory: Path, identity: str) -> Shown:
    """All of the individual ``identity``.

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
    found = pareto.best(record, 1)
    schedule = results.schedule(record, identity) if one.inherits else [one]
    curves = of_individuals(directory, {each.id for each in schedule})
    (direction, *others) = record.objectives.values()
    runs, events = history(directory, identity, direction=None if others else direction)
    home = EvaluationDirectories(directory).existing(identity)
    return Shown(
        record=record,
        one=one,
        best=found[0] if found else None,
        default=next((each for each in record.individuals if each.operator == "default"), None),
        parents={parent: by_id.get(parent) for parent in one.parents},
        children=[
            each.id for each in record.individuals if identity in each.parents or each.inherits == identity
        ],
        schedule=schedule,
        steps=text.step_ranges(curves),
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


def _near(identity: str, record: CampaignRecord) -> str:
    """Which ids there are that may be meant."""
    if is_known(identity) and record.known:
        return f"Known points are {record.known[0].id} to {record.known[-1].id}."
    if not record.individuals:
        return "None has started yet."
    form = _ID.fullmatch(identity)
    if form is not None:
        island, worker = int(form[1]), int(form[2])
        same = sorted(
            one.sequence for one in record.individuals if (one.island, one.worker) == (island, worker)
        )
        if same:
            start = f"{island}-{worker}-"
            return f"Worker {island}-{worker} began {len(same)}, {start}{same[0]} to {start}{same[-1]}."
        workers = sorted({(one.island, one.worker) for one in record.individuals})
        return f"Individuals were begun by the workers {_listed([f'{island}-{worker}' for island, worker in workers])}."
    return suggestion(identity, [one.id for one in record.individuals[-_MOST_COMPARED:]])


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _MOST_LISTED
    return ", ".join(words[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


# --- as text ----------------------------------------------------------------------------------------------------------


def as_text(shown: Shown, now: float) -> str:
    """What ``hpo show`` prints. ``now``: Unix seconds."""
    return "\n".join(line for part in _parts(shown, now) for line in part)


def _parts(shown: Shown, now: float) -> Iterator[list[str]]:
    one = shown.one
    yield _aligned(list(_facts(shown, now)))
    yield ["", *_configuration(shown)]
    if one.metrics:
        metrics = [(f"    {one_line(name)}", _metric(value)) for name, value in one.metrics.items()]
        yield ["", "metrics", *_aligned(metrics)]
    if len(shown.schedule) > 1:
        schedule = text.schedule(shown.schedule, results.changed(shown.schedule), shown.steps)
        yield ["", *schedule.splitlines()]
    if len(shown.runs) > 1 or shown.events:
        yield ["", "history", *_happened(shown)]
    if len(shown.curve):
        yield ["", *_curve(shown.curve)]
    if one.error:
        yield ["", "error", *(f"    {line}" for line in visible(one.error).rstrip().splitlines())]
    files = [("directory", shown.directory)] if shown.directory else []
    files += [("output" if not number else "", path) for number, path in enumerate(shown.output)]
    if files:
        yield ["", *_aligned([(name, one_line(path)) for name, path in files])]


def _facts(shown: Shown, now: float) -> Iterator[tuple[str, str]]:
    record, one = shown.record, shown.one
    yield "individual", f"{one.id} of {one_line(record.directory)}"
    yield "status", one.status
    for name, value in (one.objectives or {}).items():
        yield one_line(name), f"{value!r}{_beside(shown, name)}"
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
        yield "retries", f"its processes died {one.retries} time{'s' if one.retries > 1 else ''}"
    if note := text.code(record, one) if not is_known(one.id) else "":
        yield "code", note


def _parent(identity: str, parent: Individual | None) -> str:
    values = list((parent.objectives or {}).values()) if parent is not None else []
    return f"{identity} ({' '.join(map(text.short, values))})" if values else identity


def _beside(shown: Shown, name: str) -> str:
    """The values of best and default in that objective."""
    parts = []
    for what, other in ("best", shown.best), ("default", shown.default):
        if other is not None and other.id == shown.one.id:
            return f"    (the {what})" if what == "best" else ""
        if other is not None and other.objectives and name in other.objectives:
            value = other.objectives[name]
            count = digits((value, (shown.one.objectives or {}).get(name)))
            parts.append(f"{what} {text.short(value, count)} by {other.id}")
    return f"    ({', '.join(parts)})" if parts else ""


def _configuration(shown: Shown) -> list[str]:
    """A line a parameter: here, of the best, of the default."""
    columns: list[tuple[str, Mapping[str, Scalar]]] = [(shown.one.id, shown.one.params)]
    for name, other in ("best", shown.best), ("default", shown.default):
        if other is not None and other.id != shown.one.id:
            columns.append((f"{name} {other.id}", other.params))
    names = list(dict.fromkeys(name for _, params in columns for name in params))
    rows = [["configuration", *(head for head, _ in columns)]]
    for name in names:
        values = [one_line(repr(params[name])) if name in params else "–" for _, params in columns]
        rows.append([f"    {one_line(name)}", *values])
    return _table(rows)


def _happened(shown: Shown) -> list[str]:
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
    """The curve as a line of bars, and its last rows."""
    values = [float(value) for value in curve["value"]]
    finite = [value for value in values if math.isfinite(value)]
    many = len(curve) > 1
    steps = text.steps_of(curve["step"].iloc[0], curve["step"].iloc[-1])
    steps += f", {len(curve)} report{'s' if many else ''}"
    bounds = ""
    if finite:
        count = digits((min(finite), max(finite)))
        bounds = f", from {text.short(min(finite), count)} to {text.short(max(finite), count)}"
    names = [
        "step",
        "value",
        *(name for name in curve.columns if name not in ("id", "step", "value", "time")),
    ]
    last = curve[names].tail(_LAST_ROWS).dropna(axis="columns", how="all").iloc[:, :_MOST_COLUMNS]
    rows = [
        [f"    {one_line(name)}" if not place else one_line(name) for place, name in enumerate(last.columns)]
    ]
    counts = [digits(last[name].tolist()) for name in last.columns]
    rows += [
        [f"    {row[0]}", *(text.short(value, count) for value, count in zip(row[1:], counts[1:]))]
        for row in last.itertuples(index=False)
    ]
    return [f"curve: {steps}{bounds}", *([f"    {sparkline(values)}"] if many else []), *_table(rows)]


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A character for each of ``values``, or for the mean of several, from the least to the largest; a space where
    none is finite."""
    groups = [
        values[len(values) * place // width : len(values) * (place + 1) // width] for place in range(width)
    ]
    pieces = [[value] for value in values] if len(values) <= width else groups
    means = []
    for piece in pieces:
        finite = [value for value in piece if math.isfinite(value)]
        means.append(sum(value / len(finite) for value in finite) if finite else math.nan)
    known = [value for value in means if math.isfinite(value)]
    if not known:
        return " " * len(means)
    low, high = min(known), max(known)
    # Halved, as the difference of two finite numbers may be none.
    span = high / 2 - low / 2
    return "".join(
        " "
        if not math.isfinite(value)
        else _BARS[min(7, int(8 * ((value / 2 - low / 2) / span))) if span else 3]
        for value in means
    )


def _metric(value: object) -> str:
    shown = one_line(value)
    return shown if len(shown) <= 500 else f"{shown[:500]} …"


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    return _table([list(row) for row in rows])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)][:-1]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths)), row[-1]]).rstrip()
        for row in rows
    ]


# --- as JSON ----------------------------------------------------------------------------------------------------------


def as_json(shown: Shown) -> str:
    """An object: the columns of the export under their names, and what ``hpo show`` says beside."""
    one = shown.one
    table: dict[str, object] = {
        "id": one.id,
        "island": one.island,
        "worker": one.worker,
        "sequence": one.sequence,
        "status": one.status,
        "value": one.value,
        "objectives": one.objectives,
        "params": one.params,
        "metrics": one.metrics,
        "started": one.started,
        "finished": one.finished,
        "seconds": one.seconds,
        "operator": one.operator,
        "parents": [
            {"id": name, "objectives": each and each.objectives} for name, each in shown.parents.items()
        ],
        "children": list(shown.children),
        "inherits": one.inherits or None,
        "migrations": [list(move) for move in one.migrations],
        "retries": one.retries,
        "error": one.error,
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
    """A report, without metrics that it lacks."""
    return {
        name: value for name, value in row.items() if name == "value" or not (value is None or value != value)
    }


def _point(one: Individual | None) -> dict[str, object] | None:
    return None if one is None else {"id": one.id, "objectives": one.objectives, "params": one.params}


def printed(directory: Path, identity: str, *, as_table: bool) -> str:
    """The output of ``hpo show``, as JSON where ``as_table``. Raises the errors of ``show``."""
    found = show(directory, identity)
    return as_json(found) if as_table else as_text(found, time.time())
