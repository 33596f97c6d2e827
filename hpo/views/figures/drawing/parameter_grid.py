"""Grid of panels, one for each of a few parameters, that share a value axis in each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import shortened
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.parameter_axis import Axis

if TYPE_CHECKING:
    from hpo.space.space import SearchSpace

MOST = 6
"""Most parameters of a grid."""
_COLUMNS = 2
_PANEL, _BETWEEN = 170, 78  # pixels of a panel's height, and between two panels


class ParameterGrid:
    """Panels of the parameters ``names`` of ``space``, at most ``MOST``, two in a row. ``values``: look of the value
    axes; ``title``: their title."""

    def __init__(
        self, names: Sequence[str], space: SearchSpace, title: str, values: Mapping[str, Any]
    ) -> None:
        self._names, self._space = names, space
        self._title, self._values = title, values
        rows = -(-len(names) // _COLUMNS)
        self._height = rows * _PANEL + (rows - 1) * _BETWEEN
        self.panels = Panels([1] * rows, _COLUMNS, between=(_BETWEEN / self._height, 0.05))
        self._axes: dict[str, Mapping[str, Any]] = {}
        self._seen: set[str] = set()

    def __iter__(self) -> Iterator[tuple[str, str, Axis]]:
        """Each parameter with its panel and its axis."""
        first = ""
        for place, name in enumerate(self._names):
            row, column = divmod(place, _COLUMNS)
            number = self.panels.panel(row, column)
            first = first if column else number
            axis = Axis(parameter=self._space.parameters[name])
            self._axes[f"xaxis{number}"] = {"title": _title(name, axis), **axis.layout()}
            self._axes[f"yaxis{number}"] = {
                "title": "" if column else theme.label(self._title, 24),
                **({"matches": f"y{first}", "showticklabels": False} if column else {}),
                "nticks": 5,
                **self._values,
            }
            yield name, number, axis

    def add(self, panel: str, trace: Plot) -> None:
        """Add a trace to a panel; the legend names each once."""
        legend = trace["name"] not in self._seen and len(trace["x"]) > 0
        self._seen.update([trace["name"]] if legend else [])
        self.panels.add(panel, **trace, legendgroup=trace["name"], showlegend=legend)

    def plot(self, title: str, **layout: Any) -> Plot:
        return self.panels.plot(title, self._axes, height=self._height + 160, **layout)


def _title(name: str, axis: Axis) -> str:
    shown, condition = theme.label(shortened(one_line(name), 32)), axis.condition()
    return (
        f"{shown}<br><span style='font-size:11px'>{theme.label(condition, 80)}</span>" if condition else shown
    )
