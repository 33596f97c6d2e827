"""The best result so far as a step line: over the number of evaluations, and over the time at work."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from hpo.individual import COMPLETED, GIVEN_OPERATORS, PRUNED, Individual
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.thinning import thinned
from hpo.views.figures.drawing.value_range import ValueRange, drawable, value_range
from hpo.views.figures.source import NotDrawn, Source

Along = Callable[[Source, Sequence[Individual]], NDArray[Any]]
"""Places of individuals on the horizontal axis."""

_MOST_OPERATORS = 5
_COLOURS = {"surrogate": theme.BLUE, "evolution": theme.GREEN, "random": theme.SKY}
_OTHER_COLOURS = (theme.PURPLE, theme.YELLOW, theme.VERMILION, theme.BLUE, theme.GREEN)
_MOST_ROWS = 4
_ROW, _STRIP, _GAP = 250, 22, 20  # pixels
_MARGINS = 120  # pixels above and below the panels


def history(sources: Sequence[Source]) -> Plot:
    """Figure over the number of evaluations, of a single campaign or of several overlaid campaigns."""

    def along(source: Source, individuals: Sequence[Individual]) -> NDArray[Any]:
        return numpy.array([source.number[one.id] for one in individuals], dtype="int32")

    def launches(source: Source) -> list[float]:
        ends = [one.finished or 0.0 for one in source.ended]
        return [bisect_left(ends, one.started) + 0.5 for one in source.record.launches[1:]]

    return _draw(sources, along, launches, "Best so far, over evaluations", "evaluations")


def hours(sources: Sequence[Source]) -> Plot:
    """The same figure over the time at work, all launches together."""
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
    """A row for each objective of the first campaign; only campaigns with that objective and direction are in it."""
    if not any(source.completed for source in sources):
        raise NotDrawn("no evaluation has completed")
    first, single = sources[0], len(sources) == 1
    objectives = list(first.objectives)[:_MOST_ROWS]
    failed = [one for one in first.ended if first.value(one) is None] if single else []
    row = _ROW if len(objectives) > 1 else theme.HEIGHT - _MARGINS
    heights = [row] * len(objectives) + ([_STRIP] if failed else [])
    whole = sum(heights) + _GAP * (len(heights) - 1)
    panels = Panels(heights, between=(_GAP / whole, 0.0))
    axes: dict[str, dict[str, Any]] = {}
    for number, objective in enumerate(objectives):
        panel = panels.panel(number)
        row_of = _Row(panels=panels, panel=panel, objective=objective, along=along)
        way = first.objectives[objective]
        alike = {place: one for place, one in enumerate(sources) if one.objectives.get(objective) == way}
        extent = _extent([*alike.values()], objective)
        better = "higher" if way == "maximize" else "lower"
        axes[f"yaxis{panel}"] = {
            **(extent.axis() if extent else {}),
            "title": f"{theme.label(objective)} ({better} is better)",
        }
        if single:
            _add_individuals(row_of, first)
            if extent:
                _add_default(row_of, first, extent)
        else:
            _add_overlaid(row_of, alike)
        if extent and (text := extent.note()):
            end = {"xref": f"x{panel} domain", "yref": f"y{panel} domain"}
            panels.notes.append({**theme.note(text), **end})
    if failed:
        panel = panels.panel(len(objectives))
        _add_failed(panels, panel, first, failed, along)
        axes[f"yaxis{panel}"] = {"range": [-1, 1], "visible": False, "fixedrange": True}
    for number in range(1, len(heights) + 1):
        below = number < len(heights)
        shared = {"matches": f"x{len(heights)}", "showticklabels": False} if below else {"title": axis}
        axes[f"xaxis{number if number > 1 else ''}"] = {"rangemode": "tozero", **shared}
    if single:
        panels.shapes += [theme.vertical(at) for at in launches(first)]
    return panels.plot(title, axes, height=whole + _MARGINS)


def _extent(sources: Sequence[Source], objective: str) -> ValueRange | None:
    found = [one.value(each, objective) for one in sources for each in one.completed]
    values = [value for value in found if value is not None]
    return value_range(values, sources[0].objectives[objective], sources[0].default_value(objective))


@dataclass(frozen=True, kw_only=True)
class _Row:
    panels: Panels
    panel: str
    objective: str
    along: Along

    def marks(self, source: Source, individuals: Sequence[Individual], name: str, **trace: Any) -> None:
        """Add marks of individuals."""
        values = [source.value(one, self.objective) for one in individuals]
        y = drawable(numpy.array([numpy.nan if one is None else one for one in values], dtype=float))
        self._add(
            name,
            x=self.along(source, individuals),
            y=y,
            mode="markers",
            customdata=[one.id for one in individuals],
            **trace,
        )

    def best_line(self, source: Source, name: str, colour: str, **trace: Any) -> None:
        """Add the step line of the best value so far."""
        steps = improvements(source, self.objective)
        x = list(self.along(source, steps))
        y = [source.value(one, self.objective) for one in steps]
        ids = [one.id for one in steps]
        known = _known(source, self.objective)
        if known is not None:
            x, y, ids = [0.0, *x], [known, *y], ["known before", *ids]
        if source.ended and y:
            x, y, ids = [*x, self.along(source, source.ended[-1:])[0]], [*y, y[-1]], [*ids, ids[-1]]
        self._add(
            name,
            x=numpy.array(x, dtype=float),
            y=drawable(numpy.array(y, dtype=float)),
            mode="lines",
            customdata=ids,
            line={"shape": "hv", "color": colour, "width": 2},
            hovertemplate="best so far: %{y}<br>%{customdata}<extra></extra>",
            **trace,
        )

    def _add(self, name: str, **trace: Any) -> None:
        # The legend lists each name once, for the first row.
        self.panels.add(self.panel, **{"legendgroup": name, "showlegend": not self.panel, **trace}, name=name)


def improvements(source: Source, objective: str) -> list[Individual]:
    """Individuals that keep the limits and were better than all before them."""
    found, best = [], _known(source, objective)
    sign = source.sign(objective)
    for one in source.completed:
        value = source.value(one, objective) if one.fit else None
        if value is not None and (best is None or sign * value < sign * best):
            found.append(one)
            best = value
    return found


def _known(source: Source, objective: str) -> float | None:
    points = [one.objectives or {} for one in source.record.known if one.fit]
    sign = source.sign(objective)
    values = [values[objective] for values in points if objective in values]
    return min(values, key=lambda value: sign * value, default=None)


def _add_individuals(row: _Row, source: Source) -> None:
    shown = [one for one in source.ended if source.value(one, row.objective) is not None]
    steps = {one.id for one in improvements(source, row.objective)}
    keep = [index for index, one in enumerate(shown) if one.id in steps]
    shown = [shown[index] for index in thinned(len(shown), theme.MOST_POINTS, keep)]
    if pruned := [one for one in shown if one.status == PRUNED]:
        marker = {"color": theme.GREY, "size": 5, "symbol": "circle-open", "line": {"width": 1}}
        hover = "%{customdata}, pruned<br>last report %{y}<extra></extra>"
        row.marks(source, pruned, "pruned", marker=marker, hovertemplate=hover)
    if broken := [one for one in shown if one.breaks]:
        row.marks(source, broken, "breaks a limit", marker=theme.CROSS, hovertemplate=theme.BROKEN)
    completed = [one for one in shown if one.status == COMPLETED and not one.breaks]
    counts = Counter(one.operator for one in source.completed if one.operator not in GIVEN_OPERATORS)
    names = [name for name, _ in counts.most_common(_MOST_OPERATORS)]
    others = iter(_OTHER_COLOURS)
    for name in [*names, None]:
        colour = theme.MUTED if name is None else _COLOURS.get(name) or next(others)
        own = [one for one in completed if (one.operator == name if name else one.operator not in names)]
        if own:
            operator = theme.label(name) if name else "others"
            marker = {"color": colour, "size": 6, "opacity": 0.6}
            hover = f"%{{customdata}}, {operator}<br>%{{y}}<extra></extra>"
            row.marks(source, own, operator, marker=marker, hovertemplate=hover)
    row.best_line(source, "best so far", theme.INK)
    best = source.best
    if best is not None and best.id in source.number and len(source.objectives) == 1:
        hover = "%{customdata}, the best<br>%{y}<extra></extra>"
        row.marks(source, [best], "best", marker=theme.STAR, hovertemplate=hover)


def _add_overlaid(row: _Row, sources: Mapping[int, Source]) -> None:
    """Add several campaigns. ``sources``: campaigns by their places among all, which are ``meta`` of their traces."""
    for number, source in sources.items():
        colour = theme.SERIES[number % len(theme.SERIES)]
        name = theme.label(source.name)
        shown = [one for one in source.completed if source.value(one, row.objective) is not None]
        kept = [shown[index] for index in thinned(len(shown), theme.MOST_POINTS // len(sources))]
        marker = {"color": colour, "size": 4, "opacity": 0.25}
        hover = f"{name}, %{{customdata}}<br>%{{y}}<extra></extra>"
        row.marks(source, kept, name, marker=marker, hovertemplate=hover, meta=number, showlegend=False)
        row.best_line(source, name, colour, meta=number)


def _add_failed(
    panels: Panels, panel: str, source: Source, failed: Sequence[Individual], along: Along
) -> None:
    kept = [failed[index] for index in thinned(len(failed), theme.MOST_POINTS // 4)]
    for status, count in Counter(one.status for one in failed).items():
        own = [one for one in kept if one.status == status]
        colour = theme.STATUS[status]
        panels.add(
            panel,
            mode="markers",
            x=along(source, own),
            y=numpy.zeros(len(own), dtype="int8"),
            customdata=[one.id for one in own],
            name=f"{count} {status}",
            marker={"color": colour, "symbol": "line-ns-open", "size": 9, "line": {"width": 1.5}},
            hovertemplate=f"%{{customdata}}, {status}<extra></extra>",
        )


def _add_default(row: _Row, source: Source, extent: ValueRange) -> None:
    value = source.default_value(row.objective)
    if value is not None and value == extent.inside(value):
        ends = {"x0": 0, "x1": 1, "xref": f"x{row.panel} domain", "y0": value, "y1": value}
        font = {"size": 11, "color": theme.MUTED}
        label = {"text": source.default_name, "font": font, "textposition": "end", "yanchor": "bottom"}
        line = {"color": theme.MUTED, "width": 1, "dash": "dash"}
        row.panels.shapes.append(
            {"type": "line", "line": line, **ends, "yref": f"y{row.panel}", "label": label}
        )
