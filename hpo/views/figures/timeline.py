"""Timeline of the time at work: a row for each worker, a bar for each evaluation, and behind the bars an area for each
launch, where launches were at work together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from hpo.individual import LOST, RUNNING, STATUSES
from hpo.results.launch import Launch, seconds_of
from hpo.results.parts import Part
from hpo.views import text
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.source import NotDrawn, Source

_ROW, _LEAST, _MOST = 18, 140, 1100  # pixels of a row, and of all rows
_GAP = 0.6  # part of a row between islands
_MOST_LABELS = 48
_MOST_WORDED = 3000  # with more parts, only a page's details say what each was
_MOST_LAUNCHES = 12  # that are named


@dataclass(kw_only=True)
class _Bar:
    """An evaluation, or ``count`` evaluations of the same status that are too short to be distinguished. Times are in
    the axis's unit."""

    row: float
    begins: float
    ends: float
    status: str
    words: str
    count: int = 1


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of a single campaign."""
    (source,) = sources
    parts = source.record.parts
    if not parts:
        raise NotDrawn("no evaluation has begun")
    ends = _ends(source, parts)
    rows, height = _rows(source, parts)
    begins, finishes = source.at_work([part.started for part in parts]), source.at_work(ends)
    unit, seconds = theme.time_unit(float(finishes.max()))
    begins, finishes = begins / seconds, finishes / seconds
    whole = float(finishes.max()) or 1.0
    bars = [
        _Bar(
            row=rows[part.place[1:]],
            begins=float(begin),
            ends=float(max(end, begin)),
            status=part.status,
            words=_words(source, part, end_s - part.started) if len(parts) <= _MOST_WORDED else part.id,
        )
        for part, begin, end, end_s in zip(parts, begins, finishes, ends, strict=True)
    ]
    panels = Panels()
    panel = panels.panel()
    merged = _merged(bars, whole)
    for status in STATUSES:
        if own := [bar for bar in merged if bar.status == status]:
            _add_bars(panels, panel, own, status, edge=0.5 if len(merged) < 1500 else 0.0)
    resumed = [bar for bar, part in zip(bars, parts) if part.resumed]
    _add_marks(panels, panel, source, resumed, rows, seconds)
    together = _together(source.record.launches)
    if together:
        _add_launches(panels, source, rows, seconds)
    launches = [] if together else [at / seconds for at in source.later_launches]
    above = 1.1 * max(1.0, height / 12) if launches else 0.0  # rows for the names of launches
    for launch, at in list(zip(source.record.launches[1:], launches))[:_MOST_LAUNCHES]:
        began = time.strftime("%-d %b %H:%M", time.localtime(launch.started))
        place = {"x": at, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 2}
        font = {"size": 11, "color": theme.MUTED}
        panels.note(f"launch {launch.number}, {began}", **place, font=font)
    panels.shapes += [theme.vertical(at, theme.INK) for at in launches]
    labelled = list(rows.items())[:: -(-len(rows) // _MOST_LABELS)]
    axes: dict[str, dict[str, Any]] = {
        "xaxis": {"title": f"{unit} at work", "range": [0, whole * 1.005]},
        "yaxis": {
            "title": "worker",
            "range": [height - 0.4, -0.6 - above],
            "showgrid": False,
            "tickvals": [row for _, row in labelled],
            "ticktext": [f"{island}-{worker}" for (island, worker), _ in labelled],
        },
    }
    pixels = int(min(_MOST, max(_LEAST, _ROW * (height + above)))) + 130
    title = f"Workers were busy {text.percent(busy_share(source) or 0.0)} of the time"
    return panels.plot(title, axes, height=pixels, barmode="overlay", bargap=0)


def _together(launches: Sequence[Launch]) -> bool:
    """Whether any two launches were at work at the same time."""
    spans = [(one.started, one.updated) for one in launches]
    return seconds_of(spans) < 0.999 * sum(updated - started for started, updated in spans)


def _add_launches(panels: Panels, source: Source, rows: dict[tuple[int, int], float], unit_s: float) -> None:
    """Add an area for each launch, over its time and the rows of its workers on each island, with its number."""
    launches = source.record.launches
    spans = source.at_work([at for one in launches for at in (one.started, one.updated)]) / unit_s
    own: dict[tuple[int, int], list[float]] = defaultdict(list)
    for number, island, worker in {*source.record.hosts, *(part.place for part in source.record.parts)}:
        own[number, island].append(rows[island, worker])
    for launch, begins, ends in zip(launches, spans[::2], spans[1::2]):
        for (number, _), places in own.items():
            if number == launch.number:
                top, bottom = min(places) - 0.5, max(places) + 0.5
                corners = {"x0": float(begins), "x1": float(ends), "y0": top, "y1": bottom}
                area = {"fillcolor": theme.GRID, "line": {"width": 0}, "layer": "below"}
                panels.shapes.append({"type": "rect", "xref": "x", "yref": "y", **corners, **area})
                if len(launches) <= _MOST_LABELS:
                    place = {"x": float(ends), "y": top, "xanchor": "right", "yanchor": "top"}
                    panels.note(f"launch {number}", **place, font={"size": 11, "color": theme.MUTED})


def _rows(source: Source, parts: Sequence[Part]) -> tuple[dict[tuple[int, int], float], float]:
    workers = sorted({part.place[1:] for part in parts} | {place[1:] for place in source.record.hosts})
    islands = sorted({island for island, _ in workers})
    rows = {worker: place + _GAP * islands.index(worker[0]) for place, worker in enumerate(workers)}
    return rows, max(rows.values()) + 1


def _ends(source: Source, parts: Sequence[Part]) -> list[float]:
    """End of each part; a part without an end lasts until the next of its worker, or until the end of its launch."""
    launches = {one.number: one for one in source.record.launches}
    after: dict[tuple[int, int, int], float] = {}
    ends = []
    for part in reversed(parts):
        end = part.finished
        if end is None:
            launch = launches.get(part.place[0])
            end = after.get(part.place, launch.updated if launch else part.started)
            if part.status == RUNNING and source.record.alive:
                end = max(end, time.time())
        after[part.place] = part.started
        ends.append(max(end, part.started))
    return ends[::-1]


def busy_share(source: Source) -> float | None:
    """Share of the workers' time that evaluations took, all launches together; None before the first evaluation."""
    parts = source.record.parts
    if not parts:
        return None
    ends = _ends(source, parts)
    evaluating = sum(end - part.started for part, end in zip(parts, ends, strict=True))
    places = defaultdict(set)
    last: dict[int, float] = {}
    for place in [*source.record.hosts, *(part.place for part in parts)]:
        places[place[0]].add(place)
    for part, end in zip(parts, ends, strict=True):
        last[part.place[0]] = max(end, last.get(part.place[0], end))
    available = 0.0
    for launch in source.record.launches:
        workers = launch.launched.workers if launch.launched else 0
        until = max(launch.updated, last.get(launch.number, launch.updated))
        available += max(workers, len(places[launch.number])) * (until - launch.started)
    return min(1.0, evaluating / available) if available > 0 else 0.0


def _words(source: Source, part: Part, seconds: float) -> str:
    host = source.record.hosts.get(part.place)
    where = f" on {theme.label(host)}" if host else ""
    again = ", resumed" if part.resumed else ""
    return f"{part.id}: {part.status}{again}, {text.duration(seconds)}<br>launch {part.place[0]}{where}"


def _merged(bars: Iterable[_Bar], span: float) -> list[_Bar]:
    """Bars, of which those of a row and status that are too close to be distinguished are merged."""
    found = list(bars)
    apart = span / 4000
    # Each row and status keeps a bar, however many rows there are.
    fewest = len({(bar.row, bar.status) for bar in found})
    while len(found) > max(theme.MOST_POINTS, fewest):
        groups: dict[tuple[float, str], list[_Bar]] = defaultdict(list)
        for bar in found:
            own = groups[bar.row, bar.status]
            if own and bar.begins - own[-1].ends <= apart:
                own[-1].ends = max(own[-1].ends, bar.ends)
                own[-1].count += bar.count
                own[-1].words = f"{own[-1].count} {bar.status}"
            else:
                own.append(bar)
        found = [bar for own in groups.values() for bar in own]
        apart *= 2
    return found


def _add_bars(panels: Panels, panel: str, bars: Sequence[_Bar], status: str, edge: float) -> None:
    marker: dict[str, Any] = {"color": theme.STATUS[status], "line": {"color": theme.PAPER, "width": edge}}
    if status == LOST:
        hatched = {"shape": "/", "size": 5, "solidity": 0.35, "fgcolor": theme.INK, "bgcolor": theme.GREY}
        marker |= {"color": theme.GREY, "pattern": hatched}
    panels.add(
        panel,
        type="bar",
        orientation="h",
        name=f"{status} {sum(bar.count for bar in bars)}",
        y=numpy.array([bar.row for bar in bars]),
        base=numpy.array([bar.begins for bar in bars]),
        x=numpy.array([bar.ends - bar.begins for bar in bars]),
        width=0.78,
        marker=marker,
        hovertext=[bar.words for bar in bars],
        hoverinfo="text",
    )


def _add_marks(
    panels: Panels,
    panel: str,
    source: Source,
    resumed: Sequence[_Bar],
    rows: dict[tuple[int, int], float],
    unit_s: float,
) -> None:
    """Mark the begins of resumed evaluations, and workers that left. ``unit_s``: seconds of the axis's unit."""
    shown = resumed[: theme.MOST_POINTS // 4]
    if shown:
        edge = {"color": theme.INK, "width": 1}
        panels.add(
            panel,
            mode="markers",
            name=f"resumed {len(shown)}",
            x=numpy.array([bar.begins for bar in shown]),
            y=numpy.array([bar.row for bar in shown]),
            marker={"symbol": "triangle-right", "size": 8, "color": theme.PAPER, "line": edge},
            hoverinfo="skip",
        )
    left = [(one, launch.number) for launch in source.record.launches for one in launch.left]
    left = [(one, number) for one, number in left if (one.island, one.worker) in rows]
    if left:
        panels.add(
            panel,
            mode="markers",
            name="worker left",
            x=source.at_work([one.time for one, _ in left]) / unit_s,
            y=numpy.array([rows[one.island, one.worker] for one, _ in left]),
            marker={"symbol": "x", "size": 10, "color": theme.VERMILION},
            hovertext=[f"left launch {number}:<br>{theme.label(one.reason, 120)}" for one, number in left],
            hoverinfo="text",
        )
