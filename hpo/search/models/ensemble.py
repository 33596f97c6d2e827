"""Models of the loss for choosing proposals: a forest and a Gaussian process, weighted by how well they predict.

Libraries are imported when the first forest is grown, or before in a thread, because scikit-learn takes a second; so do
not import them at the top of this module."""

from __future__ import annotations

import atexit
import importlib
import math
import random
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.gaussian import Gaussian
from hpo.search.models.hypervolume import HypervolumeGain
from hpo.search.models.observations import Observations, even_scores, normal_scores, value_scores
from hpo.search.models.pareto import Losses

_TREES, _TREES_OF_SEVERAL = 40, 20
"""Trees of a forest, and of a forest of one of several objectives."""
# Few columns make the trees differ more, and their spread is the forest's uncertainty.
_SHARE_OF_COLUMNS = 0.35
"""Share of the columns tried at each split."""
_REFIT = 100
"""Reciprocal of the share of new observations at which a model is fitted again."""
_REFIT_SELDOM = 10
"""The same for the lengths of a Gaussian process, and for the model that does not judge this proposal."""
# The time of a Gaussian process grows with the cube of its observations, its memory with the square, times the number
# of parameters.
_MOST_FITTED = 200
"""Most observations of a Gaussian process, the best and the latest."""
_MOST_SQUARES = 4_000_000
"""Most numbers in its array of squared differences."""
_LATEST = 0.4
"""Share of the latest among its observations."""
_CAUTION = {"forest": 2.0, "gaussian": 1.0}
"""Mean number of standard deviations below the mean of a bound, by model."""
_AVERSION = 4.0
"""Weight of the probability of failure in a bound."""
_SEVERAL = 0.3
"""Ratio of the caution with several objectives, whose deviations add up, to that with a single objective."""
_WINDOW = 60
"""Latest individuals by whose predictions the models are compared."""
_FEWEST = 10
"""Predictions before models are compared."""
_SHARPNESS = 10.0
"""Factor of the rank correlation in the exponent of a model's weight."""

_EXIT_LIMIT_S = 10.0

Model = Callable[[Any], tuple[Any, Any]]
"""Function from rows (n × columns) to means and standard deviations (n each)."""
Scores = Callable[[Sequence[float]], Any]


@lru_cache(maxsize=1)
def _sklearn() -> tuple[Any, Any]:
    return importlib.import_module("sklearn"), importlib.import_module("sklearn.tree").ExtraTreeRegressor


@lru_cache(maxsize=1)
def import_in_background() -> threading.Thread:
    """Thread that imports the libraries of the models, started by the first call."""
    # No other thread of the process may import scikit-learn at the same time: its modules import each other in circles,
    # and a thread that begins at another module may see a module that is only half imported.
    thread = threading.Thread(target=_import_libraries, name="hpo-models", daemon=True)
    thread.start()
    # An interpreter that ends in the middle of an import may crash.
    atexit.register(thread.join, _EXIT_LIMIT_S)
    return thread


def _import_libraries() -> None:
    try:
        _sklearn()
        for name in ("scipy.linalg", "scipy.optimize", "scipy.special"):
            importlib.import_module(name)
    # The first model raises an ImportError again, in the thread that needs it. A RuntimeError is that of a process
    # that is ending, where Python refuses the functions that libraries register for its exit.
    except (ImportError, RuntimeError):
        pass


class Forest:
    """Extremely randomised trees (Geurts et al. 2006, doi:10.1007/s10994-006-6226-1), each fitted on all ``rows`` (n ×
    columns) and ``goals`` (n)."""

    def __init__(self, rows: Any, goals: Any, rng: random.Random, trees: int = _TREES) -> None:
        import numpy

        sklearn, tree = _sklearn()
        state = numpy.random.RandomState(rng.getrandbits(32))
        rows = numpy.asarray(rows, dtype=numpy.float32)
        # scikit-learn's check of a tree's parameters takes twice as long as growing the tree.
        with sklearn.config_context(skip_parameter_validation=True):
            self._trees = [
                tree(max_features=_SHARE_OF_COLUMNS, random_state=state)
                .fit(rows, goals, check_input=False)
                .tree_
                for _ in range(trees)
            ]

    def __call__(self, rows: Any) -> tuple[Any, Any]:
        """Mean and standard deviation of the trees' predictions for each row."""
        import numpy

        rows = rows.astype(numpy.float32)
        said = numpy.array([tree.predict(rows)[:, 0] for tree in self._trees])
        return said.mean(axis=0), said.std(axis=0)


class _Grown:
    """Model that is fitted again when there are enough new observations."""

    def __init__(self, objective: int | None = None, scores: Scores | None = None) -> None:
        self.model: Model | None = None
        self._objective = objective
        self._scores = scores
        self._at = 0

    def __call__(self, known: Observations, rng: random.Random, refit: int = _REFIT) -> Model:
        if self.model is None or (known.arrived - self._at) * refit >= len(known):
            self._at = known.arrived
            self.model = self._grow(known, rng)
        return self.model

    def _grow(self, known: Observations, rng: random.Random) -> Model:
        raise NotImplementedError


class _LossForest(_Grown):
    def _grow(self, known: Observations, rng: random.Random) -> Model:
        entries = known.with_losses(self._objective or 0)
        rows, losses = [row for row, _ in entries], [loss for _, loss in entries]
        if self._objective is None:
            return Forest(rows, normal_scores(losses), rng)
        return Forest(rows, (self._scores or even_scores)(losses), rng, _TREES_OF_SEVERAL)


class _FailureForest(_Grown):
    """Model of the probability that a configuration fails."""

    def _grow(self, known: Observations, rng: random.Random) -> Model:
        import numpy

        well = [row for row, _ in known.with_losses()]
        goals = numpy.repeat([0.0, 1.0], [len(well), len(known.failed)])
        return Forest(well + list(known.failed.values()), goals, rng)


class _GaussianProcess(_Grown):
    def __init__(
        self, sampler: VectorisedGenomes, objective: int | None, scores: Scores | None = None
    ) -> None:
        super().__init__(objective, scores)
        self._columns = sampler.columns
        self._parameters: Any = None
        self._fitted = 0

    def _grow(self, known: Observations, rng: random.Random) -> Model:
        import numpy

        entries = known.with_losses(self._objective or 0)
        losses = [loss for _, loss in entries]
        most = min(_MOST_FITTED, int(math.sqrt(_MOST_SQUARES / len(self._columns))))
        latest = int(_LATEST * most)
        best = numpy.argsort(losses, kind="stable")[: most - latest]
        chosen = numpy.union1d(best, numpy.arange(len(entries))[-latest:])
        rows = numpy.array([entries[index][0] for index in chosen])
        # Without a fit of the parameters, those of the last fit are used with the new observations.
        fit = self._parameters is None or (known.arrived - self._fitted) * _REFIT_SELDOM >= len(known)
        if fit:
            self._fitted = known.arrived
        default = value_scores if self._objective is None else even_scores
        scores = (self._scores or default)(losses)[chosen]
        process = Gaussian(rows, scores, self._columns, self._parameters, fit=fit)
        self._parameters = process.parameters
        return process


class AcquisitionFunction:
    """Lower confidence bound of each row, ``caution`` standard deviations below the mean of ``model``; the model
    ``failing`` of the probability of failure raises bounds. The row with the lowest bound is the most promising."""

    def __init__(self, model: Model, caution: float, failing: Model | None = None) -> None:
        self._model, self._caution, self._failing = model, caution, failing

    def __call__(self, rows: Any) -> Any:
        mean, deviation = self._model(rows)
        bounds = mean - self._caution * deviation
        return bounds if self._failing is None else bounds + _AVERSION * self._failing(rows)[0]


class ModelEnsemble:
    """A forest and a Gaussian process, of which each proposal uses one at random, more likely the better predictor.

    The forest uses ranks of losses only, and fits jumps and unordered choices well; the Gaussian process fits the shape
    of smooth functions. A model's probability grows with the rank correlation of its predictions for the latest 60
    individuals, made before their results were known, with these results. ``objective``: number of the objective, None
    for the only objective. ``scores``: function of losses that gives what the models predict, in place of the usual.
    """

    def __init__(
        self, sampler: VectorisedGenomes, objective: int | None = None, scores: Scores | None = None
    ) -> None:
        self._objective = objective or 0
        self._models: dict[str, _Grown] = {
            "forest": _LossForest(objective, scores),
            "gaussian": _GaussianProcess(sampler, objective, scores),
        }
        self._failures = _FailureForest()
        self._predicted: list[tuple[float, list[float]]] = []

    def learn(self, news: Sequence[tuple[Any, Losses]]) -> None:
        """Compare predictions with ``news``, rows and losses of individuals completed since the models were fitted."""
        import numpy

        models = [grown.model for grown in self._models.values() if grown.model is not None]
        if not news or len(models) < len(self._models):
            return
        rows = numpy.array([row for row, _ in news[-_WINDOW:]])
        said = numpy.array([model(rows)[0] for model in models]).T.tolist()
        self._predicted += zip([losses[self._objective] for _, losses in news[-_WINDOW:]], said)
        del self._predicted[:-_WINDOW]

    def share_of_chance(self, rng: random.Random) -> float:
        """Share of proposals that are to be random while there are too few results for the own models."""
        return 1.0

    def shares(self) -> list[float]:
        """Probability of each model."""
        import numpy

        if len(self._predicted) < _FEWEST:
            return [1.0 / len(self._models)] * len(self._models)
        losses = normal_scores([loss for loss, _ in self._predicted])
        # Later predictions weigh more, as they come from models with more observations.
        recency = numpy.linspace(0.3, 1.0, len(losses))

        def correlation(said: Sequence[float]) -> float:
            scores = normal_scores(said)
            spread = math.sqrt(float((recency * scores**2).sum() * (recency * losses**2).sum()))
            return float((recency * scores * losses).sum()) / max(spread, 1e-9)

        found = [correlation(said) for said in zip(*(said for _, said in self._predicted))]
        weights = [math.exp(_SHARPNESS * (one - max(found))) for one in found]
        return [weight / sum(weights) for weight in weights]

    def judge(self, known: Observations, rng: random.Random) -> AcquisitionFunction:
        """Acquisition function of the only objective, with a random model and caution."""
        model, caution = self.draw(known, rng)
        failing = self.failing(known, rng)
        # The random caution lets workers with nearly the same observations make different proposals.
        return AcquisitionFunction(model, rng.expovariate(1.0 / caution), failing)

    def failing(self, known: Observations, rng: random.Random) -> Model | None:
        """Model of the probability of failure, None while none has failed."""
        return self._failures(known, rng) if known.failed else None

    def draw(self, known: Observations, rng: random.Random) -> tuple[Model, float]:
        """Random model, and its mean caution."""
        (name,) = rng.choices(list(self._models), self.shares())
        grown = {
            one: model(known, rng, _REFIT if one == name else _REFIT_SELDOM)
            for one, model in self._models.items()
        }
        return grown[name], _CAUTION[name]


class FrontEnsemble:
    """An ensemble for each of several objectives. The acquisition function is the hypervolume that the vector of lower
    confidence bounds would gain (Ponweiser et al. 2008, doi:10.1007/978-3-540-87700-4_78)."""

    def __init__(self, ensembles: Sequence[ModelEnsemble]) -> None:
        self._ensembles = ensembles

    def learn(self, news: Sequence[tuple[Any, Losses]]) -> None:
        """See ``ModelEnsemble.learn``."""
        for ensemble in self._ensembles:
            ensemble.learn(news)

    def share_of_chance(self, rng: random.Random) -> float:
        """See ``ModelEnsemble.share_of_chance``; the largest of all objectives."""
        return max(ensemble.share_of_chance(rng) for ensemble in self._ensembles)

    def judge(self, known: Observations, rng: random.Random) -> Callable[[Any], Any]:
        """Acquisition function with a random model for each objective, and the same random caution for all."""
        import numpy

        drawn = [ensemble.draw(known, rng) for ensemble in self._ensembles]
        failing = self._ensembles[0].failing(known, rng)
        boldness = rng.expovariate(1.0 / _SEVERAL)
        judges = [AcquisitionFunction(model, boldness * caution) for model, caution in drawn]
        gain = HypervolumeGain(known, numpy.random.default_rng(rng.getrandbits(64)))

        def judge(rows: Any) -> Any:
            bounds = numpy.stack([bound(rows) for bound in judges], axis=1)
            if failing is not None:
                bounds += _AVERSION * failing(rows)[0][:, None]
            return -gain(bounds)

        return judge
