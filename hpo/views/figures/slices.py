"""Over each of the most important parameters: the objective (slices, where pruned and failed evaluations lie at the
border), and the share of failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from hpo.errors import CampaignError
from hpo.individual import COMPLETED, FAILURES, PRUNED, STATUSES, Scalar
from hpo.results.analysis.importance import FEWEST, variance_shares
from hpo.results.analysis.importance import MOST as MOST_JUDGED
from hpo.space.parameters import Parameter
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import written
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.drawing.parameter_axis import Axis
from hpo.views.figures.drawing.parameter_grid import MOST, ParameterGrid
from hpo.views.figures.drawing.thinning import best_and_spread, thinned
from hpo.views.figures.drawing.value_range import ValueRange, value_range
from hpo.views.figures.source import NotDrawn, Source, important

if TYPE_CHECKING:
    from hpo.individual import Individual

_BORDER = 15.0  # hundredths of the value axis beyond the worst value, for evaluations without a value
_FAILURES = tuple(one for one in STATUSES if one in FAILURES)
_WITHOUT = (("pruned", (PRUNED,), 6.0, "line-ns-open"), ("failed", _FAILURES, 13.0, "x-thin-open"))
_LEAST = 3
"""Fewest failures of which a figure says anything, and fewest evaluations of a bar that is not pale."""
_BINS = 10


@dataclass(frozen=True, kw_only=True)
class _SlicePanel:
    """Panel of one parameter, with at most ``most`` marks."""

    source: Source
    name: str
    axis: Axis
    extent: ValueRange
    most: int

    def traces(self) -> list[Plot]:
        source, sign = self.source, self.source.sign()
        everyone = [one for one in source.ended if self.name in one.params]
        found = []
        for title, statuses, steps, symbol in _WITHOUT:
            others = [one for one in everyone if one.status in statuses]
            others = best_and_spread(others, self.most // 4, loss=lambda one: 0.0)
            at = [self.extent.beyond(steps)] * len(others)
            marker = {"color": theme.STATUS[statuses[0]], "symbol": symbol, "size": 5, "line": {"width": 1}}
            found.append(self._trace(others, at, title, marker))
        ended = [one for one in everyone if self._has_value(one)]
        age = {one.id: place / len(ended) for place, one in enumerate(ended, 1)}
        shown = best_and_spread(ended, self.most // 2, loss=lambda one: sign * self._value(one))
        colours = [theme.faint(theme.BLUE, round(0.25 + 0.65 * age[one.id], 2)) for one in shown]
        values = [self.extent.inside(self._value(one)) for one in shown]
        title = "completed, later ones darker"
        found.append(self._trace(shown, values, title, {"color": colours, "size": 5}))
        top = [source.best] if source.best is not None and self.name in source.best.params else []
        values = [self.extent.inside(self._value(one)) for one in top]
        found.append(self._trace(top, values, "best", theme.STAR))
        return found

    def _has_value(self, one: Individual) -> bool:
        return one.status == COMPLETED and self.source.objective in (one.objectives or {})

    def _value(self, one: Individual) -> float:
        return (one.objectives or {})[self.source.objective]

    def _trace(
        self,
        individuals: Sequence[Individual],
        values: Sequence[float],
        title: str,
        marker: dict[str, Any],
    ) -> Plot:
        return {
            "x": [self.axis.mark(one.params[self.name], one.id) for one in individuals],
            "y": list(values),
            "mode": "markers",
            "name": title,
            "marker": marker,
            "text": [self._box(one) for one in individuals],
            "customdata": [one.id for one in individuals],
            "hovertemplate": "%{text}<extra></extra>",
            "cliponaxis": False,
        }

    def _box(self, one: Individual) -> str:
        head, objective = one.status, theme.label(self.source.objective, 24)
        if self._has_value(one):
            head = f"{objective} {theme.number(self._value(one))}"
        return f"{theme.label(one.id)}: {head}<br>{theme.label(self.name)} {written(one.params[self.name])}"


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of at most six parameters."""
    source = sources[0]
    values = [one.objectives[source.objective] for one in source.completed if one.objectives]
    extent = value_range(values, source.objectives[source.objective], source.default_value())
    if extent is None:
        raise NotDrawn("no evaluation has completed")
    names = important(source)[:MOST]
    if not names or source.space is None:
        raise NotDrawn("no parameter has more than one value")
    grid = ParameterGrid(names, source.space, source.objective, extent.axis(_BORDER))
    for name, number, axis in grid:
        panel = _SlicePanel(
            source=source, name=name, axis=axis, extent=extent, most=theme.MOST_POINTS // len(names)
        )
        for trace in panel.traces():
            grid.add(number, trace)
    return grid.plot("Slices")


def failures(sources: Sequence[Source]) -> Plot:
    """Figure of the share of failures over at most six parameters, first those that explain most of who fails."""
    source = sources[0]
    failed = [one for one in source.ended if one.status in _FAILURES]
    if len(failed) < _LEAST:
        raise NotDrawn("fewer than three evaluations have failed" if failed else "no evaluation has failed")
    if len(source.ended) < FEWEST:
        raise NotDrawn(f"fewer than {FEWEST} evaluations have ended")
    names, explained = _by_failures(source)
    if not names or source.space is None:
        raise NotDrawn("no parameter has more than one value")
    values = {"range": [0, 1], "tickformat": ".0%", "showgrid": True}
    grid = ParameterGrid(names[:MOST], source.space, "failed", values)
    for name, panel, axis in grid:
        for trace in _bars(source, name, axis):
            grid.add(panel, trace)
    said = (
        f"a forest explains {explained:.0%} of who fails"
        if explained > 0
        else "a forest explains nothing of who fails: the cause may lie elsewhere"
    )
    place = {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    grid.panels.note(f"{len(failed)} of {len(source.ended)} have failed; {said}", **place)
    return grid.plot("Failures", barmode="stack", bargap=0)


def _by_failures(source: Source) -> tuple[list[str], float]:
    """Parameters with more than one value, first those that explain most of who fails, and how much all explain."""
    names = important(source)
    shown = [source.ended[place] for place in thinned(len(source.ended), MOST_JUDGED)]
    goals = numpy.array([float(one.status in _FAILURES) for one in shown])
    if goals.min() == goals.max():
        return names, 0.0
    try:
        explained, shares, _ = variance_shares(source.record, shown, goals)
    except CampaignError:  # a configuration outside the space, after an edit
        return names, 0.0
    return (sorted(names, key=lambda name: -shares[name].total) if explained > 0 else names), explained


def _bars(source: Source, name: str, axis: Axis) -> list[Plot]:
    bins = _bins(axis.parameter)
    everyone: Counter[int] = Counter()
    failed: dict[str, Counter[int]] = {status: Counter() for status in _FAILURES}
    for one in source.ended:
        if (place := _bin(axis, one.params.get(name), bins) if name in one.params else None) is not None:
            everyone[place] += 1
            if one.status in failed:
                failed[one.status][place] += 1
    return [
        {
            "type": "bar",
            "name": status,
            "x": [(place + 0.5) / bins for place in sorted(counts)],
            "y": [counts[place] / everyone[place] for place in sorted(counts)],
            "width": 0.9 / bins,
            "marker": {
                "color": theme.STATUS[status],
                "opacity": [0.35 if everyone[place] < _LEAST else 1.0 for place in sorted(counts)],
                "line": {"width": 0},
            },
            "text": [f"{status}: {counts[place]} of {everyone[place]}" for place in sorted(counts)],
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
        }
        for status, counts in failed.items()
    ]


def _bins(parameter: Parameter) -> int:
    few = (
        parameter.count is not None and parameter.count <= 2 * _BINS and not getattr(parameter, "log", False)
    )
    return parameter.count if few and parameter.count is not None else _BINS


def _bin(axis: Axis, value: Scalar, bins: int) -> int | None:
    place = axis.place(value)
    return None if place is None else min(int(place * bins), bins - 1)
