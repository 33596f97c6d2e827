"""Importance of parameters: bars with their spread over forests, side by side for campaigns or objectives."""

from __future__ import annotations

from collections.abc import Sequence

from hpo.results.analysis.importance import Importance
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import distinct
from hpo.views.figures.drawing.panels import Panels, Plot
from hpo.views.figures.source import NotDrawn, Source

_MOST = 15
_ROW, _BAR = 12, 13  # pixels of a row without its bars, and of each bar


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of the fifteen most important parameters, for each objective or for the first of each campaign."""
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
    wanted = (
        [(objective, sources[0], objective) for objective in sources[0].objectives]
        if len(sources) == 1
        else [(source.name, source, source.objective) for source in sources]
    )
    groups, left_out = [], []
    for title, source, objective in wanted:
        try:
            groups.append((theme.label(title, 24), source.importance(objective)))
        except NotDrawn as error:
            left_out.append((theme.label(title, 24), error))
    if not groups:
        raise left_out[0][1]
    return groups, left_out
