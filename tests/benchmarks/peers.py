"""Other systems' searches with the calls of ``hpo.Search``, for ``search.py`` and ``objectives.py``.

Each is left as it comes, but for what its documentation advises where evaluations are pending. Ordered choices are
whole numbers to all. With several objectives a value is a tuple.
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
    def tell(self, asked: object, value: Any) -> None: ...


class Optuna:
    """One of its samplers: ``tpe`` with ``constant_liar``, ``gp`` as it comes, which takes pending evaluations into
    account by itself, ``nsga2`` with a population of 24, or ``cmaes``, which keeps whole numbers apart by its margin
    and leaves to TPE what it cannot propose: choices and conditional parameters.
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
    """πBO with the priors of the space and their point first, or Bayesian optimisation where there are none. It has no
    conditions: parameters that do not exist in a configuration are drawn and left out.
    """

    def __init__(self, space: hpo.SearchSpace, seed: int) -> None:
        import logging
        import random

        import neps
        import numpy
        import torch

        logging.getLogger("neps").setLevel(logging.ERROR)
        # It takes its random numbers from the global generators.
        random.seed(seed)
        numpy.random.seed(seed)
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

        confidence = parameter.prior_confidence or "low"
        if isinstance(parameter, hpo.Ordinal):
            prior = None if parameter.prior is None else parameter.choices.index(parameter.prior)
            return neps.HPOInteger(0, parameter.count - 1, prior=prior, prior_confidence=confidence)
        if isinstance(parameter, hpo.Categorical):
            prior = None if parameter.prior is None else str(parameter.prior)
            choices = [str(choice) for choice in parameter.choices]
            return neps.HPOCategorical(choices, prior=prior, prior_confidence=confidence)
        kind = neps.HPOFloat if isinstance(parameter, hpo.Float) else neps.HPOInteger
        belief = {"prior": parameter.prior, "prior_confidence": confidence}
        return kind(parameter.low, parameter.high, log=parameter.log, **belief)

    def ask(self) -> tuple[object, Params]:
        trial = self._search.ask()
        return trial, _decoded(self._space, trial.config)

    def tell(self, asked: Any, value: float | None) -> None:
        self._search.tell(asked, ValueError("failed") if value is None else value)


class HEBO:
    """MACE, or its GeneralBO with several objectives. It has no conditions: parameters that do not exist in a
    configuration are drawn and left out. It does not know of pending evaluations: as in its documentation it is asked
    for eight at once, from which workers take one after the other.
    """

    BATCH = 8

    def __init__(self, space: hpo.SearchSpace, seed: int, objectives: int = 1) -> None:
        import numpy
        import torch
        from hebo.design_space.design_space import DesignSpace
        from hebo.optimizers.general import GeneralBO
        from hebo.optimizers.hebo import HEBO as Mace

        # It takes its random numbers from the global generators.
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self._space = space
        ranges = DesignSpace().parse([self._range(name, one) for name, one in space.parameters.items()])
        if objectives == 1:
            self._search = Mace(ranges, scramble_seed=seed)
        else:
            self._search = GeneralBO(ranges, num_obj=objectives)
        self._proposed: list[Any] = []

    @staticmethod
    def _range(name: str, parameter: Any) -> dict[str, object]:
        if isinstance(parameter, hpo.Ordinal):
            return {"name": name, "type": "int", "lb": 0, "ub": parameter.count - 1}
        if isinstance(parameter, hpo.Categorical):
            return {"name": name, "type": "cat", "categories": [str(choice) for choice in parameter.choices]}
        kinds = ("num", "pow") if isinstance(parameter, hpo.Float) else ("int", "pow_int")
        return {"name": name, "type": kinds[parameter.log], "lb": parameter.low, "ub": parameter.high}

    def ask(self) -> tuple[object, Params]:
        if not self._proposed:
            found = self._search.suggest(self.BATCH)
            self._proposed = [found.iloc[[place]] for place in range(len(found))]
        asked = self._proposed.pop(0)
        return asked, _decoded(self._space, asked.iloc[0].to_dict())

    def tell(self, asked: Any, value: Any) -> None:
        import numpy

        if value is not None:  # failures have no place in it
            self._search.observe(asked, numpy.atleast_2d(value).astype(float))


class Ax:
    """Its Client with defaults, which takes pending evaluations into account by itself and chooses BoTorch's models. It
    has more first points than five, since eight workers ask before it has results. Parameters that do not exist in a
    configuration are drawn and left out.
    """

    def __init__(self, space: hpo.SearchSpace, seed: int, objectives: int = 1) -> None:
        import logging
        import warnings

        import torch
        from ax.api.client import Client

        warnings.filterwarnings("ignore")
        for name in [one for one in logging.root.manager.loggerDict if one.split(".")[0] == "ax"]:
            logging.getLogger(name).setLevel(logging.ERROR)  # each has a level of its own
        torch.set_num_threads(1)
        self._names = [f"f{number}" for number in range(objectives)]
        self._space = space
        self._search = Client(random_seed=seed)
        self._search.configure_experiment([self._range(name) for name in space.parameters])
        self._search.configure_optimization(", ".join(f"-{name}" for name in self._names))
        self._search.configure_generation_strategy(
            initialization_random_seed=seed, allow_exceeding_initialization_budget=True
        )

    def _range(self, name: str) -> Any:
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        parameter = self._space.parameters[name]
        if not isinstance(parameter, hpo.Categorical):
            kind = "float" if isinstance(parameter, hpo.Float) else "int"
            scaling = "log" if parameter.log else "linear"
            return RangeParameterConfig(name, (parameter.low, parameter.high), kind, scaling=scaling)
        if isinstance(parameter, hpo.Ordinal):
            return RangeParameterConfig(name, (0, parameter.count - 1), "int")
        choices = [str(choice) for choice in parameter.choices]
        return ChoiceParameterConfig(name, choices, "str", is_ordered=False)

    def ask(self) -> tuple[object, Params]:
        ((asked, params),) = self._search.get_next_trials(1).items()
        return asked, _decoded(self._space, params)

    def refuse(self, asked: Any) -> None:
        self._search.mark_trial_abandoned(asked)

    def tell(self, asked: Any, value: Any) -> None:
        if value is None:
            self._search.mark_trial_failed(asked)
        else:
            values = value if isinstance(value, tuple) else (value,)
            self._search.complete_trial(asked, dict(zip(self._names, values)))


class SMAC:
    """Its facade for hyperparameters, random forests; where all are numbers without conditions that for black boxes, a
    Gaussian process. A Sobol design is first, whose size follows its default budget of 100 evaluations, and a
    configuration is evaluated once. ParEGO with several objectives.
    """

    def __init__(self, space: hpo.SearchSpace, seed: int, objectives: int = 1) -> None:
        import smac
        from ConfigSpace import ConfigurationSpace
        from smac.multi_objective.parego import ParEGO
        from smac.runhistory.dataclasses import TrialValue
        from smac.runhistory.enumerations import StatusType

        self._space = space
        self._value, self._failed = TrialValue, StatusType.CRASHED
        self._worst: Any = [0.0] * objectives if objectives > 1 else 0.0
        ranges = ConfigurationSpace(seed=seed)
        ranges.add(self._range(name, parameter) for name, parameter in space.parameters.items())
        for condition in _conditions(space, ranges):
            ranges.add(condition)
        self._directory = tempfile.TemporaryDirectory()
        scenario = smac.Scenario(
            ranges,
            objectives=[f"f{number}" for number in range(objectives)] if objectives > 1 else "cost",
            deterministic=True,
            n_trials=100,
            seed=seed,
            output_directory=self._directory.name,
        )
        numbers = all(isinstance(one, hpo.Float) and not one.when for one in space.parameters.values())
        facade = smac.BlackBoxFacade if numbers else smac.HyperparameterOptimizationFacade
        self._search = facade(
            scenario,
            lambda config, seed: 0.0,
            multi_objective_algorithm=ParEGO(scenario) if objectives > 1 else None,
            logging_level=False,
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

    def tell(self, asked: Any, value: Any) -> None:
        if value is None:
            self._search.tell(asked, self._value(cost=self._worst, status=self._failed))
            return
        if isinstance(value, tuple):
            self._worst = [max(pair) for pair in zip(self._worst or value, value)]
            self._search.tell(asked, self._value(cost=list(value)))
        else:
            self._worst = max(self._worst or value, value)
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
