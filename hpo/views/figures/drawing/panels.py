"""Figures of several panels as plain data for plotly: its own objects cost more than everything that is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from hpo.views.figures.drawing import theme

Plot = dict[str, Any]
"""``data``, a list of traces, and ``layout``, as in plotly's JSON."""


class Panels:
    """Panels in rows and columns. ``heights``: heights of the rows in any unit; ``between``: spaces between rows and
    between columns as parts of the whole."""

    def __init__(
        self,
        heights: Sequence[float] = (1.0,),
        columns: int = 1,
        *,
        between: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        rows, aside = between
        scale = (1 - rows * (len(heights) - 1)) / sum(heights)
        ends = list(accumulate(height * scale for height in heights))
        self._rows = [
            (max(0.0, 1 - end - place * rows), 1 - end - place * rows + height * scale)
            for place, (end, height) in enumerate(zip(ends, heights))
        ]
        width = (1 - aside * (columns - 1)) / columns
        self._columns = [
            (place * (width + aside), place * (width + aside) + width) for place in range(columns)
        ]
        self._axes: Plot = {}
        self.traces: list[Plot] = []
        self.notes: list[Plot] = []
        self.shapes: list[Plot] = []

    def panel(self, row: int = 0, column: int = 0, *, to: int | None = None) -> str:
        """Make the panel in ``row`` and ``column``, up to the column ``to``; returns the ending of its axes' names: "",
        "2", …"""
        count = len(self._axes) // 2 + 1
        name = "" if count == 1 else str(count)
        across = [self._columns[column][0], self._columns[column if to is None else to][1]]
        self._axes[f"xaxis{name}"] = {"domain": across, "anchor": f"y{name}"}
        self._axes[f"yaxis{name}"] = {"domain": list(self._rows[row]), "anchor": f"x{name}"}
        return name

    def add(self, panel: str, **trace: Any) -> None:
        """Add a trace to a panel."""
        self.traces.append({"type": "scatter", **trace, "xaxis": f"x{panel}", "yaxis": f"y{panel}"})

    def note(self, text: str, **place: Any) -> None:
        """Add an annotation without an arrow."""
        self.notes.append({"text": text, "showarrow": False, "font": theme.SMALL, **place})

    def corner_note(self, lines: Sequence[str]) -> None:
        """Add text in the lower right corner of the figure."""
        place = {"xref": "paper", "yref": "paper", "x": 1, "y": 0.02, "xanchor": "right", "yanchor": "bottom"}
        self.note("<br>".join(lines), align="right", **place)

    def head(self, panel: str, text: str) -> None:
        """Add a heading above a panel; ``text`` must not come from a user."""
        place = {"xref": f"x{panel} domain", "yref": f"y{panel} domain", "x": 0, "y": 1, "yshift": 4}
        self.note(text, **place, xanchor="left", yanchor="bottom", font={"color": theme.MUTED, "size": 13})

    def plot(self, title: str, axes: Mapping[str, Mapping[str, Any]], **layout: Any) -> Plot:
        """The figure. ``axes``: looks of axes by name, such as ``yaxis2``; ``layout``: see :func:`theme.layout`."""
        placed = {name: {**place, **axes.get(name, {})} for name, place in self._axes.items()}
        whole = theme.layout(title, annotations=self.notes, shapes=self.shapes, **placed, **layout)
        return {"data": self.traces, "layout": whole}
