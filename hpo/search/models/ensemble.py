"""Models of the loss that rank proposals: a forest and a Gaussian process, weighted by how well they predict.

Imports scikit-learn when the first forest is grown, or before in a thread, for that takes a second; so do not import
this module's libraries at its top."""

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
from hpo.search.models.observations import Observations, normal_scores, value_scores

_TREES = 40
_SHARE_OF_COLUMNS = 0.35
"""Columns tried at each split. Fewer make trees differ more, which is what their spread is read for."""
_REFIT = 100
"""A model stays while the share of new observations is below one in this many."""
_REFIT_SELDOM = 10
"""The same for what costs more than it gives: lengths of a Gaussian process, and a model that does not judge."""
_MOST_FITTED = 200
_LATEST = 0.4
_MOST_SQUARES = 4_000_000
"""What a Gaussian process is fitted on, its best and its latest: time grows with the cube of their number, memory
with its square times the parameters."""
_CAUTION = {"forest": 2.0, "gaussian": 1.0}
_AVERSION = 4.0
_WINDOW = 60
_FEWEST = 10
_SHARPNESS = 10.0

_EXIT_LIMIT_S = 10.0

Model = Callable[[Any], tuple[Any, Any]]
"""From rows to means and standard deviations."""


@lru_cache(maxsize=1)
def _sklearn() -> tuple[Any, Any]:
    return importlib.import_module("sklearn"), importlib.import_module("sklearn.tree").ExtraTreeRegressor


@lru_cache(maxsize=1)
def import_in_background() -> threading.Thread:
    """The thread that imports what the models need, started by the first call.

    Only for processes in which no other thread imports scikit-learn meanwhile: of two threads that enter its circular
    imports at different modules, one may see a module half imported."""
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
    except ImportError:
        pass  # The first model raises it again, in the thread that needs it.
    except RuntimeError:
        pass  # The campaign has ended meanwhile: a Python that is ending lets no library register for its end.


class Forest:
    """Extremely randomised trees (Geurts et al. 2006, doi:10.1007/s10994-006-6226-1), each on all observations."""

    def __init__(self, rows: Any, goals: Any, rng: random.Random) -> None:
        import numpy

        sklearn, tree = _sklearn()
        state = numpy.random.RandomState(rng.getrandbits(32))
        rows = numpy.asarray(rows, dtype=numpy.float32)
        # Checking a tree's parameters costs twice what growing it does.
        with sklearn.config_context(skip_parameter_validation=True):
            self._trees = [
                tree(max_features=_SHARE_OF_COLUMNS, random_state=state)
                .fit(rows, goals, check_input=False)
                .tree_
                for _ in range(_TREES)
            ]

    def __call__(self, rows: Any) -> tuple[Any, Any]:
        """Mean of what the trees say of each row, and its standard deviation between trees."""
        import numpy

        rows = rows.astype(numpy.float32)
        said = numpy.array([tree.predict(rows)[:, 0] for tree in self._trees])
        return said.mean(axis=0), said.std(axis=0)


class _Grown:
    """A model that is grown anew when enough has come."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self._at = 0

    def __call__(self, known: Observations, rng: random.Random, refit: int = _REFIT) -> Model:
        if self.model is None or (known.arrived - self._at) * refit >= len(known):
            self._at = known.arrived
            self.model = self._grow(known, rng)
        return self.model

    def _grow(self, known: Observations, rng: random.Random) -> Model:
        raise NotImplementedError


class _Losses(_Grown):
    def _grow(self, known: Observations, rng: random.Random) -> Model:
        entries = known.with_losses()
        return Forest([row for row, _ in entries], normal_scores([loss for _, loss in entries]), rng)


class _Failures(_Grown):
    """The probability that a configuration fails."""

    def _grow(self, known: Observations, rng: random.Random) -> Model:
        import numpy

        well = [row for row, _ in known.with_losses()]
        goals = numpy.repeat([0.0, 1.0], [len(well), len(known.failed)])
        return Forest(well + list(known.failed.values()), goals, rng)


class _Process(_Grown):
    def __init__(self, sampler: VectorisedGenomes) -> None:
        super().__init__()
        self._columns = sampler.columns
        self._parameters: Any = None
        self._fitted = 0

    def _grow(self, known: Observations, rng: random.Random) -> Model:
        import numpy

        entries = known.with_losses()
        losses = [loss for _, loss in entries]
        most = min(_MOST_FITTED, int(math.sqrt(_MOST_SQUARES / len(self._columns))))
        latest = int(_LATEST * most)
        best = numpy.argsort(losses, kind="stable")[: most - latest]
        chosen = numpy.union1d(best, numpy.arange(len(entries))[-latest:])
        rows = numpy.array([entries[index][0] for index in chosen])
        fit = self._parameters is None or (known.arrived - self._fitted) * _REFIT_SELDOM >= len(known)
        if fit:
            self._fitted = known.arrived
        process = Gaussian(rows, value_scores(losses)[chosen], self._columns, self._parameters, fit=fit)
        self._parameters = process.parameters
        return process


class AcquisitionFunction:
    """The bound of each row by one model; what has the lowest is the most promising.

    ``caution``: in standard deviations below the mean. ``failing``: gives the probability of failure, which
    counts against a row."""

    def __init__(self, model: Model, caution: float, failing: Model | None = None) -> None:
        self._model, self._caution, self._failing = model, caution, failing

    def __call__(self, rows: Any) -> Any:
        mean, deviation = self._model(rows)
        bounds = mean - self._caution * deviation
        return bounds if self._failing is None else bounds + _AVERSION * self._failing(rows)[0]


class ModelEnsemble:
    """A forest, which knows ranks only and takes jumps and choices as they come, and a Gaussian process, which sees the
    shape of smooth functions. Each proposal is judged by one of them, drawn by how well it predicted the latest 60 that
    arrived: by the rank correlation of what it said of them before with what they turned out to be."""

    def __init__(self, sampler: VectorisedGenomes) -> None:
        self._models: dict[str, _Grown] = {"forest": _Losses(), "gaussian": _Process(sampler)}
        self._failures = _Failures()
        self._predicted: list[tuple[float, list[float]]] = []

    def learn(self, news: Sequence[tuple[Any, float]]) -> None:
        """Rows and losses of what has completed since the models were grown."""
        import numpy

        models = [grown.model for grown in self._models.values() if grown.model is not None]
        if not news or len(models) < len(self._models):
            return
        rows = numpy.array([row for row, _ in news[-_WINDOW:]])
        said = numpy.array([model(rows)[0] for model in models]).T.tolist()
        self._predicted += zip([loss for _, loss in news[-_WINDOW:]], said)
        del self._predicted[:-_WINDOW]

    def shares(self) -> list[float]:
        """With what probability each model judges."""
        import numpy

        if len(self._predicted) < _FEWEST:
            return [1.0 / len(self._models)] * len(self._models)
        losses = normal_scores([loss for loss, _ in self._predicted])
        recency = numpy.linspace(0.3, 1.0, len(losses))

        def correlation(said: Sequence[float]) -> float:
            scores = normal_scores(said)
            spread = math.sqrt(float((recency * scores**2).sum() * (recency * losses**2).sum()))
            return float((recency * scores * losses).sum()) / max(spread, 1e-9)

        found = [correlation(said) for said in zip(*(said for _, said in self._predicted))]
        weights = [math.exp(_SHARPNESS * (one - max(found))) for one in found]
        return [weight / sum(weights) for weight in weights]

    def judge(self, known: Observations, rng: random.Random) -> AcquisitionFunction:
        """One model, with a caution that is drawn anew: several workers propose from nearly the same knowledge."""
        (name,) = rng.choices(list(self._models), self.shares())
        grown = {
            one: model(known, rng, _REFIT if one == name else _REFIT_SELDOM)
            for one, model in self._models.items()
        }
        failing = self._failures(known, rng) if known.failed else None
        return AcquisitionFunction(grown[name], rng.expovariate(1.0 / _CAUTION[name]), failing)
