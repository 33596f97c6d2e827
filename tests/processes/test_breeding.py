"""Every kind of breeder proposes valid offspring, repeatably, and gets better than chance; Propulate composes
as its users do."""

from __future__ import annotations

import importlib.util
import math
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from populations import population_of, searched_alone
from refusals import refused

import hpo
from hpo.config.settings import Kind, SearchSettings
from hpo.errors import UsageError
from hpo.individual import COMPLETED, PRUNED
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population

KINDS = [kind for kind in get_args(Kind) if kind != "pbt"]
"""What breeds from losses alone; population-based training needs checkpoints."""
SLOW = {"surrogate": 40, "portfolio": 40, "tpe": 40, "gp": 16, "optuna-cmaes": 40}
"""Individuals that are bred of kinds that take milliseconds or more for one."""
MIXED = hpo.SearchSpace(
    x=hpo.Float(-5, 5),
    rate=hpo.Float(1e-5, 1e-1, log=True),
    depth=hpo.Int(1, 8),
    width=hpo.Ordinal(16, 32, 64, 128),
    optimizer=hpo.Categorical("sgd", "adam", "rmsprop"),
    momentum=hpo.Float(0.0, 0.99, when={"optimizer": "sgd"}),
    schedule=hpo.Categorical("step", None, when={"optimizer": "sgd"}),
    period=hpo.Int(0, 3, when={"schedule": "step"}),
)
SPHERE = hpo.SearchSpace({f"x{i}": hpo.Float(-1, 1) for i in range(4)})


def loss(params):
    if params["width"] == 16:
        return None
    return (
        params["x"] ** 2
        + (math.log10(params["rate"]) + 3) ** 2
        + abs(params["depth"] - 5)
        + (params["width"] != 64)
        + {"sgd": params.get("momentum", 0), "adam": 0.5, "rmsprop": 2}[params["optimizer"]]
    )


def sphere(params):
    return sum((value - 0.3) ** 2 for value in params.values())


def search(kind, space, goal, evaluations, seed, **changes):
    """A serial search by one worker; returns the offspring and the best loss."""
    breeder, population = make_breeder(space, SearchSettings(kind=kind, **changes)), Population()
    bred = searched_alone(
        breeder, lambda child, number: goal(space.decode(child.genome)), evaluations, seed, into=population
    )
    return bred, population.best[0].losses[0]


@pytest.mark.parametrize("kind", KINDS)
def test_offspring_are_genomes_of_the_space_and_the_same_seeds_breed_the_same(kind):
    size = SLOW.get(kind, 80)
    bred, _ = search(kind, MIXED, loss, size, seed=1)
    for child in bred:
        assert len(child.genome) == len(MIXED)
        for gene, (low, high) in zip(child.genome, MIXED.limits.values()):
            assert low <= gene <= high
            assert isinstance(gene, int) == isinstance(low, int)
        assert MIXED.validate(MIXED.decode(child.genome)) == MIXED.decode(child.genome)
    again, _ = search(kind, MIXED, loss, size, seed=1)
    assert bred == again
    assert bred != search(kind, MIXED, loss, size, seed=2)[0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("random", "grid", "gp")])
def test_every_kind_beats_chance_on_a_smooth_function(kind):
    size, seeds = (60, 3) if kind in SLOW else (150, 9)
    wins = 0
    for seed in range(seeds):
        wins += search(kind, SPHERE, sphere, size, seed)[1] < search("random", SPHERE, sphere, size, seed)[1]
    assert wins >= seeds - 1 - (kind not in SLOW)


def test_genetic_breeds_from_as_many_as_are_kept():
    """A pool of more than an island keeps of its best never fills."""
    bred, _ = search("genetic", MIXED, loss, 100, seed=3, pool=200)
    assert {child.operator for child in bred[80:]} >= {"genetic"}


@pytest.mark.filterwarnings("ignore")  # theirs
def test_genetic_is_propulates_default_propagator():
    """The same population and generator state: the same child as from ``get_default_propagator`` (its own
    composition)."""
    from propulate.population import Individual
    from propulate.utils import get_default_propagator

    space = hpo.SearchSpace(a=hpo.Float(0, 1), b=hpo.Int(0, 9), c=hpo.Categorical("x", "y", "z"))
    rng, theirs = random.Random(5), random.Random()
    population = population_of((space.sample(rng), rng.random()) for _ in range(12))
    settings = SearchSettings(kind="genetic", pool=8, crossover=0.7, mutation=0.4, random=0.1)
    breeder, reference = make_breeder(space, settings), get_default_propagator(8, space.limits, rng=theirs)
    for number in range(50):
        mine = breeder.breed(population, random.Random(number))
        theirs.seed(random.Random(number).getrandbits(64))
        individuals = []
        for member in population:
            individuals.append(Individual(dict(zip(space.names, member.genome)), space.limits))
            individuals[-1].loss = member.losses[0]
        child = reference(individuals)
        assert mine.genome == tuple(child[name] for name in space.names), number


CHOICES = hpo.SearchSpace({f"c{index}": hpo.Categorical("a", "b", "c") for index in range(12)})


def children_of_two(kind, **rates):
    """A hundred. Half of their possible parents have "a" alone, the others "b" alone; no rate but those given is
    above 0."""
    population = population_of(((number % 2,) * 12, 1.0) for number in range(24))
    rates = {"crossover": 0.0, "mutation": 0.0, "random": 0.0, **rates}
    breeder = make_breeder(CHOICES, SearchSettings(kind=kind, pool=20, **rates))
    return [breeder.breed(population, random.Random(number)) for number in range(100)]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.7, 1.0])
def test_genetic_takes_as_many_genes_of_the_first_parent_as_crossover_says(share):
    counts = []
    for child in children_of_two("genetic", crossover=share):
        first, second = (int(parent.split("-")[2]) % 2 for parent in child.parents)
        assert set(child.genome) <= {first, second}
        if first != second:
            counts.append(child.genome.count(first))
    assert len(counts) > 30
    assert sum(counts) / len(counts) / 12 == pytest.approx(share, abs=0.05 if 0 < share < 1 else 0)


def test_genetic_mutates_and_begins_anew_as_often_as_it_is_told():
    def kinds(**rates):
        """Of the hundred, by number of different choices, how many have it."""
        return Counter(len({*child.genome}) for child in children_of_two("genetic", **rates))

    assert kinds() == {1: 100}
    # Of three choices the one that a mutation draws is new in two of three cases.
    assert 55 < kinds(mutation=1.0)[2] < 80 and kinds(mutation=1.0)[3] == 0
    assert 20 < kinds(mutation=0.5)[2] < 50
    assert kinds(random=1.0)[3] > 90 and 30 < kinds(random=0.5)[3] < 70


def test_the_rates_of_evolution_are_those_of_the_settings():
    parents = Counter(len(child.parents) for child in children_of_two("evolution"))
    assert parents == {1: 100}
    parents = Counter(len(child.parents) for child in children_of_two("evolution", crossover=1.0))
    assert parents[2] > 80, "but for those of one that was drawn twice"
    operators = Counter(child.operator for child in children_of_two("evolution", random=0.5))
    assert 30 < operators["random"] < 70


def test_evolution_mutates_one_parameter_or_a_few_and_any_of_them():
    changed = []
    for child in children_of_two("evolution"):
        own = int(child.parents[0].split("-")[2]) % 2
        changed.append([place for place, gene in enumerate(child.genome) if gene != own])
    often = Counter(place for places in changed for place in places)
    assert len(often) == 12 and max(often.values()) < 25
    # Of twelve each with a probability of a tenth, and one where that gave none.
    assert all(changed) and 1.2 < sum(map(len, changed)) / len(changed) < 1.8


def test_a_tournament_of_two_picks_parents():
    pool = [Member(str(place), (0.0,), (float(place),), COMPLETED) for place in range(4)]
    rng = random.Random(0)
    picked = Counter(EvolutionBreeder._tournament(pool, rng).id for _ in range(1600))
    # The better of two draws from four: 7, 5, 3 and 1 of 16.
    assert [picked[str(place)] for place in range(4)] == pytest.approx([700, 500, 300, 100], abs=60)


def test_propulate_is_loaded_without_what_no_propagator_needs_and_stays_usable():
    code = """
import sys
from hpo.search.kinds.propulate_kinds import _propagators
assert _propagators() is _propagators()
assert "GPy" not in sys.modules and "propulate" not in sys.modules
import propulate
assert propulate.propagators is _propagators()
assert propulate.Propulator
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "fine\n", done.stderr


def test_without_propulate_kinds_that_need_it_are_refused_and_the_others_run(monkeypatch, tmp_path):
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "propulate" else there(name))
    task = hpo.Task(space, lambda trial: 0.0)
    for kind in get_args(Kind):
        campaign = hpo.Campaign(task, directory=tmp_path / "never", evaluations=1, kind=kind)
        if kind in ("genetic", "cmaes", "pso", "nelder-mead"):
            refused(
                campaign.check, f'kind = "{kind}"', "pip install --no-deps propulate==1.2.2", '"surrogate"'
            )
        elif kind not in ("pbt", "grid"):
            breeder = make_breeder(space, SearchSettings(kind=kind))
            assert breeder.breed(Population(), random.Random(0)).operator
    assert not (tmp_path / "never").exists()
    assert "cmaes" not in make_breeder(space, SearchSettings(kind="portfolio"))._breeders


def test_mutation_changes_only_what_exists_and_steps_to_neighbours():
    space = hpo.SearchSpace(
        kind=hpo.Categorical("a", "b"),
        inner=hpo.Float(0, 1, when={"kind": "b"}),
        size=hpo.Ordinal(1, 2, 4, 8, 16),
    )
    population = population_of(((0, 0.25, 2), number) for number in range(20))
    breeder = EvolutionBreeder(space)
    steps = Counter()
    for number in range(300):
        child = breeder.breed(population, random.Random(number))
        if child.operator == "random":
            continue
        kind, inner, size = child.genome
        steps[size - 2] += 1
        if kind == 0:
            assert inner == 0.25, "a gene of a parameter that does not exist was mutated"
    assert min(steps[-1], steps[1]) > 1.5 * max(steps[-2], steps[2]), "all sizes are as likely"


def test_the_neighbourhood_of_failures_is_avoided():
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    population = population_of(((0.5 + number / 1000,), number) for number in range(20))

    def share():
        breeder = EvolutionBreeder(space)
        children = [breeder.breed(population, random.Random(n)) for n in range(400)]
        genes = [child.genome[0] for child in children if child.operator != "random"]
        return sum(gene > 0.55 for gene in genes) / len(genes)

    without = share()
    population_of((((0.55 + number / 50,), None) for number in range(20)), into=population, worker="0-1")
    assert share() < without / 3


def test_cmaes_refuses_one_parameter():
    with pytest.raises(UsageError, match="at least two"):
        make_breeder(hpo.SearchSpace(x=hpo.Float(0, 1)), SearchSettings(kind="cmaes"))


FIXED = hpo.SearchSpace(
    x=hpo.Float(0, 1),
    y=hpo.Float(0, 1),
    fixed=hpo.Float(0.1, 0.1),
    rate=hpo.Float(1e-3, 1e-3, log=True),
    number=hpo.Int(3, 3),
    choice=hpo.Categorical("only"),
)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_parameters_of_one_value_do_no_harm(kind: str, tmp_path: Path) -> None:
    task = hpo.Task(FIXED, lambda trial: trial.params["x"] ** 2 + trial.params["y"])
    for evaluations in 25, 30:
        result = hpo.Campaign(
            task, directory=tmp_path / "run", evaluations=evaluations, kind=kind, isolation="inline"
        ).run()
    assert len(result.individuals) == 30
    assert {one.status for one in result.individuals} == {"completed"}
    fixed = {"fixed": 0.1, "rate": 1e-3, "number": 3, "choice": "only"}
    for one in result.individuals:
        assert {name: one.params[name] for name in fixed} == fixed
    assert len({one.params["x"] for one in result.individuals}) > 4
    if kind == "random":
        assert result.importance().shares["fixed"].total < 0.1


def test_one_completed_individual_has_no_mate_however_many_were_pruned():
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    population = population_of([((0.5,), 1.0)])
    for number in range(1, 100):
        population.add(Member(f"0-0-{number}", (number / 100,), None, PRUNED, progress=(1, 1.0)))
    breeder, rng = EvolutionBreeder(space), random.Random(0)
    assert {breeder.breed(population, rng).operator for _ in range(20)} == {"random"}
