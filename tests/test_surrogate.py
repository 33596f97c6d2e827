"""The surrogate kind: proposals for any space and any history, the same from the same, better than evolution's."""

from __future__ import annotations

import math
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.stats import norm

import hpo
from hpo.individual import COMPLETED, FAILED
from hpo.population import Member, Population
from hpo.surrogate import Features, SurrogateBreeder, ThriftyBreeder, normal_scores


@st.composite
def spaces(draw):
    """One to six parameters of all kinds, some of which exist only under a choice of an earlier one."""
    parameters, parents = {}, {}
    for index in range(draw(st.integers(1, 6))):
        when = None
        if parents and draw(st.booleans()):
            parent = draw(st.sampled_from(sorted(parents)))
            when = {parent: draw(st.sampled_from(parents[parent]))}
        kind = draw(st.sampled_from(["float", "log", "int", "choice", "many", "one", "ordered"]))
        name = f"p{index}"
        parameters[name] = {
            "float": lambda when: hpo.Float(-3, 5, when=when),
            "log": lambda when: hpo.Float(1e-6, 1, log=True, when=when),
            "int": lambda when: hpo.Int(1, 4, when=when),
            "choice": lambda when: hpo.Categorical("a", "b", "c", when=when),
            "many": lambda when: hpo.Categorical(*range(40), when=when),
            "one": lambda when: hpo.Categorical("only", when=when),
            "ordered": lambda when: hpo.Ordinal(8, 16, 64, when=when),
        }[kind](when)
        if kind in ("choice", "ordered"):
            parents[name] = parameters[name].choices
    return hpo.SearchSpace(parameters)


def populated(space, losses, seed=0):
    population, rng = Population(), random.Random(seed)
    for number, value in enumerate(losses):
        status = FAILED if value is None else COMPLETED
        told = None if value is None else value if isinstance(value, tuple) else (value,)
        population.add(Member(f"0-0-{number}", space.sample(rng), told, status))
    return population


values = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(-1e300, 1e300))


@settings(max_examples=60, deadline=None)
@given(spaces(), st.lists(values, max_size=40), st.integers(0, 3))
def test_any_space_and_any_history_give_a_valid_genome_and_the_same_again(space, losses, seed):
    population = populated(space, losses, seed)
    proposals = []
    for _ in range(2):
        breeder = SurrogateBreeder(space)
        proposals.append([breeder.breed(population, random.Random(n)) for n in range(3)])
    assert proposals[0] == proposals[1]
    for child in proposals[0]:
        for gene, (low, high) in zip(child.genome, space.limits.values(), strict=True):
            assert low <= gene <= high and isinstance(gene, int) == isinstance(low, int)
        assert space.validate(space.decode(child.genome)) == space.decode(child.genome)


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(0, 1000))
def test_rows_tell_configurations_apart_and_nothing_else(space, seed):
    rng = random.Random(seed)
    genomes = [space.sample(rng) for _ in range(8)]
    rows, same = Features(space)(genomes)
    params = [space.decode(genome) for genome in genomes]
    assert [space.decode(genome) for genome in same] == params
    for i, first in enumerate(params):
        for j, second in enumerate(params):
            assert (same[i] == same[j]) == (first == second)
            if first == second:
                assert (rows[i] == rows[j]).all()
            elif not any(isinstance(one, hpo.Float) for one in space.parameters.values()):
                assert (rows[i] != rows[j]).any()
    assert np.isfinite(rows).all() and rows.min() >= -1 and rows.max() <= 1


def test_scores_know_ranks_only():
    assert normal_scores([3.0, 1.0, 2.0]) == pytest.approx(norm.ppf([5 / 6, 1 / 6, 3 / 6]))
    losses = [random.Random(0).gauss(0, 1) for _ in range(50)]
    assert (normal_scores(losses) == normal_scores([math.exp(50 * one) for one in losses])).all()
    assert normal_scores([1.0, 1.0, math.inf, math.inf]) == pytest.approx(norm.ppf([0.25, 0.25, 0.75, 0.75]))


def test_scale_and_outliers_change_no_proposal():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), c=hpo.Categorical("a", "b", "c"))
    rng = random.Random(1)
    losses = [rng.random() for _ in range(40)]
    plain = SurrogateBreeder(space).breed(populated(space, losses), random.Random(5))
    wild = SurrogateBreeder(space).breed(populated(space, [1e9**one for one in losses]), random.Random(5))
    assert plain == wild


def test_several_objectives_are_bred_by_evolution():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    rng = random.Random(1)
    population = populated(space, [(rng.random(), rng.random()) for _ in range(30)])
    bred = {SurrogateBreeder(space).breed(population, random.Random(n)).operator for n in range(30)}
    assert bred <= {"random", "evolution"}


def test_nothing_is_proposed_twice_before_the_space_is_used_up():
    space = hpo.SearchSpace(a=hpo.Categorical(*"abcd"), b=hpo.Int(0, 3))
    population = populated(space, [float(n) for n in range(12)])
    breeder = SurrogateBreeder(space)
    evaluated = {space.key(space.decode(member.genome)) for member in population}
    proposed = [
        space.key(space.decode(breeder.breed(population, random.Random(n)).genome))
        for n in range(16 - len(evaluated))
    ]
    assert len(set(proposed)) == len(proposed) and not evaluated & set(proposed)
    breeder.breed(population, random.Random(99))  # nothing is left, and Proposals looks further


def test_failures_guide_away():
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    losses = [None if (n % 2) else 1.0 for n in range(60)]
    population = Population()
    rng = random.Random(3)
    for number, value in enumerate(losses):
        x = 0.5 + rng.random() / 2 if value is None else rng.random() / 2
        told = None if value is None else (abs(x - 0.5),)
        population.add(Member(f"0-0-{number}", (x,), told, FAILED if value is None else COMPLETED))
    breeder = SurrogateBreeder(space)
    proposed = [breeder.breed(population, random.Random(n)).genome[0] for n in range(20)]
    assert sum(x < 0.52 for x in proposed) >= 15


def test_what_is_remembered_is_bounded_and_holds_the_best():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    breeder, population, rng = SurrogateBreeder(space), Population(), random.Random(0)
    for number in range(3000):
        genome = space.sample(rng)
        failed = number % 3 == 0
        told = None if failed else (sum(genome),)
        population.add(Member(f"0-0-{number}", genome, told, FAILED if failed else COMPLETED))
        if number % 40 == 39:
            breeder._observe(population)
    assert len(breeder._completed) <= 480 and len(breeder._failed) <= 80
    assert {one.id for one in population.best} <= breeder._completed.keys()
    new = breeder._new
    breeder._observe(population)
    assert breeder._new == new, "what was forgotten came again"


def test_the_default_thinks_only_as_long_as_evaluations_allow():
    space = hpo.SearchSpace({f"x{i}": hpo.Float(-1, 1) for i in range(3)})

    def operators(seconds):
        """Of 200 individuals that take so long, where screening one takes 0.02 s."""
        now = [0.0]

        def clock():
            now[0] += 0.01
            return now[0]

        breeder, population, bred = ThriftyBreeder(space, clock=clock), Population(), []
        for number in range(200):
            child = breeder.breed(population, random.Random(number))
            bred.append(child.operator)
            now[0] += seconds
            told = (sum(x * x for x in child.genome),)
            population.add(Member(f"0-0-{number}", child.genome, told, COMPLETED))
        return bred

    assert "surrogate" not in operators(1e-4)
    assert operators(60.0)[60:].count("evolution") == 0
    some = operators(0.2)
    assert 10 < some.count("surrogate") < 150 < some.count("surrogate") + some.count("evolution")


def test_it_needs_fewer_evaluations_than_evolution():
    space = hpo.SearchSpace({f"c{i}": hpo.Categorical(*"abcde") for i in range(6)})
    target = "abcdea"

    def best(kind, seed):
        search, least = hpo.Search(space, seed=seed, kind=kind), math.inf
        for _ in range(60):
            one = search.ask()
            value = sum(a != b for a, b in zip(one.params.values(), target))
            search.tell(one, value)
            least = min(least, value)
        return least

    assert sum(best("surrogate", seed) for seed in range(6)) < sum(
        best("evolution", seed) for seed in range(6)
    )
