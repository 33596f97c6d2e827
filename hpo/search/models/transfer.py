"""Results of other tasks, such as the same training of a smaller model or on other data.

Another task's values may have any scale, so that only their order within that task counts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.ensemble import Forest, Model, ModelEnsemble
from hpo.search.models.observations import Observations, even_scores, normal_scores
from hpo.search.models.pareto import Losses
from hpo.search.population import OtherTasks
from hpo.space.space import Genome, SearchSpace

FEWEST = 3
"""Individuals before the first proposal by models of other tasks."""
_OWN = 10
"""Observations before the first model of the task's own results."""
_COMPARED = 5
"""Predictions of the own models before these are compared with other tasks."""
_WINDOW = 60
"""Latest individuals by which tasks are compared."""
_SAMPLES = 50
"""Bootstrap samples of them."""
# Chance orders half of the pairs wrongly, and an unrelated task may seem a little better on few pairs.
_CHANCE = 0.4
"""Share of pairs that is assumed for the own models until they are compared."""
_LEAST = 0.02
"""Least weight of a task whose model is used."""
# Other tasks order all results well, and still do not show where the very best lies.
_ALONE = 0.5
"""Share of the proposals that follow the own models alone."""
_FIRST = 5
"""First points."""
_BEST = 10
"""Results of each task, the best, that first points are chosen from."""
_APART = 0.05
"""Least distance of first points in any parameter, as a share of its range."""


def first_points(space: SearchSpace, tasks: OtherTasks) -> list[Genome]:
    """At most five of the best genomes of ``tasks`` that together are good on all tasks and not much alike.

    They are chosen one after the other, so that the sum over tasks of the best score among them, as forests predict
    it, becomes as low as possible (greedy coverage, as in Feurer et al. 2022, arXiv:2007.04074). Each
    objective counts as a task of its own.
    """
    if not any(tasks.values()):
        return []
    import numpy

    genomes, rng = VectorisedGenomes(space), random.Random(0)
    found: dict[Genome, None] = {}
    forests: list[Forest] = []
    for results in filter(None, tasks.values()):
        rows = genomes.rows(numpy.array([genome for genome, _ in results], dtype=float))
        for losses in zip(*(losses for _, losses in results)):
            forests.append(Forest(rows, normal_scores(losses), rng))
            best = numpy.argsort(losses, kind="stable")[:_BEST].tolist()
            found.update((tuple(results[place][0]), None) for place in best)
    rows = genomes.rows(numpy.array([*found], dtype=float))
    scores = numpy.array([forest(rows)[0] for forest in forests])
    covered = numpy.full((len(forests), 1), scores.max())
    chosen: list[int] = []
    free = numpy.ones(len(found), dtype=bool)
    while len(chosen) < _FIRST and free.any():
        # The second part decides where nothing is left to cover, as with a single task.
        totals = numpy.minimum(covered, scores).sum(axis=0) + 1e-3 * scores.sum(axis=0)
        chosen.append(int(numpy.where(free, totals, numpy.inf).argmin()))
        covered = numpy.minimum(covered, scores[:, chosen[-1:]])
        free &= numpy.abs(rows - rows[chosen[-1]]).max(axis=1) >= _APART
    return [[*found][place] for place in chosen]


class TransferEnsemble(ModelEnsemble):
    """Models of the task's own results beside a forest for each of ``tasks``, weighted by how well they order the own
    results (RGPE; Feurer et al. 2018, arXiv:1802.02219).

    The weight of a model is the share of bootstrap samples of the latest 60 individuals in which it orders the fewest
    pairs wrongly; own models count by their predictions before the results were known. An unrelated task soon has no
    weight. Until there are own models, they count as if they ordered two of five pairs wrongly, and in their share of
    the proposals configurations are random.
    """

    def __init__(self, sampler: VectorisedGenomes, tasks: OtherTasks, objective: int | None = None) -> None:
        import numpy

        super().__init__(sampler, objective)
        scores, rng = normal_scores if objective is None else even_scores, random.Random(0)
        self._forests = [
            Forest(
                sampler.rows(numpy.array([genome for genome, _ in results], dtype=float)),
                scores([losses[self._objective] for _, losses in results]),
                rng,
            )
            for results in filter(None, tasks.values())
        ]
        self._said: list[tuple[float, list[float]]] = []
        """Losses of the latest individuals with what each forest predicted and, last, what the own models did."""
        self._weights: list[float] | None = None

    def learn(self, news: Sequence[tuple[Any, Losses]]) -> None:
        """See ``ModelEnsemble.learn``."""
        import numpy

        if news:
            rows = numpy.array([row for row, _ in news[-_WINDOW:]])
            losses = [losses[self._objective] for _, losses in news[-_WINDOW:]]
            said = [forest(rows)[0] for forest in self._forests]
            said.append(self._own(rows, losses))
            self._said += zip(losses, numpy.array(said).T.tolist())
            del self._said[:-_WINDOW]
            self._weights = None
        super().learn(news)

    def _own(self, rows: Any, losses: Sequence[float]) -> Any:
        """Predictions of the own models; NaN where there are none yet."""
        import numpy

        models = [grown.model for grown in self._models.values() if grown.model is not None]
        if len(models) == len(self._models):
            return sum(share * model(rows)[0] for share, model in zip(self.shares(), models))
        found, half = numpy.full(len(rows), numpy.nan), len(rows) // 2
        if half >= _OWN:  # the search was resumed: the later half is predicted by the earlier
            found[half:] = Forest(rows[:half], normal_scores(losses[:half]), random.Random(0))(rows[half:])[0]
        return found

    def weights(self, rng: random.Random) -> list[float]:
        """Weight of each other task and, last, of the own models; their sum is 1."""
        import numpy

        if self._weights is None:
            losses = numpy.array([loss for loss, _ in self._said])
            said = numpy.array([said for _, said in self._said]).T
            compared = ~numpy.isnan(said[-1])
            if compared.sum() < _COMPARED:
                compared[:], said[-1] = True, numpy.nan
            losses, said = losses[compared], said[:, compared]
            ordered = losses[:, None] < losses
            generator = numpy.random.default_rng(rng.getrandbits(64))
            counts = generator.multinomial(len(losses), [1 / len(losses)] * len(losses), size=_SAMPLES)
            wrong = []
            for own in said[::-1]:  # the own models first, which win where others are equal
                share = numpy.where(numpy.isnan(own), _CHANCE, (numpy.sign(own[:, None] - own) + 1) / 2)
                wrong.append(numpy.einsum("si,ij,sj->s", counts, ordered * share, counts))
            fewest = numpy.argmin(wrong, axis=0)
            self._weights = (numpy.bincount(fewest, minlength=len(wrong))[::-1] / _SAMPLES).tolist()
        return self._weights

    def share_of_chance(self, rng: random.Random) -> float:
        """See ``ModelEnsemble.share_of_chance``."""
        return self.weights(rng)[-1]

    def draw(self, known: Observations, rng: random.Random) -> tuple[Model, float]:
        """Weighted mean of the other tasks' models and a random one of the own, and the own one's mean caution."""
        weights, caution = self.weights(rng)[:-1], 1.0
        models: list[Model] = [*self._forests]
        if len(known) >= _OWN:
            own, caution = super().draw(known, rng)
            if rng.random() < _ALONE:
                return own, caution
            weights, models = self.weights(rng), [*models, own]
        used = [(weight, model) for weight, model in zip(weights, models) if weight >= _LEAST]
        # No other task is of use, and it is too early for own models.
        used = used or [(1.0, model) for model in models]
        total = sum(weight for weight, _ in used)

        def mixed(rows: Any) -> tuple[Any, Any]:
            found = [(weight / total, *model(rows)) for weight, model in used]
            return sum(one * mean for one, mean, _ in found), sum(one * spread for one, _, spread in found)

        return mixed, caution
