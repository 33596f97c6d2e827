"""The best result so far over the time at work, all launches together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hpo.views.figures import best_so_far
from hpo.views.figures.drawing import theme
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.source import Source

if TYPE_CHECKING:
    from hpo.individual import Individual


def draw(sources: Sequence[Source]) -> Plot:
    """Of one campaign or several, overlaid; NotDrawn where nothing has completed."""
    ends = [one.at_work([each.finished or 0.0 for each in one.ended[-1:]]) for one in sources]
    unit, seconds = theme.time_unit(max((float(end[0]) for end in ends if len(end)), default=0.0))

    def along(source: Source, individuals: Sequence[Individual]) -> NDArray[Any]:
        at = source.at_work([one.finished or 0.0 for one in individuals]) / seconds
        return at.astype("float32")

    return best_so_far.draw(
        sources,
        along,
        lambda source: [at / seconds for at in source.later_launches],
        f"Best so far, over {unit} at work",
        f"{unit} at work",
    )
