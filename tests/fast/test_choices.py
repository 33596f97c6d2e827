"""Choices that are tuples, lists and members of enumerations: journals have lists and names, tasks what they wrote."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from refusals import refused

import hpo
from hpo.prior_results.points import known_points
from hpo.results import result as results
from hpo.space.choices import stored


class Color(Enum):
    RED = 1
    BLUE = 2


class Mode(str, Enum):
    FAST = "fast"


class Shape(NamedTuple):
    rows: int
    columns: int


CHOICES = ((64, 64), (128,), None, Color.RED, Mode.FAST, [1, [2, "x"]], Shape(3, 4), ())
KEPT = [[64, 64], [128], None, "RED", "fast", [1, [2, "x"]], [3, 4], []]
SPACE = hpo.SearchSpace(
    net=hpo.Categorical(*CHOICES),
    more=hpo.Int(32, 500, step=32, when={"net": (64, 64)}),
    rate=hpo.Float(0.1, 0.55, step=0.1, when={"net": [(128,), Color.RED]}),
    depths=hpo.Ordinal((8,), (8, 8), (8, 8, 8)),
    color=hpo.Categorical(*Color),
)
seen: list[str] = []


def allowed(params: hpo.individual.Params) -> bool:
    return isinstance(params["color"], Color) and not (params["net"] == () and params["color"] is Color.BLUE)


def evaluate(trial: hpo.Trial) -> float:
    params = trial.params
    seen.append(repr(params["net"]))
    assert any(type(one) is type(params["net"]) and one == params["net"] for one in CHOICES)
    if isinstance(params["net"], list):
        params["net"][1].append(5)
    return float(len(params["depths"]) + params["color"].value)


TASK = hpo.Task(
    SPACE,
    evaluate,
    constraints=[allowed],
    steps=lambda params: params["color"].value,
    default={"net": Color.RED, "rate": 0.1 + 2 * 0.1, "depths": [8, 8], "color": "BLUE"},
)


def run(directory: Path, evaluations: int, **keywords: Any) -> hpo.Result:
    points = [{"net": Shape(3, 4), "depths": (8, 8), "color": Color.RED}]
    campaign = hpo.Campaign(
        TASK,
        directory=directory,
        evaluations=evaluations,
        isolation="inline",
        kind="random",
        points=points,
        only={"color": [*Color], "depths": [(8,), [8, 8]]},
        known=[{"params": {"net": (128,), "rate": 0.2, "depths": [8], "color": Color.RED}, "value": 0.5}],
        **keywords,
    )
    return campaign.run()


def test_a_task_gets_its_choices_back_and_a_journal_has_lists_and_names(tmp_path: Path) -> None:
    run(tmp_path / "run", 10)
    result = run(tmp_path / "run", 40)  # goes on
    found = [one.params for one in result.individuals]
    assert {repr(one["net"]) for one in found} == {*map(repr, CHOICES)} == {*seen}
    assert result.best.params == {"net": (128,), "rate": 0.2, "depths": (8,), "color": Color.RED}
    assert found[0] == {"net": Color.RED, "rate": 0.3, "depths": (8, 8), "color": Color.BLUE}
    assert json.loads((tmp_path / "run/campaign.json").read_text())["space"]["net"]["choices"] == KEPT
    results.export(tmp_path / "run", tmp_path / "table.json")
    rows = json.loads((tmp_path / "table.json").read_text())[1:]
    assert [row["params.net"] for row in rows] == [KEPT[CHOICES.index(one["net"])] for one in found]
    without_task = [one.params for one in hpo.Result(tmp_path / "run").individuals]
    assert without_task == [{name: stored(value) for name, value in one.items()} for one in found]
    for suffix in "csv", "parquet", "json":
        results.export(tmp_path / "run", tmp_path / f"table.{suffix}")
        assert [one.params for one in known_points(tmp_path / f"table.{suffix}", SPACE)][1:] == without_task
    numbers = SPACE.validate({"net": (64, 64), "more": 480, "depths": (8,), "color": "RED"})
    # As Python writes a tuple into a table.
    assert known_points([{**numbers, "net": "(64, 64)", "value": 1.0}], SPACE).points[0].params == numbers


class Kernel(tuple[int, int], Enum):
    WIDE = (7, 7)
    SMALL = (3, 3)


def test_settings_take_what_spaces_take_within_tuples(tmp_path: Path) -> None:
    space = hpo.SearchSpace(kernel=hpo.Categorical(*Kernel), net=hpo.Categorical((64, 64), (0.5,)))
    task = hpo.Task(space, lambda trial: float(trial.params["kernel"] is not Kernel.WIDE))
    points = [{"kernel": Kernel.WIDE, "net": (numpy.int64(64), numpy.float32(64))}]
    only = {"net": [(numpy.int64(64), 64)]}
    result = hpo.Campaign(
        task, directory=tmp_path / "d", evaluations=1, points=points, island=[{"only": only}]
    )
    assert result.run().best.params == {"kernel": Kernel.WIDE, "net": (64, 64)}


def test_a_search_of_ones_own_gives_choices_back() -> None:
    search = hpo.Search(SPACE, constraints=[allowed], kind="random")
    for _ in range(20):
        candidate = search.ask()
        search.tell(candidate, float(candidate.params["color"].value))
    assert search.best.params["color"] is Color.RED


def test_a_condition_names_tuples() -> None:
    both = hpo.Categorical(1, (1,), (1, 2))
    for when, values in (((1, 2), {(1, 2)}), ([1, (1,)], {1, (1,)}), ([[1, 2]], {(1, 2)}), (1, {1})):
        space = hpo.SearchSpace(a=both, b=hpo.Int(0, 1, when={"a": when}))
        assert {*space.conditions["b"]["a"]} == values


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        (((1, 2), [1, 2]), ["[1, 2] equals (1, 2)"]),
        (((1, 2), (True, 2)), ["(True, 2) equals (1, 2)"]),
        (("RED", Color.RED), ["<Color.RED: 1> equals 'RED' as the journal has them"]),
        ((Color,), ["Categorical(*choices)"]),
        (((64, 64),), ["Categorical(*choices)"]),
        (((((1,),),), ((((2,),),),)), ["3 levels of tuples"]),
        ((tuple(range(101)), 1), ["at most 100 values"]),
        (({"a": 1}, 2), ["a tuple of these", "look it up"]),
        (((1, float("nan")), 2), ["a finite number"]),
    ],
)
def test_choices_that_no_journal_keeps_apart_are_refused(choices: tuple[Any, ...], words: list[str]) -> None:
    refused(lambda: hpo.Categorical(*choices), *words)


@pytest.mark.parametrize("value", [(True, 2), (1,), (1, 2, 3), 1, "[1, 2]"])
def test_a_value_that_only_looks_like_a_tuple_is_none(value: object) -> None:
    with pytest.raises(ValueError, match="one of"):
        hpo.Categorical((1, 2), (True,)).canonical(value)


def test_lists_in_named_tuples_are_each_evaluations_own() -> None:
    space = hpo.SearchSpace(shape=hpo.Categorical(Shape([1], 2), None))  # type: ignore[arg-type]
    for _ in range(2):
        given: Any = space.as_given({"shape": ((1,), 2)})["shape"]
        assert given == Shape([1], 2)  # type: ignore[arg-type]
        given[0].append(3)
