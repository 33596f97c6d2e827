"""Learning curves: reports of individuals over steps, with the best and the default in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from hpo.individual import COMPLETED, PRUNED, RUNNING
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.drawing.thinning import thinned
from hpo.views.figures.drawing.value_range import drawable, value_range
from hpo.views.figures.source import NotDrawn, Source

if TYPE_CHECKING:
    import pandas

_MOST_CURVES = 80  # of each group
_MOST_STEPS = 150
_MOST_RUNGS = 12


_LINES: dict[str, dict[str, Any]] = {
    "failed or lost": {"color": theme.VERMILION, "width": 1},
    "pruned": {"color": theme.GREY, "width": 1},
    "completed": {"color": theme.SKY, "width": 1},
    "running": {"color": theme.GREEN, "width": 1.5},
    "default": {"color": theme.INK, "width": 2, "dash": "dash"},
    "best": {"color": theme.ORANGE, "width": 3},
}
"""Look of curves by group, in the order in which groups are drawn."""


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of a single campaign with reports."""
    (source,) = sources
    table = source.curves
    if table.empty:
        raise NotDrawn("no evaluation has reported intermediate values by trial.report")
    statuses = {one.id: one.status for one in source.record.individuals}
    by_id = _rows(table)
    groups: dict[str, list[str]] = {name: [] for name in _LINES}
    first = {one.id: name for name, one in (("default", source.default), ("best", source.best)) if one}
    names = {PRUNED: "pruned", COMPLETED: "completed", RUNNING: "running"}
    for identity in by_id:
        status = statuses.get(identity)
        lead = first.get(identity) if status == COMPLETED else None
        groups[lead or names.get(status or "", "failed or lost")].append(identity)
    objective = _reported(source, table, by_id)
    way = source.objectives[objective]
    traces, shown = [], []
    for name, line in _LINES.items():
        own = [groups[name][index] for index in thinned(len(groups[name]), _MOST_CURVES)]
        if own:
            trace, values = _trace(table, {one: by_id[one] for one in own}, source.sign(objective))
            extra = f", {name}" if name in first.values() else ""
            look = {"name": name, "line": line, "opacity": 0.55 if line["width"] == 1 else 1.0}
            hover = f"%{{customdata}}{extra}<br>step %{{x}}: %{{y}}<extra></extra>"
            traces.append({**trace, **look, "hovertemplate": hover})
            shown.append(values)
    extent = value_range(numpy.concatenate(shown), way)
    text = extent.note("report") if extent else ""
    count = sum(len(set(trace["customdata"]) - {""}) for trace in traces)
    title = "Learning curves" if count >= len(by_id) else f"Learning curves, {count} of {len(by_id)}"
    return {
        "data": traces,
        "layout": theme.layout(
            title,
            height=420,
            xaxis={"title": "step", "rangemode": "tozero"},
            yaxis={**(extent.axis() if extent else {}), "title": theme.label(objective)},
            shapes=_rungs(source),
            annotations=[theme.note(text)] if text else [],
        ),
    }


def _rows(table: pandas.DataFrame) -> dict[str, slice]:
    """Rows of each individual's curve, which are adjacent."""
    ids = table["id"].to_numpy()
    starts = [0, *(numpy.flatnonzero(ids[1:] != ids[:-1]) + 1)]
    return {
        str(ids[start]): slice(int(start), int(end)) for start, end in zip(starts, [*starts[1:], len(ids)])
    }


def _trace(
    table: pandas.DataFrame, chosen: Mapping[str, slice], sign: float
) -> tuple[dict[str, Any], NDArray[Any]]:
    """Trace of the chosen curves with gaps between them, and their values. A long curve keeps its first, last and best
    report."""
    steps, values = table["step"].to_numpy(dtype=float), table["value"].to_numpy(dtype=float)
    x: list[float] = []
    y: list[float] = []
    names: list[str] = []
    for identity, rows in chosen.items():
        losses = sign * values[rows]
        best = [] if numpy.isnan(losses).all() else [int(numpy.nanargmin(losses))]
        kept = thinned(rows.stop - rows.start, _MOST_STEPS, best)
        x += [*steps[rows][kept], numpy.nan]
        y += [*values[rows][kept], numpy.nan]
        names += [identity] * len(kept) + [""]
    lone = all(rows.stop - rows.start < 2 for rows in chosen.values())
    found = numpy.array(y, dtype=float)
    return {
        "type": "scatter",
        "mode": "markers" if lone else "lines",
        "x": numpy.array(x, dtype=float),
        "y": drawable(found),
        "customdata": names,
        "connectgaps": False,
    }, found


def _reported(source: Source, table: pandas.DataFrame, by_id: Mapping[str, slice]) -> str:
    """The objective that is reported: its results are closest to the last reports."""
    if len(source.objectives) == 1:
        return source.objective
    values = table["value"].to_numpy(dtype=float)
    last = {one: float(values[rows.stop - 1]) for one, rows in by_id.items()}
    errors: dict[str, float] = {}
    for name in source.objectives:
        pairs = [(last[one.id], source.value(one, name)) for one in source.completed if one.id in last]
        apart = [
            abs(float(value) - result) / (abs(result) or 1.0) for value, result in pairs if result is not None
        ]
        errors[name] = float(numpy.median(apart)) if apart else numpy.inf
    return min(errors, key=lambda name: errors[name])


def _rungs(source: Source) -> list[dict[str, Any]]:
    steps = sorted({one.step for one in source.record.reported})
    if not 0 < len(steps) <= _MOST_RUNGS:
        return []
    place = {"textposition": "start", "textangle": 0, "xanchor": "left", "padding": 3}
    font = {"size": 11, "color": theme.MUTED}
    return [
        {
            **theme.vertical(step),
            "layer": "below",
            "label": {"text": f"rung at {step}", "font": font, **place},
        }
        for step in steps
    ]
