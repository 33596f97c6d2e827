"""What the islands contribute: their best over the campaign, which operators succeed on which, and who moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hpo.results.figures import theme
from hpo.results.figures.source import NotDrawn, Source
from hpo.results.figures.subplots import headed, placed
from hpo.results.figures.value_range import value_range
from hpo.results.island_success import SHARE, Success, migrations, success

_MOST_ISLANDS = 12
_MOST_OPERATORS = 8
_TOP, _ROW = 240, 30
"""Pixels of the upper panel, and of a row of the lower ones."""
_ENOUGH = 5
"""Evaluations below which a rate says nothing, and has no colour."""


def draw(sources: Sequence[Source]) -> go.Figure:
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
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"colspan": 2}, None], [{}, {}]]
        if several
        else [[{"colspan": 2}, None], [{"colspan": 2}, None]],
        row_heights=heights,
        vertical_spacing=100 / (sum(heights) + 100),
        horizontal_spacing=0.16,
    )
    axes = _lines(figure, source, islands)
    axes |= _operators(figure, found, operators, islands)
    if several:
        axes |= _moves(figure, moves, islands)
    figure.update_layout(theme.layout("Islands", height=sum(heights) + 100 + 130, **placed(figure, axes)))
    return figure


def _lines(figure: go.Figure, source: Source, islands: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The best of each island so far, over the evaluations of the campaign; what migrated counts where it was bred."""
    sign = source.sign()
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
        figure.add_scatter(
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
            row=1,
            col=1,
        )
    best = sign * min(sign * one for one in values)
    extent = value_range([*starts, best], source.objectives[source.objective])
    limits = {"type": "log" if extent.log else "linear", "range": extent.limits()} if extent else {}
    return {
        "xaxis": {"title": "evaluations of all islands", "rangemode": "tozero"},
        "yaxis": {"title": f"best {theme.label(source.objective, 24)}", "nticks": 6, **limits},
    }


def _operators(
    figure: go.Figure,
    found: Mapping[tuple[str, int], Success],
    operators: Sequence[str],
    islands: Sequence[int],
) -> dict[str, dict[str, Any]]:
    """The share of an operator's evaluations that are among the best tenth of the campaign."""
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
    figure.add_heatmap(
        x=[str(island) for island in islands],
        y=[theme.label(operator, 16) for operator in operators],
        z=rates,
        text=texts,
        customdata=boxes,
        hovertemplate="%{y}, island %{x}: %{customdata}<extra></extra>",
        zmax=max([0.3, *(one or 0.0 for row in rates for one in row)]),
        col=1,
        **_cells(theme.BLUE),
    )
    headed(figure, "2", "In the best tenth")
    return {
        "xaxis2": {"title": "island", "type": "category", "ticks": "", "showline": False},
        "yaxis2": {"autorange": "reversed", "showgrid": False, "type": "category"},
    }


def _moves(
    figure: go.Figure, moves: Mapping[tuple[int, int], int], islands: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """How many individuals went from each island to each other."""
    counts = [[moves.get((start, end), 0) for end in islands] for start in islands]
    figure.add_heatmap(
        x=[str(island) for island in islands],
        y=[str(island) for island in islands],
        z=[[count or None for count in row] for row in counts],
        text=[[str(count) if count else "" for count in row] for row in counts],
        hovertemplate="%{z} from island %{y} to island %{x}<extra></extra>",
        zmax=max([1, *(max(row) for row in counts)]),
        col=2,
        **_cells(theme.GREEN),
    )
    headed(figure, "3", "Moves")
    if not any(map(any, counts)):
        figure.add_annotation(
            text="no migration", xref="x3 domain", yref="y3 domain", x=0.5, y=0.5, showarrow=False,
            font={"color": theme.MUTED, "size": 12},
        )  # fmt: skip
    return {
        "xaxis3": {"title": "to island", "type": "category", "ticks": "", "showline": False},
        "yaxis3": {"title": "from island", "autorange": "reversed", "showgrid": False, "type": "category"},
    }


def _cells(colour: str) -> dict[str, Any]:
    """How the tables in the second row look: cells the fuller of ``colour`` the larger their number is."""
    return {
        "texttemplate": "%{text}",
        "textfont": {"size": 12, "color": theme.INK},
        "zmin": 0,
        "colorscale": [[0, theme.faint(colour, 0.04)], [1, theme.faint(colour, 0.5)]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "row": 2,
    }
