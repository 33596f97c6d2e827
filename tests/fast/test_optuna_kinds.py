"""Optuna's samplers as breeders: they see what everybody found, in any space, bounded and without noise."""

from __future__ import annotations

import math
import random
import sys

import optuna
import pytest
from cases import cases
from test_surrogate import populated

import hpo
from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAILED, PRUNED
from hpo.search.kinds.optuna_samplers import OptunaBreeder
from hpo.search.population import Member, Population

SPACE = hpo.SearchSpace(
    momentum=hpo.Float(0.0, 0.99, when={"optimizer": "sgd"}),
    optimizer=hpo.Categorical("sgd", "adam", None),
    rate=hpo.Float(1e-5, 1.0, log=True),
    depth=hpo.Int(1, 64, log=True),
    width=hpo.Ordinal(16, 32, 64),
    nested=hpo.Int(0, 3, when={"momentum_kind": "b"}),
    momentum_kind=hpo.Categorical("a", "b", when={"optimizer": "sgd"}),
)
KINDS = ("tpe", "gp", "optuna-cmaes")
LINE = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))


@pytest.mark.parametrize("kind", cases(["tpe", "optuna-cmaes"], ["gp"]))
def test_conditional_logarithmic_ordered_and_failed_ones_the_same_again(kind):
    losses = [None if n % 5 == 0 else float(n) for n in range(16)]
    proposals = []
    for _ in range(2):
        breeder, population = OptunaBreeder(SPACE, kind), populated(SPACE, losses)
        bred = []
        for number in range(5):
            child = breeder.breed(population, random.Random(number))
            bred.append(child)
            population.add(Member(f"0-1-{number}", child.genome, (-float(number),), COMPLETED))
        proposals.append(bred)
    assert proposals[0] == proposals[1]
    assert {child.operator for child in bred} == {kind}
    assert len({child.genome for child in bred}) == 5
    for child in bred:
        for gene, (low, high) in zip(child.genome, SPACE.limits.values(), strict=True):
            assert low <= gene <= high and isinstance(gene, int) == isinstance(low, int)
        params = SPACE.decode(child.genome)
        assert SPACE.validate(params) == params and SPACE.encode(params) == child.genome


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_found_draws_the_proposals(kind):
    """The observations are all of others; the good ones lie in a corner."""
    population, rng = Population(), random.Random(0)
    for number in range(60):
        x, y = rng.random(), rng.random()
        population.add(Member(f"1-0-{number}", (x, y), ((x - 0.1) ** 2 + (y - 0.9) ** 2,), COMPLETED))
    breeder = OptunaBreeder(LINE, kind)
    near = 0
    for number in range(24):
        child = breeder.breed(population, random.Random(number))
        x, y = child.genome
        near += math.hypot(x - 0.1, y - 0.9) < 0.35
        population.add(Member(f"0-0-{number}", child.genome, ((x - 0.1) ** 2 + (y - 0.9) ** 2,), COMPLETED))
    assert near >= 12, near  # chance: 5


@pytest.mark.parametrize("kind", ["tpe", "gp"])
def test_failures_and_pruned_ones_guide_away(kind):
    population, rng = Population(), random.Random(0)
    for number in range(40):
        x = rng.random()
        if x < 0.5:
            member = Member(f"0-0-{number}", (x, rng.random()), (0.5 - x,), COMPLETED)
        elif number % 2:
            member = Member(f"0-0-{number}", (x, rng.random()), None, FAILED)
        else:
            member = Member(f"0-0-{number}", (x, rng.random()), None, PRUNED, progress=(1, math.inf))
        population.add(member)
    breeder = OptunaBreeder(LINE, kind)
    good = sum(breeder.breed(population, random.Random(n)).genome[0] < 0.55 for n in range(12))
    assert good >= 9


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
    assert min(loss for _, loss in breeder._told.values()) == best
    genome = breeder.breed(population, random.Random(0)).genome
    assert len(genome) == 2


def test_cmaes_goes_on_from_generation_to_generation():
    breeder, population = OptunaBreeder(LINE, "optuna-cmaes"), Population()
    generations = []
    for number in range(150):
        child = breeder.breed(population, random.Random(number))
        x, y = child.genome
        population.add(Member(f"0-0-{number}", child.genome, ((x - 0.2) ** 2 + (y - 0.7) ** 2,), COMPLETED))
        generations.append(breeder._generation)
    assert generations == sorted(generations) and generations[-1] >= 10
    assert population.best[0].losses[0] < 1e-4


def test_known_configurations_are_not_proposed_while_there_are_others():
    space = hpo.SearchSpace(a=hpo.Categorical(*"abcd"), b=hpo.Int(0, 3))
    search = hpo.Search(space, kind="tpe")
    asked = [search.ask() for _ in range(3)]
    for _ in range(13):
        search.tell(asked.pop(0), random.Random(len(asked)).random())
        asked.append(search.ask())
    with pytest.raises(hpo.SpaceExhausted):
        search.ask()


def test_some_choices_only():
    search = hpo.Search(SPACE, kind="tpe", only={"optimizer": ["adam", "sgd"]}, seed=2)
    for number in range(30):
        one = search.ask()
        assert one.params["optimizer"] in ("sgd", "adam")
        search.tell(one, float(number))


def test_optuna_stays_quiet_and_as_it_was(capfd, recwarn):
    before = optuna.logging.get_verbosity()
    search = hpo.Search(LINE, kind="optuna-cmaes")
    for number in range(15):
        search.tell(search.ask(), float(number))
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "") and not recwarn.list


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


def test_several_objectives_are_bred_by_evolution():
    rng = random.Random(1)
    population = populated(LINE, [(rng.random(), rng.random()) for _ in range(30)])
    bred = {OptunaBreeder(LINE, "tpe").breed(population, random.Random(n)).operator for n in range(20)}
    assert bred <= {"random", "evolution"}
