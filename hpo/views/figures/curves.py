"""Learning curves: what individuals reported over their steps, the best and the default before the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from hpo.individual import COMPLETED, PRUNED, RUNNING
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.drawing.thinning import compact
from hpo.views.figures.drawing.value_range import drawable, value_range
from hpo.views.figures.source import NotDrawn, Source, thinned

if TYPE_CHECKING:
    import pandas

_MOST_CURVES = 80
"""Of those that completed, and of those that did not."""
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
    """Of one campaign; NotDrawn where nothing was reported."""
    (source,) = sources
    table = source.curves
    if table.empty:
        raise NotDrawn("no evaluation has reported intermediate values by trial.report")
    statuses = {one.id: one.status for one in source.record.individuals}
    by_id = _rows(table)
    ids = list(by_id)
    first = {
        one.id: name
        for name, one in (("default", source.default), ("best", source.best))
        if one is not None and one.id in statuses
    }
    groups = {
        "pruned": [one for one in ids if statuses.get(one) == PRUNED],
        "completed": [one for one in ids if statuses.get(one) == COMPLETED and one not in first],
        "running": [one for one in ids if statuses.get(one) == RUNNING],
    }
    others = {PRUNED, COMPLETED, RUNNING}
    groups["failed or lost"] = [one for one in ids if statuses.get(one) not in others]
    objective = _reported(source, table, by_id)
    way = source.objectives.get(objective, "minimize")
    sign = -1.0 if way == "maximize" else 1.0
    traces, shown = [], []
    for name, line in _LINES.items():
        own = groups.get(name) or [one for one, word in first.items() if word == name]
        own = [own[index] for index in thinned(len(own), _MOST_CURVES)]
        own = [one for one in own if one in by_id]
        if own:
            trace, values = _trace(table, {one: by_id[one] for one in own}, sign)
            faint = 0.55 if name in ("pruned", "completed", "failed or lost") else 1.0
            known = name in first.values()
            extra = f", {name}" if known else ""
            traces.append(
                {
                    **trace,
                    "name": name,
                    "line": line,
                    "opacity": faint,
                    "hovertemplate": f"%{{customdata}}{extra}<br>step %{{x}}: %{{y}}<extra></extra>",
                }
            )
            shown.append(values)
    extent = value_range(numpy.concatenate(shown), way)
    text = extent.note("report") if extent else ""
    count = sum(len(set(trace["customdata"]) - {""}) for trace in traces)
    title = "Learning curves" if count >= len(ids) else f"Learning curves, {count} of {len(ids)}"
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
    """By id the rows of its curve, which stand together."""
    ids = table["id"].to_numpy()
    starts = [0, *(numpy.flatnonzero(ids[1:] != ids[:-1]) + 1)]
    return {
        str(ids[start]): slice(int(start), int(end)) for start, end in zip(starts, [*starts[1:], len(ids)])
    }


def _trace(
    table: pandas.DataFrame, chosen: Mapping[str, slice], sign: float
) -> tuple[dict[str, Any], NDArray[Any]]:
    """All chosen curves in one trace, with gaps between them; and their values. ``sign``: 1 where less is better, else
    -1; of a long curve the first, the last and the best report are among those drawn."""
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
        "x": compact(numpy.array(x, dtype=float)),
        "y": compact(drawable(found)),
        "customdata": names,
        "connectgaps": False,
    }, found


def _reported(source: Source, table: pandas.DataFrame, by_id: Mapping[str, slice]) -> str:
    """The objective that is reported: that whose results the last reports come closest to."""
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
    """Where a pruner has compared."""
    steps = sorted({one.step for one in source.record.reported})
    if not 0 < len(steps) <= _MOST_RUNGS:
        return []
    return [
        {
            "type": "line",
            "x0": step,
            "x1": step,
            "y0": 0,
            "y1": 1,
            "yref": "paper",
            "layer": "below",
            "line": theme.vertical(step)["line"],
            "label": {
                "text": f"rung at {step}",
                "textposition": "start",
                "textangle": 0,
                "xanchor": "left",
                "padding": 3,
                "font": {"size": 11, "color": theme.MUTED},
            },
        }
        for step in steps
    ]
