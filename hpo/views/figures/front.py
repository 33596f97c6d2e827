"""Several objectives: completed individuals, the Pareto front, its knee and the reference point; the hypervolume."""

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
from hpo.views.figures.drawing.thinning import thinned
from hpo.views.figures.drawing.value_range import ValueRange, drawable, value_range
from hpo.views.figures.source import NotDrawn, Source

if TYPE_CHECKING:
    from hpo.individual import Individual

_MOST_OBJECTIVES = 4
_PANEL = 230  # pixels
_MOST_BOXES = 1000  # with more marks, the boxes beside the pointer have no configuration


@dataclass(frozen=True, kw_only=True)
class _FrontOfCampaign:
    """Front and other individuals of a campaign, with their looks."""

    front: list[Individual]
    points: list[Individual]
    broken: list[Individual]
    """Individuals that break limits."""
    knee: Individual | None
    colour: str
    title: str  # empty for a single campaign
    number: int  # the campaign's place among those of the page
    foretold: Mapping[str, Mapping[str, float]]
    """Value by objective and id that a forest predicts which has not seen the evaluation; empty where it cannot."""


def front(sources: Sequence[Source]) -> Plot:
    """Figure of the first four objectives: a plane, or a panel for each pair of more than two objectives."""
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
            for trace in _traces(campaign, names[x], names[y], directions, extents):
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


def _campaign(source: Source, number: int, title: str) -> _FrontOfCampaign:
    front = pareto.front(source.record)
    if not front:
        raise NotDrawn("no evaluation keeps the limits")
    return _FrontOfCampaign(
        front=front,
        points=[one for _, one in pareto.with_losses(source.record)],
        broken=[] if title else [one for one in source.completed if one.breaks],
        knee=pareto.knee(front, source.objectives),
        colour=theme.SERIES[number % len(theme.SERIES)],
        title=title,
        number=number,
        foretold={} if title else _foretold(source),
    )


def _foretold(source: Source) -> dict[str, dict[str, float]]:
    try:
        return {name: source.importance(name).foretold for name in source.objectives}
    except NotDrawn:
        return {}


def _values(individuals: Sequence[Individual], name: str) -> list[float]:
    return [(one.objectives or {})[name] for one in individuals]


def _extent(campaigns: Sequence[_FrontOfCampaign], name: str, direction: str) -> ValueRange:
    """Range of an objective that holds the whole front, and other values unless they are far worse."""
    found = value_range([value for one in campaigns for value in _values(one.points, name)], direction)
    front = numpy.array([value for one in campaigns for value in _values(one.front, name)])
    ends = drawable(front[numpy.isfinite(front)])
    if found is None or not len(ends):
        raise NotDrawn("no evaluation has a finite value in each objective")
    further = max if direction == "minimize" else min
    return ValueRange(best=found.best, worst=further(found.worst, *ends), log=found.log)


def _traces(
    campaign: _FrontOfCampaign,
    x: str,
    y: str,
    directions: Mapping[str, str],
    extents: Mapping[str, ValueRange],
) -> list[Plot]:
    several, colour = bool(campaign.title), campaign.colour

    def scatter(individuals: Sequence[Individual], name: str, marker: dict[str, Any], **more: Any) -> Plot:
        whole = len(individuals) < _MOST_BOXES
        return {
            "x": list(map(extents[x].inside, _values(individuals, x))),
            "y": list(map(extents[y].inside, _values(individuals, y))),
            "name": name,
            "legendgroup": name,
            "marker": marker,
            "text": [_box(one, directions, whole=whole) for one in individuals],
            "customdata": [one.id for one in individuals],
            "meta": campaign.number,
            "hovertemplate": "%{text}<extra></extra>",
            "mode": "markers",
            **more,
        }

    points = [campaign.points[place] for place in thinned(len(campaign.points), theme.MOST_POINTS)]
    completed = {"color": theme.faint(colour, 0.35) if several else theme.GREY, "size": 5}
    found = [scatter(points, "completed", completed, showlegend=not several)]
    if campaign.broken:
        kept = [campaign.broken[place] for place in thinned(len(campaign.broken), theme.MOST_POINTS)]
        found.append(scatter(kept, "breaks a limit", theme.CROSS, showlegend=True))
    on_front = {"color": colour, "size": 8, "line": {"color": theme.PAPER, "width": 1}}
    steps = {}
    if len(directions) == 2:
        # Steps bound the dominated area: between two neighbours by x, the line keeps the y of the better in x.
        line = {"color": colour, "width": 1.5, "shape": "hv" if directions[x] == "minimize" else "vh"}
        steps = {"mode": "lines+markers", "line": line}
    front = sorted(campaign.front, key=lambda one: (one.objectives or {})[x])
    found.append(scatter(front, campaign.title or "front", on_front, showlegend=True, **steps))
    if both := [one for one in front if all(one.id in campaign.foretold.get(name, ()) for name in (x, y))]:
        lines: dict[str, list[float | None]] = {"x": [], "y": []}
        for one in both:
            for name, ends in zip((x, y), lines.values()):
                seen, unseen = (one.objectives or {})[name], campaign.foretold[name][one.id]
                ends += [extents[name].inside(seen), extents[name].inside(unseen), None]
        looks = {"mode": "lines+markers", "line": {"color": theme.VERMILION, "width": 1}, "hoverinfo": "skip"}
        looks["marker"] = {"color": theme.VERMILION, "size": 5, "symbol": "circle-open"}
        # Before the front, whose marks lie on the ends that were measured.
        found.insert(1, {**lines, **looks, "name": "predicted", "showlegend": True})
    if campaign.knee is not None:
        star = {**theme.STAR, "color": colour} if several else theme.STAR
        found.append(scatter([campaign.knee], "knee", star, showlegend=not several))
    return found


def _reference(reference: Mapping[str, float], extents: Mapping[str, ValueRange], x: str, y: str) -> Plot:
    return {
        "x": [extents[x].inside(reference[x])],
        "y": [extents[y].inside(reference[y])],
        "mode": "markers",
        "marker": {"symbol": "x-thin", "size": 12, "line": {"color": theme.INK, "width": 2}},
        "name": "reference",
        "hovertemplate": f"reference: {theme.number(reference[x])}, {theme.number(reference[y])}<extra></extra>",
    }


def _axis(name: str, direction: str, extent: ValueRange, *, titled: bool) -> dict[str, Any]:
    better = "higher" if direction == "maximize" else "lower"
    title = f"{theme.label(name, 24)} ({better} is better)" if titled else ""
    return {"title": title, "nticks": 6, **extent.axis(), "showgrid": True, "showticklabels": titled}


def _box(one: Individual, directions: Mapping[str, str], *, whole: bool) -> str:
    values = ", ".join(
        f"{theme.label(name, 20)} {theme.number((one.objectives or {})[name])}" for name in directions
    )
    head = f"{theme.label(one.id)}: {values}"
    return f"{head}<br>{configuration(one.params)}" if whole else head


def hypervolume(sources: Sequence[Source]) -> Plot:
    """Figure of the dominated volume over evaluations.

    Only volumes up to the same reference point are comparable: that of the first campaign with a reference point, or
    else the worst value of each objective in all campaigns."""
    objectives = sources[0].objectives
    if len(objectives) < 2:
        raise NotDrawn("there is a single objective")
    alike = [one for one in sources if one.objectives == objectives]
    given = next((one.record.reference for one in alike if one.record.reference), {})
    reference = given or (_worst(alike) if len(alike) > 1 else {})
    found = [(source, pareto.hypervolume(source.record, reference or None)) for source in alike]
    if not any(volume.last > 0 for _, volume in found):
        raise NotDrawn("no evaluation is better than the reference point in every objective")
    panels = Panels()
    panel = panels.panel()
    for (source, volume), colour in zip(found, theme.SERIES * len(found)):
        values = volume.values
        if not values:
            continue
        steps = [place for place in range(len(values)) if not place or values[place] != values[place - 1]]
        chosen = [steps[place] for place in thinned(len(steps), theme.MOST_POINTS // 2)]
        chosen.append(len(values) - 1)
        panels.add(
            panel,
            x=[volume.evaluations[place] for place in chosen],
            y=[values[place] for place in chosen],
            mode="lines",
            line={"shape": "hv", "width": 2.5, "color": colour},
            name=theme.label(source.name, 24),
            showlegend=len(found) > 1,
            hovertemplate="%{y:.5g} after %{x} evaluations<extra></extra>",
        )
    corner = found[0][1].reference
    shown = [f"{theme.label(name, 20)} {theme.number(value)}" for name, value in corner.items()]
    panels.corner_note(["up to:" if given else "up to the worst of each:", *shown])
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"title": "evaluations", "rangemode": "tozero"},
        "yaxis": {"title": "hypervolume", "rangemode": "tozero", "nticks": 6},
    }
    return panels.plot("Hypervolume", axes, height=theme.HEIGHT + 60)


def _worst(sources: Sequence[Source]) -> dict[str, float]:
    first = sources[0]
    losses = [losses for one in sources for losses, _ in pareto.with_losses(one.record)]
    corner = [max(column) for column in zip(*losses)]
    return {name: first.sign(name) * value for name, value in zip(first.objectives, corner)}
