"""All figures in the order of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.source import Source

if TYPE_CHECKING:
    import plotly.graph_objects as go

Draw = Callable[[Sequence[Source]], Plot]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A figure, drawn by the function ``draw`` of the module with its name."""

    name: str
    title: str
    caption: str  # A sentence on how to read it
    module: str | None = None  # module with several figures, each drawn by the function with its name
    overlaid: bool = False  # whether several campaigns are drawn in one figure
    size: int = 2  # halves of a row of a wide page

    def plot(self, sources: Sequence[Source]) -> Plot:
        """Draw a campaign, or several if ``overlaid``; NotDrawn if they lack the data."""
        draw: Draw = self._function(self.name if self.module else "draw")
        return draw(sources)

    @property
    def content(self) -> Callable[[Sequence[Source]], Any] | None:
        """Function that makes the data of figures that a page draws by ``report/assets/NAME.js``."""
        content: Callable[[Sequence[Source]], Any] | None = self._function("content")
        return content

    def _function(self, name: str) -> Any:
        return getattr(import_module(f"hpo.views.figures.{self.module or self.name}"), name, None)

    def draw(self, sources: Sequence[Source]) -> go.Figure:
        """The same as an object of plotly."""
        import plotly.graph_objects as go

        return go.Figure(self.plot(sources))


FIGURES: tuple[Entry, ...] = (
    Entry(
        name="history",
        module="best_so_far",
        title="Best so far, over evaluations",
        caption="Each mark is an evaluation, the line the best result so far; what ended without a result stands in "
        "the strip below. Dotted lines are later launches.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="hours",
        module="best_so_far",
        title="Best so far, over the time at work",
        caption="The same over wall-clock time, all launches together, without the time between them.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="front",
        module="front",
        title="Pareto front",
        caption="No other evaluation is better than one of the front in one objective and worse in none; the star is "
        "its knee, the nearest to the best of each. Results far worse than the others lie on the border. A thin line "
        "leads to what a forest predicts that has not seen the evaluation: where it is long, there may be luck in it.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="hypervolume",
        module="front",
        title="Hypervolume",
        caption="The volume that the front dominates up to the reference point: it grows while the front improves.",
        overlaid=True,
        size=1,
    ),
    Entry(
        name="importance",
        title="Importance of parameters",
        caption="The share of the variance over the whole space that would vanish if a parameter were fixed (fANOVA), "
        "and its spread over eight forests. Interactions count for each that takes part, so shares may exceed 100 %. "
        "Among the best, all worse results count as equally bad: what matters there may be another parameter.",
        overlaid=True,
    ),
    Entry(
        name="islands",
        title="Islands",
        caption="The best result of each island, the share of each operator's evaluations that are among the best "
        "tenth of the campaign, and how many individuals moved.",
    ),
    Entry(
        name="parallel",
        title="Parallel coordinates",
        caption="A line is a completed evaluation; the most important parameters come first. A line has a gap where a "
        "parameter does not exist.",
    ),
    Entry(
        name="slices",
        title="Slices",
        caption="The result over each of the six most important parameters. What was pruned or failed lies at the "
        "worse border; results far worse than the others lie on it.",
    ),
    Entry(
        name="ablation",
        module="importance",
        title="From the default to the best",
        caption="What each changed parameter gained. The change that promises most is made first; values between are "
        "those that a forest predicts.",
    ),
    Entry(
        name="failures",
        module="slices",
        title="Where failures lie",
        caption="The share of evaluations that failed among those with such a value, by how they failed; first the "
        "parameters that explain most of it. Pale bars are of fewer than three evaluations.",
    ),
    Entry(
        name="family",
        title="Family of the best",
        caption="From the earliest ancestor shown to the best, each at its result; the thick line leads along the "
        "parents whose configurations are nearest. Beside each: what bred it, and what it changed of that parent.",
    ),
    Entry(
        name="curves",
        title="Learning curves",
        caption="What trials reported at each step. Those that were pruned are grey; dotted lines are the rungs at "
        "which a pruner compares.",
    ),
    Entry(
        name="budget",
        title="Early stopping: is it safe?",
        caption="Where the correlation is low, an intermediate value says little about the end: stop later. Below, "
        "what halving from that step on (reduction 3) would keep of the best, had all curves been known. Individuals "
        "that were stopped have no end to compare.",
    ),
    Entry(
        name="noise",
        title="Noise",
        caption="Evaluations of the best configurations that were repeated, and their means. Where the errors of means "
        "overlap, the best of these is not known yet.",
        size=1,
    ),
    Entry(
        name="timeline",
        title="Workers over time",
        caption="A row is a worker, named island-worker; a bar is an evaluation. Hatched bars were lost with their "
        "rank or launch; a triangle begins what was resumed.",
    ),
)

BY_NAME = {one.name: one for one in FIGURES}
