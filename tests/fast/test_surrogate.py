"""The surrogate kind: proposals for any space and any history, the same from the same, better than evolution's."""

from __future__ import annotations

import math
import random
from collections import Counter
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from populations import populated, population_of, searched_alone
from simulation.campaigns import finished, make
from spaces import spaces

import hpo
from hpo.config.settings import SearchSettings
from hpo.individual import COMPLETED, FAILED, PRUNED
from hpo.search.kinds import surrogate
from hpo.search.kinds.surrogate import SurrogateBreeder, TimeBudgetedSurrogate, first_of_worker
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.models.ensemble import ModelEnsemble, import_in_background
from hpo.search.models.gaussian import Gaussian
from hpo.search.models.observations import Observations, value_scores
from hpo.search.population import Member, Population
from hpo.search.protocols import SearchContext

NEVER_RANDOM = SearchSettings(random=0.0)


values = st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(-1e300, 1e300))


@given(spaces(large=True), st.lists(values, max_size=40), st.integers(0, 3))
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


@given(spaces(large=True), st.integers(0, 1000))
def test_rows_tell_configurations_apart_and_nothing_else(space, seed):
    offspring = VectorisedGenomes(space)
    genomes = offspring.drawn(8, np.random.default_rng(seed))
    rows = offspring.rows(genomes)
    params = [space.decode(offspring.genome(genome)) for genome in genomes.tolist()]
    exists = offspring.active(genomes)
    for i, first in enumerate(params):
        assert [name for name, there in zip(space.names, exists[i]) if there] == list(first)
        # The genome that stands for the configuration has the same row.
        canonical = np.array([space.encode(first)])
        assert offspring.rows(canonical) == pytest.approx(rows[i : i + 1], abs=1e-11)
        for j, second in enumerate(params):
            assert first != second or np.allclose(rows[i], rows[j], atol=1e-11)
            if not any(isinstance(one, hpo.Float) for one in space.parameters.values()):
                assert (first == second) == (rows[i] == rows[j]).all()
    assert np.isfinite(rows).all() and rows.min() >= -1 and rows.max() <= 1


@given(spaces(large=True), st.integers(0, 1000))
def test_children_are_genomes_of_their_parents(space, seed):
    offspring, generator = VectorisedGenomes(space), np.random.default_rng(seed)
    parents = offspring.drawn(4, generator)
    children, origins = offspring.children(parents, 60, generator, 0.7, (0.01, 1 / 3))
    assert origins.shape == (60, 2) and set(origins.flat) <= {0, 1, 2, 3}
    for child in children.tolist():
        for gene, (low, high) in zip(offspring.genome(child), space.limits.values(), strict=True):
            assert low <= gene <= high and isinstance(gene, int) == isinstance(low, int)
    # Of one parent alone what changes is what exists in it.
    clones, _ = offspring.children(parents[:1], 60, generator, 0.7, (0.01, 1 / 3))
    changed = (clones != parents[0]).any(axis=0)
    assert not (changed & ~offspring.active(parents[:1])[0]).any()


def test_values_count_below_the_median_only_and_in_its_units():
    rng = random.Random(0)
    losses = [rng.random() for _ in range(60)]
    plain = value_scores(losses)
    assert value_scores([1e6 * one - 3 for one in losses]) == pytest.approx(plain, abs=1e-6)
    assert list(np.argsort(plain)) == list(np.argsort(losses))
    bad = sorted(losses)[35]
    assert value_scores([one if one < bad else 1e200 * one for one in losses]) == pytest.approx(
        plain, abs=1e-6
    )
    assert np.isfinite(value_scores([-1e300, 1e300, 0.0, 1e-300])).all()
    assert value_scores([2.0] * 5) == pytest.approx([0.0] * 5)
    lucky = value_scores([*losses, -1e9])
    assert -40 < lucky[-1] < lucky[:-1].min()


def test_scale_and_outliers_change_no_proposal():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), c=hpo.Categorical("a", "b", "c"))
    rng = random.Random(1)
    losses = [rng.random() for _ in range(40)]
    bad = sorted(losses)[35]

    def proposed(losses):
        return SurrogateBreeder(space).breed(populated(space, losses), random.Random(5))

    plain = proposed(losses)
    assert proposed([1024 * one for one in losses]) == plain
    assert proposed([one if one < bad else 1e200 * one for one in losses]) == plain


@pytest.mark.parametrize("columns", [[(0, 1), (1, 1)], [(0, 1), (1, 3)]])
def test_a_gaussian_process_is_the_textbooks(columns):
    """Against the posterior written out (Rasmussen and Williams 2006, equations 2.25 and 2.26)."""
    generator = np.random.default_rng(0)
    width = sum(count for _, count in columns)
    rows, asked = generator.random((30, width)), generator.random((7, width))
    goals = np.sin(5 * rows[:, 0]) + rows[:, 1]
    process = Gaussian(rows, goals, columns)
    *lengths, scale, noise = np.exp(process.parameters)

    def kernel(a, b):
        squares = sum(
            ((a[:, None, start : start + count] - b[None, :, start : start + count]) ** 2).sum(2)
            / (min(2, count) * length**2)
            for (start, count), length in zip(columns, lengths)
        )
        r = np.sqrt(5 * squares)
        return scale * (1 + r + r**2 / 3) * np.exp(-r)

    inverse = np.linalg.inv(kernel(rows, rows) + noise * np.eye(30))
    cross = kernel(asked, rows)
    mean, deviation = process(asked)
    assert mean == pytest.approx(goals.mean() + cross @ inverse @ (goals - goals.mean()), abs=1e-5)
    variance = scale - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    assert deviation == pytest.approx(np.sqrt(np.maximum(variance, 1e-12)), abs=1e-3)
    truth = np.sin(5 * asked[:, 0]) + asked[:, 1]
    assert np.corrcoef(mean, truth)[0, 1] > 0.97


def test_the_model_that_foretells_judges():
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    panel = ModelEnsemble(VectorisedGenomes(space))
    assert panel.shares() == [0.5, 0.5]
    losses = [random.Random(~number).random() for number in range(40)]
    panel._predicted = [(one, [one, random.Random(i).random()]) for i, one in enumerate(losses)]
    assert panel.shares()[0] > 0.95
    panel._predicted = [(one, [-one, one**3]) for one in losses]
    assert panel.shares()[1] > 0.99


def test_a_proposal_names_those_that_it_was_bred_from():
    """Each possible parent has one choice alone, and without crossover a child has most of its choices from one."""
    space = hpo.SearchSpace({f"c{index}": hpo.Categorical(*range(40)) for index in range(16)})
    population = population_of(((number,) * 16, number % 7) for number in range(25))
    breeder = SurrogateBreeder(space, SearchSettings(random=0.0, crossover=0.0))
    named = set()
    for number in range(10):
        child = breeder.breed(population, random.Random(number))
        ((most, _),) = Counter(child.genome).most_common(1)
        assert child.parents == (f"0-0-{most}",)
        named.add(most)
    assert len(named) > 1


def test_pruned_ones_are_no_better_than_the_median_and_count_anew_when_they_go_on():
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    known = Observations(VectorisedGenomes(space))
    population = population_of(((number / 5,), number) for number in range(5))
    population.add(Member("0-1-0", (0.9,), None, PRUNED, progress=(2, 0.5)))
    population.add(Member("0-1-1", (0.95,), None, PRUNED, progress=(2, math.inf)))
    assert len(known.observe(population)) == 5
    assert [loss for _, loss in known.with_losses()] == [2.0, 4.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    population.add(Member("0-1-0", (0.9,), (0.25,), COMPLETED))
    assert [losses for _, losses in known.observe(population)] == [(0.25,)]
    assert sorted(loss for _, loss in known.with_losses()) == [0.0, 0.25, 1.0, 2.0, 3.0, 4.0, 4.0]
    assert known.observe(population) == []


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
    places = [(number % 2 + random.Random(number).random()) / 2 for number in range(60)]
    population = population_of(((x,), None if x > 0.5 else 0.5 - x) for x in places)
    breeder = SurrogateBreeder(space)
    proposed = [breeder.breed(population, random.Random(n)).genome[0] for n in range(20)]
    assert sum(x < 0.52 for x in proposed) >= 15


def test_what_a_constraint_excludes_is_not_proposed_where_the_best_lies_beside_it():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1), n=hpo.Int(1, 4))

    def allows(params):
        return params["x"] + params["y"] < 0.8

    drawn = (space.sample(random.Random(number)) for number in range(150))
    allowed = [genome for genome in drawn if allows(space.decode(genome))][:30]
    population = population_of((genome, -genome[0] - 2 * genome[1]) for genome in allowed)

    def proposed(breeder):
        return [space.decode(breeder.breed(population, random.Random(n)).genome) for n in range(10)]

    assert sum(map(allows, proposed(SurrogateBreeder(space)))) <= 6, "the constraint does not bind"
    found = proposed(SurrogateBreeder(space, allows=allows))
    assert all(map(allows, found))
    best = min(member.losses[0] for member in population)
    assert sum(-params["x"] - 2 * params["y"] < best for params in found) >= 5


def test_a_constraint_that_does_not_bind_is_given_what_is_proposed_alone():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), kind=hpo.Categorical(*"abc"))
    population = populated(space, [float(n) for n in range(20)])
    seen = []

    def allows(params):
        seen.append(params)
        return True

    free, bound = SurrogateBreeder(space), SurrogateBreeder(space, allows=allows)
    for n in range(5):
        child = bound.breed(population, random.Random(n))
        assert child == free.breed(population, random.Random(n)) and seen.pop() == space.decode(child.genome)
        assert not seen


def test_what_is_remembered_is_bounded_and_holds_the_best():
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    known, population, rng = Observations(VectorisedGenomes(space)), Population(), random.Random(0)
    for number in range(3000):
        genome = space.sample(rng)
        failed = number % 3 == 0
        told = None if failed else (sum(genome),)
        population.add(Member(f"0-0-{number}", genome, told, FAILED if failed else COMPLETED))
        if number % 40 == 39:
            known.observe(population)
    assert len(known.completed) <= 480 and len(known.failed) <= 80
    assert {one.id for one in population.best} <= known.completed.keys()
    assert known.observe(population) == [], "what was forgotten came again"


def bred_by_default(seconds, individuals, **settings):
    """Operators of individuals that take so many seconds, where screening one takes 0.02 s."""
    space = hpo.SearchSpace({f"x{i}": hpo.Float(-1, 1) for i in range(3)})
    now = [0.0]

    def clock():
        now[0] += 0.01
        return now[0]

    def evaluate(child, number):
        now[0] += seconds
        return sum(x * x for x in child.genome)

    breeder = TimeBudgetedSurrogate(space, clock=clock, **settings)
    return [child.operator for child in searched_alone(breeder, evaluate, individuals)]


def test_the_default_screens_only_as_long_as_evaluations_allow():
    assert "surrogate" not in bred_by_default(1e-4, 200, first=0)
    assert bred_by_default(60.0, 200, first=0)[60:].count("evolution") == 0
    some = bred_by_default(0.2, 200, first=0)
    assert 10 < some.count("surrogate") < 150 < some.count("surrogate") + some.count("evolution")


def test_the_default_screens_the_first_200_however_short_evaluations_are():
    bred = bred_by_default(1e-6, 300)
    assert bred[10:200] == ["surrogate"] * 190
    assert "surrogate" not in bred[200:] and "evolution" in bred[200:]


def test_workers_share_the_first_200_unless_too_many_share_a_core():
    def first(all_workers, local_workers, cores):
        context = SearchContext(all_workers=all_workers, local_workers=local_workers, cores=cores)
        return first_of_worker(context)

    assert first(1, 1, 1) == 200
    assert first(3, 3, 2) == 67
    assert [first(4, 4, cores) for cores in (2, 1)] == [50, 0]
    assert [first(4, local, 1) for local in (1, 3)] == [50, 0]


def test_an_import_that_takes_too_long_is_waited_for_once(monkeypatch):
    waited, alive = [], [True]
    thread = SimpleNamespace(join=waited.append, is_alive=lambda: alive[-1])  # imports what models need
    monkeypatch.setattr("hpo.search.kinds.surrogate.import_in_background", lambda: thread)
    space = hpo.SearchSpace(x=hpo.Float(-1, 1))
    population = populated(space, range(9))
    breeder = TimeBudgetedSurrogate(space, NEVER_RANDOM, clock=lambda: 0.0, background=True)
    assert breeder.breed(population, random.Random(0)).operator == "random"
    assert waited == [], "nothing is to be judged yet"
    population.add(Member("0-1-0", (0.5,), (0.0,), COMPLETED))
    assert [breeder.breed(population, random.Random(n)).operator for n in range(3)] == ["evolution"] * 3
    assert waited[0] > 0 and set(waited[1:]) == {0.0}
    alive.append(False)
    assert breeder.breed(population, random.Random(0)).operator == "surrogate"


BOWL = hpo.Task(
    hpo.SearchSpace(x=hpo.Float(-5, 5), y=hpo.Float(-5, 5)),
    lambda trial: trial.params["x"] ** 2 + trial.params["y"] ** 2,
)


@pytest.mark.parametrize("isolation", ["warm", "inline"])
def test_a_first_campaign_is_screened(tmp_path, monkeypatch, isolation):
    started = []

    def spied():
        started.append(1)
        return import_in_background()

    monkeypatch.setattr("hpo.search.kinds.surrogate.import_in_background", spied)
    settings = {"isolation": isolation, "random": 0.0}
    result = hpo.Campaign(BOWL, directory=tmp_path / "toy", evaluations=40, **settings).run()
    operators = Counter(one.operator for one in result.individuals)
    assert operators == {"random": 10, "surrogate": 30}
    assert result.best.value < 0.01
    assert bool(started) == (isolation == "warm"), "inline, evaluations may import the same at the same time"
    started.clear()
    hpo.Campaign(BOWL, directory=tmp_path / "few", evaluations=10, **settings).run()
    assert not started, "all of so few are random"


def test_one_worker_finds_the_same_with_the_same_seed_and_nothing_of_it_with_another(tmp_path):
    def found(name, seed=3, evaluations=60):
        settings = {"evaluations": evaluations, "isolation": "inline", "seed": seed}
        return [
            one.params for one in hpo.Campaign(BOWL, directory=tmp_path / name, **settings).run().individuals
        ]

    first = found("first")
    assert first == found("second")
    assert not any(params in first for params in found("other", seed=4, evaluations=5))


def test_a_campaign_that_goes_on_gets_no_second_200(tmp_path, monkeypatch):
    monkeypatch.setattr(surrogate, "_SHARE_OF_TIME", 0.0)  # however slow the machine is
    for evaluations in (205, 230):
        campaign = hpo.Campaign(BOWL, directory=tmp_path / "toy", evaluations=evaluations, isolation="inline")
        result = campaign.run()
    late = {one.operator for one in result.individuals if one.sequence >= 200}
    assert len(result.individuals) == 230 and "evolution" in late and "surrogate" not in late


def test_the_first_are_not_bred_ahead_of_what_they_could_know():
    """Of four workers each draws ten at random, unless it hears of others before."""
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))

    def run():
        def breeder(rank):
            return TimeBudgetedSurrogate(space, NEVER_RANDOM, clock=lambda: simulation.time, first=50)

        def goal(params):
            return (params["x"] - 0.3) ** 2 + (params["y"] - 0.6) ** 2

        settings = {"duration": lambda number: 0.001, "latency_s": 0.002, "breeder": breeder}
        simulation, _ = make(0, space=space, goal=goal, workers=4, islands=1, evaluations=60, **settings)
        simulation.run()
        return [(one.operator, one.params) for one in finished(simulation)]

    bred = run()
    assert len(bred) == 60 and [operator for operator, _ in bred].count("random") <= 40
    assert run() == bred


def test_other_choices_are_tried_while_the_best_stalls():
    """All of "b" and "c" seen so far was bad; "a" has been tuned to the last digit."""
    space = hpo.SearchSpace(c=hpo.Categorical("a", "b", "c"), x=hpo.Float(0, 1))

    def of_the_leading(last):
        drawn = [(number % 3, random.Random(number).random()) for number in range(18)]
        population = population_of(
            (one, 3.0 + one[1] if one[0] else 0.1 + (one[1] - 0.2) ** 2) for one in drawn
        )
        tuned = (((0, 0.2 + number / 1000), last(number)) for number in range(6))
        population_of(tuned, into=population, worker="0-1")
        breeder = SurrogateBreeder(space)
        return [breeder.breed(population, random.Random(n)).genome[0] for n in range(20)].count(0)

    assert of_the_leading(lambda number: 0.1 + 1e-9 * number) <= 12
    assert of_the_leading(lambda number: 0.1 - 0.1 * number) >= 15
