"""A figure of several panels, as the plain data that plotly draws: making and checking its objects costs more than all
that is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from hpo.views.figures.drawing import theme

Plot = dict[str, Any]
"""``data``, a list of traces, and ``layout``, as plotly's JSON has them."""


class Panels:
    """Panels in rows and columns. ``heights``: of the rows, from above, in any unit; ``columns``: of equal width;
    ``between``: the space between rows and between columns, as a part of the whole."""

    def __init__(
        self, heights: Sequence[float], columns: int = 1, *, between: tuple[float, float] = (0.0, 0.0)
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

    def panel(self, row: int, column: int = 0, *, to: int | None = None) -> str:
        """Makes the panel in that row and column (from 0), up to the column ``to``; returns what its axes end in: "",
        "2", …"""
        count = len(self._axes) // 2 + 1
        name = "" if count == 1 else str(count)
        across = [self._columns[column][0], self._columns[column if to is None else to][1]]
        self._axes[f"xaxis{name}"] = {"domain": across, "anchor": f"y{name}"}
        self._axes[f"yaxis{name}"] = {"domain": list(self._rows[row]), "anchor": f"x{name}"}
        return name

    def add(self, panel: str, **trace: Any) -> None:
        """A trace in the panel of that name."""
        self.traces.append({**trace, "xaxis": f"x{panel}", "yaxis": f"y{panel}"})

    def note(self, **note: Any) -> None:
        """An annotation without an arrow."""
        self.notes.append({"showarrow": False, **note})

    def head(self, panel: str, text: str) -> None:
        """Writes ``text``, which is none of a user's, above a panel."""
        self.note(
            text=text,
            xref=f"x{panel} domain", yref=f"y{panel} domain", x=0, y=1, xanchor="left", yanchor="bottom", yshift=4,
            font={"color": theme.MUTED, "size": 13},
        )  # fmt: skip

    def plot(self, title: str, axes: Mapping[str, Mapping[str, Any]], **layout: Any) -> Plot:
        """The figure; ``axes``: how those of the panels look, by ``xaxis``, ``yaxis2`` and the like; ``layout``: as of
        :func:`theme.layout`."""
        placed = {name: {**place, **axes.get(name, {})} for name, place in self._axes.items()}
        whole = theme.layout(title, annotations=self.notes, shapes=self.shapes, **placed, **layout)
        return {"data": self.traces, "layout": whole}
