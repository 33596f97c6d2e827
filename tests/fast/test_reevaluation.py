"""Where evaluations differ by chance: what a configuration is worth, what is evaluated again, and what is best."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter, deque
from itertools import product
from pathlib import Path

import journals
import numpy
import pytest
from individuals import make_candidate
from populations import Around, population_of, searched_alone
from refusals import refused
from simulation import pruning_settings

import hpo
from hpo.cli import main
from hpo.config.settings import SearchSettings
from hpo.individual import COMPLETED, FAILED, REEVALUATION, Configuration
from hpo.ledger.inspection import check
from hpo.search.early_stopping import Pruner
from hpo.search.kinds.reevaluation import ReevaluatingBreeder
from hpo.search.models.estimates import estimates
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population
from hpo.search.proposals import key_of
from hpo.search.protocols import GO, TrialReport
from hpo.space.restricted import restricted
from search_spaces.standalone.trained_models import of_campaign


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
        means = sorted(statistics.fmean(own) for own in losses)
        better = means[:10]
        centre, between = numpy.mean(better), numpy.var(better)
        limit = centre + 5.0 * (means[20] - centre)
        bounded = [[min(one, limit) for one in own] for own in losses]
        squares = sum(((numpy.array(own) - numpy.mean(own)) ** 2).sum() for own in bounded)
        noise = (squares + between) / (sum(len(own) - 1 for own in bounded) + 2)
        for own, found in zip(losses, estimates(losses), strict=True):
            size = len(own)
            across = numpy.full(size, between)
            inverse = numpy.linalg.inv(noise * numpy.eye(size) + between)
            assert found.mean == pytest.approx(centre + across @ inverse @ (numpy.array(own) - centre))
            assert found.deviation**2 == pytest.approx(between - across @ inverse @ across)
            # After one more evaluation: of a joint distribution with one more column.
            across = numpy.full(size + 1, between)
            inverse = numpy.linalg.inv(noise * numpy.eye(size + 1) + between)
            assert found.after(1) ** 2 == pytest.approx(between - across @ inverse @ across)
            assert found.after(0) == found.deviation


def test_one_evaluation_that_diverged_does_not_make_the_others_uncertain():
    rng = random.Random(3)
    _, losses = drawn(rng, noise=0.1)
    losses[0] = [min(map(min, losses)), 1e12]
    found = estimates(losses)
    assert all(math.isfinite(one.mean) and one.deviation < 1.0 for one in found)
    assert max(one.mean for one in found[1:]) < 10.0
    assert found[0].mean > min(one.mean for one in found)


def test_equal_ones_are_estimated_without_a_division_by_zero():
    assert [(one.mean, one.deviation) for one in estimates([[1.0], [1.0, 1.0], [1.0]])] == [(1.0, 0.0)] * 3
    assert [one.mean for one in estimates([[2.0]])] == [2.0]
    found = estimates([[0.0], [1.0, 1.0], [2.0], [3.0]])  # values differ, repetitions do not
    assert [one.mean for one in found] == sorted(one.mean for one in found)
    found = estimates([[0.0]] * 6 + [[0.0, 1.0]])  # the best are equal, repetitions differ
    assert found[0].deviation > 0 and found[6].mean > found[0].mean


def test_losses_near_the_largest_number_are_no_error():
    for losses in (
        [[1e300], [-1e300, 1e300], [5.0]],
        [[1.7e308, 1.7e308], [1.7e308]],
        [[1e200], [0.0, 0.1], [0.2]],
    ):
        found = estimates(losses)
        assert all(math.isfinite(one.mean) and math.isfinite(one.deviation) for one in found)


UNIT = hpo.SearchSpace(x=hpo.Float(0, 1))


def evaluated(share, value, individuals=400, seed=0, delay=0):
    """What was proposed, in order. ``delay``: so many are under way when the next is proposed."""
    inner = Around(0.0, 1.0)
    breeder, population = ReevaluatingBreeder(UNIT, inner, share), Population()
    noise, children, under_way = random.Random(seed), [], deque()

    def arrive():
        number, child = under_way.popleft()
        loss = value(child.genome[0], noise, child.operator)
        losses = None if loss is None else (loss,)
        status = FAILED if loss is None else COMPLETED
        member = Member(f"0-0-{number}", child.genome, losses, status, operator=child.operator)
        population.add(member)
        breeder.learn(member)

    for number in range(individuals):
        rng = random.Random(f"{seed}/{number}")
        child = breeder.propose_first(f"0-0-{number}", 0, population, rng) or breeder.breed(population, rng)
        children.append(child)
        under_way.append((number, child))
        if len(under_way) > delay:
            arrive()
    while under_way:
        arrive()
    assert len(inner.learnt) == individuals
    return children


def repeated(children):
    return [child for child in children if child.operator == REEVALUATION]


@pytest.mark.parametrize("delay", [0, 7, 31])
def test_a_share_of_the_budget_goes_to_those_that_may_be_the_best(delay):
    children = evaluated(0.3, lambda x, noise, _: x + 0.05 * noise.gauss(0, 1), delay=delay)
    again = repeated(children)
    assert 0.2 < len(again) / 400 < 0.34
    assert not repeated(children[:10])
    late = [child.genome[0] for child in again[len(again) // 2 :]]
    assert statistics.fmean(late) < 0.1
    assert max(Counter(child.genome for child in again).values()) >= 5
    for child in again:
        first = int(child.parents[0].split("-")[2])
        assert children[first].genome == child.genome


def test_little_is_repeated_where_values_are_exact_and_nothing_where_the_share_is_none():
    exact_ones = evaluated(0.3, lambda x, noise, _: x)
    assert 3 <= len(repeated(exact_ones)) <= 30
    # Noise that is seen late is noise all the same.
    late = evaluated(0.3, lambda x, noise, _: round(x + 0.02 * noise.gauss(0, 1), 1), individuals=1_000)
    assert len(repeated(late)) > 150
    assert not repeated(evaluated(0.0, lambda x, noise, _: x + noise.random()))
    assert not repeated(evaluated(0.3, lambda x, noise, _: None))


def test_a_lucky_one_whose_repetitions_fail_is_left():
    def value(x, noise, operator):
        lucky = 0.5 < x < 0.51
        if lucky and operator == REEVALUATION:
            return None
        return -0.6 if lucky else x + 0.3 * noise.gauss(0, 1)

    again = repeated(evaluated(0.3, value))
    assert len(again) > 80
    assert sum(0.5 < child.genome[0] < 0.51 for child in again) < 0.25 * len(again)


def test_it_remembers_a_bounded_number_and_the_repeated_ones_among_them():
    breeder, noise = ReevaluatingBreeder(UNIT, Around(0.0, 1.0), 0.2), random.Random(5)
    searched_alone(breeder, lambda child, number: child.genome[0] + 0.05 * noise.gauss(0, 1), 3_000)
    assert len(breeder._known) <= 700
    assert max(len(own) for own in breeder._known.values()) > 10


def test_what_came_from_elsewhere_and_is_not_in_the_island_s_space_is_not_repeated():
    space = restricted(
        hpo.SearchSpace(c=hpo.Categorical("a", "b", "c"), x=hpo.Float(0, 1)), {"c": ["a", "b"]}
    )
    breeder, rng = ReevaluatingBreeder(space, Around(0.0, 1.0), 0.5), random.Random(0)
    drawn = [(number % 3, rng.random()) for number in range(60)]
    population = population_of((genome, rng.random() - (genome[0] == 2)) for genome in drawn)
    again = [breeder.propose_first(f"0-1-{number}", 0, population, rng) for number in range(100)]
    assert {child.genome[0] for child in again if child is not None} == {0, 1}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "grid"}, ["0.1", '"grid"']),
        ({"kind": "pbt"}, ["0.1", '"pbt"']),
        ({"reevaluate": 0.6}, ["0.6", "0.5"]),
        ({"reevaluate": "often"}, ["'often'", "0.5"]),
        ({"objectives": {"a": "minimize", "b": "maximize"}}, ["0.1", "a, b"]),
    ],
)
def test_what_it_does_not_suit_is_refused(tmp_path: Path, changed, words):
    task = hpo.Task(UNIT, lambda trial: 0.0, objectives=changed.pop("objectives", None))
    settings = {"directory": tmp_path, "evaluations": 5, "reevaluate": 0.1, **changed}
    refused(lambda: hpo.Campaign(task, **settings).check(), "reevaluate", *words)


@pytest.mark.parametrize(
    "kind", ["default", "evolution", "surrogate", "portfolio", "genetic", "cmaes", "random", "tpe"]
)
def test_every_other_kind_repeats_behind_its_initial_design(kind):
    if kind == "tpe":
        pytest.importorskip("optuna")
    space, rng = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1)), random.Random(0)
    settings = SearchSettings(kind=kind, reevaluate=0.5, initial="sobol")
    bred = searched_alone(make_breeder(space, settings), lambda child, number: rng.random(), 80)
    assert {child.operator for child in bred[:11]} == {"sobol"}
    assert 10 < len(repeated(bred)) < 60


def test_a_repetition_is_not_stopped_early():
    def verdicts(operator):
        stopping = Pruner(pruning_settings("median", startup=1), sign=1.0, forget=lambda identity: None)
        stopping.observe([(f"0-1-{n}", step, 0.0) for n in range(20) for step in (1, 2, 3)])
        stopping.learn_end(9)
        stopping.start(make_candidate(token=0, id="0-0-0", genome=(0.5,), operator=operator))
        return [stopping.report(TrialReport("0-0-0", step, 5.0))[0] for step in (1, 2, 3)]

    assert verdicts("evolution")[0] != GO
    assert verdicts(REEVALUATION) == [GO] * 3


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
    assert any(one.launch == 2 for one in again)
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
    assert result.status["best"]["id"] == result.best.id
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


def saving(trial: hpo.Trial) -> float:
    place = trial.directory / "checkpoint-1-ranks"
    place.mkdir(parents=True)
    (place / "weights").write_text("1")
    return noisy(trial)


def test_checkpoints_are_of_what_is_believed_to_be_best_and_of_each_configuration_one(tmp_path: Path):
    space = hpo.SearchSpace(x=hpo.Ordinal(*(i / 10 for i in range(11))), y=hpo.Float(0, 1))
    settings = {"kind": "evolution", "isolation": "inline", "evaluations": 150, "reevaluate": 0.3}
    of_the_best = 0
    for seed in range(3):
        directory = tmp_path / str(seed)
        task = hpo.Task(space, saving, direction="minimize")
        result = hpo.Campaign(task, directory=directory, keep=3, seed=seed, **settings).run()
        held = {path.parent.name for path in (directory / "evaluations").glob("*/checkpoint-*")}
        params = {one.id: json.dumps(one.params) for one in result.individuals}
        assert len(held) == len({params[one] for one in held}) == 3
        best = held & {one.id for one in result.repeated[0].individuals}
        of_the_best += bool(best)
        module = str(result.record.identity["task"]).split(":")[0]
        if best:  # of its evaluations that which has one is found
            assert {of_campaign(directory, module).id} == best
    # One may have become the best when its checkpoint was gone: in 3 of 30.
    assert of_the_best


def test_the_order_for_checkpoints_is_by_belief_and_of_a_configuration_the_better_evaluation_first():
    breeder, population = ReevaluatingBreeder(UNIT, Around(0.0, 1.0), 0.3), Population()
    losses = {
        "lucky": (0.1, [-1.0, 2.0, 1.5]), "good": (0.2, [0.1, -0.2, 0.3]), "fair": (0.3, [0.6, 0.8]),
        **{f"other{n}": (0.4 + n / 100, [1.0 + n / 10]) for n in range(20)},
    }  # fmt: skip
    for name, (x, own) in losses.items():
        population_of((((x,), loss) for loss in own), into=population, worker=name)
    pairs = [
        (loss, f"{name}-{number}") for name, (_, own) in losses.items() for number, loss in enumerate(own)
    ]
    ordered = [name for _, name in breeder.best_first(pairs, population)]
    assert ordered[0] == "good-1"
    assert ordered.index("good-1") < ordered.index("lucky-0") < ordered.index("good-0")
    assert len(ordered) == len(pairs)
    assert breeder.best_first([(0.5, "unknown"), (2.9, "other19-0")], population)[-1] == (0.5, "unknown")
    assert breeder.best_first([], Population()) == []


def test_a_repetition_that_failed_counts_against_its_configuration(tmp_path: Path, capsys):
    def fragile(trial: hpo.Trial) -> float:
        value = trial.params["x"] + 0.3 * random.Random(trial.seed).gauss(0, 1)
        return value if value > 0.3 else math.nan

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), fragile, direction="minimize")
    settings = {"kind": "random", "isolation": "inline", "reevaluate": 0.5}
    result = hpo.Campaign(task, directory=tmp_path, evaluations=200, **settings).run()
    failed = [one for one in result.individuals if one.operator == REEVALUATION and one.status == "invalid"]
    assert failed
    one = next(one for one in result.repeated if one.failed)
    assert one.failed == sum(other.params == one.individual.params for other in failed)
    assert main(["best", str(tmp_path), "--top", "200"]) == 0
    assert f"{one.failed} more failed" in capsys.readouterr().out
    # Believed to be worse than by what it completed with alone.
    losses = [list(other.values) for other in result.repeated]
    place = result.repeated.index(one)
    assert estimates(losses)[place].mean < one.estimate.mean


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([0.25, 0.5, 0.75, -9.0], "-9.0 by 0-0-3: x=3 (evaluated once)"),
        (
            [0.25, 0.5, 0.75, 9.0, -8.0, -9.0],
            "-9.0 by 0-0-5: x=3 (of 3 evaluations; their mean -2.66667 ± 5.8)",
        ),
    ],
)
def test_status_says_how_often_the_best_was_evaluated(tmp_path: Path, capsys, losses, best):
    """Evaluations of the configurations 0 to 3, and then only of the last."""
    operators = {2: REEVALUATION, 5: REEVALUATION}
    ends = [
        journals.finished(f"0-0-{n}", loss, params={"x": min(n, 3)}, operator=operators.get(n, "random"))
        for n, loss in enumerate(losses)
    ]
    journals.campaign(tmp_path, ends)
    assert main(["status", str(tmp_path)]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("best ")]
    assert line.removeprefix("best").lstrip().startswith(best)


def test_a_repetition_may_come_as_often_as_it_is_bred_and_a_configuration_from_each_checkpoint():
    """A repetition is a key of its own each time."""
    made = [*product(("random", "evolution"), [""]), (REEVALUATION, ""), ("continue", "a"), ("exploit", "b")]
    keys = Counter(
        key_of(UNIT, Configuration(id=name, params={"x": 0.5}, operator=operator, inherits=parent))
        for operator, parent in made
        for name in ("0-0-1", "0-0-2")
    )
    assert sorted(keys.values()) == [1, 1, 2, 2, 4]
