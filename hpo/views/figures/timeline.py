"""Timeline of the campaign's time at work: a row for each worker, a bar for each evaluation."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from hpo.individual import LOST, RUNNING, STATUSES
from hpo.results.parts import Part
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.source import NotDrawn, Source

_ROW, _LEAST, _MOST = 18, 140, 1100
_GAP = 0.6
"""Between islands, of a row."""
_MOST_LABELS = 48
_MOST_WORDED = 3000
"""Where there are more parts, a page's details say what each was."""
_MOST_LAUNCHES = 12
"""The most that are named."""


@dataclass(kw_only=True)
class _Bar:
    """One evaluation, or ``count`` of the same status that are too short to be seen apart; in the
    axis's unit of time at work."""

    row: float
    begins: float
    ends: float
    status: str
    words: str
    count: int = 1


def draw(sources: Sequence[Source]) -> Plot:
    """Of one campaign; NotDrawn where nothing has begun."""
    (source,) = sources
    parts = source.record.parts
    if not parts:
        raise NotDrawn("no evaluation has begun")
    ends = _ends(source, parts)
    workers = sorted({part.place[1:] for part in parts} | {place[1:] for place in source.record.hosts})
    rows, last = {}, workers[0][0]
    height = 0.0
    for worker in workers:
        height += _GAP if worker[0] != last else 0.0
        rows[worker] = height
        height, last = height + 1, worker[0]
    begins, finishes = source.at_work([part.started for part in parts]), source.at_work(ends)
    unit, seconds = theme.time_unit(float(finishes.max()))
    begins, finishes = begins / seconds, finishes / seconds
    launches = [at / seconds for at in source.later_launches]
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
    merged = _merged(bars, float(finishes.max()) or 1.0)
    traces = [_bars(merged, status) for status in STATUSES if any(bar.status == status for bar in merged)]
    above = 1.1 * height / 12 if launches and height > 12 else 1.1 if launches else 0.0
    traces += _marks(source, parts, begins, rows, seconds)
    return {
        "data": traces,
        "layout": theme.layout(
            f"Workers were busy {busy_share(source):.0%} of the time".replace("%", " %"),
            height=int(min(_MOST, max(_LEAST, _ROW * (height + above)))) + 130,
            barmode="overlay",
            bargap=0,
            xaxis={"title": f"{unit} at work", "range": [0, float(finishes.max()) * 1.005 or 1.0]},
            yaxis={
                "title": "worker",
                "range": [height - 0.4, -0.6 - above],
                "showgrid": False,
                **_labels(rows),
            },
            shapes=[theme.vertical(at, theme.INK) for at in launches],
            annotations=_launches(source, launches),
        ),
    }


def _ends(source: Source, parts: Sequence[Part]) -> list[float]:
    """When each part ended; what has no end of its own ends with the next of its worker, or with its launch."""
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
    """The share of the workers' time that evaluations took, all launches together; None before the first."""
    parts = source.record.parts
    if not parts:
        return None
    ends = _ends(source, parts)
    evaluating = sum(end - part.started for part, end in zip(parts, ends, strict=True))
    places = defaultdict(set)
    for place in [*source.record.hosts, *(part.place for part in parts)]:
        places[place[0]].add(place)
    there = 0.0
    for launch in source.record.launches:
        workers = launch.launched.workers if launch.launched else 0
        until = max(
            [launch.updated, *(end for part, end in zip(parts, ends) if part.place[0] == launch.number)]
        )
        there += max(workers, len(places[launch.number])) * (until - launch.started)
    return min(1.0, evaluating / there) if there > 0 else 0.0


def _words(source: Source, part: Part, seconds: float) -> str:
    host = source.record.hosts.get(part.place)
    where = f" on {theme.label(host)}" if host else ""
    again = ", resumed" if part.resumed else ""
    return f"{part.id}: {part.status}{again}, {theme.duration(seconds)}<br>launch {part.place[0]}{where}"


def _merged(bars: Iterable[_Bar], span: float) -> list[_Bar]:
    """Bars of one row and status that lie too close to be distinguished become one."""
    found = list(bars)
    apart = span / 4000
    # As far as that goes: each row and status that there is has a bar.
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


def _bars(bars: Sequence[_Bar], status: str) -> dict[str, Any]:
    own = [bar for bar in bars if bar.status == status]
    marker: dict[str, Any] = {
        "color": theme.STATUS[status],
        "line": {"color": theme.PAPER, "width": 0.5 if len(bars) < 1500 else 0},
    }
    if status == LOST:
        hatched = {"shape": "/", "size": 5, "solidity": 0.35, "fgcolor": theme.INK, "bgcolor": theme.GREY}
        marker |= {"color": theme.GREY, "pattern": hatched}
    return {
        "type": "bar",
        "orientation": "h",
        "name": f"{status} {sum(bar.count for bar in own)}",
        "y": numpy.array([bar.row for bar in own]),
        "base": numpy.array([bar.begins for bar in own]),
        "x": numpy.array([bar.ends - bar.begins for bar in own]),
        "width": 0.78,
        "marker": marker,
        "hovertext": [bar.words for bar in own],
        "hoverinfo": "text",
    }


def _marks(
    source: Source, parts: Sequence[Part], begins: Any, rows: dict[Any, float], unit_s: float
) -> list[dict[str, Any]]:
    """Where something was resumed, and where workers left. ``unit_s``: seconds of the axis's unit."""
    found = []
    resumed = [index for index, part in enumerate(parts) if part.resumed][: theme.MOST_POINTS // 4]
    if resumed:
        found.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"resumed {len(resumed)}",
                "x": numpy.array([begins[index] for index in resumed]),
                "y": numpy.array([rows[parts[index].place[1:]] for index in resumed]),
                "marker": {
                    "symbol": "triangle-right",
                    "size": 8,
                    "color": theme.PAPER,
                    "line": {"color": theme.INK, "width": 1},
                },
                "hoverinfo": "skip",
            }
        )
    left = [(one, launch) for launch in source.record.launches for one in launch.left]
    left = [(one, launch) for one, launch in left if (one.island, one.worker) in rows]
    if left:
        found.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "worker left",
                "x": source.at_work([one.time for one, _ in left]) / unit_s,
                "y": numpy.array([rows[one.island, one.worker] for one, _ in left]),
                "marker": {"symbol": "x", "size": 10, "color": theme.VERMILION},
                "hovertext": [
                    f"left launch {launch.number}:<br>{theme.label(one.reason, 120)}" for one, launch in left
                ],
                "hoverinfo": "text",
            }
        )
    return found


def _labels(rows: dict[tuple[int, int], float]) -> dict[str, Any]:
    every = -(-len(rows) // _MOST_LABELS)
    shown = [
        (f"{worker[0]}-{worker[1]}", row)
        for index, (worker, row) in enumerate(rows.items())
        if not index % every
    ]
    return {
        "tickmode": "array",
        "tickvals": [row for _, row in shown],
        "ticktext": [text for text, _ in shown],
    }


def _launches(source: Source, places: Sequence[float]) -> list[dict[str, Any]]:
    """Which launch begins at a line, and when, above the rows."""
    found = []
    for launch, at in zip(source.record.launches[1:], places, strict=True):
        began = time.strftime("%-d %b %H:%M", time.localtime(launch.started))
        small = {"size": 11, "color": theme.MUTED}
        where = {"x": at, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 2}
        found.append({"text": f"launch {launch.number}, {began}", "showarrow": False, "font": small, **where})
    return found[:_MOST_LAUNCHES]
