"""Contributions of islands: their best over the campaign, success of operators, and migrations."""

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
_TOP, _ROW = 240, 30  # pixels of the upper panel, and of a row of the lower panels
_ENOUGH = 5  # with fewer evaluations a rate says nothing: their numbers are shown, without a colour


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
    heights = [_TOP, _ROW * max(len(operators), len(islands) if moves else 0, 2)]
    panels = Panels(heights, 2, between=(100 / (sum(heights) + 100), 0.16))
    axes = _add_lines(panels, source, islands)
    axes |= _add_operators(panels, found, operators, islands)
    axes |= _add_moves(panels, moves, islands)
    return panels.plot("Islands", axes, height=sum(heights) + 100 + 130)


def _add_lines(panels: Panels, source: Source, islands: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Add the best of each island so far; a migrated individual counts for the island where it was bred."""
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
        colour = theme.SERIES[place % len(theme.SERIES)]
        dash = "solid" if place < len(theme.SERIES) else "dot"
        panels.add(
            panel,
            x=x,
            y=drawable(numpy.array(y)),
            mode="lines" if x[-1] > x[0] else "markers",  # a line of no length is invisible
            name=f"island {island}",
            line={"shape": "hv", "width": 2, "color": colour, "dash": dash},
            hovertemplate=f"island {island}: %{{y:.5g}} after %{{x}}<extra></extra>",
        )
    extent = value_range(values, source.objectives[source.objective])
    if extent and (text := extent.note()):
        panels.notes.append(theme.note(text))
    limits = extent.axis() if extent else {}
    return {
        "xaxis": {"title": "evaluations of all islands", "rangemode": "tozero"},
        "yaxis": {"title": f"best {theme.label(source.objective, 24)}", "nticks": 6, **limits},
    }


def _add_operators(
    panels: Panels,
    found: Mapping[tuple[str, int], Success],
    operators: Sequence[str],
    islands: Sequence[int],
) -> dict[str, dict[str, Any]]:
    panel = panels.panel(1)
    cells = [[_cell(found.get((operator, island))) for island in islands] for operator in operators]
    rates = [[rate for rate, _, _ in row] for row in cells]
    texts = [[text for _, text, _ in row] for row in cells]
    boxes = [[box for _, _, box in row] for row in cells]
    panels.add(
        panel,
        x=[str(island) for island in islands],
        y=[theme.label(operator) for operator in distinct([one_line(one) for one in operators], 16)],
        customdata=boxes,
        hovertemplate="%{y}, island %{x}: %{customdata}<extra></extra>",
        **_heatmap(rates, texts, theme.BLUE, least=0.3),
    )
    panels.head(panel, "In the best tenth")
    return {
        "xaxis2": {"title": "island", **_side(len(islands))},
        "yaxis2": {**_side(len(operators), down=True), "showgrid": False},
    }


def _cell(success: Success | None) -> tuple[float | None, str, str]:
    if success is None:
        return None, "", "no evaluation"
    box = f"{success.good} of {success.ended} evaluations among the best {SHARE:.0%}"
    if success.ended < _ENOUGH:
        return 0.0, f"{success.good} of {success.ended}", box
    return success.rate, f"{success.rate:.0%}", box


def _add_moves(
    panels: Panels, moves: Mapping[tuple[int, int], int], islands: Sequence[int]
) -> dict[str, dict[str, Any]]:
    panel = panels.panel(1, 1)
    counts = [[moves.get((start, end)) for end in islands] for start in islands]
    panels.add(
        panel,
        x=[str(island) for island in islands],
        y=[str(island) for island in islands],
        hovertemplate="%{z} from island %{y} to island %{x}<extra></extra>",
        **_heatmap(counts, [[str(count or "") for count in row] for row in counts], theme.GREEN, least=1),
    )
    panels.head(panel, "Moves")
    if not moves:
        panels.note("no migration", xref="x3 domain", yref="y3 domain", x=0.5, y=0.5)
    return {
        "xaxis3": {"title": "to island", **_side(len(islands))},
        "yaxis3": {"title": "from island", **_side(len(islands), down=True), "showgrid": False},
    }


def _side(count: int, *, down: bool = False) -> dict[str, Any]:
    """Axis of a table with ``count`` columns, or rows if ``down``, which may all be empty."""
    ends = [-0.5, count - 0.5]
    return {"type": "category", "range": ends[::-1] if down else ends, "ticks": "", "showline": False}


def _heatmap(
    values: Sequence[Sequence[float | None]], texts: Sequence[Sequence[str]], colour: str, least: float
) -> dict[str, Any]:
    """Cells with more of ``colour`` for larger values. ``least``: least value of the full colour."""
    return {
        "type": "heatmap",
        "z": values,
        "text": texts,
        "texttemplate": "%{text}",
        "textfont": {"size": 12, "color": theme.INK},
        "zmin": 0,
        "zmax": max([least, *(one or 0.0 for row in values for one in row)]),
        "colorscale": [[0, theme.faint(colour, 0.04)], [1, theme.faint(colour, 0.5)]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }
