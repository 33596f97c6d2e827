"""Slices: the objective over each of the most important parameters; pruned and failed evaluations lie at the border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.individual import COMPLETED, CRASHED, FAILED, INVALID, PRUNED, TIMEOUT
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import shortened, written
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.parameter_axis import Axis
from hpo.views.figures.drawing.thinning import best_and_spread
from hpo.views.figures.drawing.value_range import ValueRange, value_range
from hpo.views.figures.source import NotDrawn, Source, important

if TYPE_CHECKING:
    from hpo.individual import Individual

_PANELS = 6
_COLUMNS = 2
_PANEL, _BETWEEN = 170, 78  # pixels of a panel's height, and between two panels
_BORDER = 15.0  # hundredths of the value axis beyond the worst value, for evaluations without a value
_WITHOUT = (
    ("pruned", (PRUNED,), 6.0, "line-ns-open"),
    ("failed", (FAILED, INVALID, TIMEOUT, CRASHED), 13.0, "x-thin-open"),
)


@dataclass(frozen=True, kw_only=True)
class _SlicePanel:
    """Panel of one parameter, with at most ``most`` marks."""

    source: Source
    name: str
    axis: Axis
    extent: ValueRange
    most: int

    def traces(self) -> list[Plot]:
        source, sign = self.source, self.source.sign()
        everyone = [one for one in source.ended if self.name in one.params]
        found = []
        for title, statuses, steps, symbol in _WITHOUT:
            others = [one for one in everyone if one.status in statuses]
            others = best_and_spread(others, self.most // 4, loss=lambda one: 0.0)
            at = [self.extent.beyond(steps)] * len(others)
            marker = {"color": theme.STATUS[statuses[0]], "symbol": symbol, "size": 5, "line": {"width": 1}}
            found.append(self._trace(others, at, title, marker))
        ended = [one for one in everyone if self._has_value(one)]
        age = {one.id: place / len(ended) for place, one in enumerate(ended, 1)}
        shown = best_and_spread(ended, self.most // 2, loss=lambda one: sign * self._value(one))
        colours = [theme.faint(theme.BLUE, round(0.25 + 0.65 * age[one.id], 2)) for one in shown]
        values = [self.extent.inside(self._value(one)) for one in shown]
        title = "completed, later ones darker"
        found.append(self._trace(shown, values, title, {"color": colours, "size": 5}))
        top = [source.best] if source.best is not None and self.name in source.best.params else []
        values = [self.extent.inside(self._value(one)) for one in top]
        found.append(self._trace(top, values, "best", theme.STAR))
        return found

    def _has_value(self, one: Individual) -> bool:
        return one.status == COMPLETED and self.source.objective in (one.objectives or {})

    def _value(self, one: Individual) -> float:
        return (one.objectives or {})[self.source.objective]

    def _trace(
        self,
        individuals: Sequence[Individual],
        values: Sequence[float],
        title: str,
        marker: dict[str, Any],
    ) -> Plot:
        return {
            "x": [self.axis.mark(one.params[self.name], one.id) for one in individuals],
            "y": list(values),
            "mode": "markers",
            "name": title,
            "legendgroup": title,
            "marker": marker,
            "text": [self._box(one) for one in individuals],
            "customdata": [one.id for one in individuals],
            "hovertemplate": "%{text}<extra></extra>",
            "cliponaxis": False,
        }

    def _box(self, one: Individual) -> str:
        head, objective = one.status, theme.label(self.source.objective, 24)
        if self._has_value(one):
            head = f"{objective} {theme.number(self._value(one))}"
        return f"{theme.label(one.id)}: {head}<br>{theme.label(self.name)} {written(one.params[self.name])}"


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of at most six parameters."""
    source = sources[0]
    values = [one.objectives[source.objective] for one in source.completed if one.objectives]
    extent = value_range(values, source.objectives[source.objective], source.default_value())
    if extent is None:
        raise NotDrawn("no evaluation has completed")
    names = important(source)[:_PANELS]
    if not names or source.space is None:
        raise NotDrawn("no parameter has more than one value")
    rows = -(-len(names) // _COLUMNS)
    whole = rows * _PANEL + (rows - 1) * _BETWEEN
    panels = Panels([1] * rows, _COLUMNS, between=(_BETWEEN / whole, 0.05))
    axes: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    first = ""
    for place, name in enumerate(names):
        row, column = divmod(place, _COLUMNS)
        number = panels.panel(row, column)
        first = first if column else number
        axis = Axis(parameter=source.space.parameters[name])
        panel = _SlicePanel(
            source=source, name=name, axis=axis, extent=extent, most=theme.MOST_POINTS // len(names)
        )
        for trace in panel.traces():
            legend = trace["name"] not in seen and len(trace["x"]) > 0
            seen.update([trace["name"]] if legend else [])
            panels.add(number, **trace, showlegend=legend)
        axes[f"xaxis{number}"] = {"title": _title(name, axis), **axis.layout()}
        axes[f"yaxis{number}"] = {
            "title": theme.label(source.objective, 24) if column == 0 else "",
            **({"matches": f"y{first}", "showticklabels": False} if column else {}),
            "nticks": 5,
            **extent.axis(_BORDER),
        }
    return panels.plot("Slices", axes, height=whole + 160)


def _title(name: str, axis: Axis) -> str:
    shown, condition = theme.label(shortened(one_line(name), 32)), axis.condition()
    return (
        f"{shown}<br><span style='font-size:11px'>{theme.label(condition, 80)}</span>" if condition else shown
    )
