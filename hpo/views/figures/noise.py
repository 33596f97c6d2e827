"""Noise: repeated evaluations of the best configurations, and their spread beside that of all configurations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpo.results.analysis import pareto
from hpo.results.analysis.repeated import Repeated
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import configuration, short
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.source import NotDrawn, Source

_SHOWN = 8
_ROW = 30  # pixels


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of the best configurations that were evaluated more than once, best mean first."""
    source = sources[0]
    if len(source.objectives) > 1:
        raise NotDrawn("repeats are compared where there is one objective")
    found = pareto.repeated(source.record)
    again = [one for one in found if len(one.values) > 1]
    if not again:
        raise NotDrawn("no configuration was evaluated more than once on purpose (`reevaluate`)")
    shown = again[:_SHOWN]
    heights = [_ROW * len(shown), 3 * _ROW]
    panels = Panels(heights, between=(90 / (sum(heights) + 90), 0.0))
    upper, lower = panels.panel(0), panels.panel(1)
    _add_repeats(panels, upper, shown)
    spreads = _spreads(found)
    panels.add(
        lower,
        type="bar",
        x=[spread for _, spread in spreads],
        y=[name for name, _ in spreads],
        orientation="h",
        marker={"color": [theme.BLUE, theme.SKY, theme.GREY][: len(spreads)]},
        text=[short(spread) for _, spread in spreads],
        textposition="auto",
        hovertemplate="%{y}: %{x:.3g}<extra></extra>",
        showlegend=False,
        width=0.6,
    )
    panels.head(lower, "Standard deviation of repeats, and of what configurations bring")
    category = {"type": "category", "autorange": "reversed", "showgrid": False}
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"title": theme.label(source.objective), "showgrid": True, "nticks": 6},
        "yaxis": category,
        "xaxis2": {"title": theme.label(source.objective), "rangemode": "tozero", "nticks": 6},
        "yaxis2": category,
    }
    return panels.plot("Noise", axes, height=sum(heights) + 90 + 130)


def _add_repeats(panels: Panels, panel: str, shown: Sequence[Repeated]) -> None:
    """Each repeat of the configurations, and their means with standard errors."""
    names = [f"{theme.label(one.individual.id)}, {len(one.values)} times" for one in shown]
    panels.add(
        panel,
        x=[value for one in shown for value in one.values],
        y=[name for name, one in zip(names, shown) for _ in one.values],
        mode="markers",
        marker={"color": theme.GREY, "size": 6},
        name="each evaluation",
        hovertemplate="%{y}: %{x:.5g}<extra></extra>",
    )
    panels.add(
        panel,
        x=[one.mean for one in shown],
        y=names,
        mode="markers",
        marker={**theme.STAR, "color": theme.BLUE, "size": 10, "symbol": "diamond"},
        error_x={"array": [one.error for one in shown], "color": theme.BLUE, "thickness": 2, "width": 5},
        name="mean ± standard error",
        text=[_box(one) for one in shown],
        hovertemplate="%{text}<extra></extra>",
    )


def _spreads(found: Sequence[Repeated]) -> list[tuple[str, float]]:
    """Standard deviations of repeats around their means (pooled), and of the means of the better half of the
    configurations and of all. A few far outliers do not count."""
    squares = [(value - one.mean) ** 2 for one in found for value in one.values]
    freedom = sum(len(one.values) - 1 for one in found)
    means = numpy.array([one.mean for one in found])
    estimates = numpy.array([one.estimate.mean for one in found])
    better = means[numpy.argsort(estimates, kind="stable")[: max(2, len(means) // 2)]]
    spreads = [("repeats", float(numpy.sqrt(sum(squares) / freedom)))]
    if len(means) > 2:
        spreads.append(("better half", float(numpy.std(better, ddof=1))))
        spreads.append(("configurations", _without_outliers(means)))
    return spreads


def _without_outliers(values: numpy.ndarray[Any, Any]) -> float:
    low, high = numpy.quantile(values, (0.25, 0.75))
    width = 3 * (high - low)
    inside = values[(values >= low - width) & (values <= high + width)]
    return float(numpy.std(inside, ddof=1))


def _box(one: Repeated) -> str:
    head = f"{theme.label(one.individual.id)}: {len(one.values)} evaluations, mean {theme.number(one.mean)}"
    if one.error is not None:
        head += f" ± {short(one.error)}"
    return f"{head}<br>{configuration(one.individual.params)}"
