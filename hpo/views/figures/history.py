"""The best result so far over the number of evaluations."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from hpo.views.figures import best_so_far
from hpo.views.figures.drawing.panels import Plot
from hpo.views.figures.source import Source

if TYPE_CHECKING:
    from hpo.individual import Individual


def draw(sources: Sequence[Source]) -> Plot:
    """Of one campaign or several, overlaid; NotDrawn where nothing has completed."""
    return best_so_far.draw(sources, _along, _launches, "Best so far, over evaluations", "evaluations")


def _along(source: Source, individuals: Sequence[Individual]) -> NDArray[Any]:
    return numpy.array([source.number[one.id] for one in individuals], dtype="int32")


def _launches(source: Source) -> list[float]:
    ends = [one.finished or 0.0 for one in source.ended]
    return [bisect_left(ends, one.started) + 0.5 for one in source.record.launches[1:]]
