"""Training data of the models: configurations as rows of numbers, losses as scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpo.individual import COMPLETED, PRUNED
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.population import Member, Population, keep_latest

# At least as many of each as a population keeps: a member that it still has, forgotten here, would be new each time.
_MOST_BEST, _MOST_LATEST, _MOST_FAILED = 300, 120, 80
_SLACK = 50
"""Observations beyond the most that are kept, before any are forgotten."""
_MOST_USED = 20_000
_BEYOND = 3.0
"""Distance below the median, in that of the best twentieth, from which on scores grow logarithmically."""
_STALLED = 5
"""Latest individuals without an improvement after which the search has stalled."""
_HARDLY = 0.01
"""Least improvement, relative to the distance of the best loss from the median."""


def normal_scores(losses: Sequence[float]) -> Any:
    """Quantile of the normal distribution at the rank of each loss, with ties at their middle rank: neither the scale
    of the losses nor outliers have an influence."""
    import numpy
    from scipy.special import ndtri

    values = numpy.asarray(losses, dtype=float)
    ordered = numpy.sort(values)
    below = numpy.searchsorted(ordered, values, "left")
    not_above = numpy.searchsorted(ordered, values, "right")
    return ndtri((below + not_above) / (2 * len(values)))


def value_scores(losses: Sequence[float]) -> Any:
    """Scores of losses that keep the shape of a smooth function near its optimum.

    Below the median, a score is the distance of the loss from the median, relative to that of the best twentieth, and
    logarithmic far below all others; above the median, it is the normal score of the rank. Neither the scale of the
    losses nor outliers have an influence.
    """
    import numpy

    values = numpy.asarray(losses, dtype=float)
    # Differences overflow for outliers, and their ratio for a width of nearly 0.
    with numpy.errstate(over="ignore"):
        middle = float(numpy.median(values))
        width = middle - float(numpy.quantile(values, 0.05))
        if not 0.0 < width < math.inf:
            return normal_scores(losses)
        scores = numpy.maximum((values - middle) / width, -1e300)
    far = -_BEYOND - numpy.log1p(numpy.maximum(0.0, -_BEYOND - scores))
    scores = numpy.where(scores < -_BEYOND, far, scores)
    return numpy.where(scores <= 0.0, scores, numpy.maximum(0.0, normal_scores(losses)))


class Observations:
    """Rows and losses of the members of populations: the best 300, the latest 120, the last 80 pruned and 80 failed."""

    def __init__(self, sampler: VectorisedGenomes) -> None:
        self._genomes = sampler
        # All dictionaries are by id and in order of arrival, so that the first entries are the oldest.
        self.completed: dict[str, tuple[Any, float]] = {}
        self._pruned: dict[str, tuple[Any, float]] = {}
        self.failed: dict[str, Any] = {}
        self.arrived = 0
        """Number of observations so far, including forgotten observations."""
        self._used: dict[bytes, None] = {}
        """Rows that were observed or proposed, as bytes; the oldest are forgotten."""

    def __len__(self) -> int:
        return len(self.completed) + len(self._pruned) + len(self.failed)

    @property
    def stalled(self) -> bool:
        """Whether the latest five individuals have improved the best loss by at most 1 % of its distance from the
        median."""
        losses = [loss for _, loss in self.completed.values()]
        if len(losses) <= _STALLED:
            return False
        best = min(losses)
        return min(losses[:-_STALLED]) - best <= _HARDLY * (sorted(losses)[len(losses) // 2] - best)

    def with_losses(self) -> list[tuple[Any, float]]:
        """Rows and losses of completed and pruned individuals.

        A pruned individual counts as its last report, but no better than the median of the completed: it was worse than
        others at the same step, and its final loss is unknown.
        """
        entries = list(self.completed.values())
        if not self._pruned:
            return entries
        ordered = sorted(loss for _, loss in entries)
        least = ordered[len(ordered) // 2]
        worst = ordered[-1]
        return [
            (row, max(loss, least) if math.isfinite(loss) else worst) for row, loss in self._pruned.values()
        ] + entries

    def observe(self, population: Population) -> list[tuple[Any, float]]:
        """Add the new members of a population; returns rows and losses of those that completed."""
        import numpy

        fresh = [one for one in population.everyone if not self._knows(one)]
        if not fresh:
            return []
        fresh.sort(key=lambda one: one.age)
        rows = self._genomes.rows(numpy.array([one.genome for one in fresh], dtype=float))
        self.use(rows)
        news = []
        for member, row in zip(fresh, rows):
            self._pruned.pop(member.id, None)  # for a pruned individual that was resumed
            if not _failed(member):
                self.failed.pop(member.id, None)  # for a failed individual that was evaluated again
            if member.status == PRUNED and member.progress is not None:
                self._pruned[member.id] = (row, member.progress[1])
            elif member.losses is None or member.status != COMPLETED:
                self.failed[member.id] = row
            else:
                self.completed[member.id] = entry = (row, member.losses[0])
                news.append(entry)
        self.arrived += len(fresh)
        keep_latest(self.failed, _MOST_FAILED)
        keep_latest(self._pruned, _MOST_FAILED)
        if len(self.completed) > _MOST_BEST + _MOST_LATEST + _SLACK:
            # The sort is stable, so that the older of equal losses stays, as in a population.
            old = sorted(list(self.completed)[:-_MOST_LATEST], key=lambda one: self.completed[one][1])
            for identity in old[_MOST_BEST:]:
                del self.completed[identity]
        return news

    def _knows(self, member: Member) -> bool:
        if member.status == PRUNED and member.id in self._pruned and member.progress is not None:
            return self._pruned[member.id][1] == member.progress[1]
        return member.id in self.completed or (member.id in self.failed and _failed(member))

    def new(self, rows: Any) -> Any:
        """Whether each row was neither observed nor proposed before, as an array of bools."""
        import numpy

        # Single precision, so that rows that differ by roundings of the map from values to genes are equal.
        keys = rows.astype(numpy.float32)
        return numpy.array([row.tobytes() not in self._used for row in keys], dtype=bool)

    def use(self, rows: Any) -> None:
        """Exclude ``rows`` from further proposals."""
        for row in rows.astype("float32"):
            self._used[row.tobytes()] = None
        keep_latest(self._used, _MOST_USED)


def _failed(member: Member) -> bool:
    """Whether a member neither completed nor was pruned after a report."""
    if member.status == PRUNED:
        return member.progress is None
    return member.losses is None or member.status != COMPLETED
