"""Importance of parameters: bars with their spread over forests, side by side for campaigns, objectives, or all results
and the best; and what each change from the default to the best gained."""

from __future__ import annotations

from collections.abc import Sequence

from hpo.errors import CampaignError
from hpo.results.analysis.ablation import AblationStep, ablation_path
from hpo.results.analysis.importance import Importance
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import distinct, plain, shortened
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.drawing.value_range import ValueRange, value_range
from hpo.views.figures.source import NotDrawn, Source

_MOST = 15
_BEST = 0.25
"""Share of the results that are the best."""
_ROW, _BAR = 12, 13  # pixels of a row without its bars, and of each bar
_CHANGE = 26  # pixels of a change
_LETTERS = 48


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of the fifteen most important parameters: for each of several objectives, for the first of each campaign,
    or for the only objective among all results and among the best."""
    groups, left_out = _groups(sources)
    totals: dict[str, float] = {}
    for _, found in groups:
        for name, share in found.shares.items():
            totals[name] = max(share.total, totals.get(name, 0.0))
    names = sorted(totals, key=lambda name: -totals[name])
    shown = names[:_MOST]
    several = len(groups) > 1
    panels = Panels()
    panel = panels.panel()
    for (title, found), colour in zip(groups, theme.SERIES * len(groups)):
        shares = [found.shares.get(name) for name in shown]
        bar = {
            "type": "bar",
            "orientation": "h",
            "y": [theme.label(name) for name in distinct([one_line(name) for name in shown], 24)],
        }
        panels.add(
            panel,
            **bar,
            name=title if several else "with interactions",
            x=[one.total if one else None for one in shares],
            marker={"color": colour if several else theme.SKY, "line": {"width": 0}},
            error_x={
                "array": [one.spread if one else 0.0 for one in shares],
                # No bar reaches below 0, as shares are not negative.
                "arrayminus": [min(one.spread, one.total) if one else 0.0 for one in shares],
                "symmetric": False,
                "color": theme.MUTED,
                "thickness": 1.2,
                "width": 3,
            },
            customdata=[[one.alone, one.spread] if one else [None, None] for one in shares],
            hovertemplate="%{y}: %{x:.0%} ± %{customdata[1]:.0%}<br>alone %{customdata[0]:.0%}",
            hoverlabel={"namelength": 0},
        )
        if not several:
            alone = [one.alone if one else None for one in shares]
            panels.add(
                panel, **bar, name="alone", x=alone, marker={"color": colour}, width=0.32, hoverinfo="skip"
            )
    explained = ", ".join(f"{found.explained:.0%}" for _, found in groups)
    notes = [f"a forest explains {explained}"]
    notes += [f"{title}: {theme.label(reason, 100)}" for title, reason in left_out]
    if len(names) > len(shown):
        notes.append(f"{len(names) - len(shown)} more have at most {totals[names[_MOST]]:.0%}")
    panels.corner_note(notes)
    across = {"title": "share of the variance", "rangemode": "tozero", "tickformat": ".0%", "showgrid": True}
    return panels.plot(
        "Importance of parameters",
        {"xaxis": across, "yaxis": {"autorange": "reversed", "showgrid": False}},
        height=150 + len(shown) * (_ROW + _BAR * len(groups)),
        barmode="group" if several else "overlay",
    )


def _groups(sources: Sequence[Source]) -> tuple[list[tuple[str, Importance]], list[tuple[str, NotDrawn]]]:
    """Titles and bars to draw side by side, and titles and reasons of objectives that are left out."""
    wanted = [(source.name, source, source.objective, 1.0) for source in sources]
    if len(sources) == 1:
        (first,) = sources
        wanted = [(objective, first, objective, 1.0) for objective in first.objectives]
        if len(wanted) == 1:
            shares = (("all results", 1.0), (f"the best {_BEST:.0%}", _BEST))
            wanted = [(title, first, first.objective, share) for title, share in shares]
    groups, left_out = [], []
    for title, source, objective, share in wanted:
        try:
            groups.append((theme.label(title, 24), source.importance(objective, share)))
        except NotDrawn as error:
            left_out.append((theme.label(title, 24), error))
    if not groups:
        raise left_out[0][1]
    return groups, left_out


def ablation(sources: Sequence[Source]) -> Plot:
    """Figure of what each change from the default to the best gained, a row for each on an ablation path."""
    source = sources[0]
    start, end = source.default, source.best
    if start is None or end is None:
        raise NotDrawn("neither a default nor a given point of the task has completed")
    explained = source.importance().explained
    try:
        path = ablation_path(source.record, start, end, source.objective)
    except CampaignError as error:
        raise NotDrawn(str(error).removeprefix("importance of parameters: ")) from None
    if not path:
        raise NotDrawn(f"the {source.default_name} is the best")
    shown = path[:_MOST]
    measured = {source.default_name: source.value(start), "best": source.value(end)}
    values = [*(one for one in measured.values() if one is not None), *(one.after for one in shown)]
    extent = value_range([*values, shown[0].before], source.objectives[source.objective])
    if extent is None:
        raise NotDrawn("no value is finite")
    panels = Panels()
    panel = panels.panel()
    names = [source.default_name, *distinct([_words(one) for one in shown], _LETTERS), "best"]
    rows = dict(zip(map(theme.label, names), range(len(names))))
    _add_changes(panels, panel, shown, extent, source.sign())
    for name, row in ((source.default_name, 0), ("best", len(names) - 1)):
        value = measured[name]
        panels.add(
            panel,
            x=[] if value is None else [extent.inside(value)],
            y=[] if value is None else [row],
            mode="markers",
            marker=theme.STAR if row else {"color": theme.INK, "size": 9},
            name=f"{name}, as measured",
            customdata=[end.id if row else start.id],
            hovertemplate="%{x:.5g}<extra></extra>",
        )
    notes = [f"between: as a forest predicts, which explains {explained:.0%}"]
    panels.corner_note([*notes, *([f"{len(path) - _MOST} more changes"] if len(path) > _MOST else [])])
    axes = {
        "xaxis": {"title": theme.label(source.objective), "showgrid": True, **extent.axis(5.0)},
        "yaxis": {
            "range": [len(names) - 0.4, -0.6],
            "tickvals": list(rows.values()),
            "ticktext": list(rows),
            "showgrid": False,
        },
    }
    return panels.plot("From the default to the best", axes, height=150 + _CHANGE * len(names))


def _add_changes(
    panels: Panels, panel: str, path: Sequence[AblationStep], extent: ValueRange, sign: float
) -> None:
    for row, one in enumerate(path, start=1):
        better = sign * (one.after - one.before) <= 0
        panels.add(
            panel,
            x=[extent.inside(one.before), extent.inside(one.after)],
            y=[row, row],
            mode="lines",
            line={"color": theme.GREEN if better else theme.VERMILION, "width": 11},
            name="better" if better else "worse",
            text=[
                f"{theme.label(_words(one, 400))}<br>{theme.number(one.before)} → {theme.number(one.after)}"
            ]
            * 2,
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
        )


def _words(change: AblationStep, most: int = _LETTERS) -> str:
    parts = []
    for name, (before, after) in change.values.items():
        ends = ["none" if one is None else plain(one, 12) for one in (before, after)]
        parts.append(f"{shortened(one_line(name), 24)} {ends[0]} → {ends[1]}")
    return shortened(", ".join(parts), most)
