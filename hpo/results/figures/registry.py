"""All figures, in the order in which a page shows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from hpo.results.figures.source import Source

if TYPE_CHECKING:
    import plotly.graph_objects as go

Draw = Callable[[Sequence[Source]], "go.Figure"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One figure: the module of its name in this package has ``draw``. Where it also has ``content(sources)``, a page
    hands the JSON-able value of that to ``hpo.drawers.NAME`` of ``report/assets/NAME.js`` instead of drawing what
    ``draw`` returns. ``caption``: a sentence on how to read it;
    ``overlaid``: several campaigns are drawn in one figure, else each has its own; ``size``: 1 for half a row of a wide
    page, 2 for the whole row."""

    name: str
    title: str
    caption: str
    overlaid: bool = False
    size: int = 2

    @property
    def draw(self) -> Draw:
        """Draws it from the campaigns (one, unless ``overlaid``); raises NotDrawn where their data do not fill it."""
        draw: Draw = import_module(f"hpo.results.figures.{self.name}").draw
        return draw


FIGURES: tuple[Entry, ...] = (
    Entry(
        name="history",
        title="Best so far, over evaluations",
        caption="Each mark is an evaluation, the line the best result so far; what ended without a result stands in the "
        "strip below. Dotted lines are later launches.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="hours",
        title="Best so far, over hours at work",
        caption="The same over wall-clock hours, without the time between launches.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="front",
        title="Pareto front",
        caption="The evaluations that no other dominates, before all others; the knee is nearest to the best of each "
        "objective.",
    ),
    Entry(
        name="hypervolume",
        title="Hypervolume",
        caption="The volume that the front dominates, up to the reference: it grows as the front improves.",
    ),
    Entry(
        name="importance",
        title="Importance of parameters",
        caption="The share of the variance over the whole space that would be gone if the parameter were fixed, with its "
        "spread between forests; the darker part without interactions.",
        size=1,
    ),
    Entry(
        name="islands",
        title="Islands",
        caption="The best of each island, where good evaluations come from, and who moved where.",
        size=1,
    ),
    Entry(
        name="parallel",
        title="Parallel coordinates",
        caption="A line is an evaluation, a gap a parameter that it does not have. Drag along an axis to select, click "
        "on it to take that back.",
    ),
    Entry(
        name="slices",
        title="Results by parameter",
        caption="Each parameter that matters against the result, and pairs of them.",
    ),
    Entry(
        name="family",
        title="Family of the best",
        caption="From whom the best individual was bred: each row an ancestor, with what proposed it and what it changed.",
    ),
    Entry(
        name="curves",
        title="Learning curves",
        caption="What trials reported at each step. Those that were pruned are grey; dotted lines are the rungs at "
        "which a pruner compares.",
    ),
    Entry(
        name="budget",
        title="Early stopping",
        caption="How well what is reported early says what comes out in the end: where the two agree, comparing early "
        "is safe.",
        size=1,
    ),
    Entry(
        name="noise",
        title="Noise",
        caption="Configurations that were evaluated more than once: each result, their mean and its standard error.",
        size=1,
    ),
    Entry(
        name="timeline",
        title="Workers over time",
        caption="A row is a worker, named island-worker; a bar is an evaluation. Hatched bars were lost with their "
        "rank or launch; a triangle begins what was resumed.",
    ),
)
"""Add a figure here, and its module beside this one."""

BY_NAME = {one.name: one for one in FIGURES}
