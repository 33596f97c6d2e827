"""The best result so far as a step line: over the number of evaluations, and over the time at work."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from hpo.individual import COMPLETED, PRUNED, Individual
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.drawing.thinning import compact
from hpo.views.figures.drawing.value_range import ValueRange, drawable, value_range
from hpo.views.figures.source import NotDrawn, Source, thinned

Along = Callable[[Source, Sequence[Individual]], NDArray[Any]]
"""Where individuals that ended stand on the horizontal axis."""

_MOST_OPERATORS = 5
_COLOURS = {"surrogate": theme.BLUE, "evolution": theme.GREEN, "random": theme.SKY}
_OTHER_COLOURS = (theme.PURPLE, theme.YELLOW, theme.VERMILION, theme.BLUE, theme.GREEN)
_GIVEN = ("default", "given", "enqueued")
_MOST_ROWS = 4
_ROW = 250
_STRIP = 26


def history(sources: Sequence[Source]) -> Plot:
    """The figure over the number of evaluations, of one campaign or several, overlaid; NotDrawn where nothing has
    completed."""

    def along(source: Source, individuals: Sequence[Individual]) -> NDArray[Any]:
        return numpy.array([source.number[one.id] for one in individuals], dtype="int32")

    def launches(source: Source) -> list[float]:
        ends = [one.finished or 0.0 for one in source.ended]
        return [bisect_left(ends, one.started) + 0.5 for one in source.record.launches[1:]]

    return _draw(sources, along, launches, "Best so far, over evaluations", "evaluations")


def hours(sources: Sequence[Source]) -> Plot:
    """The same over the time at work, all launches together."""
    ends = [one.at_work([each.finished or 0.0 for each in one.ended[-1:]]) for one in sources]
    unit, seconds = theme.time_unit(max((float(end[0]) for end in ends if len(end)), default=0.0))

    def along(source: Source, individuals: Sequence[Individual]) -> NDArray[Any]:
        at = source.at_work([one.finished or 0.0 for one in individuals]) / seconds
        return at.astype("float32")

    def launches(source: Source) -> list[float]:
        return [at / seconds for at in source.later_launches]

    return _draw(sources, along, launches, f"Best so far, over {unit} at work", f"{unit} at work")


def _draw(
    sources: Sequence[Source],
    along: Along,
    launches: Callable[[Source], Sequence[float]],
    title: str,
    axis: str,
) -> Plot:
    """One row an objective of the first; campaigns that do not have it, or in another direction, are not in it. Where
    evaluations ended without a result, a strip below. ``launches``: where the second and later ones began.

    Raises:
        NotDrawn: nothing has completed.
    """
    if not any(source.completed for source in sources):
        raise NotDrawn("no evaluation has completed")
    first = sources[0]
    objectives = list(first.objectives)[:_MOST_ROWS]
    single = len(sources) == 1
    failed = [one for one in first.ended if first.value(one) is None] if single else []
    height = 120 + _ROW * len(objectives) if len(objectives) > 1 else theme.HEIGHT
    inner = height - 120
    base = _STRIP / inner if failed else 0.0
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    for row, objective in enumerate(objectives):
        top = 1 - row * (1 - base) / len(objectives)
        bottom = 1 - (row + 1) * (1 - base) / len(objectives) + (0.08 if row < len(objectives) - 1 else 0.03)
        name = f"yaxis{row + 1 if row else ''}"
        place = f"y{row + 1 if row else ''}"
        way = first.objectives[objective]
        alike = {number: one for number, one in enumerate(sources) if one.objectives.get(objective) == way}
        shown = _extent([*alike.values()], objective)
        arrow = "higher is better" if way == "maximize" else "lower is better"
        layout[name] = {
            **(shown.axis() if shown else {}),
            "title": f"{theme.label(objective)} ({arrow})",
            "domain": [max(0.0, bottom) if failed or row < len(objectives) - 1 else 0.0, top],
        }
        if single:
            traces += _single(first, objective, along, place, legend=row == 0)
        else:
            traces += _overlaid(alike, objective, along, place, legend=row == 0)
        if shown and (text := shown.note()):
            notes.append(theme.note(text, top))
        if single and shown:
            shapes += _default(first, objective, place, shown)
    if failed:
        layout["yaxis9"] = {
            "domain": [0.0, base * 0.8],
            "range": [-1, 1],
            "visible": False,
            "fixedrange": True,
        }
        traces += _strip(first, failed, along)
    anchor = {"anchor": "y9" if failed else "free" if len(objectives) > 1 else "y", "position": 0}
    if single:
        shapes += [theme.vertical(at) for at in launches(first)]
    figure = theme.layout(
        title,
        height=height,
        xaxis={"title": axis, "rangemode": "tozero", **anchor},
        annotations=notes,
        shapes=shapes,
        **layout,
    )
    return {"data": traces, "layout": figure}


def _extent(sources: Sequence[Source], objective: str) -> ValueRange | None:
    values = [
        value
        for one in sources
        for each in one.completed
        if (value := one.value(each, objective)) is not None
    ]
    first = sources[0]
    return value_range(values, first.objectives[objective], first.default_value(objective))


def _values(source: Source, individuals: Sequence[Individual], objective: str) -> NDArray[Any]:
    found = [source.value(one, objective) for one in individuals]
    return drawable(numpy.array([numpy.nan if one is None else one for one in found], dtype=float))


def _improvements(source: Source, objective: str) -> list[Individual]:
    """The completed individuals each of which was better than all before."""
    found, best = [], _known(source, objective)
    sign = source.sign(objective)
    for one in source.completed:
        value = source.value(one, objective)
        if value is not None and (best is None or sign * value < sign * best):
            found.append(one)
            best = value
    return found


def _known(source: Source, objective: str) -> float | None:
    values = [
        value
        for one in source.record.known
        if one.status == COMPLETED and (value := (one.objectives or {}).get(objective)) is not None
    ]
    sign = source.sign(objective)
    return min(values, key=lambda value: sign * value, default=None)


def _step_line(
    source: Source, objective: str, along: Along, colour: str, place: str, **trace: Any
) -> dict[str, Any]:
    steps = _improvements(source, objective)
    x = list(along(source, steps))
    y = [source.value(one, objective) for one in steps]
    ids = [one.id for one in steps]
    known = _known(source, objective)
    if known is not None:
        x, y, ids = [0.0, *x], [known, *y], ["known before", *ids]
    if source.ended and y:
        x, y, ids = [*x, along(source, source.ended[-1:])[0]], [*y, y[-1]], [*ids, ids[-1]]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": numpy.array(x, dtype=float),
        "y": drawable(numpy.array(y, dtype=float)),
        "customdata": ids,
        "line": {"shape": "hv", "color": colour, "width": 2},
        "hovertemplate": "best so far: %{y}<br>%{customdata}<extra></extra>",
        "yaxis": place,
        **trace,
    }


def _points(
    source: Source, individuals: Sequence[Individual], objective: str, along: Along, **trace: Any
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": along(source, individuals),
        "y": compact(_values(source, individuals, objective)),
        "customdata": [one.id for one in individuals],
        **trace,
    }


def _single(
    source: Source, objective: str, along: Along, place: str, *, legend: bool
) -> list[dict[str, Any]]:
    found = []
    shown = [one for one in source.ended if source.value(one, objective) is not None]
    steps = {one.id for one in _improvements(source, objective)}
    kept = thinned(
        len(shown), theme.MOST_POINTS, [index for index, one in enumerate(shown) if one.id in steps]
    )
    shown = [shown[index] for index in kept]
    pruned = [one for one in shown if one.status == PRUNED]
    if pruned:
        found.append(
            _points(
                source,
                pruned,
                objective,
                along,
                name="pruned",
                legendgroup="pruned",
                showlegend=legend,
                marker={"color": theme.GREY, "size": 5, "symbol": "circle-open", "line": {"width": 1}},
                hovertemplate="%{customdata}, pruned<br>last report %{y}<extra></extra>",
                yaxis=place,
            )
        )
    completed = [one for one in shown if one.status == COMPLETED]
    counts = Counter(one.operator for one in source.completed if one.operator not in _GIVEN)
    names = [name for name, _ in counts.most_common(_MOST_OPERATORS)]
    others = iter(_OTHER_COLOURS)
    for name in [*names, None]:
        colour = theme.MUTED if name is None else _COLOURS.get(name) or next(others)
        own = [one for one in completed if (one.operator == name if name else one.operator not in names)]
        if own:
            operator = theme.label(name) if name else "others"
            found.append(
                _points(
                    source,
                    own,
                    objective,
                    along,
                    name=operator,
                    legendgroup=operator,
                    showlegend=legend,
                    marker={"color": colour, "size": 6, "opacity": 0.6},
                    hovertemplate=f"%{{customdata}}, {operator}<br>%{{y}}<extra></extra>",
                    yaxis=place,
                )
            )
    line = _step_line(
        source,
        objective,
        along,
        theme.INK,
        place,
        name="best so far",
        legendgroup="best",
        showlegend=legend,
    )
    return [*found, line, *_star(source, objective, along, place, legend=legend)]


def _star(source: Source, objective: str, along: Along, place: str, *, legend: bool) -> list[dict[str, Any]]:
    """Where the best individual stands."""
    best = source.best
    if best is None or best.id not in source.number or len(source.objectives) > 1:
        return []
    found = _points(
        source,
        [best],
        objective,
        along,
        name="best",
        showlegend=legend,
        marker={
            "color": theme.ORANGE,
            "symbol": "star",
            "size": 14,
            "line": {"color": theme.PAPER, "width": 1},
        },
        hovertemplate="%{customdata}, the best<br>%{y}<extra></extra>",
        yaxis=place,
    )
    return [found]


def _overlaid(
    sources: Mapping[int, Source], objective: str, along: Along, place: str, *, legend: bool
) -> list[dict[str, Any]]:
    """``sources``: by the place of the campaign among all, which is ``meta`` of its traces."""
    found = []
    for number, source in sources.items():
        colour = theme.SERIES[number % len(theme.SERIES)]
        name = theme.label(source.name)
        shown = [one for one in source.completed if source.value(one, objective) is not None]
        kept = thinned(len(shown), theme.MOST_POINTS // len(sources))
        found.append(
            _points(
                source,
                [shown[index] for index in kept],
                objective,
                along,
                name=name,
                legendgroup=name,
                showlegend=False,
                marker={"color": colour, "size": 4, "opacity": 0.25},
                hovertemplate=f"{name}, %{{customdata}}<br>%{{y}}<extra></extra>",
                yaxis=place,
                meta=number,
            )
        )
        found.append(
            _step_line(
                source,
                objective,
                along,
                colour,
                place,
                name=name,
                legendgroup=name,
                showlegend=legend,
                meta=number,
            )
        )
    return found


def _strip(source: Source, failed: Sequence[Individual], along: Along) -> list[dict[str, Any]]:
    found = []
    kept = [failed[index] for index in thinned(len(failed), theme.MOST_POINTS // 4)]
    for status in dict.fromkeys(one.status for one in failed):
        own = [one for one in kept if one.status == status]
        count = sum(one.status == status for one in failed)
        found.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": along(source, own),
                "y": numpy.zeros(len(own), dtype="int8"),
                "customdata": [one.id for one in own],
                "name": f"{count} {status}",
                "marker": {
                    "color": theme.STATUS[status],
                    "symbol": "line-ns-open",
                    "size": 9,
                    "line": {"width": 1.5},
                },
                "hovertemplate": f"%{{customdata}}, {status}<extra></extra>",
                "yaxis": "y9",
            }
        )
    return found


def _default(source: Source, objective: str, place: str, shown: ValueRange) -> list[dict[str, Any]]:
    """A line at the default's result, where that is in view."""
    value = source.default_value(objective)
    if value is None or value != shown.inside(value):
        return []
    line = {"color": theme.MUTED, "width": 1, "dash": "dash"}
    ends = {"x0": 0, "x1": 1, "xref": "x domain", "y0": value, "y1": value, "yref": place}
    words = {
        "text": "first given point" if source.default_is_given else "default",
        "font": {"size": 11, "color": theme.MUTED},
        "textposition": "end",
        "yanchor": "bottom",
    }
    return [{"type": "line", "line": line, **ends, "label": words}]
