"""Optuna's samplers as breeders: they see what everybody found, in any space, bounded and without noise."""

from __future__ import annotations

import math
import random
import sys

import numpy
import optuna
import pytest
from populations import asked_and_told, population_of, searched_alone

import hpo
from hpo.errors import UsageError
from hpo.individual import COMPLETED
from hpo.search.kinds.optuna_samplers import OptunaBreeder, distribution, within
from hpo.search.population import Member, Population

KINDS = ("tpe", "gp", "optuna-cmaes")
LINE = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_found_draws_the_proposals(kind):
    """The observations are all of others; the good ones lie in a corner."""
    rng = random.Random(0)

    def away(genome):
        return math.hypot(genome[0] - 0.1, genome[1] - 0.9)

    drawn = [(rng.random(), rng.random()) for _ in range(60)]
    population = population_of(((one, away(one) ** 2) for one in drawn), worker="1-0")
    bred = searched_alone(
        OptunaBreeder(LINE, kind), lambda child, _: away(child.genome) ** 2, 36, into=population
    )
    assert sum(away(child.genome) < 0.35 for child in bred) >= 15  # chance: 7


@pytest.mark.parametrize("kind", KINDS)
def test_a_study_is_bounded_and_keeps_the_best(kind):
    breeder, population, rng = OptunaBreeder(LINE, kind), Population(), random.Random(0)
    best = math.inf
    for number in range(1200):
        genome = (rng.random(), rng.random())
        best = min(best, sum(genome))
        population.add(Member(f"0-0-{number}", genome, (sum(genome),), COMPLETED))
        if number % 60 == 59:
            breeder._seen or breeder.breed(population, random.Random(number))
            breeder._observe(population)
    assert len(breeder._told) <= 1.2 * breeder._most <= 500
    assert len(breeder._study.get_trials(deepcopy=False)) <= 1.2 * breeder._most + 64
    assert min(losses for _, losses in breeder._told.values()) == (best,)
    genome = breeder.breed(population, random.Random(0)).genome
    assert len(genome) == 2


def test_cmaes_goes_on_from_generation_to_generation():
    breeder, population, generations = OptunaBreeder(LINE, "optuna-cmaes"), Population(), []

    def value(child, number):
        generations.append(breeder._generation)
        return (child.genome[0] - 0.2) ** 2 + (child.genome[1] - 0.7) ** 2

    searched_alone(breeder, value, 150, into=population)
    assert generations == sorted(generations) and generations[-1] >= 10
    assert population.best[0].losses[0] < 1e-4


def test_optuna_stays_quiet_and_as_it_was(capfd, recwarn):
    before = optuna.logging.get_verbosity()
    search = hpo.Search(LINE, kind="optuna-cmaes")
    asked_and_told(search, 15, lambda one, number: float(number))
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "") and not recwarn.list


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [(0, 1, 1 / 3), (0, 0.7 + 0.1, 0.1), (0, 1, float(numpy.float32(0.1))), (5, 5, 0.1), (1e7, 1e7 + 2, 0.1)],
)
def test_steps_that_optuna_counts_otherwise_lose_no_value(low, high, step):
    steps = hpo.Float(low, high, step=step)
    there = distribution(steps)
    theirs = [within(there, value) for value in steps.values()]
    assert [steps.canonical(value) for value in theirs] == [*steps.values()]
    for value in theirs:
        optuna.trial.create_trial(params={"x": value}, distributions={"x": there}, value=0.0)


def test_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="at least two Float or Int parameters that always exist"):
        hpo.Search(hpo.SearchSpace(x=hpo.Float(0, 1), c=hpo.Categorical(1, 2)), kind="optuna-cmaes")
    wide = hpo.SearchSpace(seed=hpo.Int(0, 2**45), x=hpo.Float(0, 1))
    with pytest.raises(
        UsageError, match=r"seed has 35184372088833 values, all of which .* 100000 are the limit"
    ):
        hpo.Search(wide, kind="gp")
    hpo.Search(wide, kind="tpe")
    monkeypatch.setitem(sys.modules, "cmaes", None)
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in ("optuna", "cmaes") else object()
    )
    with pytest.raises(UsageError, match=r'"tpe" needs optuna. Run bash jobs/setup.sh optuna'):
        hpo.Search(LINE, kind="tpe")
    with pytest.raises(UsageError, match="needs optuna and cmaes"):
        hpo.Search(LINE, kind="optuna-cmaes")
    assert "tpe" not in hpo.Search(LINE, kind="portfolio")._breeder._breeders
