"""Parallel coordinates: a line for each individual, an axis for each parameter by importance, the objectives last.

Pages draw :func:`content` by a script (``hpo/views/report/assets/parallel.js``), because plotly's parallel coordinates
need ``eval``, which pages forbid. Notebooks get :func:`draw`, which makes scatter lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import distinct, distinguishable
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.parameter_axis import Axis, rounds
from hpo.views.figures.drawing.thinning import best_and_spread
from hpo.views.figures.drawing.value_range import value_range
from hpo.views.figures.source import NotDrawn, Source, important

if TYPE_CHECKING:
    from hpo.individual import Individual

_MOST_LINES = 1200
_MOST_AXES = 60
_GAP = 0.3  # part of the space between two axes that a line leaves open on both sides of an axis without its place
SHOWN = 10  # axes at first; a page shows the others when it is asked to
_BANDS = (
    (0.1, "best tenth", theme.BLUE, 0.75),
    (0.35, "next quarter", theme.SKY, 0.5),
    (1.0, "others", theme.GREY, 0.35),
)


class Band(msgspec.Struct, kw_only=True):
    """Lines of one colour."""

    title: str
    colour: str
    opacity: float


class Coordinate(msgspec.Struct, kw_only=True):
    """One axis, with places from 0 to 1 and plain texts."""

    name: str
    note: str
    ticks: list[tuple[float, str]]
    places: list[float | None]  # place of each line; None if the parameter does not exist in it


class Lines(msgspec.Struct, kw_only=True):
    """Data of the figure. Lines are in descending order of their losses."""

    objective: str
    axes: list[Coordinate]
    bands: list[Band]  # bands, the worst last
    ids: list[str]
    values: list[str]
    band: list[int]  # index of each line's band
    shown: int  # number of parameters that are shown at first
    objectives: int  # number of axes at the end that are no parameters
    left_out: int  # number of lines that are left out


def content(sources: Sequence[Source]) -> Lines:
    """Data for the page's script."""
    source = sources[0]
    sign = source.sign()
    ended = [one for one in source.completed if source.value(one) is not None]
    names = important(source)[:_MOST_AXES]
    if len(ended) < 2:
        raise NotDrawn("fewer than two evaluations have completed")
    if not names or source.space is None:
        raise NotDrawn("no parameter has more than one value")

    def loss(one: Individual) -> float:
        return sign * (source.value(one) or 0.0)

    order = {one.id: place / len(ended) for place, one in enumerate(sorted(ended, key=loss))}
    lines = sorted(best_and_spread(ended, _MOST_LINES, loss=loss), key=loss, reverse=True)
    axes = []
    for name in names:
        axis = Axis(parameter=source.space.parameters[name])
        axes.append(
            Coordinate(
                name=one_line(name),
                note=axis.condition(),
                ticks=[(round(place, 4), text) for place, text in axis.ticks()],
                places=[
                    None if name not in one.params else _rounded(axis.place(one.params[name]))
                    for one in lines
                ],
            )
        )
    objectives = [*[name for name in source.objectives if name != source.objective], source.objective]
    axes += [_objective(source, name, lines) for name in objectives]
    return Lines(
        objective=one_line(source.objective),
        axes=axes,
        bands=[Band(title=title, colour=colour, opacity=opacity) for _, title, colour, opacity in _BANDS],
        ids=[one.id for one in lines],
        values=[theme.number(source.value(one)) for one in lines],
        band=[next(place for place, band in enumerate(_BANDS) if order[one.id] < band[0]) for one in lines],
        shown=min(SHOWN, len(names)),
        objectives=len(objectives),
        left_out=len(ended) - len(lines),
    )


def _objective(source: Source, name: str, lines: Sequence[Individual]) -> Coordinate:
    """Axis of an objective; values far worse than the others lie at its end."""
    values = [source.value(one, name) for one in lines]
    direction = source.objectives[name]
    extent = value_range([one for one in values if one is not None], direction, source.default_value(name))
    if extent is None:
        return Coordinate(name=one_line(name), note="", ticks=[], places=[None] * len(lines))
    low, high = sorted((extent.place(extent.best), extent.place(extent.worst)))
    width = (high - low) or abs(low) / 10 or 1.0  # 1 is no difference between large numbers
    ticks = rounds(low, low + width, 6, whole=extent.log and width > 2)
    texts = distinguishable([extent.value_at(at) for at in ticks])
    return Coordinate(
        name=one_line(name),
        note="higher is better" if direction == "maximize" else "lower is better",
        ticks=[(round((at - low) / width, 4), text) for at, text in zip(ticks, texts)],
        places=[
            None if one is None else _rounded((extent.place(extent.inside(one)) - low) / width)
            for one in values
        ],
    )


def _rounded(place: float | None) -> float | None:
    return None if place is None else round(place, 4)


def _path(places: Sequence[float | None]) -> list[tuple[float | None, float | None]]:
    """Path of a line, straight between the axes on which it has a place, and open around the others."""
    found: list[tuple[float | None, float | None]] = []
    before: tuple[int, float] | None = None
    for axis, place in enumerate(places):
        if place is None:
            continue
        if before is not None:
            start, origin = before
            slope = (place - origin) / (axis - start)
            for without in range(start + 1, axis):
                ends = (without - _GAP, without + _GAP)
                left, right = ((at, origin + slope * (at - start)) for at in ends)
                found += [left, (None, None), right]
        found.append((axis, place))
        before = axis, place
    return found


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of the first ten axes and the objectives."""
    found = content(sources)
    axes = [*found.axes[: found.shown], *found.axes[-found.objectives :]]
    panels = Panels()
    panel = panels.panel()
    for number, band in reversed(list(enumerate(found.bands))):
        x: list[float | None] = []
        y: list[float | None] = []
        texts: list[str | None] = []
        for line in (place for place, one in enumerate(found.band) if one == number):
            box = f"{theme.label(found.ids[line])}: {theme.label(found.objective, 24)} {found.values[line]}"
            path = _path([one.places[line] for one in axes])
            x += [*(at for at, _ in path), None]
            y += [*(place for _, place in path), None]
            texts += [box] * (len(path) + 1)
        panels.add(
            panel,
            x=x,
            y=y,
            text=texts,
            mode="lines",
            name=band.title,
            line={"color": theme.faint(band.colour, band.opacity), "width": 1.2},
            hovertemplate="%{text}<extra></extra>",
        )
    best = _path([one.places[-1] for one in axes])
    panels.add(
        panel,
        x=[at for at, _ in best],
        y=[place for _, place in best],
        mode="lines",
        name="best",
        line={"color": theme.ORANGE, "width": 3},
        hoverinfo="skip",
    )
    for number, coordinate in enumerate(axes):
        ends = {"x0": number, "x1": number, "y0": 0, "y1": 1}
        panels.shapes.append({"type": "line", **ends, "line": {"color": theme.MUTED, "width": 1}})
        look = {
            "font": {"size": 11, "color": theme.MUTED},
            "bgcolor": theme.faint(theme.PAPER, 0.7),
            "borderpad": 0,
        }
        for place, text in coordinate.ticks:
            panels.note(theme.label(text), x=number, y=place, xanchor="left", xshift=3, **look)
    across = {
        "tickvals": list(range(len(axes))),
        "ticktext": [theme.label(one) for one in distinct([one.name for one in axes], 16)],
        "range": [-0.15, len(axes) - 0.6],
        "showline": False,
        "ticks": "",
    }
    up = {"visible": False, "range": [-0.04, 1.04]}
    legend = {"traceorder": "reversed"}
    return panels.plot("Parallel coordinates", {"xaxis": across, "yaxis": up}, height=480, legend=legend)
