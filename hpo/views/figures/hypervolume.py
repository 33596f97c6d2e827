"""The volume that the Pareto front dominates, over evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpo.results.analysis import pareto
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.source import NotDrawn, Source, thinned


def draw(sources: Sequence[Source]) -> Plot:
    """Of several campaigns up to one reference point, as only such volumes are comparable: the first one's, else the
    worst of each objective in all of them."""
    objectives = sources[0].objectives
    if len(objectives) < 2:
        raise NotDrawn("there is a single objective")
    alike = [one for one in sources if one.objectives == objectives]
    reference = next((one.record.reference for one in alike if one.record.reference), {})
    if not reference and len(alike) > 1:
        reference = _worst(alike)
    found = [(source, pareto.hypervolume(source.record, reference or None)) for source in alike]
    if not any(volume.last > 0 for _, volume in found):
        raise NotDrawn("no evaluation is better than the reference point in every objective")
    panels = Panels([1.0])
    panel = panels.panel(0)
    for (source, volume), colour in zip(found, theme.SERIES * len(found)):
        values = volume.values
        if not values:
            continue
        steps = [place for place in range(len(values)) if not place or values[place] != values[place - 1]]
        chosen = [steps[place] for place in thinned(len(steps), theme.MOST_POINTS // 2)]
        chosen.append(len(values) - 1)
        panels.add(
            panel,
            type="scatter",
            x=[volume.evaluations[place] for place in chosen],
            y=[volume.values[place] for place in chosen],
            mode="lines",
            line={"shape": "hv", "width": 2.5, "color": colour},
            name=theme.label(source.name, 24),
            showlegend=len(found) > 1,
            hovertemplate="%{y:.5g} after %{x} evaluations<extra></extra>",
        )
    at = found[0][1].reference
    panels.note(
        text="<br>".join(
            [
                "up to the worst of each:" if _guessed(sources) else "up to:",
                *(f"{theme.label(name, 20)} {theme.number(value)}" for name, value in at.items()),
            ]
        ),
        align="right",
        xref="paper", yref="paper", x=1, y=0.03, xanchor="right", yanchor="bottom",
        font={"color": theme.MUTED, "size": 12},
    )  # fmt: skip
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"title": "evaluations", "rangemode": "tozero"},
        "yaxis": {"title": "hypervolume", "rangemode": "tozero", "nticks": 6},
    }
    return panels.plot("Hypervolume", axes, height=theme.HEIGHT + 60)


def _guessed(sources: Sequence[Source]) -> bool:
    return not any(one.record.reference for one in sources)


def _worst(sources: Sequence[Source]) -> dict[str, float]:
    objectives = sources[0].objectives
    losses = [losses for one in sources for losses, _ in pareto.with_losses(one.record)]
    if not losses:
        return {}
    corner = [max(column) for column in zip(*losses)]
    return {name: sources[0].sign(name) * value for name, value in zip(objectives, corner)}
