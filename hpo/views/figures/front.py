"""Several objectives: all that completed, the Pareto front among them, its knee and the reference point; and the
volume that the front dominates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy

from hpo.results.analysis import pareto
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import configuration
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.value_range import ValueRange, drawable, value_range
from hpo.views.figures.source import NotDrawn, Source, thinned

if TYPE_CHECKING:
    from hpo.individual import Individual

_MOST_OBJECTIVES = 4
_PANEL = 230
"""Pixels."""


@dataclass(frozen=True, kw_only=True)
class _Campaign:
    """``front``: by the first objective, best first; ``points``: those that completed or were known; ``colour``: of
    its front; ``title``: "" where it is the only one."""

    source: Source
    front: list[Individual]
    points: list[Individual]
    knee: Individual | None
    colour: str
    title: str
    number: int
    """The campaign's place among those of the page."""


_MOST_BOXES = 1000
"""Of more marks, the boxes beside the pointer have no configuration."""


def front(sources: Sequence[Source]) -> Plot:
    """Of two objectives a plane, of three or four (of more the first four) a panel for each pair."""
    directions = dict(list(sources[0].objectives.items())[:_MOST_OBJECTIVES])
    if len(directions) < 2:
        raise NotDrawn("there is a single objective")
    campaigns = [
        _campaign(source, number, theme.label(source.name, 24) if len(sources) > 1 else "")
        for number, source in enumerate(sources)
        if directions.items() <= source.objectives.items()
    ]
    if not any(one.points for one in campaigns):
        raise NotDrawn("no evaluation has completed")
    extents = {name: _extent(campaigns, name, direction) for name, direction in directions.items()}
    names = list(directions)
    size = len(names) - 1
    panels = Panels([1] * size, size, between=(0.04, 0.03))
    axes: dict[str, dict[str, Any]] = {}
    reference = sources[0].record.reference
    for x, y in combinations(range(len(names)), 2):
        panel = panels.panel(y - 1, x)
        for campaign in campaigns:
            for trace in _traces(campaign, names[x], names[y], directions, extents, joined=size == 1):
                panels.add(panel, **{**trace, "showlegend": trace["showlegend"] and not panel})
        if reference:
            panels.add(panel, **_reference(reference, extents, names[x], names[y]), showlegend=not panel)
        axes[f"xaxis{panel}"] = _axis(names[x], directions[names[x]], extents[names[x]], titled=y == size)
        axes[f"yaxis{panel}"] = _axis(names[y], directions[names[y]], extents[names[y]], titled=x == 0)
    return panels.plot(
        "Pareto front" if size == 1 else f"Pareto front of {len(names)} objectives",
        axes,
        height=theme.HEIGHT + 60 if size == 1 else 130 + size * _PANEL,
    )


def _campaign(source: Source, number: int, title: str) -> _Campaign:
    front = pareto.front(source.record)
    return _Campaign(
        source=source,
        front=front,
        points=[one for _, one in pareto.with_losses(source.record)],
        knee=pareto.knee(front, source.objectives),
        colour=theme.SERIES[number % len(theme.SERIES)],
        title=title,
        number=number,
    )


def _extent(campaigns: Sequence[_Campaign], name: str, direction: str) -> ValueRange:
    """Of an objective: the whole front is inside, with what is not far worse."""
    front = [(one.objectives or {})[name] for campaign in campaigns for one in campaign.front]
    found = value_range(((one.objectives or {})[name] for two in campaigns for one in two.points), direction)
    worst = value_range(front, direction)
    if found is None or worst is None:
        raise NotDrawn("no evaluation has a finite value in each objective")
    further = max if direction == "minimize" else min
    ends = drawable(numpy.array([value for value in front if abs(value) != float("inf")]))
    return ValueRange(best=found.best, worst=further(found.worst, *ends), log=found.log)


def _traces(
    campaign: _Campaign,
    x: str,
    y: str,
    directions: Mapping[str, str],
    extents: Mapping[str, ValueRange],
    *,
    joined: bool,
) -> list[Plot]:
    """``joined``: a line of steps along the front, which bounds what it dominates; of two objectives only."""
    several = bool(campaign.title)
    keep = thinned(len(campaign.points), theme.MOST_POINTS)
    points = [campaign.points[place] for place in keep]

    def scatter(ones: Sequence[Individual], name: str, marker: dict[str, Any], **more: Any) -> Plot:
        return {
            "type": "scatter",
            "x": [extents[x].inside((one.objectives or {})[x]) for one in ones],
            "y": [extents[y].inside((one.objectives or {})[y]) for one in ones],
            "name": name,
            "legendgroup": name,
            "marker": marker,
            "text": [_box(one, directions, whole=len(ones) < _MOST_BOXES) for one in ones],
            "customdata": [one.id for one in ones],
            "meta": campaign.number,
            "hovertemplate": "%{text}<extra></extra>",
            "mode": "markers",
            **more,
        }

    colour = campaign.colour
    found = [
        scatter(
            points,
            "completed",
            {"color": theme.faint(colour, 0.35) if several else theme.GREY, "size": 5},
            showlegend=not several,
        )
    ]
    # The line goes along the worse side: of two neighbours by x, it keeps the one's y until the other's x.
    line = {"color": colour, "width": 1.5, "shape": "hv" if directions[x] == "minimize" else "vh"}
    front = sorted(campaign.front, key=lambda one: (one.objectives or {})[x])
    found.append(
        scatter(
            front,
            campaign.title or "front",
            {"color": colour, "size": 8, "line": {"color": theme.PAPER, "width": 1}},
            showlegend=True,
            **({"mode": "lines+markers", "line": line} if joined else {}),
        )
    )
    if campaign.knee is not None:
        star = {"color": theme.ORANGE if not several else colour, "symbol": "star", "size": 15}
        star["line"] = {"color": theme.PAPER, "width": 1}
        found.append(scatter([campaign.knee], "knee", star, showlegend=not several))
    return found


def _reference(reference: Mapping[str, float], extents: Mapping[str, ValueRange], x: str, y: str) -> Plot:
    return {
        "type": "scatter",
        "x": [extents[x].inside(reference[x])],
        "y": [extents[y].inside(reference[y])],
        "mode": "markers",
        "marker": {"symbol": "x-thin", "size": 12, "line": {"color": theme.INK, "width": 2}},
        "name": "reference",
        "hovertemplate": f"reference: {theme.number(reference[x])}, {theme.number(reference[y])}<extra></extra>",
    }


def _axis(name: str, direction: str, extent: ValueRange, *, titled: bool) -> dict[str, Any]:
    better = "higher" if direction == "maximize" else "lower"
    return {
        "title": f"{theme.label(name, 24)} ({better} is better)" if titled else "",
        "nticks": 6,
        **extent.axis(),
        "showgrid": True,
        "showticklabels": titled,
    }


def _box(one: Individual, directions: Mapping[str, str], *, whole: bool) -> str:
    values = ", ".join(
        f"{theme.label(name, 20)} {theme.number((one.objectives or {})[name])}" for name in directions
    )
    head = f"{theme.label(one.id)}: {values}"
    return f"{head}<br>{configuration(one.params)}" if whole else head


# --- hypervolume ------------------------------------------------------------------------------------------------------


def hypervolume(sources: Sequence[Source]) -> Plot:
    """The volume that the front dominates, over evaluations. Several campaigns have one reference point, as only such
    volumes are comparable: that of the first which has any, else the worst of each objective in all of them."""
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
