"""Limits of outcomes: what breaks one is never the best, and the search learns where they are kept."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from individuals import make_job
from populations import population_of
from refusals import refused

import hpo
from hpo.islands.leader.retention import RetentionPolicy
from hpo.results.curves import Curves
from hpo.results.result import export
from hpo.search.campaign_end import BestOverTime
from hpo.search.early_stopping import Pruner
from hpo.search.kinds.optuna_samplers import OptunaBreeder
from hpo.search.population import Member, Population
from hpo.search.protocols import STOP, TrialReport
from hpo.search.stopping_rules import PruningSettings
from hpo.task.limits import checked_limits
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Trial, attempt
from hpo.views.figures.source import Source
from hpo.views.report.summary import summary

NEW: dict[str, float] = {}
SPACE = hpo.SearchSpace(x=hpo.Float(0.0, 1.0), y=hpo.Float(0.0, 1.0))


def evaluate(trial: hpo.Trial) -> dict[str, float]:
    """Best at x = 1, y = 0.5."""
    x, y = trial.params["x"], trial.params["y"]
    trial.log(memory=100 * x, **NEW)
    return {"value": (x - 1) ** 2 + (y - 0.5) ** 2, "recall": 1 - y}


def limited(memory: float = 40.0, **more: Any) -> hpo.Task:
    return hpo.Task(SPACE, evaluate, at_most={"memory": memory}, at_least={"recall": 0.3}, **more)


def run(home: Path, task: hpo.Task, evaluations: int, **settings: Any) -> hpo.Result:
    return hpo.Campaign(
        task, directory=home / "run", evaluations=evaluations, isolation="inline", **settings
    ).run()


@pytest.mark.parametrize(
    ("metrics", "excess", "broken"),
    [
        ({"a": 10, "b": 0.0}, (0.0, 0.0), []),
        ({"a": 15, "b": -1.0}, (0.5, 1.0), ["a", "b"]),
        ({"a": -math.inf, "b": 5}, (-1e9, -5.0), []),
        ({"a": math.inf, "b": 5}, (1e9, -5.0), ["a"]),
        ({"a": math.nan, "b": 1.0}, None, []),
        ({"a": True, "b": -1.0}, None, ["b"]),
        ({"b": 1.0}, None, []),
    ],
)
def test_excess_is_relative_to_the_bound(metrics: dict[str, Any], excess: Any, broken: list[str]) -> None:
    limits = checked_limits({"a": 10}, {"b": 0})
    outcome = TaskOutcome(status="completed", metrics=metrics)
    assert limits.excess(outcome.objectives, metrics) == excess and limits.broken(None, metrics) == broken
    assert limits.keeps(outcome.objectives, metrics) == (excess is not None and not broken)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"at_most": 3}, ("at_most", "3")),
        ({"at_most": {"a": True}}, ("a", "True", "finite")),
        ({"at_least": {"a": math.inf}}, ("at_least", "inf")),
        ({"at_least": {"": 1}}, ("at_least",)),
        ({"at_most": {"a": 1}, "at_least": {"a": 2}}, ("'a'", "1", "2")),
        ({"atmost": {"a": 1}}, ("at_most",)),
    ],
)
def test_what_is_no_limit_is_refused(given: dict[str, Any], words: tuple[str, ...]) -> None:
    refused(lambda: hpo.Task(SPACE, evaluate, **given), *words)


def test_limits_are_kept_and_known_wherever_a_campaign_is_shown(tmp_path: Path) -> None:
    result = run(tmp_path, limited(), 40)
    best = result.best
    assert 0.36 <= best.value < 0.4 and not best.breaks
    table = result.dataframe()
    broken = (table["metrics.memory"] > 40) | (table["metrics.recall"] < 0.3)
    assert list(table["breaks"] != "") == list(broken) and set(table["status"]) == {"completed"}
    assert min(table["value"]) < best.value
    assert result.status["best"]["id"] == best.id  # type: ignore[index]
    export(tmp_path / "run", tmp_path / "out.journal.csv")
    assert "memory, recall" in (tmp_path / "out.journal.csv").read_text()
    assert {"breaks a limit", "best so far"} <= {one.name for one in result.plot.history().data}


def test_the_gain_that_the_report_expects_is_that_of_results_that_keep_the_limits(tmp_path: Path) -> None:
    # All that is better than 0.36 breaks a limit.
    result = run(tmp_path, limited(), 80, kind="random")
    source = Source(name="run", record=result.record, curves=Curves().frame())
    history = BestOverTime()
    for one in result.individuals:
        assert one.finished is not None
        history.add(one.finished, None if one.breaks else (float(one.value),))  # type: ignore[arg-type]
    said = {one.label: one.value for one in summary(source).facts}
    assert said["50 more evaluations"] == f"gain at most {history.expected_gain(50):.2g}"


def test_without_a_result_that_keeps_them_there_is_no_best_until_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path, limited(-1.0), 12)
    assert result.front == [] and result.status["best"] is None
    assert "memory at most -1" in str(result.status["remarks"])
    refused(lambda: result.best, "memory at most -1", error=hpo.CampaignError)
    assert "no evaluation keeps the limits" in capsys.readouterr().err.splitlines()[-1]
    loose = run(tmp_path, limited(1000.0), 13)  # changed limits are no changed space
    assert loose.best.value == min(one.value for one in loose.individuals if one.metrics["recall"] >= 0.3)
    # What was not limited before may be missing in earlier results, which are then not the best.
    monkeypatch.setattr(sys.modules[__name__], "NEW", {"new": 1.0})
    other = hpo.Task(SPACE, evaluate, at_most={"new": 1})
    assert "new" in run(tmp_path, other, 15).best.metrics


def test_a_result_without_a_limited_metric_is_invalid(tmp_path: Path) -> None:
    task = hpo.Task(SPACE, lambda trial: {"value": 1.0, "b": None}, at_most={"a": 1, "b": 1, "value": 2})
    job = make_job(id="0-0-0", params={}, seed=0, directory=str(tmp_path))
    outcome = attempt(task.evaluate, Trial(None, job), ("value",), task.limits)  # type: ignore[arg-type]
    assert outcome.status == "invalid" and outcome.objectives is None and "'b' is None" in str(outcome.error)


def test_what_breaks_a_reported_limit_is_stopped_however_good_it_is(tmp_path: Path) -> None:
    rule = PruningSettings(rule="halving", min_steps=1, reduction=2, patience=0, startup=1, promote=False)
    pruner = Pruner(rule, sign=1.0, forget=lambda identity: None, steps=lambda params: 4)
    verdicts = []

    class Link:
        def report(self, step: int, value: float, last_step: int | None) -> bool:
            verdicts.append(pruner.report(TrialReport(self.id, step, value, last_step))[0])
            return False

    link: Any = Link()
    limits = checked_limits({"memory": 70}, None)
    for number, (memory, logged) in enumerate(((60, 1), (80, 1), (None, 1), (None, 80))):
        link.id = f"0-0-{number}"
        job = make_job(id=link.id, params={}, seed=0, directory=str(tmp_path))
        pruner.start(job)  # type: ignore[arg-type]

        def report(
            trial: hpo.Trial, memory: float | None = memory, logged: float = logged, better: int = number
        ) -> float:
            trial.log(memory=logged)
            trial.report(1, 1.0 - better, **({} if memory is None else {"memory": memory}))
            return 0.0

        attempt(report, Trial(link, job), ("value",), limits)
    assert [one == STOP for one in verdicts] == [False, True, False, True]


@pytest.mark.parametrize("objectives", [1, 2])
def test_kept_comes_before_broken_and_then_the_smaller_violation(objectives: int) -> None:
    rows = {
        "worst": (9.0, ()),
        "broken": (0.0, (2.0, -1.0)),
        "less": (5.0, (0.5, 0.5)),
        "good": (1.0, (-1.0, 0.0)),
    }
    population = Population(best=3)
    for name, (loss, excess) in rows.items():
        population.add(Member(name, (0.1, 0.2), (loss,) * objectives, "completed", excess=excess))
    assert [one.id for one in population.best] == ["good", "worst", "less"]


def test_what_breaks_a_limit_loses_its_checkpoint_once_no_lineage_needs_it() -> None:
    policy = RetentionPolicy(1, latest=1)
    assert [policy.add(name, (loss,), keeps=loss > 0) for name, loss in (("a", 1.0), ("b", 0.0), ("c", 2.0))] == [
        [], [], ["b"],
    ]  # fmt: skip


TWO = {"f": "minimize", "g": "minimize"}


@pytest.mark.parametrize(
    ("kind", "objectives"),
    cases(
        [("default", TWO), ("evolution", None), ("tpe", TWO), ("gp", None)],
        nightly=[("default", None), ("evolution", TWO), ("tpe", None), ("gp", TWO)],
    ),
    ids=str,
)
def test_the_search_learns_where_limits_are_kept(kind: str, objectives: dict[str, str] | None) -> None:
    if kind in ("tpe", "gp"):
        pytest.importorskip("optuna")
    search = hpo.Search(SPACE, kind=kind, objectives=objectives, at_most={"c": 0.3})
    kept = []
    for _ in range(45):
        asked = search.ask()
        x, y = asked.params["x"], asked.params["y"]
        value, c = 1.0 - x + y, 30 * ((x - 0.8) ** 2 + (y - 0.7) ** 2)
        named = {"f": value, "g": (x - 0.8) ** 2} if objectives else {"value": value}
        search.tell(asked, {**named, "c": c} if x < 0.95 else None)
        if c <= 0.3 and x < 0.95:
            kept.append(value)
    assert len(kept) >= 7  # chance: 1.4
    assert min(one.params["y"] - one.params["x"] + 1.0 for one in search.front) == pytest.approx(min(kept))
    optimum = 0.9 - math.sqrt(2 * 0.3 / 30)
    if objectives is None:
        assert min(kept) - optimum < (0.02 if kind in ("default", "gp") else 0.12)


def test_optuna_is_told_constraints_of_all_trials_also_of_those_without_a_result() -> None:
    pytest.importorskip("optuna")
    rng, breeder = random.Random(0), OptunaBreeder(SPACE, "gp")
    rows = [((rng.random(), rng.random()), float(number)) for number in range(12)]
    population = population_of(rows, excess=(0.5, -1.0))
    population_of([((0.3, 0.3), None)], into=population, worker="1-0")
    breeder.breed(population, rng)
    constraints = [list(one.constraints.values()) for one in breeder._study.trials if one.state.is_finished()]
    assert constraints == [[0.5, -1.0]] * 13


def test_told_results_need_the_limited_metrics() -> None:
    search = hpo.Search(SPACE, at_most={"c": 1.0})
    asked = search.ask()
    for value in (1.0, {"value": 1.0}, {"value": 1.0, "c": None}):
        refused(lambda value=value: search.tell(asked, value), "value, c")  # type: ignore[misc]
    search.tell(asked, {"value": 1.0, "c": 2.0})
    refused(lambda: search.best, "limits")
    search.enter({"x": 0.5, "y": 0.5}, {"value": 3.0, "c": 1.0})
    assert search.best.value == 3.0


def test_known_points_bring_the_limited_metrics(tmp_path: Path) -> None:
    run(tmp_path, limited(), 12)
    table = [
        {"x": 0.1, "y": 0.1, "value": 0.0, "memory": 10, "recall": 0.9},
        {"x": 0.2, "y": 0.2, "value": 0.0},
    ]
    found = hpo.known_points(table, SPACE, metrics=["memory", "recall"])
    assert [one.metrics for one in found] == [{"memory": 10, "recall": 0.9}] and "without memory" in str(
        found
    )
    hand = {"params": {"x": 0.3, "y": 0.3}, "objectives": {"value": 0.0, "memory": 90, "recall": 0.9}}
    known = [{"source": str(tmp_path / "run")}, hand]
    result = run(tmp_path / "next", limited(), 3, known=known)
    assert len(result.record.known) == 13 and result.record.known[-1].breaks == ("memory",)
    assert result.best.value <= hpo.Result(tmp_path / "run").best.value


def test_configurations_that_nearly_all_constraints_refuse_are_found_and_improved() -> None:
    space = hpo.SearchSpace({name: hpo.Float(0.0, 1.0) for name in "abc"})
    search = hpo.Search(space, constraints=[lambda p: abs(p["a"] + p["b"] - p["c"] - 0.3) < 2e-4])
    for _ in range(30):
        asked = search.ask()
        search.tell(asked, sum((one - 0.3) ** 2 for one in asked.params.values()))
    assert search.best.value < 0.01  # chance: 0.06
