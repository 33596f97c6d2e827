"""Training data of the models: configurations as rows of numbers, losses as scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpo.individual import COMPLETED, PRUNED
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.pareto import Losses, best_first, dominators
from hpo.search.population import Member, Population, keep_latest

# At least as many of each as a population keeps: a member that it still has, forgotten here, would be new each time.
_MOST_BEST, _MOST_LATEST, _MOST_FAILED = 300, 120, 80
_SLACK = 50
"""Observations beyond the most that are kept, before any are forgotten."""
_MOST_USED = 20_000
_BEYOND = 3.0
"""Distance from the median, in that of the best twentieth, from which on scores grow logarithmically."""
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


def even_scores(losses: Sequence[float]) -> Any:
    """Scores of losses of several objectives, where good and bad losses in one are both part of the front: the distance
    from the median, relative to that of the best twentieth, and logarithmic far from it on both sides."""
    import numpy

    values = numpy.asarray(losses, dtype=float)
    with numpy.errstate(over="ignore", invalid="ignore"):
        best, middle, worst = numpy.quantile(values, [0.05, 0.5, 0.95])
        # The second is for losses of which half are equal to the best; outliers would make it too wide for others.
        width = middle - best or (worst - best) / 4
        if not 0.0 < width < math.inf:
            return normal_scores(losses)
        scores = numpy.clip((values - middle) / width, -1e300, 1e300)
    size = numpy.abs(scores)
    far = numpy.sign(scores) * (_BEYOND + numpy.log1p(numpy.maximum(0.0, size - _BEYOND)))
    return numpy.where(size > _BEYOND, far, scores)


def limit_scores(excess: Sequence[float]) -> Any:
    """Scores of excesses over a limit, of the same sign: relative to the median size, logarithmic where they are larger
    (Eriksson and Poloczek 2021, arXiv:2002.08526)."""
    import numpy

    values = numpy.asarray(excess, dtype=float)
    size = numpy.abs(values)
    width = float(numpy.median(size)) or float(size.mean()) or 1.0
    return numpy.sign(values) * numpy.log1p(size / width)


class Observations:
    """Rows and losses of the members of populations: the best 300, the latest 120, the last 80 pruned and 80 failed.
    ``reported``: number of the objective in which pruned members have reported."""

    def __init__(self, sampler: VectorisedGenomes, reported: int = 0) -> None:
        self._genomes = sampler
        self._reported = reported
        # All dictionaries are by id and in order of arrival, so that the first entries are the oldest.
        self.completed: dict[str, tuple[Any, Losses]] = {}
        """Rows, and losses with the excesses over limits behind them."""
        self._objectives = 1
        self._pruned: dict[str, tuple[Any, float]] = {}
        self.failed: dict[str, Any] = {}
        self.arrived = 0
        """Number of observations so far, including forgotten observations."""
        self.reference: Losses | None = None
        """Losses beyond which no individual of several objectives is wanted."""
        self._used: dict[bytes, None] = {}
        """Rows that were observed or proposed, as bytes; the oldest are forgotten."""

    def __len__(self) -> int:
        return len(self.completed) + len(self._pruned) + len(self.failed)

    @property
    def stalled(self) -> bool:
        """Whether the latest five individuals have improved the best loss by at most 1 % of its distance from the
        median; with several objectives, whether none of them is on the front."""
        if len(self.completed) <= _STALLED:
            return False
        fit = self.fit
        table = self.losses[fit]
        if len(table) <= _STALLED or not fit[-_STALLED:].any():
            return True
        if table.shape[1] > 1:
            return bool((dominators(table)[-_STALLED:] > 0).all())
        losses: list[float] = table[:, 0].tolist()
        best = min(losses)
        return min(losses[:-_STALLED]) - best <= _HARDLY * (sorted(losses)[len(losses) // 2] - best)

    @property
    def losses(self) -> Any:
        """Losses of the completed individuals, n × objectives."""
        return self._numbers()[:, : self._objectives]

    @property
    def rows(self) -> Any:
        """Rows of the completed individuals, n × columns."""
        import numpy

        return numpy.array([row for row, _ in self.completed.values()])

    @property
    def fit(self) -> Any:
        """Whether each completed individual keeps all limits, as an array of bools."""
        return (self._numbers()[:, self._objectives :] <= 0.0).all(axis=1)

    def _numbers(self) -> Any:
        import numpy

        return numpy.array([numbers for _, numbers in self.completed.values()])

    def with_losses(self, objective: int = 0) -> list[tuple[Any, float]]:
        """Rows and losses in an objective of completed individuals, and in the reported objective of pruned too. Behind
        the objectives are the limits: rows and excesses.

        A pruned individual counts as its last report, but no better than the median of the completed: it was worse than
        others at the same step, and its final loss is unknown.
        """
        entries = [(row, losses[objective]) for row, losses in self.completed.values()]
        if not self._pruned or objective != self._reported:
            return entries
        ordered = sorted(loss for _, loss in entries)
        least = ordered[len(ordered) // 2]
        worst = ordered[-1]
        return [
            (row, max(loss, least) if math.isfinite(loss) else worst) for row, loss in self._pruned.values()
        ] + entries

    def observe(self, population: Population) -> list[tuple[Any, Losses]]:
        """Add the new members of a population; returns rows and losses of those that completed, with excesses."""
        import numpy

        self.reference = population.reference
        everyone = population.everyone
        fresh = [one for one in everyone if not self._knows(one)]
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
                self._objectives = len(member.losses)
                self.completed[member.id] = entry = (row, member.losses + member.excess)
                news.append(entry)
        self.arrived += len(fresh)
        keep_latest(self.failed, _MOST_FAILED)
        keep_latest(self._pruned, _MOST_FAILED)
        if len(self.completed) > _MOST_BEST + _MOST_LATEST + _SLACK:
            old = list(self.completed)[:-_MOST_LATEST]
            order = best_first([self.completed[one][1][: self._objectives] for one in old])
            fit = self.fit
            order.sort(key=lambda place: not fit[place])
            # A population may keep others of a large front.
            kept = {one.id for one in everyone}
            for place in order[_MOST_BEST:]:
                if old[place] not in kept:
                    del self.completed[old[place]]
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
