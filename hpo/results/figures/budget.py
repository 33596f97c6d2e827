"""Whether early stopping is safe: what values on the way say about final ones, and what would have been stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hpo.individual import PRUNED
from hpo.results.fidelity import FEWEST, Correlation, Progress, correlations, kept, progress
from hpo.results.figures import theme
from hpo.results.figures.source import NotDrawn, Source
from hpo.results.figures.subplots import headed, placed

_PATIENCE = (0, 1, 2)
_REDUCTION = 3
_DASHES = ("solid", "dash", "dot")


def draw(sources: Sequence[Source]) -> go.Figure:
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
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.14, row_heights=[0.55, 0.45])
    _correlation(figure, correlated)
    _kept(figure, found)
    stopped = [
        step
        for one in source.record.individuals
        if one.status == PRUNED and isinstance(step := one.metrics.get("pruned_step"), int)
    ]
    first = min((one.step for one in source.record.reported), default=min(stopped, default=None))
    if first is not None:
        for row in (1, 2):
            figure.add_vline(x=first, line={"color": theme.MUTED, "dash": "dot", "width": 1}, row=row, col=1)
        figure.add_annotation(
            x=first, xref="x", y=0.02, yref="y domain", yanchor="bottom", xanchor="left", xshift=4,
            showarrow=False,
            text=f"first rung at {first}", font={"color": theme.MUTED, "size": 12},
        )  # fmt: skip
    headed(figure, "", "Rank correlation with the final value")
    headed(
        figure,
        "2",
        "Of the best tenth, kept by halving",
    )
    steps = found.steps
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"showticklabels": False, "range": [0, steps[-1]]},
        "xaxis2": {"title": "step", "range": [0, steps[-1]]},
        "yaxis": {"title": "correlation", "range": [min(-0.05, *(one.low for one in correlated)), 1.03]},
        "yaxis2": {"title": "kept", "range": [0, 1.05], "tickformat": ".0%", "nticks": 4},
    }
    figure.update_layout(
        theme.layout(
            "Early stopping: is it safe?",
            height=480,
            legend={"x": 1, "xanchor": "right", "y": 0.01, "yanchor": "bottom"},
            **placed(figure, axes),
        )
    )
    return figure


def _correlation(figure: go.Figure, found: Sequence[Correlation]) -> None:
    steps = [one.step for one in found]
    figure.add_scatter(
        x=[*steps, *steps[::-1]],
        y=[*(one.high for one in found), *(one.low for one in found[::-1])],
        fill="toself",
        fillcolor=theme.faint(theme.BLUE, 0.15),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=1,
    )
    figure.add_scatter(
        x=steps,
        y=[one.value for one in found],
        mode="lines+markers" if len(steps) < 30 else "lines",
        line={"color": theme.BLUE, "width": 2},
        marker={"size": 5},
        customdata=[[one.low, one.high, one.count] for one in found],
        hovertemplate="step %{x}: %{y:.2f} (%{customdata[0]:.2f} to %{customdata[1]:.2f}), "
        "%{customdata[2]} evaluations<extra></extra>",
        showlegend=False,
        row=1,
        col=1,
    )


def _kept(figure: go.Figure, found: Progress) -> None:
    for patience, dash, colour in zip(_PATIENCE, _DASHES, (theme.VERMILION, theme.ORANGE, theme.GREEN)):
        shares = [
            (step, share)
            for step in found.steps
            if (share := kept(found, min_steps=step, reduction=_REDUCTION, patience=patience)) is not None
        ]
        figure.add_scatter(
            x=[step for step, _ in shares],
            y=[share for _, share in shares],
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            name=f"patience {patience}",
            hovertemplate=f"min_steps %{{x}}, patience {patience}: %{{y:.0%}} kept<extra></extra>",
            row=2,
            col=1,
        )
