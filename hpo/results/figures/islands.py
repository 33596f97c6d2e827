"""What the islands contribute: their best over the campaign, which operators succeed on which, and who moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpo.results.analysis.island_success import SHARE, Success, migrations, success
from hpo.results.figures.drawing import theme
from hpo.results.figures.drawing.panels import Panels, Plot
from hpo.results.figures.drawing.value_range import value_range
from hpo.results.figures.source import NotDrawn, Source

_MOST_ISLANDS = 12
_MOST_OPERATORS = 8
_TOP, _ROW = 240, 30
"""Pixels of the upper panel, and of a row of the lower ones."""
_ENOUGH = 5
"""Evaluations below which a rate says nothing, and has no colour."""


def draw(sources: Sequence[Source]) -> Plot:
    """With a single island its operators alone."""
    source = sources[0]
    found = success(source.record)
    if not source.completed:
        raise NotDrawn("no evaluation has completed")
    islands = sorted({island for _, island in found})[:_MOST_ISLANDS]
    operators = list(dict.fromkeys(operator for operator, _ in found))[:_MOST_OPERATORS]
    moves = migrations(source.record)
    several = len(islands) > 1
    lower = _ROW * max(len(operators), len(islands) if moves else 0, 2)
    heights = [_TOP, lower]
    panels = Panels(heights, 2, between=(100 / (sum(heights) + 100), 0.16))
    axes = _lines(panels, source, islands)
    axes |= _operators(panels, found, operators, islands, wide=not several)
    if several:
        axes |= _moves(panels, moves, islands)
    return panels.plot("Islands", axes, height=sum(heights) + 100 + 130)


def _lines(panels: Panels, source: Source, islands: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The best of each island so far, over the evaluations of the campaign; what migrated counts where it was bred."""
    panel, sign = panels.panel(0, to=1), source.sign()
    values = [value for one in source.completed if (value := source.value(one)) is not None]
    starts = []
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
        starts.append(y[min(len(y) - 1, 2)])
        x.append(len(source.ended))
        y.append(y[-1])
        panels.add(
            panel,
            type="scatter",
            x=x,
            y=y,
            mode="lines",
            name=f"island {island}",
            line={
                "shape": "hv",
                "width": 2,
                "color": theme.SERIES[place % len(theme.SERIES)],
                "dash": "solid" if place < len(theme.SERIES) else "dot",
            },
            hovertemplate=f"island {island}: %{{y:.5g}} after %{{x}}<extra></extra>",
        )
    best = sign * min(sign * one for one in values)
    extent = value_range([*starts, best], source.objectives[source.objective])
    limits = extent.axis() if extent else {}
    return {
        "xaxis": {"title": "evaluations of all islands", "rangemode": "tozero"},
        "yaxis": {"title": f"best {theme.label(source.objective, 24)}", "nticks": 6, **limits},
    }


def _operators(
    panels: Panels,
    found: Mapping[tuple[str, int], Success],
    operators: Sequence[str],
    islands: Sequence[int],
    *,
    wide: bool,
) -> dict[str, dict[str, Any]]:
    """The share of an operator's evaluations that are among the best tenth of the campaign."""
    panel = panels.panel(1, to=1 if wide else None)
    rates, texts, boxes = [], [], []
    for operator in operators:
        own = [found.get((operator, island)) for island in islands]
        rates.append([one.rate if one and one.ended >= _ENOUGH else None for one in own])
        texts.append(["" if one is None else f"{one.rate:.0%}" for one in own])
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
        y=[theme.label(operator, 16) for operator in operators],
        z=rates,
        text=texts,
        customdata=boxes,
        hovertemplate="%{y}, island %{x}: %{customdata}<extra></extra>",
        zmax=max([0.3, *(one or 0.0 for row in rates for one in row)]),
        **_cells(theme.BLUE),
    )
    panels.head(panel, "In the best tenth")
    return {
        "xaxis2": {"title": "island", "type": "category", "ticks": "", "showline": False},
        "yaxis2": {"autorange": "reversed", "showgrid": False, "type": "category"},
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
        "xaxis3": {"title": "to island", "type": "category", "ticks": "", "showline": False},
        "yaxis3": {"title": "from island", "autorange": "reversed", "showgrid": False, "type": "category"},
    }


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
