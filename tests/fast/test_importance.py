"""Importance of parameters against variances worked out by hand, and what is said where there is nothing to say."""

from __future__ import annotations

import json
import random

import pytest
from individuals import make_individual, make_record

import hpo
from hpo.errors import CampaignError, UsageError
from hpo.results.analysis.importance import MOST, importance
from hpo.views.terminal import best_report

SPACE = hpo.SearchSpace(
    a=hpo.Float(1e-4, 1.0, log=True),
    b=hpo.Float(-1.0, 1.0),
    kind=hpo.Categorical("x", "y", "z"),
    m=hpo.Float(0.0, 1.0, when={"kind": "x"}),
    n=hpo.Int(1, 64, log=True),
    width=hpo.Ordinal(8, 16, 32),
)


def record(count, values, *, space=SPACE, ways=None, seed=0, status=lambda number: "completed"):
    """``count`` random individuals; ``values``: from parameters and number to objectives."""
    rng = random.Random(seed)
    individuals = []
    for number in range(count):
        params = space.decode(space.sample(rng))
        state = status(number)
        found = values(params, number) if state == "completed" else None
        individuals.append(make_individual(id=f"0-0-{number}", params=params, status=state, objectives=found))
    return make_record(individuals, ways, space=space)


def additive(params, number):
    """Over the unit cube the variances are 16/12 of a's gene, 4/12 of b's, and of m, which is there in a third of the
    draws, 9/12 / 3; that m is there or not makes 1.5² · 2/9 of kind's alone."""
    gene = SPACE.parameters["a"].encoder()(params["a"])
    return {"value": 4 * gene + (params["b"] + 1) + 3 * params.get("m", 0.0)}


def test_shares_are_those_of_the_function():
    found = importance(record(1000, additive))
    whole = 16 / 12 + 4 / 12 + 9 / 36 + 0.5
    expected = {"a": 16 / 12, "b": 4 / 12, "kind": 0.5 + 9 / 36, "m": 9 / 36, "n": 0.0, "width": 0.0}
    for name, variance in expected.items():
        assert found.shares[name].total == pytest.approx(variance / whole, abs=0.08), name
    assert [*found.shares][:2] == ["a", "kind"] and {*found.shares} == {*SPACE.names}
    assert found.shares["kind"].alone == pytest.approx(0.5 / whole, abs=0.08)
    assert found.shares["m"].alone == pytest.approx(1 / 12 / whole, abs=0.03)
    assert found.explained > 0.9 and (found.evaluations, found.completed) == (1000, 1000)
    assert all(0 <= one.spread < 0.05 for one in found.shares.values())
    assert all(0 <= one.alone <= one.total for one in found.shares.values())
    assert found.dataframe()["parameter"].tolist() == [*found.shares]


def test_among_the_best_another_parameter_may_matter():
    """Half of the space is bad by b: there n decides, and a in the other half."""

    def two_halves(params, number):
        bad = params["b"] > 0
        return {
            "value": 10.0 * bad + SPACE.parameters["n" if bad else "a"].encoder()(params["n" if bad else "a"])
        }

    found = record(800, two_halves)
    everywhere, among = importance(found), importance(found, best=0.25)
    assert everywhere.shares["n"].total > 0.1 > 0.05 > among.shares["n"].total
    assert among.best == 0.25 and among.shares["a"].total > everywhere.shares["a"].total + 0.1
    assert "among the best 25%" in str(among) and "among" not in str(everywhere)
    for share in (0, 1.5, -1, True, "0.25", float("nan")):
        with pytest.raises(UsageError, match="must be a share, above 0 and at most 1"):
            importance(found, best=share)


def test_interactions_are_in_the_total_and_not_alone():
    def product(params, number):
        return {"value": params["b"] * (1 if params["kind"] == "y" else -1) + 1e-9 * params["a"]}

    found = importance(record(800, product))
    assert found.shares["b"].total > 0.8 and found.shares["kind"].total > 0.6
    assert found.shares["kind"].alone < 0.15
    assert found.shares["a"].total < 0.05


def test_scale_outliers_direction_and_failures_do_not_matter():
    plain = importance(record(300, additive))
    wild = importance(record(300, lambda p, n: {"value": 10 ** (3 * additive(p, n)["value"])}))
    assert wild.shares == plain.shares
    largest = importance(
        record(300, lambda p, n: {"value": -additive(p, n)["value"]}, ways={"value": "maximize"})
    )
    assert largest.shares == plain.shares

    def some(number):
        return "completed" if number % 3 else "failed" if number % 2 else "pruned"

    half = importance(record(450, additive, status=some))
    assert (half.evaluations, next(iter(half.shares))) == (300, "a")


def test_noise_alone_is_told_to_mean_little():
    rng = random.Random(3)
    found = importance(record(100, lambda p, n: {"value": rng.random()}))
    assert found.explained <= 0 and not found.explains and "explains nothing" in str(found)
    assert not found.to_json()["parameters"]
    assert "too little" not in str(importance(record(300, additive)))


def test_a_large_campaign_is_sampled_and_always_alike():
    whole = record(5000, additive)
    first = importance(whole)
    assert (first.evaluations, first.completed) == (MOST, 5000) and "1000 of 5000" in str(first)
    assert importance(whole) == first


def test_configurations_of_another_space_are_refused():
    other = record(30, additive)
    other.individuals[3].params["kind"] = "w"
    with pytest.raises(CampaignError, match=r"kind = 'w'.*hpo check"):
        importance(other)


def test_several_objectives_have_shares_of_their_own():
    both = record(
        300,
        lambda p, n: {"loss": p["b"], "seconds": float(p["n"])},
        ways={"loss": "minimize", "seconds": "maximize"},
    )
    assert next(iter(importance(both).shares)) == "b"
    assert next(iter(importance(both, "seconds").shares)) == "n"
    with pytest.raises(UsageError, match=r"'second' is no objective.*seconds"):
        importance(both, "second")


@pytest.mark.parametrize(
    ("count", "values", "words"),
    [
        (19, additive, "19 evaluations have completed, and at least 20"),
        (1, additive, "1 evaluation has completed"),
        (40, lambda params, number: {"value": 1.0}, "same result"),
    ],
)
def test_too_little_is_refused_with_a_sentence(count, values, words):
    with pytest.raises(CampaignError, match=words):
        importance(record(count, values))


def test_best_tells_it(tmp_path):
    task = hpo.Task(SPACE, lambda trial: additive(trial.params, 0)["value"])
    keywords = {"isolation": "inline", "kind": "random"}
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=10, **keywords).run()
    assert "10 evaluations have completed, and at least 20" in best_report.best(tmp_path / "run", None)
    missing = json.loads(best_report.best_json(tmp_path / "run", None))[0]["campaign"]["importance"]
    assert "at least 20" in missing["value"]["missing"]
    with pytest.raises(CampaignError, match="at least 20"):
        result.importance()
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=120, **keywords).run()
    text = best_report.best(tmp_path / "run", 2)
    assert "importance for value, from 120 evaluations" in text
    assert text.splitlines()[-6].split()[0] == "a"
    entries = json.loads(best_report.best_json(tmp_path / "run", 2))
    told = entries[0]["campaign"]["importance"]["value"]
    assert "campaign" not in entries[1] and next(iter(told["parameters"])) == "a"
    assert told["parameters"]["a"]["total"] == result.importance().shares["a"].total
