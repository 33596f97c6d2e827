"""The best result so far over the hours at work, all launches together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hpo.results.figures import best_so_far
from hpo.results.figures.drawing.panels import Plot
from hpo.results.figures.source import Source

if TYPE_CHECKING:
    from hpo.individual import Individual


def draw(sources: Sequence[Source]) -> Plot:
    """Of one campaign or several, overlaid; NotDrawn where nothing has completed."""
    return best_so_far.draw(
        sources,
        _along,
        lambda source: source.launch_hours,
        "Best so far, over hours at work",
        "hours at work",
    )


def _along(source: Source, individuals: Sequence[Individual]) -> NDArray[Any]:
    return source.hours([one.finished or 0.0 for one in individuals]).astype("float32")
