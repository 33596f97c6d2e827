"""Family of the best individual: a row for each ancestor in the order of breeding, at its value.

Lines lead from parents to children, the thick line along the nearest parents. Each row names what bred the individual
and what changed in comparison with its nearest parent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from hpo.results.analysis.ancestry import Ancestor, Family, changes, family
from hpo.terminal import one_line
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.labels import configuration, plain, shortened
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.drawing.value_range import ValueRange, value_range
from hpo.views.figures.source import NotDrawn, Source, important

if TYPE_CHECKING:
    from hpo.individual import Individual, Scalar

_GENERATIONS = 9
_ROW = 42  # pixels
_MOST_LETTERS = 24  # of the changed parameters that a row names
_BEND = [place / 24 for place in range(25)]


def draw(sources: Sequence[Source]) -> Plot:
    """Figure of the latest nine generations of nearest parents, with the other parents of each."""
    source = sources[0]
    if source.best is None:
        raise NotDrawn(
            "no evaluation has completed" if not source.completed else "no evaluation keeps the limits"
        )
    tree = family(source.record, source.best.id, generations=_GENERATIONS)
    if len(tree.members) < 2:
        raise NotDrawn(f"the best individual, {source.best.id}, was not bred from others")
    extent = value_range(
        [value for one in tree.members if (value := source.value(one.individual)) is not None],
        source.objectives[source.objective],
    )
    if extent is None:
        raise NotDrawn("none of the family of the best has a value")
    return _FamilyDrawing(source=source, tree=tree, extent=extent).figure()


@dataclass(frozen=True, kw_only=True)
class _FamilyDrawing:
    source: Source
    tree: Family
    extent: ValueRange

    @cached_property
    def rows(self) -> dict[str, int]:
        return {one.individual.id: row for row, one in enumerate(self.tree.members)}

    @cached_property
    def order(self) -> dict[str, int]:
        """Rank of each parameter by importance."""
        return {name: place for place, name in enumerate(important(self.source))}

    def at(self, identity: str) -> float:
        """Value that an individual is drawn at, which is the border without a value or far beyond the others."""
        one = self.tree.members[self.rows[identity]].individual
        value = self.source.value(one)
        return self.extent.worst if value is None else self.extent.inside(value)

    def figure(self) -> Plot:
        traces = [self._edges(direct=line) for line in (False, True)]
        islands = sorted({one.individual.island for one in self.tree.members})
        for island in islands:
            colour = theme.SERIES[island % len(theme.SERIES)] if island >= 0 else theme.GREY
            traces.append(self._nodes(island, colour))
        notes = []
        if self.tree.generations > _GENERATIONS:
            text = f"{self.tree.generations - _GENERATIONS} earlier generations"
            place = {"x": 0, "xanchor": "left", "yanchor": "top"}
            notes.append({**theme.note(text), **place})
        xaxis = {
            "title": theme.label(self.source.objective),
            "nticks": 5,
            **self.extent.axis(),
            "tickangle": 0,
        }
        yaxis = {
            "side": "right",
            "range": [len(self.rows) - 0.4, -0.6],
            "tickvals": list(self.rows.values()),
            "ticktext": [self._row(one) for one in self.tree.members],
            "tickfont": {"color": theme.INK, "size": 12},
        }
        axes = {"xaxis": xaxis, "yaxis": yaxis}
        height = 130 + _ROW * len(self.rows)
        layout = theme.layout("Family of the best", height=height, annotations=notes, **axes)
        return {"data": traces, "layout": layout}

    def _edges(self, *, direct: bool) -> Plot:
        """Curves from parents to children, vertical at both ends."""
        x: list[float | None] = []
        y: list[float | None] = []
        for one in self.tree.members:
            for place, parent in enumerate(one.parents):
                if (place == 0 and one.direct) != direct:
                    continue
                start, end = self.extent.place(self.at(parent)), self.extent.place(self.at(one.individual.id))
                top, bottom = self.rows[parent], self.rows[one.individual.id]
                x += [self.extent.value_at(start + (end - start) * t * t * (3 - 2 * t)) for t in _BEND]
                y += [top + (bottom - top) * t for t in _BEND]
                x.append(None)
                y.append(None)
        return {
            "type": "scatter",
            "x": x,
            "y": y,
            "mode": "lines",
            "line": {"color": theme.MUTED if direct else theme.GREY, "width": 3 if direct else 1.2},
            "hoverinfo": "skip",
            "showlegend": False,
        }

    def _nodes(self, island: int, colour: str) -> Plot:
        here = [one for one in self.tree.members if one.individual.island == island]
        return {
            "type": "scatter",
            "x": [self.at(one.individual.id) for one in here],
            "y": [self.rows[one.individual.id] for one in here],
            "mode": "markers",
            "name": "known before" if island < 0 else f"island {island}",
            "marker": {
                "color": colour,
                "size": [20 if one is self.tree.last else 13 if one.direct else 9 for one in here],
                "symbol": [self._symbol(one) for one in here],
                "line": {"width": 2, "color": theme.PAPER},
                "opacity": 1,
            },
            "text": [self._box(one.individual) for one in here],
            "customdata": [one.individual.id for one in here],
            "hovertemplate": "%{text}<extra></extra>",
        }

    def _symbol(self, one: Ancestor) -> str:
        if one is self.tree.last:
            return "star"
        return "circle" if one.individual.parents else "square"

    def _row(self, one: Ancestor) -> str:
        individual = one.individual
        value = self.source.value(individual)
        first = f"<b>{'no value' if value is None else theme.number(value)}</b> {theme.label(individual.operator, 14)}"
        return f"{first}<br><span style='font-size:11px;fill-opacity:0.65'>{self._origin(one)}</span>"

    def _origin(self, one: Ancestor) -> str:
        if not one.parents:
            return "of earlier parents" if one.unseen else "not bred from others"
        nearest = self.tree.members[self.rows[one.parents[0]]].individual
        found = changes(nearest.params, one.individual.params)
        order = sorted(found, key=lambda name: self.order.get(name, len(self.order)))
        parts = [_change(name, found[name][1]) for name in order]
        count = sum(length <= _MOST_LETTERS for length in accumulate(len(part) + 2 for part in parts))
        shown = ", ".join(parts[: max(1, count)]) or "the same once more"
        more = len(parts) - max(1, count)
        return theme.label(shown, 80) + (f" +{more}" if more > 0 else "")

    def _box(self, one: Individual) -> str:
        value = self.source.value(one)
        head = f"<b>{theme.label(one.id)}</b> {'no value' if value is None else theme.number(value)}"
        return f"{head}<br>{configuration(one.params)}"


def _change(name: str, after: Scalar) -> str:
    shown = shortened(one_line(name), 14)
    return f"no {shown}" if after is None else f"{shown} {plain(after, 10)}"
