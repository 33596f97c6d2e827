"""Training data of the models: configurations as rows of numbers, losses as scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hpo.individual import COMPLETED, PRUNED
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.population import Member, Population

_MOST_BEST, _MOST_LATEST, _MOST_FAILED = 300, 120, 80
"""Those of a population's bounds are among them, or they would come again and again."""
_SLACK = 50
_MOST_USED = 20_000
_BEYOND = 3.0
_STALLED = 5
_HARDLY = 0.01


def normal_scores(losses: Sequence[float]) -> Any:
    """For each loss the quantile of the normal distribution at its rank, ties at their middle rank: neither scale
    nor outliers matter."""
    import numpy
    from scipy.special import ndtri

    values = numpy.asarray(losses, dtype=float)
    ordered = numpy.sort(values)
    below = numpy.searchsorted(ordered, values, "left")
    not_above = numpy.searchsorted(ordered, values, "right")
    return ndtri((below + not_above) / (2 * len(values)))


def value_scores(losses: Sequence[float]) -> Any:
    """For each loss below the median its distance from it over that of the best twentieth; those above count by rank
    only, and what lies far below all others by the logarithm. Neither scale nor outliers matter, and the shape of a
    smooth function near its optimum remains."""
    import numpy

    values = numpy.asarray(losses, dtype=float)
    with numpy.errstate(over="ignore"):  # an outlier, or one over hardly any width
        middle = float(numpy.median(values))
        width = middle - float(numpy.quantile(values, 0.05))
        if not 0.0 < width < math.inf:
            return normal_scores(losses)
        scores = numpy.maximum((values - middle) / width, -1e300)
    far = -_BEYOND - numpy.log1p(numpy.maximum(0.0, -_BEYOND - scores))
    scores = numpy.where(scores < -_BEYOND, far, scores)
    return numpy.where(scores <= 0.0, scores, numpy.maximum(0.0, normal_scores(losses)))


class Observations:
    """Rows and losses of what populations have shown. It remembers more than one of them does: the best 300, the
    latest 120, the last 80 pruned and the last 80 failed."""

    def __init__(self, sampler: VectorisedGenomes) -> None:
        self._genomes = sampler
        # By id, in order of arrival.
        self.completed: dict[str, tuple[Any, float]] = {}
        self._pruned: dict[str, tuple[Any, float]] = {}
        self.failed: dict[str, Any] = {}
        self.arrived = 0
        """How many have come, whatever became of them."""
        self._used: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self.completed) + len(self._pruned) + len(self.failed)

    @property
    def stalled(self) -> bool:
        """Whether the latest few have improved the best by hardly anything, of the distance from the median to it."""
        losses = [loss for _, loss in self.completed.values()]
        if len(losses) <= _STALLED:
            return False
        best = min(losses)
        return min(losses[:-_STALLED]) - best <= _HARDLY * (sorted(losses)[len(losses) // 2] - best)

    def with_losses(self) -> list[tuple[Any, float]]:
        """Rows and losses of all that have one. A pruned one was worse than others at its step, and how good it would
        have become is unknown: it counts as its last report, and as the median of the completed at best."""
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
        """Take in what is new; returns the completed ones of it."""
        import numpy

        shown: dict[str, Member] = {}
        for members in (population.best, population.recent, population.failures, population.pruned):
            shown.update((one.id, one) for one in members)
        fresh = [one for one in shown.values() if not self._knows(one)]
        if not fresh:
            return []
        fresh.sort(key=lambda one: one.age)
        rows = self._genomes.rows(numpy.array([one.genome for one in fresh], dtype=float))
        self.use(rows)
        news = []
        for member, row in zip(fresh, rows):
            self._pruned.pop(member.id, None)  # it went on
            if not _failed(member):
                self.failed.pop(member.id, None)  # it was evaluated again
            if member.status == PRUNED and member.progress is not None:
                self._pruned[member.id] = (row, member.progress[1])
            elif member.losses is None or member.status != COMPLETED:
                self.failed[member.id] = row
            else:
                self.completed[member.id] = entry = (row, member.losses[0])
                news.append(entry)
        self.arrived += len(fresh)
        _forget(self.failed, list(self.failed)[:-_MOST_FAILED])
        _forget(self._pruned, list(self._pruned)[:-_MOST_FAILED])
        if len(self.completed) > _MOST_BEST + _MOST_LATEST + _SLACK:
            # The sort is stable: of equal ones the older stays, as in a population.
            old = sorted(list(self.completed)[:-_MOST_LATEST], key=lambda one: self.completed[one][1])
            _forget(self.completed, old[_MOST_BEST:])
        return news

    def _knows(self, member: Member) -> bool:
        if member.status == PRUNED and member.id in self._pruned and member.progress is not None:
            return self._pruned[member.id][1] == member.progress[1]
        return member.id in self.completed or (member.id in self.failed and _failed(member))

    def new(self, rows: Any) -> Any:
        """Which rows were neither seen nor proposed, as an array of bools."""
        import numpy

        keys = rows.astype(numpy.float32)
        return numpy.array([row.tobytes() not in self._used for row in keys], dtype=bool)

    def use(self, rows: Any) -> None:
        """Propose them no more."""
        for row in rows.astype("float32"):
            self._used[row.tobytes()] = None
        while len(self._used) > _MOST_USED:
            del self._used[next(iter(self._used))]


def _failed(member: Member) -> bool:
    """Whether it neither completed nor was pruned after a report."""
    if member.status == PRUNED:
        return member.progress is None
    return member.losses is None or member.status != COMPLETED


def _forget(remembered: dict[str, Any], identities: Iterable[str]) -> None:
    for identity in identities:
        del remembered[identity]
