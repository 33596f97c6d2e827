"""Where evaluations differ by chance: what a configuration is worth, what is evaluated again, and what is best."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from pathlib import Path

import numpy
import pytest

import hpo
from hpo.breeding import make_breeder
from hpo.check import check
from hpo.cli import main
from hpo.config import from_keywords
from hpo.estimates import estimates, exact
from hpo.individual import COMPLETED, FAILED, REEVALUATION
from hpo.population import Member, Population
from hpo.pruning import GO, EarlyStopping, PruningSettings
from hpo.reevaluation import ReevaluatingBreeder
from hpo.seams import Candidate, Offspring

# --- what a configuration is worth --------------------------------------------------------------------------


def drawn(rng, configurations=40, noise=1.0, most=4):
    """True losses, and of each some that were observed."""
    truth = [rng.gauss(0.0, 1.0) for _ in range(configurations)]
    return truth, [[one + noise * rng.gauss(0.0, 1.0) for _ in range(rng.randint(1, most))] for one in truth]


def test_an_estimate_is_the_posterior_of_a_normal_mean():
    """By the conditional of the joint distribution, with the variances that were found."""
    for seed in range(20):
        rng = random.Random(seed)
        _, losses = drawn(rng)
        losses = [[one - 10.0 for one in own] for own in losses]
        middle = statistics.median_low([one for own in losses for one in own])
        bounded = [[min(one, middle) for one in own] for own in losses]
        better = sorted(statistics.fmean(own) for own in losses)[:10]
        centre, between = numpy.mean(better), numpy.var(better)
        squares = sum(((numpy.array(own) - numpy.mean(own)) ** 2).sum() for own in bounded)
        noise = (squares + between) / (sum(len(own) - 1 for own in bounded) + 2)
        for own, found in zip(losses, estimates(losses), strict=True):
            size = len(own)
            across = numpy.full(size, between)
            inverse = numpy.linalg.inv(noise * numpy.eye(size) + between)
            assert found.mean == pytest.approx(centre + across @ inverse @ (numpy.array(own) - centre))
            assert found.deviation**2 == pytest.approx(between - across @ inverse @ across)


def test_a_change_of_units_changes_nothing_else():
    rng = random.Random(1)
    _, losses = drawn(rng)
    plain = estimates(losses)
    for scale, shift in ((1e-3, 0.0), (250.0, -7.0)):
        other = estimates([[scale * one + shift for one in own] for own in losses])
        for one, also in zip(plain, other, strict=True):
            assert also.mean == pytest.approx(scale * one.mean + shift)
            assert also.deviation == pytest.approx(scale * one.deviation)


def test_evaluated_once_each_they_stay_in_order():
    rng = random.Random(2)
    losses = [[rng.expovariate(1.0)] for _ in range(50)]
    means = [one.mean for one in estimates(losses)]
    assert sorted(range(50), key=lambda index: means[index]) == sorted(
        range(50), key=lambda index: losses[index][0]
    )


def test_one_evaluation_that_diverged_does_not_make_the_others_uncertain():
    rng = random.Random(3)
    _, losses = drawn(rng, noise=0.1)
    losses[0] = [min(map(min, losses)), 1e12]
    found = estimates(losses)
    assert all(math.isfinite(one.mean) and one.deviation < 1.0 for one in found)
    assert max(one.mean for one in found[1:]) < 10.0
    assert found[0].mean > min(one.mean for one in found)


def test_what_was_lucky_once_is_believed_less_than_what_was_good_five_times():
    lucky, steady = [0.0], [-0.5, 0.7, 0.1, 0.6, -0.4]
    found = estimates([lucky, steady, *[[0.5 + i / 20, 1.3 - i / 20] for i in range(10)]])
    assert found[1].mean < found[0].mean
    assert found[1].deviation < found[0].deviation


def test_equal_ones_are_estimated_without_a_division_by_zero():
    assert [(one.mean, one.deviation) for one in estimates([[1.0], [1.0, 1.0], [1.0]])] == [(1.0, 0.0)] * 3
    assert [one.mean for one in estimates([[2.0]])] == [2.0]
    found = estimates([[0.0], [1.0, 1.0], [2.0], [3.0]])  # values differ, repetitions do not
    assert [one.mean for one in found] == sorted(one.mean for one in found)


def test_losses_near_the_largest_number_are_no_error():
    for losses in (
        [[1e300], [-1e300, 1e300], [5.0]],
        [[1.7e308, 1.7e308], [1.7e308]],
        [[1e200], [0.0, 0.1], [0.2]],
    ):
        found = estimates(losses)
        assert all(math.isfinite(one.mean) and math.isfinite(one.deviation) for one in found)


def test_exact_takes_three_repetitions_and_no_difference():
    assert not exact([[1.0, 1.0], [2.0, 2.0]])
    assert exact([[1.0, 1.0, 1.0], [2.0, 2.0], [3.0]])
    assert not exact([[1.0, 1.0, 1.0, 1.0], [2.0, 2.0000001]])


def test_the_choice_by_estimates_is_better_than_that_by_luck():
    """In 300 draws, of the same evaluations: five of the best looking ones evaluated five times more."""
    lucky, believed = [], []
    for seed in range(300):
        rng = random.Random(seed)
        truth = [rng.gauss(0.0, 1.0) for _ in range(60)]
        losses = [[one + rng.gauss(0.0, 1.0)] for one in truth]
        lucky.append(truth[min(range(60), key=lambda index: losses[index][0])])
        for index in sorted(range(60), key=lambda index: losses[index][0])[:5]:
            losses[index] += [truth[index] + rng.gauss(0.0, 1.0) for _ in range(5)]
        means = [one.mean for one in estimates(losses)]
        believed.append(truth[means.index(min(means))])
    assert statistics.fmean(believed) < statistics.fmean(lucky) - 0.2


# --- which are evaluated again ------------------------------------------------------------------------------


class Fixed:
    """Proposes places drawn at random."""

    def __init__(self):
        self.learnt = []

    def breed(self, population, rng):
        return Offspring((rng.random(),), "whatever")

    def learn(self, member):
        self.learnt.append(member.id)


def evaluated(share, value, individuals=400, seed=0):
    """Breeder, operators in order, and the genomes of the repetitions."""
    inner = Fixed()
    breeder, population = ReevaluatingBreeder(inner, share), Population()
    noise, children = random.Random(seed), []
    for number in range(individuals):
        child = breeder.breed(population, random.Random(f"{seed}/{number}"))
        children.append(child)
        loss = value(child.genome[0], noise)
        status = FAILED if loss is None else COMPLETED
        losses = None if loss is None else (loss,)
        member = Member(f"0-0-{number}", child.genome, losses, status, operator=child.operator)
        population.add(member)
        breeder.learn(member)
    assert len(inner.learnt) == individuals
    return children


def test_a_share_of_the_budget_goes_to_those_that_may_be_the_best():
    children = evaluated(0.3, lambda x, noise: x + 0.05 * noise.gauss(0, 1))
    again = [child for child in children if child.operator == REEVALUATION]
    assert 0.2 < len(again) / 400 < 0.32
    assert not any(child.operator == REEVALUATION for child in children[:10])
    late = [child.genome[0] for child in again[len(again) // 2 :]]
    assert statistics.fmean(late) < 0.1
    assert max(Counter(child.genome for child in again).values()) >= 5
    # Its key is a new one each time.
    assert len({(child.genome, child.repeat) for child in again}) == len(again)
    for child in again:
        first = int(child.parents[0].split("-")[2])
        assert children[first].genome == child.genome


def test_nothing_is_repeated_where_values_are_exact_or_the_share_is_none():
    exact_ones = evaluated(0.3, lambda x, noise: x)
    assert 3 <= sum(child.operator == REEVALUATION for child in exact_ones) <= 4
    assert all(child.operator == "whatever" for child in evaluated(0.0, lambda x, noise: x + noise.random()))
    assert all(child.operator == "whatever" for child in evaluated(0.3, lambda x, noise: None))


def test_what_fails_now_and_then_is_repeated_too():
    children = evaluated(0.3, lambda x, noise: None if noise.random() < 0.3 else x + 0.1 * noise.gauss(0, 1))
    assert sum(child.operator == REEVALUATION for child in children) > 60


def test_it_remembers_a_bounded_number_and_the_repeated_ones_among_them():
    breeder, population = ReevaluatingBreeder(Fixed(), 0.2), Population()
    rng = random.Random(5)
    for number in range(3_000):
        child = breeder.breed(population, rng)
        loss = child.genome[0] + 0.05 * rng.gauss(0, 1)
        population.add(Member(f"0-0-{number}", child.genome, (loss,), COMPLETED, operator=child.operator))
    assert len(breeder._known) <= 600
    assert max(len(own) for own in breeder._known.values()) > 10


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"kind": "grid"},
            'reevaluate = 0.1 does not suit kind = "grid", which evaluates each of its points once',
        ),
        ({"kind": "pbt"}, 'reevaluate = 0.1 does not suit kind = "pbt"'),
        ({"reevaluate": 0.6}, "reevaluate = 0.6: must be a number from 0 to 0.5"),
        ({"reevaluate": "often"}, "reevaluate = 'often': must be a number from 0 to 0.5"),
    ],
)
def test_what_it_does_not_suit_is_refused(tmp_path: Path, changed, sentence):
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: 0.0, direction="minimize")
    with pytest.raises(hpo.UsageError) as refused:
        hpo.Campaign(task, directory=tmp_path, evaluations=5, **{"reevaluate": 0.1, **changed}).check()
    assert sentence in str(refused.value)


def test_several_objectives_are_refused(tmp_path: Path):
    task = hpo.Task(
        hpo.SearchSpace(x=hpo.Float(0, 1)), lambda trial: {}, objectives={"a": "minimize", "b": "maximize"}
    )
    with pytest.raises(
        hpo.UsageError, match=r"reevaluate = 0\.1 is for one objective, and the task has a, b"
    ):
        hpo.Campaign(task, directory=tmp_path, evaluations=5, reevaluate=0.1).check()


@pytest.mark.parametrize(
    "kind", ["default", "evolution", "surrogate", "portfolio", "genetic", "cmaes", "random", "tpe"]
)
def test_every_other_kind_repeats(kind):
    if kind == "tpe":
        pytest.importorskip("optuna")
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    settings = from_keywords(directory=".", evaluations=1, kind=kind, reevaluate=0.5).search
    breeder, population, rng, operators = (
        make_breeder(space, settings),
        Population(),
        random.Random(0),
        Counter(),
    )
    for number in range(80):
        child = breeder.breed(population, rng)
        operators[child.operator] += 1
        member = Member(f"0-0-{number}", child.genome, (rng.random(),), COMPLETED, operator=child.operator)
        population.add(member)
        breeder.learn(member)
    assert 10 < operators[REEVALUATION] < 60


def test_a_repetition_is_not_stopped_early():
    def verdicts(operator):
        stopping = EarlyStopping(
            PruningSettings(rule="median", startup=1), sign=1.0, forget=lambda identity: None
        )
        stopping.observe([(f"0-1-{n}", step, 0.0) for n in range(20) for step in (1, 2, 3)])
        stopping.learn_end(9)
        stopping.start(Candidate(0, "0-0-0", 0, (0.5,), {}, "", operator))
        return [stopping.report("0-0-0", step, 5.0)[0] for step in (1, 2, 3)]

    assert verdicts("evolution")[0] != GO
    assert verdicts(REEVALUATION) == [GO] * 3


# --- campaigns ----------------------------------------------------------------------------------------------


def noisy(trial: hpo.Trial) -> float:
    x, y = trial.params["x"], trial.params["y"]
    return (x - 0.3) ** 2 + (y - 0.6) ** 2 + 0.1 * random.Random(trial.seed).gauss(0, 1)


def campaign(directory: Path, evaluations: int, **settings) -> hpo.Result:
    space = hpo.SearchSpace(x=hpo.Ordinal(*(i / 10 for i in range(11))), y=hpo.Float(0, 1))
    task = hpo.Task(space, noisy, direction="minimize")
    return hpo.Campaign(
        task, directory=directory, evaluations=evaluations, kind="evolution", isolation="inline", **settings
    ).run()


def test_a_campaign_evaluates_again_goes_on_and_names_the_steadiest(tmp_path: Path, capsys):
    directory = tmp_path / "run"
    campaign(directory, 300, reevaluate=0.4)
    first = capsys.readouterr().err
    result = campaign(directory, 400, reevaluate=0.4)
    assert len(result.individuals) == 400
    again = [one for one in result.individuals if one.operator == REEVALUATION]
    assert 20 < len(again) < 180
    assert any(int(one.sequence) >= 300 for one in again)
    by_id = {one.id: one for one in result.individuals}
    for one in again:
        assert by_id[one.parents[0]].params == one.params
        assert one.value != by_id[one.parents[0]].value  # it has a seed of its own
    # Otherwise nothing is evaluated twice.
    others = [json.dumps(one.params) for one in result.individuals if one.operator != REEVALUATION]
    assert len(others) == len(set(others))
    # The best is that of the lowest estimate, by its best evaluation.
    groups: dict[str, list[float]] = {}
    for one in result.individuals:
        groups.setdefault(json.dumps(one.params), []).append(one.value or 0.0)
    means = dict(zip(groups, (one.mean for one in estimates(list(groups.values()))), strict=True))
    best = min(means, key=lambda key: means[key])
    assert json.dumps(result.best.params) == best
    assert result.best.value == min(groups[best])
    chosen = result.repeated[0]
    assert (chosen.individual, sorted(chosen.values)) == (result.best, sorted(groups[best]))
    assert chosen.mean == pytest.approx(statistics.fmean(groups[best]))
    assert result.status()["best"]["id"] == result.best.id
    # As it is told.
    assert "most likely the best: " in first
    assert f"most likely the best: {result.best.id}" in capsys.readouterr().err
    assert main(["best", str(directory), "--top", "400"]) == 0
    told = capsys.readouterr().out
    several = next(one for one in result.repeated if len(one.values) > 1)
    told_of = f"(of {len(several.values)} evaluations; their mean {several.mean:.6g} ± {several.error:.2g})"
    assert f"{several.individual.id}: value = {several.individual.value!r}    {told_of}" in told
    assert "(evaluated once)" in told
    assert main(["best", str(directory), "--top", "400", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert len(entries) == len(groups)
    assert entries[0]["evaluations"] == len(chosen.values)
    assert entries[0]["mean"] == pytest.approx(chosen.mean)
    single = next(one for one in entries if one["evaluations"] == 1)
    assert single["error"] is None
    assert not [one for one in check(directory).findings if "more than one individual" in one.text]


def test_without_it_the_best_is_the_best_value(tmp_path: Path):
    result = campaign(tmp_path / "run", 60)
    assert result.best.value == min(one.value or 0.0 for one in result.individuals)
    assert result.repeated == []
