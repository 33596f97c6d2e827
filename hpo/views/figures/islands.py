"""What the islands contribute: their best over the campaign, which operators succeed on which, and who moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from hpo.results.analysis.island_success import SHARE, Success, migrations, success
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import distinct
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.value_range import drawable, value_range
from hpo.views.figures.source import NotDrawn, Source

_MOST_ISLANDS = 12
_MOST_OPERATORS = 8
_TOP, _ROW = 240, 30
"""Pixels of the upper panel, and of a row of the lower ones."""
_ENOUGH = 5
"""Evaluations below which a rate says nothing: their numbers are shown, without a colour."""


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of several islands, also while only some of them have results."""
    source = sources[0]
    found = success(source.record)
    if not source.completed:
        raise NotDrawn("no evaluation has completed")
    everyone = {island for _, island in found}
    for launch in source.record.launches:
        everyone.update(range(launch.launched.islands) if launch.launched else ())
    if len(everyone) < 2:
        raise NotDrawn("there is a single island")
    islands = sorted(everyone)[:_MOST_ISLANDS]
    operators = list(dict.fromkeys(operator for operator, _ in found))[:_MOST_OPERATORS]
    moves = migrations(source.record)
    lower = _ROW * max(len(operators), len(islands) if moves else 0, 2)
    heights = [_TOP, lower]
    panels = Panels(heights, 2, between=(100 / (sum(heights) + 100), 0.16))
    axes = _lines(panels, source, islands)
    axes |= _operators(panels, found, operators, islands)
    axes |= _moves(panels, moves, islands)
    return panels.plot("Islands", axes, height=sum(heights) + 100 + 130)


def _lines(panels: Panels, source: Source, islands: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The best of each island so far, over the evaluations of the campaign; what migrated counts where it was bred."""
    panel, sign = panels.panel(0, to=1), source.sign()
    values = [value for one in source.completed if (value := source.value(one)) is not None]
    for place, island in enumerate(islands):
        x: list[int] = []
        y: list[float] = []
        for one in source.completed:
            value = source.value(one)
            if one.island == island and value is not None and (not y or sign * value < sign * y[-1]):
                x.append(source.number[one.id])
                y.append(value)
        if not y:
            continue
        x.append(len(source.ended))
        y.append(y[-1])
        panels.add(
            panel,
            type="scatter",
            x=x,
            y=drawable(numpy.array(y)),
            mode="lines" if x[-1] > x[0] else "markers",  # a line of no length is not seen
            name=f"island {island}",
            line={
                "shape": "hv",
                "width": 2,
                "color": theme.SERIES[place % len(theme.SERIES)],
                "dash": "solid" if place < len(theme.SERIES) else "dot",
            },
            hovertemplate=f"island {island}: %{{y:.5g}} after %{{x}}<extra></extra>",
        )
    extent = value_range(values, source.objectives[source.objective])
    limits = extent.axis() if extent else {}
    if extent and (text := extent.note()):
        panels.notes.append(theme.note(text))
    return {
        "xaxis": {"title": "evaluations of all islands", "rangemode": "tozero"},
        "yaxis": {"title": f"best {theme.label(source.objective, 24)}", "nticks": 6, **limits},
    }


def _operators(
    panels: Panels,
    found: Mapping[tuple[str, int], Success],
    operators: Sequence[str],
    islands: Sequence[int],
) -> dict[str, dict[str, Any]]:
    """The share of an operator's evaluations that are among the best tenth of the campaign."""
    panel = panels.panel(1)
    rates, texts, boxes = [], [], []
    for operator in operators:
        own = [found.get((operator, island)) for island in islands]
        enough = [one is not None and one.ended >= _ENOUGH for one in own]
        rates.append([None if one is None else one.rate if each else 0.0 for one, each in zip(own, enough)])
        texts.append(
            [
                "" if one is None else f"{one.rate:.0%}" if each else f"{one.good} of {one.ended}"
                for one, each in zip(own, enough)
            ]
        )
        boxes.append(
            [
                "no evaluation"
                if one is None
                else f"{one.good} of {one.ended} evaluations among the best {SHARE:.0%}"
                for one in own
            ]
        )
    panels.add(
        panel,
        x=[str(island) for island in islands],
        y=[theme.label(operator) for operator in distinct([one_line(one) for one in operators], 16)],
        z=rates,
        text=texts,
        customdata=boxes,
        hovertemplate="%{y}, island %{x}: %{customdata}<extra></extra>",
        zmax=max([0.3, *(one or 0.0 for row in rates for one in row)]),
        **_cells(theme.BLUE),
    )
    panels.head(panel, "In the best tenth")
    return {
        "xaxis2": {"title": "island", **_side(len(islands))},
        "yaxis2": {**_side(len(operators), down=True), "showgrid": False},
    }


def _moves(
    panels: Panels, moves: Mapping[tuple[int, int], int], islands: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """How many individuals went from each island to each other."""
    panel = panels.panel(1, 1)
    counts = [[moves.get((start, end), 0) for end in islands] for start in islands]
    panels.add(
        panel,
        x=[str(island) for island in islands],
        y=[str(island) for island in islands],
        z=[[count or None for count in row] for row in counts],
        text=[[str(count) if count else "" for count in row] for row in counts],
        hovertemplate="%{z} from island %{y} to island %{x}<extra></extra>",
        zmax=max([1, *(max(row) for row in counts)]),
        **_cells(theme.GREEN),
    )
    panels.head(panel, "Moves")
    if not any(map(any, counts)):
        panels.note(
            text="no migration", xref="x3 domain", yref="y3 domain", x=0.5, y=0.5,
            font={"color": theme.MUTED, "size": 12},
        )  # fmt: skip
    return {
        "xaxis3": {"title": "to island", **_side(len(islands))},
        "yaxis3": {"title": "from island", **_side(len(islands), down=True), "showgrid": False},
    }


def _side(count: int, *, down: bool = False) -> dict[str, Any]:
    """An axis of a table that has ``count`` columns, or rows ``down``, also where no cell is filled."""
    ends = [-0.5, count - 0.5]
    return {"type": "category", "range": ends[::-1] if down else ends, "ticks": "", "showline": False}


def _cells(colour: str) -> dict[str, Any]:
    """How the tables in the second row look: cells the fuller of ``colour`` the larger their number is."""
    return {
        "type": "heatmap",
        "texttemplate": "%{text}",
        "textfont": {"size": 12, "color": theme.INK},
        "zmin": 0,
        "colorscale": [[0, theme.faint(colour, 0.04)], [1, theme.faint(colour, 0.5)]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }
