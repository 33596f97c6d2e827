"""Our search as the sampler of Optuna studies: Optuna's own conformance suite; proposals follow from the study's trials
alone, whoever ran them; any study that Optuna allows is sampled."""

from __future__ import annotations

import copy
import math
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import optuna
import pytest
import refusals
from cases import cases
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import PartialFixedSampler, RandomSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)
from optuna.trial import TrialState, create_trial

import hpo

optuna.logging.set_verbosity(optuna.logging.ERROR)
Objective = Callable[[Any], Any]


class TestConformance(BasicSamplerTestCase, MultiObjectiveSamplerTestCase, RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], optuna.samplers.BaseSampler]:
        return hpo.OptunaSampler


def studied(objective: Objective, trials: int, seed: int = 0, **keywords: Any) -> optuna.Study:
    study = optuna.create_study(sampler=hpo.OptunaSampler(seed), **keywords)
    study.optimize(objective, n_trials=trials, catch=(ArithmeticError,))
    return study


def conditional(trial: Any) -> float:
    """Three models, each with parameters of its own, of which the last is the best where it is tuned."""
    loss = 0.1 * (trial.suggest_int("scale", 1, 1000, log=True) < 30)
    model = trial.suggest_categorical("model", ["linear", "forest", None])
    if model == "linear":
        return loss + 0.3 + (trial.suggest_float("penalty", 0, 1) - 0.2) ** 2
    layers = trial.suggest_int("layers", 1, 5) if model is None else 1
    widths = [trial.suggest_int(f"width{place}", 8, 64, step=8) for place in range(layers)]
    return (
        loss + 0.2 * (model is not None) + abs(layers - 3) / 10 + sum(abs(one - 32) for one in widths) / 200
    )


def test_conditions_are_learned_and_searched():
    study = studied(conditional, 80)
    best = [min(optuna_random(conditional, 80, seed).best_value, 1.0) - study.best_value for seed in range(3)]
    assert study.best_value < 0.05 < min(best)
    asked: list[str] = []

    class Told(hpo.OptunaSampler):  # type: ignore[misc, valid-type]
        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            asked.append(name)
            return super().sample_independent(study, trial, name, distribution)

    study.sampler = Told(1)
    for _ in range(20):
        trial = study.ask()
        conditional(trial)
        assert trial.relative_params.keys() <= trial.params.keys()
    assert not asked


def optuna_random(objective: Objective, trials: int, seed: int) -> optuna.Study:
    study = optuna.create_study(sampler=RandomSampler(seed))
    study.optimize(objective, n_trials=trials)
    return study


def test_proposals_follow_from_the_trials_alone():
    """The sampler that ran the study, copies of it and others with its seed propose the same; other seeds do not."""
    study = studied(conditional, 45, seed=3)
    study.sampler.reseed_rng()
    ran, other = study.sampler, hpo.OptunaSampler(3)
    other.infer_relative_search_space(optuna_random(conditional, 5, 0), create_trial(value=0.0))
    trial = study._storage.get_trial(study.ask()._trial_id)

    def proposed(sampler: Any) -> dict[str, Any]:
        return sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial))

    alike = [proposed(one) for one in (other, hpo.OptunaSampler(3), pickle.loads(pickle.dumps(other)))]
    assert alike[0] == alike[1] == alike[2] == proposed(copy.deepcopy(other))
    assert len({str(proposed(one)) for one in (other, ran, hpo.OptunaSampler(4), hpo.OptunaSampler())}) == 4
    assert proposed(copy.copy(ran)) != alike[0]


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_samplers_on_one_storage_know_each_others_trials(tmp_path, kind):
    """All 24 configurations are asked for once, though half of them are pending; then they are repeated."""

    def opened() -> optuna.Study:
        backend = optuna.storages.journal.JournalFileBackend(f"{tmp_path}/journal")
        storage = (
            f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else optuna.storages.JournalStorage(backend)
        )
        sampler = hpo.OptunaSampler(0)
        return optuna.create_study(study_name="a", storage=storage, sampler=sampler, load_if_exists=True)

    studies, seen = (opened(), opened()), []
    for number in range(26):
        trial = studies[number % 2].ask()
        seen.append(
            (trial.suggest_int("n", 0, 10, step=2), trial.suggest_categorical("c", [True, "1", 1.5, None]))
        )
        if number % 4 < 2:
            studies[number % 2].tell(trial, seen[-1][0])
    assert len({*map(str, seen)}) == len({*map(str, seen[:24])}) >= 23
    for study in studies if kind == "sqlite" else ():
        study._storage._backend.engine.dispose()


def test_failed_pruned_and_infeasible_trials_guide_away():
    def objective(trial: Any) -> float:
        x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
        if x > 0.6:
            raise ZeroDivisionError
        if y > 0.7:
            trial.report(1.0, 3)
            raise optuna.TrialPruned
        return -x - y

    study = studied(objective, 70)
    states = [trial.state for trial in study.trials[30:]]
    assert states.count(TrialState.COMPLETE) >= 24  # chance: 17
    assert study.best_value < -1.27


@pytest.mark.parametrize("ways", cases([["minimize", "maximize"]], nightly=[["minimize"]]))
def test_constraints_are_kept_even_where_chance_rarely_finds_them_kept(ways):
    def objective(trial: Any) -> Any:
        x, y = trial.suggest_float("x", 0, 6), trial.suggest_float("y", 0, 6)
        trial.set_constraint("sines", math.sin(x) * math.sin(y) + 0.9)
        return (math.sin(x) + y, x)[: len(ways)]

    study = studied(objective, 60, directions=ways)
    kept = [trial for trial in study.trials if trial.constraints["sines"] <= 0]
    assert len(kept) >= 20  # chance: 2
    assert min(trial.values[0] for trial in kept) < 1.0


def test_values_that_are_fixed_hold():
    study = studied(conditional, 20)
    study.enqueue_trial({"model": "linear", "penalty": 0.25})
    study.enqueue_trial({"scale": 77})
    study.optimize(conditional, n_trials=2)
    assert study.trials[20].params["penalty"] == 0.25
    assert study.trials[21].params["scale"] == 77
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        study.sampler = PartialFixedSampler({"model": None}, hpo.OptunaSampler(0))
    study.optimize(conditional, n_trials=5)
    assert {trial.params["model"] for trial in study.trials[22:]} == {None}


def layers(trial: Any) -> float:
    return sum(trial.suggest_float(f"x{place}", 0, 1) for place in range(trial.suggest_int("n", 1, 4)))


def choices(trial: Any) -> float:
    given = [True, 1, None, "None", 1.0, 0, False, math.nan, 2.5, ""]
    return given.index(trial.suggest_categorical("a", given)) + trial.suggest_categorical("b", [*range(300)])


def extremes(trial: Any) -> float:
    numbers = [trial.suggest_int("a", 0, 2**62), trial.suggest_int("b", 1, 2**45, log=True)]
    numbers += [trial.suggest_int("c", 0, 10**12, step=8), trial.suggest_int("d", 5, 5)]
    numbers += [trial.suggest_float("e", 1, 1 + 1e-12), trial.suggest_float("f", 1e-310, 1e-300, log=True)]
    numbers += [trial.suggest_float("g", 0.1, 0.3, step=0.1), trial.suggest_float("h", -1e307, 1e307)]
    return math.fsum(numbers) % 7


def dependent(trial: Any) -> float:
    x = trial.suggest_float("x", 0, 10)
    return x - trial.suggest_float("y", 0, max(x, 0.1)) - trial.suggest_int("n", 0, 4 * int(x), step=4)


def names(trial: Any) -> float:
    return sum(trial.suggest_float(name, 0, 1) for name in ("", "_x", "a\nb", "p0", "self"))


def infinite(trial: Any) -> tuple[float, float]:
    x = trial.suggest_float("x", 0, 1)
    return [math.inf, x, -math.inf][trial.number % 3], x


def never_whole(trial: Any) -> float:
    if trial.number % 2:
        raise ZeroDivisionError
    trial.report(math.nan, 1 + int(trial.suggest_float("x", 0, 1) > 0.5))
    raise optuna.TrialPruned


@pytest.mark.parametrize(
    "objective", [layers, choices, extremes, dependent, names, infinite, never_whole, lambda trial: 1.0]
)
def test_any_objective_is_sampled(objective):
    ways = ["minimize", "maximize"] if objective is infinite else ["maximize"]
    study = studied(objective, 35, directions=ways)
    assert len(study.trials) == 35
    assert all(trial.state != TrialState.FAIL for trial in study.trials) or objective is never_whole


def test_trials_from_elsewhere_are_taken_as_they_are():
    """Trials of other kinds, out of the range, without parameters, and enqueued with values that are none."""
    study = optuna.create_study(sampler=hpo.OptunaSampler(0))
    for value, distribution in (
        ("b", CategoricalDistribution(["a", "b"])),
        (3, IntDistribution(1, 9)),
        (40.0, FloatDistribution(1, 50, log=True)),
    ):
        study.add_trial(create_trial(params={"x": value}, distributions={"x": distribution}, value=0.0))
    study.add_trials([create_trial(state=state) for state in (TrialState.FAIL, TrialState.PRUNED)])
    study.add_trial(create_trial(value=-math.inf))
    rng = random.Random(0)
    for _ in range(25):
        x = rng.uniform(-9, 9)
        study.add_trial(
            create_trial(params={"x": x}, distributions={"x": FloatDistribution(-9, 9)}, value=x * x)
        )
    for fixed in ({"x": 50.0}, {"y": "no"}, {}, {"other": 1}):
        study.enqueue_trial(fixed)
    for _ in range(16):
        trial = study.ask()
        x = study.sampler.sample_relative(study, trial, {"x": FloatDistribution(-9, 9)})["x"]
        study.tell(trial, x * x)
        assert -9 <= x <= 9


def test_mistakes_are_refused():
    for seed in (-1, "0", 1.5, True):
        refusals.refused(lambda seed=seed: hpo.OptunaSampler(seed), "seed", "whole number from 0")
    refusals.refused(lambda: hpo.OptunaSampler(constraints_func=len), "trial.set_constraint")
    refusals.refused(lambda: hpo.OptunaSampler(n_startup_trials=5), "no keyword 'n_startup_trials'")


def test_without_optuna_only_the_sampler_is_missing():
    script = (
        "import sys; sys.modules['optuna'] = None\n"
        "from hpo import *\nSearch(SearchSpace(x=Float(0, 1))).ask()\nimport hpo\n"
        "try: hpo.OptunaSampler\nexcept UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "jobs/setup.sh optuna" in done.stdout and "extra `optuna`" in done.stdout
