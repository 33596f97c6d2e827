"""Ask and tell."""

from __future__ import annotations

import numpy
import pytest
from populations import asked_and_told
from refusals import refused

import hpo
from hpo.errors import SpaceExhausted

SPACE = hpo.SearchSpace(x=hpo.Float(-1, 1), y=hpo.Float(-1, 1), kind=hpo.Categorical("a", "b"))


def goal(params):
    return params["x"] ** 2 + params["y"] ** 2 + (params["kind"] == "a")


def run(search, evaluations, sign=1.0):
    asked = asked_and_told(search, evaluations, lambda one, _: sign * goal(one.params))
    return min(goal(one.params) for one in asked)


def test_what_is_told_moves_a_swarm():
    search = hpo.Search(SPACE, seed=1, kind="pso")
    asked = asked_and_told(search, 20, lambda one, _: goal(one.params))
    assert [one.operator for one in asked] == ["random"] * 5 + ["pso"] * 15


def test_what_was_entered_is_not_asked_for():
    space = hpo.SearchSpace(a=hpo.Int(0, 4), b=hpo.Categorical("x", "y"))
    *entered, left = space.enumerate()
    search = hpo.Search(space, kind="random")
    for number, params in enumerate(entered):
        search.enter(params, float(number))
    assert search.ask().params == left
    refused(search.ask, "10", error=SpaceExhausted)


def test_of_one_configuration_the_first_result_that_is_entered_counts():
    search = hpo.Search(SPACE)
    search.enter({"x": 0.5, "y": 0.5, "kind": "a"}, 1.0)
    search.enter({"x": 0.5, "y": 0.5, "kind": "a"}, -1.0)
    assert [(one.id, one.value) for one in search.front] == [("known-1", 1.0)]
    asked = search.ask()
    search.enter(asked.params, -2.0)
    search.tell(asked, 0.5)
    assert [(one.id, one.value) for one in search.front] == [(asked.id, 0.5)]


@pytest.mark.parametrize(("direction", "sign"), [("minimize", 1.0), ("maximize", -1.0)])
def test_the_default_beats_chance_in_both_directions(direction, sign):
    wins = sum(
        run(hpo.Search(SPACE, direction, seed), 50, sign)
        < run(hpo.Search(SPACE, seed=seed, kind="random"), 50)
        for seed in range(3)
    )
    assert wins >= 2


def test_any_number_may_be_pending_and_none_comes_twice():
    search = hpo.Search(hpo.SearchSpace(a=hpo.Int(0, 9), b=hpo.Categorical("x", "y")))
    pending = [search.ask() for _ in range(20)]
    assert len({(one.params["a"], one.params["b"]) for one in pending}) == 20
    refused(search.ask, "20", error=SpaceExhausted)
    for one in reversed(pending):
        search.tell(one, float(one.params["a"]))


def test_constraints_narrow_what_can_be_asked_for():
    space = hpo.SearchSpace(a=hpo.Int(0, 3), b=hpo.Int(0, 3))
    search = hpo.Search(space, constraints=[lambda params: params["a"] < params["b"]])
    asked = []
    with pytest.raises(SpaceExhausted, match="all 6"):
        while True:
            asked.append(search.ask())
    assert len(asked) == 6 and all(one.params["a"] < one.params["b"] for one in asked)


def test_where_the_same_may_come_again_a_tight_constraint_exhausts_nothing():
    space = hpo.SearchSpace({name: hpo.Int(0, 9) for name in "abc"})
    search = hpo.Search(
        space, kind="random", duplicates=True, constraints=[lambda params: set(params.values()) == {7}]
    )
    for one in asked_and_told(search, 5, lambda one, _: 1.0):
        assert set(one.params.values()) == {7}
    narrow = hpo.Search(
        hpo.SearchSpace(x=hpo.Float(0, 1)),
        kind="random",
        duplicates=True,
        constraints=[lambda params: params["x"] < 1e-7],
    )
    refused(narrow.ask, "constraints", error=SpaceExhausted)
    narrow.enter({"x": 5e-8}, 1.0)
    assert narrow.ask().params["x"] < 1e-7


def test_failures_are_told_as_none_and_guide_away():
    search = hpo.Search(hpo.SearchSpace(x=hpo.Float(0, 1)), seed=1)
    asked = asked_and_told(
        search, 80, lambda one, _: None if one.params["x"] > 0.5 else 0.5 - one.params["x"]
    )
    assert sum(one.params["x"] > 0.5 for one in asked[40:]) < 14


def test_mistakes_are_refused_and_change_nothing():
    search = hpo.Search(SPACE)
    one = search.ask()
    for value in ("0.5", {"loss": 1.0}, [1.0]):
        refused(lambda value=value: search.tell(one, value), str(value), "None")
    refused(lambda: search.tell(one.params, 1.0), "'kind'", "ask()")
    search.tell(one, numpy.float32(1.0))
    refused(lambda: search.tell(one, 1.0), one.id)
    refused(lambda: hpo.Search(SPACE, seed=1.5), "seed = 1.5")
    refused(lambda: hpo.Search(SPACE, "maximise"), "maximise")
    refused(lambda: hpo.Search(SPACE, kind="cmaess"), "'cmaess'", "cmaes")
    refused(lambda: hpo.Search(SPACE, crossover=2.0), "crossover", "2.0")
    refused(lambda: hpo.Search(SPACE, crosover=0.5), "crosover", '"crossover"')
    assert hpo.Search(SPACE, seed=numpy.int64(3)).ask() != one
