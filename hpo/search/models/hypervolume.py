"""Hypervolume that a configuration would add to the front, for choosing proposals of several objectives."""

from __future__ import annotations

from typing import Any

from hpo.search.models.observations import Observations, even_scores
from hpo.search.models.pareto import dominators

_DIRECTIONS = 64
"""Random directions in which the front is measured."""
_MARGIN = 0.3
"""Distance of the reference point from the worst of the front, relative to the front's width."""
_NARROWEST = 0.1
"""Least width of a front that counts for the margin, in scores."""


class HypervolumeGain:
    """Gain in hypervolume of points over the front of ``known``, in scores (``even_scores``) of each objective.

    The hypervolume is the mean over random directions, seen from the reference point, of the power of the distance at
    which the front is met (Golovin and Zhang 2020, arXiv:2006.04655), which takes the same time for any number of
    objectives. The reference point lies beyond the worst of the front in each objective, or at the reference of the
    search where that is nearer. A point without a gain has a negative number, nearer to zero the closer it is to one.
    """

    def __init__(self, known: Observations, generator: Any) -> None:
        import numpy

        losses = known.losses
        scores = numpy.stack([even_scores(column) for column in losses.T], axis=1)
        fit = known.fit
        front = scores[fit][dominators(losses[fit]) == 0]
        worst = front.max(axis=0)
        self._reference = worst + _MARGIN * numpy.maximum(worst - front.min(axis=0), _NARROWEST)
        for number, limit in enumerate(known.reference or ()):
            order = numpy.argsort(losses[:, number])
            at = numpy.interp(limit, losses[order, number], scores[order, number])
            self._reference[number] = min(self._reference[number], at)
        self._objectives = front.shape[1]
        directions = numpy.abs(generator.standard_normal((_DIRECTIONS, self._objectives))) + 1e-9
        self._directions = directions / numpy.linalg.norm(directions, axis=1)[:, None]
        self._met = self._distances(front).max(axis=0)

    def _distances(self, points: Any) -> Any:
        """Distance from the reference point at which each point is met in each direction, negative beyond it."""
        return ((self._reference - points)[:, None, :] / self._directions).min(axis=2)

    def _volumes(self, distances: Any) -> Any:
        import numpy

        # Linear beyond the reference, so that the search is drawn to it from there.
        return numpy.where(distances > 0.0, numpy.abs(distances) ** self._objectives, distances)

    def __call__(self, points: Any) -> Any:
        import numpy

        distances = self._distances(points)
        gain = numpy.maximum(self._volumes(distances) - self._volumes(self._met), 0.0).mean(axis=1)
        return numpy.where(gain > 0.0, gain, (distances - self._met).max(axis=1))
