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
        caption="Each mark is an evaluation, the line the best result so far. Evaluations without a result stand in "
        "the strip below.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="hours",
        title="Best so far, over hours at work",
        caption="The same over wall-clock hours, without the time between launches; dotted lines are later launches.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="curves",
        title="Learning curves",
        caption="What trials reported at each step. Those that were pruned are grey; dotted lines are the rungs at "
        "which a pruner compares.",
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
