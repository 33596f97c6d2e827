"""Noise: repeated evaluations of the best configurations, with their means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    panels = Panels()
    _add_repeats(panels, panels.panel(), shown)
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"title": theme.label(source.objective), "showgrid": True, "nticks": 6},
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False},
    }
    return panels.plot("Noise", axes, height=_ROW * len(shown) + 160)


def _add_repeats(panels: Panels, panel: str, shown: Sequence[Repeated]) -> None:
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


def _box(one: Repeated) -> str:
    head = f"{theme.label(one.individual.id)}: {len(one.values)} evaluations, mean {theme.number(one.mean)}"
    if one.error is not None:
        head += f" ± {short(one.error)}"
    return f"{head}<br>{configuration(one.individual.params)}"
