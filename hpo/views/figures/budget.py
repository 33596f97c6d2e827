"""Safety of early stopping: correlation of intermediate and final values, and what halving would have kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo.results.analysis.fidelity import FEWEST, Correlation, Progress, correlations, kept, progress
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.source import NotDrawn, Source

_PATIENCE = (0, 1, 2)
_REDUCTION = 3
_DASHES = ("solid", "dash", "dot")


def draw(sources: Sequence[Source]) -> Plot:
    source = sources[0]
    if source.curves.empty:
        raise NotDrawn("no learning curves are on record")
    found = progress(source.record, source.curves)
    correlated = correlations(found)
    if len(correlated) < 2:
        raise NotDrawn(
            f"fewer than {FEWEST} evaluations with a learning curve have completed"
            if len(found.steps) > 1
            else "evaluations report at a single step"
        )
    panels = Panels([0.55, 0.45], between=(0.14, 0.0))
    upper, lower = panels.panel(0), panels.panel(1)
    _correlation(panels, upper, correlated)
    _kept(panels, lower, found)
    panels.head(upper, "Rank correlation with the final value")
    panels.head(lower, "Of the best tenth, kept by halving")
    steps = found.steps
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"showticklabels": False, "matches": "x2", "range": [0, steps[-1]]},
        "xaxis2": {"title": "step", "range": [0, steps[-1]]},
        "yaxis": {"title": "correlation", "range": [min(-0.05, *(one.low for one in correlated)), 1.03]},
        "yaxis2": {"title": "kept", "range": [0, 1.05], "tickformat": ".0%", "nticks": 4},
    }
    legend = {"x": 1, "xanchor": "right", "y": 0.01, "yanchor": "bottom"}
    return panels.plot("Early stopping: is it safe?", axes, height=480, legend=legend)


def _correlation(panels: Panels, panel: str, found: Sequence[Correlation]) -> None:
    steps = [one.step for one in found]
    panels.add(
        panel,
        x=[*steps, *steps[::-1]],
        y=[*(one.high for one in found), *(one.low for one in found[::-1])],
        fill="toself",
        fillcolor=theme.faint(theme.BLUE, 0.15),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    panels.add(
        panel,
        x=steps,
        y=[one.value for one in found],
        mode="lines+markers" if len(steps) < 30 else "lines",
        line={"color": theme.BLUE, "width": 2},
        marker={"size": 5},
        customdata=[[one.low, one.high, one.count] for one in found],
        hovertemplate="step %{x}: %{y:.2f} (%{customdata[0]:.2f} to %{customdata[1]:.2f}), "
        "%{customdata[2]} evaluations<extra></extra>",
        showlegend=False,
    )


def _kept(panels: Panels, panel: str, found: Progress) -> None:
    for patience, dash, colour in zip(_PATIENCE, _DASHES, (theme.VERMILION, theme.ORANGE, theme.GREEN)):
        shares = [
            (step, share)
            for step in found.steps
            if step > 0  # tasks may count from 0
            and (share := kept(found, min_steps=step, reduction=_REDUCTION, patience=patience)) is not None
        ]
        panels.add(
            panel,
            x=[step for step, _ in shares],
            y=[share for _, share in shares],
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            name=f"patience {patience}",
            hovertemplate=f"min_steps %{{x}}, patience {patience}: %{{y:.0%}} kept<extra></extra>",
        )
