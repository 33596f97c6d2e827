"""Other systems' searches, asked and told as ``hpo.Search`` is, for ``search.py``.

Each is left as it comes, but for what its documentation advises where evaluations are pending. Ordered choices are
whole numbers to all.

HEBO is not among them: 0.3.6 needs numpy below 1.25, and 0.3.2, which pip then chooses, fails at import beside the
pymoo that comes with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import hpo

Params = dict[str, object]


class System(Protocol):
    """What a benchmark asks for configurations, and tells values that are to be minimised; None: it failed."""

    def ask(self) -> tuple[object, Params]: ...
    def tell(self, asked: object, value: float | None) -> None: ...


class Optuna:
    """One of its samplers: ``tpe`` with ``constant_liar``, ``gp`` as it comes, which takes pending evaluations into
    account by itself, ``nsga2`` with a population of 24, or ``cmaes``, which keeps whole numbers apart by its margin
    and leaves to TPE what it cannot propose: choices and conditional parameters. With several objectives a value is a
    tuple.
    """

    def __init__(self, space: hpo.SearchSpace, seed: int, sampler: str = "tpe", objectives: int = 1) -> None:
        import warnings

        import optuna

        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._failed, self._pruned = optuna.trial.TrialState.FAIL, optuna.trial.TrialState.PRUNED
        self._space = space
        tpe = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        samplers: dict[str, Callable[[], Any]] = {
            "tpe": lambda: tpe,
            "nsga2": lambda: optuna.samplers.NSGAIISampler(seed=seed, population_size=24),
            "gp": lambda: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False),
            "cmaes": lambda: optuna.samplers.CmaEsSampler(
                seed=seed, with_margin=True, independent_sampler=tpe, warn_independent_sampling=False
            ),
        }
        self._study = optuna.create_study(sampler=samplers[sampler](), directions=["minimize"] * objectives)

    def ask(self) -> tuple[object, Params]:
        trial = self._study.ask()
        params: Params = {}
        for name, parameter in self._space.parameters.items():
            if self._space.exists(name, params):
                params[name] = self._suggest(trial, name, parameter)
        return trial, params

    @staticmethod
    def _suggest(trial: Any, name: str, parameter: object) -> object:
        if isinstance(parameter, hpo.Ordinal):
            return parameter.choices[trial.suggest_int(name, 0, parameter.count - 1)]
        if isinstance(parameter, hpo.Categorical):
            return trial.suggest_categorical(name, parameter.choices)
        suggest = trial.suggest_float if isinstance(parameter, hpo.Float) else trial.suggest_int
        return suggest(name, parameter.low, parameter.high, log=parameter.log)

    def refuse(self, asked: object) -> None:
        """Tell that a constraint excludes what was asked: as pruned, since TPE learns nothing from failures."""
        self._study.tell(asked, state=self._pruned)

    def tell(self, asked: object, value: Any) -> None:
        if value is None:
            self._study.tell(asked, state=self._failed)
        else:
            self._study.tell(asked, value)


class DeepHyper:
    """Its centralised Bayesian optimisation: extremely randomised trees, UCB with decay, a mixed genetic algorithm."""

    def __init__(self, space: hpo.SearchSpace, seed: int) -> None:
        import warnings

        from deephyper.hpo import CBO, HpProblem

        warnings.filterwarnings("ignore", message="The objective has been evaluated")
        problem = HpProblem()
        self._space = space
        held: dict[str, Any] = {}
        for name, parameter in space.parameters.items():
            held[name] = problem.add_hyperparameter(self._range(parameter), name)
        for condition in _conditions(space, held):
            problem.add_condition(condition)
        self._directory = tempfile.TemporaryDirectory()
        self._search = CBO(
            problem,
            random_state=seed,
            log_dir=self._directory.name,
            verbose=0,
            checkpoint_history_to_csv=False,
        )

    @staticmethod
    def _range(parameter: Any) -> Any:
        if isinstance(parameter, hpo.Ordinal):
            return (0, parameter.count - 1)
        if isinstance(parameter, hpo.Categorical):
            return [str(choice) for choice in parameter.choices]
        return (parameter.low, parameter.high, "log-uniform" if parameter.log else "uniform")

    def ask(self) -> tuple[object, Params]:
        (asked,) = self._search.ask(1)
        return asked, _decoded(self._space, asked)

    def tell(self, asked: object, value: float | None) -> None:
        self._search.tell([(asked, "F" if value is None else -value)])


class NePS:
    """πBO with the priors of the space and their point first, or Bayesian optimisation where there are none; for spaces
    without conditions."""

    def __init__(self, space: hpo.SearchSpace, seed: int) -> None:
        import neps
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        ranges = neps.SearchSpace({name: self._range(one) for name, one in space.parameters.items()})
        if space.has_beliefs:
            optimizer = neps.algorithms.pibo(ranges, sample_prior_first=True)
        else:
            optimizer = neps.algorithms.bayesian_optimization(ranges)
        self._search = neps.AskAndTell(optimizer)
        self._space = space

    @staticmethod
    def _range(parameter: Any) -> Any:
        import neps

        belief = {"prior": parameter.prior, "prior_confidence": parameter.prior_confidence or "low"}
        if isinstance(parameter, hpo.Categorical):
            return neps.HPOCategorical(list(parameter.choices), **belief)
        kind = neps.HPOFloat if isinstance(parameter, hpo.Float) else neps.HPOInteger
        return kind(parameter.low, parameter.high, log=parameter.log, **belief)

    def ask(self) -> tuple[object, Params]:
        trial = self._search.ask()
        return trial, self._space.validate(trial.config)

    def tell(self, asked: Any, value: float | None) -> None:
        self._search.tell(asked, ValueError("failed") if value is None else value)


class SMAC:
    """Its facade for hyperparameters: random forests, a Sobol design first; a configuration is evaluated once. Sizes of
    the design follow its default budget of 100 evaluations.
    """

    def __init__(self, space: hpo.SearchSpace, seed: int) -> None:
        import smac
        from ConfigSpace import ConfigurationSpace
        from smac.runhistory.dataclasses import TrialValue
        from smac.runhistory.enumerations import StatusType

        self._space = space
        self._value, self._failed = TrialValue, StatusType.CRASHED
        self._worst = 0.0
        ranges = ConfigurationSpace(seed=seed)
        ranges.add(self._range(name, parameter) for name, parameter in space.parameters.items())
        for condition in _conditions(space, ranges):
            ranges.add(condition)
        self._directory = tempfile.TemporaryDirectory()
        scenario = smac.Scenario(
            ranges, deterministic=True, n_trials=100, seed=seed, output_directory=self._directory.name
        )
        self._search = smac.HyperparameterOptimizationFacade(
            scenario, lambda config, seed: 0.0, logging_level=False
        )

    @staticmethod
    def _range(name: str, parameter: Any) -> Any:
        from ConfigSpace import Categorical, Float, Integer

        if isinstance(parameter, hpo.Ordinal):
            return Integer(name, (0, parameter.count - 1))
        if isinstance(parameter, hpo.Categorical):
            return Categorical(name, [str(choice) for choice in parameter.choices])
        kind = Float if isinstance(parameter, hpo.Float) else Integer
        return kind(name, (parameter.low, parameter.high), log=parameter.log)

    def ask(self) -> tuple[object, Params]:
        asked = self._search.ask()
        return asked, _decoded(self._space, asked.config)

    def tell(self, asked: Any, value: float | None) -> None:
        if value is None:
            self._search.tell(asked, self._value(cost=self._worst, status=self._failed))
        else:
            self._worst = max(self._worst, value)
            self._search.tell(asked, self._value(cost=value))


class RayTune:
    """Its HyperOptSearch, a tree-structured Parzen estimator, asked as Ray asks it. Parameters that do not exist in a
    configuration are drawn and left out, as its search spaces know no conditions.
    """

    def __init__(self, space: hpo.SearchSpace, seed: int) -> None:
        import logging

        from ray.tune.search.hyperopt import HyperOptSearch

        logging.getLogger("hyperopt").setLevel(logging.ERROR)
        self._space = space
        ranges = {name: self._range(parameter) for name, parameter in space.parameters.items()}
        self._search = HyperOptSearch(
            HyperOptSearch.convert_search_space(ranges), metric="loss", mode="min", random_state_seed=seed
        )
        self._asked = 0

    @staticmethod
    def _range(parameter: Any) -> Any:
        from ray import tune

        if isinstance(parameter, hpo.Ordinal):
            return tune.randint(0, parameter.count)
        if isinstance(parameter, hpo.Categorical):
            return tune.choice([str(choice) for choice in parameter.choices])
        if isinstance(parameter, hpo.Int):
            # Without its upper end.
            return (tune.lograndint if parameter.log else tune.randint)(parameter.low, parameter.high + 1)
        return (tune.loguniform if parameter.log else tune.uniform)(parameter.low, parameter.high)

    def ask(self) -> tuple[object, Params]:
        self._asked += 1
        name = str(self._asked)
        return name, _decoded(self._space, self._search.suggest(name))

    def tell(self, asked: object, value: float | None) -> None:
        if value is None:
            self._search.on_trial_complete(asked, error=True)
        else:
            self._search.on_trial_complete(asked, {"loss": value})


def _conditions(space: hpo.SearchSpace, ranges: Any) -> Iterator[Any]:
    """What ConfigSpace calls the ``when`` of each parameter; ``ranges``: its hyperparameters by name."""
    from ConfigSpace import AndConjunction, InCondition

    for name, parameter in space.parameters.items():
        found = [
            InCondition(
                ranges[name], ranges[parent], [_code(space.parameters[parent], one) for one in values]
            )
            for parent, values in parameter.when.items()
        ]
        if found:
            yield AndConjunction(*found) if len(found) > 1 else found[0]


def _code(parameter: Any, value: object) -> object:
    if isinstance(parameter, hpo.Ordinal):
        return parameter.choices.index(value)
    return str(value) if isinstance(parameter, hpo.Categorical) else value


def _decoded(space: hpo.SearchSpace, asked: Mapping[str, Any]) -> Params:
    """Without what does not exist."""
    params: Params = {}
    for name, parameter in space.parameters.items():
        if not space.exists(name, params):
            continue
        value = asked[name]
        if isinstance(parameter, hpo.Ordinal):
            params[name] = parameter.choices[int(value)]
        elif isinstance(parameter, hpo.Categorical):
            params[name] = next(choice for choice in parameter.choices if str(choice) == value)
        else:
            params[name] = int(value) if isinstance(parameter, hpo.Int) else float(value)
    return params
