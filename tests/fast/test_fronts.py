"""Fronts, crowding, knees and hypervolumes against values worked out by hand, and what is told of them."""

from __future__ import annotations

import json
import math
import operator
from pathlib import Path

import journals
import pytest
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_individual, make_record
from journals import T
from populations import asked_and_told

import hpo
from hpo.errors import UsageError
from hpo.individual import Configuration
from hpo.results import result as results
from hpo.results.analysis import pareto as fronts
from hpo.results.analysis.island_success import good
from hpo.results.overview import folded
from hpo.results.record import load
from hpo.search.models.pareto import crowding
from hpo.views.terminal import best_report

WAYS = {"gain": "maximize", "cost": "minimize"}


def record(number: int, gain: float | None, cost: float = 0.0, **fields: object) -> dict[str, object]:
    values = None if gain is None else {"gain": gain, "cost": cost}
    return journals.finished(f"0-0-{number}", values, **{"params": {"lr": number / 10}, **fields})


def known(number: int, gain: float, cost: float) -> dict[str, object]:
    objectives = {"gain": gain, "cost": cost}
    source = {"source": "x.csv", "origin": "row 1", "time": 1.0}
    fields = {"number": number, "params": {"lr": 0.5}, "status": "completed", "objectives": objectives}
    return {"type": "known", **fields, **source}


def home(path: Path, records: list[dict[str, object]], *, objectives=WAYS, **launched: object) -> Path:
    return journals.campaign(path, [journals.launched(time=1.0, **launched), *records], objectives=objectives)


def test_crowding_is_debs():
    losses = [(0.0, 10.0), (1.0, 8.0), (2.0, 5.0), (2.5, 4.5), (10.0, 0.0)]
    assert crowding(losses) == pytest.approx([math.inf, 0.7, 0.5, 1.3, math.inf])
    assert crowding([(1.0, 1.0)] * 3) == [math.inf, 0.0, math.inf]
    assert crowding([(1.0, 2.0)]) == [math.inf] and crowding([]) == []


def test_the_hypervolume_over_time_is_the_hand_worked_one(tmp_path):
    # Up to gain 0 and cost 10: rectangles of gain x (10 - cost).
    story = [(2, 8), (1, 9), None, (3, 9), (2, 5), (9, 10), (4, 4), (-1, 1)]
    expected = [2 * 2, 4, 4, 2 * 2 + 1, 2 * 5 + 1, 11, 4 * 6, 24]
    records = [record(n, *(one or (None,))) for n, one in enumerate(story)]
    found = results.Result(home(tmp_path, records)).hypervolume({"gain": 0, "cost": 10})
    assert found.values == pytest.approx(expected)
    assert found.evaluations == list(range(1, 9)) and found.finished[3] == T + 3.5
    assert (found.last, found.after(0), found.after(4), found.given) == (24.0, 0.0, 5.0, True)
    assert found.dataframe()["hypervolume"].tolist() == found.values
    # Without a reference: the worst of each, gain -1 and cost 10.
    assert results.Result(tmp_path).hypervolume().reference == {"gain": -1.0, "cost": 10.0}
    assert results.Result(tmp_path).hypervolume().last == pytest.approx(5 * 6)
    with pytest.raises(UsageError, match="each objective, which are gain, cost"):
        results.Result(tmp_path).hypervolume({"gain": 0})


def test_what_was_known_before_counts_from_the_start(tmp_path):
    path = home(
        tmp_path,
        [known(1, 1.0, 9.0), known(2, 2.0, 8.0), record(0, 3.0, 9.5)],
        reference={"gain": 0.0, "cost": 10.0},
    )
    found = results.Result(path).hypervolume()
    assert (found.evaluations, found.values, found.given) == ([0, 1], pytest.approx([4.0, 4.5]), True)
    assert [one.id for one in results.Result(path).front] == ["0-0-0", "known-2"]


def record_of(points, ways):
    """The record of a campaign in which these values of a, b and c were found one after another."""
    individuals = [
        make_individual(
            id=f"0-0-{n}", params={}, status="completed", finished=n, objectives=dict(zip("abc", one))
        )
        for n, one in enumerate(points)
    ]
    return make_record(individuals, dict(zip("abc", ways)))


@given(
    st.lists(st.tuples(*[st.integers(0, 6).map(float)] * 3), min_size=1, max_size=12),
    st.tuples(*[st.sampled_from(["minimize", "maximize"])] * 3),
)
def test_three_objectives_against_counting_cells(points, ways):
    """Whole numbers up to a corner: the volume is the number of unit cells that some point dominates."""
    signs = [-1.0 if way == "maximize" else 1.0 for way in ways]
    record = record_of([[sign * value for sign, value in zip(signs, one)] for one in points], ways)
    found = fronts.hypervolume(record, {name: sign * 5.0 for name, sign in zip("abc", signs)})
    cells = {(x, y, z) for x in range(5) for y in range(5) for z in range(5)}
    for value, count in zip(found.values, range(1, len(points) + 1)):
        dominated = [
            cell for cell in cells if any(all(p <= c for p, c in zip(one, cell)) for one in points[:count])
        ]
        assert value == pytest.approx(len(dominated))


@given(st.lists(st.tuples(*[st.sampled_from([-math.inf, 0.0, 1.0, 2.0, math.inf])] * 3), max_size=10))
def test_a_front_is_what_nothing_dominates_also_with_infinite_values_of_a_damaged_journal(points):
    best = [one for one in points if not any(a != one and all(map(operator.le, a, one)) for a in points)]
    record = record_of(points, ["minimize"] * 3)
    front = fronts.front(record)
    assert [tuple(one.objectives.values()) for one in front] == sorted(best)
    assert good(record) == {one.id for one in front}


def test_the_knee_is_nearest_to_the_ideal_in_units_of_the_front(tmp_path):
    # Ideal gain 10, cost 0; widths 9 and 100: distances 1, 0.52 (0.44, 0.2 squared...), 1.
    result = results.Result(
        home(tmp_path, [record(0, 10, 100), record(1, 6, 20), record(2, 1, 0), record(3, 5, 99)])
    )
    assert [one.id for one in result.front] == ["0-0-0", "0-0-1", "0-0-2"]
    assert result.knee.id == "0-0-1"
    assert results.Result(home(tmp_path / "none", [])).knee is None


def test_the_most_telling_are_the_knee_the_best_in_each_and_those_that_are_alone(tmp_path):
    # Losses: a gain of 0 to 1 that is missed, and a cost.
    found = [(0.0, 1.0), (0.1, 0.6), (0.3, 0.3), (0.31, 0.29), (0.6, 0.2), (1.0, 0.0), (0.5, 0.5), (0.9, 0.9)]
    result = results.Result(
        home(tmp_path, [record(number, 1 - missed, cost) for number, (missed, cost) in enumerate(found)])
    )
    most = [one.id for one in fronts.most_telling(result.record, 8)]
    assert most[:3] == [result.knee.id, "0-0-0", "0-0-5"] and result.knee.id == "0-0-2"
    assert most[3:6] == ["0-0-1", "0-0-4", "0-0-3"]  # crowding distances 1.00, 0.98, 0.40
    assert most[6:] == ["0-0-6", "0-0-7"]  # the fronts that there would be without
    assert [one.id for one in fronts.most_telling(result.record, 2)] == most[:2]
    assert fronts.most_telling(results.Result(home(tmp_path / "none", [])).record, 3) == []


def test_best_tells_the_whole_front(tmp_path):
    records = [record(0, 10, 100), record(1, 6, 20), record(2, 1, 0), record(3, 5, 99), record(4, None)]
    path = home(tmp_path, records, reference={"gain": 0.0, "cost": 200.0})
    text = best_report.best(path, None)
    assert "2 objectives, gain (maximize), cost (minimize): front of 3" in text
    assert "hypervolume 1500 up to gain = 0, cost = 200;" in text
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["0-0-0", "*", "0-0-2"]
    assert "0-0-1: gain = 6, cost = 20" in text and "lr = 0.1" in text
    assert folded(load(path)).best.id == results.Result(path).best.id == "0-0-0"
    assert "0-0-0: gain = 10, cost = 100" in text, "the best is written out, as other views name it"
    assert "front of 2 of 3" in best_report.best(path, 2)
    entries = json.loads(best_report.best_json(path, None))
    knees = [(one["id"], one["knee"]) for one in entries]
    assert knees == [("0-0-0", False), ("0-0-1", True), ("0-0-2", False)]
    volume = entries[0]["campaign"]["hypervolume"]
    assert volume["value"] == 10 * 100 + 6 * 80 + 20
    assert volume["over_time"] == [[1, 1000.0], [2, 1480.0], [3, 1500.0], [5, 1500.0]]
    assert volume["reference"] == {"gain": 0.0, "cost": 200.0}
    assert len(json.loads(best_report.best_json(path, 1))) == 1
    assert "no evaluation has completed" in best_report.best(home(tmp_path / "none", [record(0, None)]), None)


def test_the_table_tells_who_is_on_the_front(tmp_path):
    path = home(tmp_path, [record(0, 1, 1), record(1, 0, 2), record(2, None)])
    table = results.Result(path).dataframe()
    assert table["metrics.front"].tolist()[:2] == [True, False] and table["metrics.front"].isna().tolist()[2]
    own = home(tmp_path / "own", [record(0, 1, 1, metrics={"front": 3}), record(1, 0, 2)])
    assert results.Result(own).dataframe()["metrics.front"].tolist()[0] == 3
    one = home(tmp_path / "one", [journals.finished("0-0-0", 1.0)], objectives={"value": "minimize"})
    assert "metrics.front" not in results.Result(one).dataframe()
    with pytest.raises(UsageError, match="needs several objectives"):
        results.Result(one).hypervolume()


def evaluate(trial: hpo.Trial) -> dict[str, float]:
    x, y = float(trial.params["x"]), float(trial.params["y"])  # type: ignore[arg-type]
    return {"gain": x, "cost": x * x + y}


def test_a_campaign_searches_inside_its_reference(tmp_path):
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    task = hpo.Task(space, evaluate, objectives=WAYS)
    keywords = {"evaluations": 150, "isolation": "inline", "kind": "evolution"}
    reference = {"gain": 0.8, "cost": 1.2}
    wanted = {"free": 0, "inside": 0}
    for seed in range(4):  # what is claimed ahead depends on the clock: single campaigns differ
        for name, point in (("free", {}), ("inside", reference)):
            home = tmp_path / name / str(seed)
            result = hpo.Campaign(task, directory=home, reference=point, seed=seed, **keywords).run()
            wanted[name] += sum(
                one.objectives["gain"] >= 0.8 and one.objectives["cost"] <= 1.2 for one in result.individuals
            )
            assert result.hypervolume().given is (name == "inside")
    assert wanted["inside"] > 1.5 * wanted["free"]  # eight seeds of 48 had 2.1 to 3.0 times as many
    with pytest.raises(UsageError, match=r"reference.*each objective, which are gain, cost"):
        hpo.Campaign(task, directory=tmp_path / "x", reference={"gain": 1.0}, **keywords).run()
    single = hpo.Task(space, lambda trial: 0.0)
    with pytest.raises(UsageError, match=r"reference.*several objectives"):
        hpo.Campaign(single, directory=tmp_path / "x", reference={"value": 1.0}, **keywords).run()


_LOSS = st.integers(0, 3).map(float)


@given(
    st.lists(st.none() | st.tuples(_LOSS, _LOSS), max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_a_search_of_several_objectives_has_the_front_of_what_it_was_given(values, entered) -> None:
    search = hpo.Search(hpo.SearchSpace(x=hpo.Float(0, 1)), kind="random", objectives=WAYS)
    completed = []
    for number, (value, given_elsewhere) in enumerate(zip(values, entered)):
        told = None if value is None else {"gain": value[0], "cost": value[1]}
        if given_elsewhere:
            params = {"x": number / 100}
            search.enter(params, told)
        else:
            candidate = search.ask()
            params = candidate.params
            search.tell(candidate, told and {**told, "seconds": 3.0})
        if told:
            completed.append((params, told))
    expected = [
        (params, one)
        for params, one in completed
        if not any(
            other["gain"] >= one["gain"] and other["cost"] <= one["cost"] and other != one
            for _, other in completed
        )
    ]
    expected.sort(key=lambda pair: (-pair[1]["gain"], pair[1]["cost"]))
    assert [(one.params, one.value) for one in search.front] == expected
    if expected:
        assert search.best == search.front[0]
    else:
        with pytest.raises(UsageError, match="no configuration has a value"):
            _ = search.best


def test_a_search_of_one_objective_has_its_best_and_one_of_several_comes_near_the_front() -> None:
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1))
    search = hpo.Search(space, "maximize", kind="random")
    asked = asked_and_told(search, 20, lambda one, _: one.params["x"])
    assert search.best.value == search.best.params["x"] == max(one.params["x"] for one in asked)

    def volume(kind: str) -> float:
        """Of the front of x against (1 - x)**2, for which y has to be 0, up to 2 each."""
        search = hpo.Search(space, kind=kind, seed=1, objectives={"a": "minimize", "b": "minimize"})

        def value(one: Configuration, number: int) -> dict[str, float]:
            x, y = one.params["x"], one.params["y"]
            return {"a": x + y, "b": (1 - x) ** 2 + y}

        asked_and_told(search, 150, value)
        points = [(one.value["a"], one.value["b"]) for one in search.front]
        edges = [*points[1:], (2.0, 0.0)]
        return sum((right - left) * (2.0 - height) for (left, height), (right, _) in zip(points, edges))

    assert volume("default") > volume("random")


@pytest.mark.parametrize(
    "value", [1.0, {"gain": 1.0}, {"gain": 1.0, "cost": "2"}, {"gain": 1.0, "price": 2.0}, [1.0, 2.0]]
)
def test_a_value_that_lacks_an_objective_is_refused_and_may_be_told_again(value: object) -> None:
    search = hpo.Search(hpo.SearchSpace(x=hpo.Float(0, 1)), objectives=WAYS)
    candidate = search.ask()
    with pytest.raises(UsageError, match="a number for each of gain, cost"):
        search.tell(candidate, value)  # type: ignore[arg-type]
    search.tell(candidate, {"gain": 1.0, "cost": float("nan")})
    assert search.front == []


@pytest.mark.parametrize(
    "keywords",
    [
        {"direction": "maximize", "objectives": WAYS},
        {"objectives": {"gain": "up"}},
        {"objectives": {}},
        {"objectives": WAYS, "reevaluate": 0.1},
        {"objectives": WAYS, "reference": {"gain": 1.0}},
    ],
)
def test_objectives_that_cannot_be_are_refused(keywords) -> None:
    with pytest.raises(UsageError):
        hpo.Search(hpo.SearchSpace(x=hpo.Float(0, 1)), **keywords)
