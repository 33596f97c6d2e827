"""Early stopping: the rules alone, in simulated campaigns with deaths and restarts, and for real."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from individuals import changed, make_candidate
from refusals import refused
from simulation import Curve, Simulation, pruning_settings
from simulation.campaigns import SPACE, final, losses, make, records_of
from simulation.pruned import curve_of, pruned_campaign, run_disturbed

import hpo
from hpo.config.layout import Layout
from hpo.config.settings import SearchSettings
from hpo.individual import COMPLETED, PRUNED
from hpo.islands.resume.fold import fold
from hpo.islands.resume.start import start_messages
from hpo.islands.resume.state import Resting, ResumeState
from hpo.journal.records import Finished, Reported, Started
from hpo.search.early_stopping import Pruner
from hpo.search.population import Member, Population
from hpo.search.protocols import GO, PAUSE, STOP, Candidate, TrialReport, Verdict
from hpo.search.stopping_rules import Halving, PruningSettings, make_rule, of_search


def candidate(identity: str, **attempt: Any) -> Candidate:
    return make_candidate(token=0, id=identity, key=identity, operator="random", **attempt)


HALVING = pruning_settings("halving", min_steps=1, reduction=3)


def stopping(settings: PruningSettings, sign: float = 1.0, *, end: int | None = 10**9) -> Pruner:
    """``end``: after how many steps somebody is known to have completed."""
    made = Pruner(settings, sign=sign, forget=lambda identity: None)
    if end is not None:
        made.learn_end(end)
    return made


def verdicts(rule: Pruner, identity: str, *reports: tuple[int, float], **facts: Any) -> list[Verdict]:
    """On the reports of an evaluation that begins: steps and values."""
    rule.start(candidate(identity))
    return [rule.report(TrialReport(identity, step, value, **facts))[0] for step, value in reports]


@pytest.mark.parametrize("seed", range(10))
def test_halving_is_what_sorting_all_says(seed: int) -> None:
    rng = random.Random(seed)
    rule = Halving(HALVING)
    seen: list[tuple[float, int]] = []
    for number in range(60):
        loss = rng.choice([rng.random(), round(rng.random(), 1), math.inf])
        seen.append((loss, number))
        rule.observe(0, str(number), loss)
        place = sorted(seen).index((loss, number))
        finite = sum(loss < math.inf for loss, _ in seen)
        passes = finite == 0 or (loss < math.inf and place < max(1, finite // 3))
        assert rule.passes(0, str(number), loss) == passes
        for older in range(number + 1):
            good = sorted(seen).index(seen[older]) < finite // 3 and seen[older][0] < math.inf
            assert rule.promotable(0, str(older)) == good


@pytest.mark.parametrize("seed", range(10))
def test_the_median_rule_is_what_its_definition_says(seed: int) -> None:
    rng = random.Random(seed)
    settings = pruning_settings("median", startup=3)
    rule = stopping(settings)
    curves: list[list[float]] = []
    for number in range(30):
        curve = [math.nan if rng.random() < 0.3 else rng.random() for _ in range(10)]
        rule.start(candidate(str(number)))
        curves.append([])
        for step, loss in enumerate(curve, start=1):
            curves[-1].append(loss)
            verdict, _ = rule.report(TrialReport(str(number), step, loss))
            known = [[loss for loss in c[:step] if loss == loss] for c in curves[:-1] if len(c) >= step]
            others = sorted(sum(c) / len(c) for c in known if c)
            middle = math.nan
            if len(others) >= 3:
                half = len(others) // 2
                middle = others[half] if len(others) % 2 else (others[half - 1] + others[half]) / 2
            # Stopped when the best so far is worse than the median of the others' running means.
            best = min((loss for loss in curves[-1] if loss == loss), default=math.inf)
            assert (verdict == STOP) == (best > middle), (number, step)
            if verdict == STOP:
                break
    assert {len(curve) for curve in curves} - {10}, "somebody was stopped"


def test_the_median_rule_compares_at_ever_rarer_steps() -> None:
    """Long runs with a report a step would fill journals and memory."""
    rule = make_rule(pruning_settings("median", min_steps=5))
    rungs = [rule.rung(step) for step in range(100_000)]
    assert rungs[:5] == [None] * 5
    assert [rule.rung(5 * number) for number in range(1, 32)] == list(range(31))
    reached = [rung for rung in rungs if rung is not None]
    assert reached == sorted(reached)
    assert all(
        rule.steps(rung) <= step < 1.13 * rule.steps(rung)
        for step, rung in enumerate(rungs)
        if rung and rung > 31
    )
    assert len(set(reached)) < 31 + 16 * 10


def test_larger_is_better_where_the_objective_is_maximised() -> None:
    rule = stopping(HALVING, sign=-1.0)
    for identity, value, expected in [("a", 0.1, GO), ("b", 0.9, GO), ("c", 0.5, PAUSE), ("d", 0.95, GO)]:
        assert verdicts(rule, identity, (1, value)) == [expected]


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind, verdict", [("halving", PAUSE), ("median", STOP)])
def test_what_is_not_finite_is_the_worst_where_others_are(worst: float, kind: str, verdict: str) -> None:
    """Where nothing at a rung is finite, as before a metric has a value, nobody is stopped."""
    for sign in (1.0, -1.0):
        rule = stopping(pruning_settings(kind, startup=1), sign=sign)
        for number, (value, expected) in enumerate([(worst, GO)] * 9 + [(0.0, GO), (worst, verdict)]):
            rule.start(candidate(str(number)))
            loss = math.inf if value else 0.0
            assert rule.report(TrialReport(str(number), 1, value)) == (expected, (str(number), 1, loss))


def test_patience_lets_one_fail_so_many_rungs_in_a_row() -> None:
    rule = stopping(pruning_settings("halving", reduction=2, patience=1))
    verdicts(rule, "good", (1, 0.0), (2, 0.0), (4, 0.0), (8, 0.0))
    assert verdicts(rule, "late", (1, 1.0), (2, 1.0)) == [GO, STOP]
    assert verdicts(rule, "crosses", (1, 1.0), (2, -1.0), (4, 1.0)) == [GO] * 3


@pytest.mark.parametrize("saves", [(True, False), (False, True), (False, False)])
def test_a_task_that_can_save_is_asked_to_at_the_rung_and_any_other_stopped(saves: tuple[bool, bool]) -> None:
    """Whether it has asked if it is to save, in an earlier evaluation of this worker and in this one."""
    rule = stopping(HALVING)
    verdicts(rule, "good", (1, 0.0), (2, 0.0), saves=saves[0])
    assert verdicts(rule, "bad", (1, 1.0), saves=saves[1]) == [PAUSE if any(saves) else STOP]
    assert rule.condemned
    assert rule.report(TrialReport("bad", 2, 0.5))[0] == STOP, "it went on without saving"
    assert rule.last == (1, 1.0), "the report at the rung counts"


def test_one_whose_task_may_or_may_not_save_is_stopped_when_it_reports_again() -> None:
    """Nothing is known at a worker's very first report: what ends there has ended at the rung."""
    rule = stopping(HALVING)
    rule.observe([("other", 1, 0.0)])
    assert verdicts(rule, "first", (1, 1.0), (2, 1.0)) == [PAUSE, STOP]
    assert rule.last == (1, 1.0)


def test_one_that_was_promoted_is_not_judged_again_at_the_rung_where_it_paused() -> None:
    rule = stopping(HALVING)
    rule.start(candidate("a", resumed_at_step=3))
    assert [rule.report(TrialReport("a", step, 9.0)) for step in (1, 2, 3, 8)] == [(GO, None)] * 4
    assert rule.report(TrialReport("a", 9, 9.0)) == (GO, ("a", 9, 9.0))  # the first there


@pytest.mark.parametrize("kind", ["halving", "median"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("first", [4, 12])
def test_one_that_was_interrupted_is_not_compared_where_it_had_passed(kind, known, first):
    """``known``: what it reported before is; ``first``: the step of its first report thereafter."""
    rule = stopping(pruning_settings(kind, min_steps=4, startup=1))
    rule.observe([("other", step, 0.0) for step in (4, 8, 12, 16, 20, 36)])
    if known:
        rule.observe([("a", step, -1.0) for step in (4, 8, 12)])
    rule.start(candidate("a", resumed=True))
    reports = {step: rule.report(TrialReport("a", step, 9.0)) for step in range(first, 37)}
    judged = [step for step, (verdict, _) in reports.items() if verdict != GO]
    if kind == "median":
        found = [report for _, report in reports.values() if report is not None]
        assert not judged and not found, "the best and the mean of its last values are nothing to compare"
        return
    rungs = [4, 12, 36]
    # A first report at the rung itself may be what it has not been compared by yet.
    passed = 12 if known else first - (first in rungs)
    assert judged[0] == next(step for step in rungs if step > passed)


@pytest.mark.parametrize("every", [1, 2, 10])
def test_median_stops_what_was_interrupted_only_where_it_began_from_the_start(every: int) -> None:
    """All report each ``every`` steps; one that goes on from step 4 or later may have had its best value before."""
    rule = stopping(pruning_settings("median", min_steps=10, startup=1))
    for identity, resumed, steps, value in [
        ("other", False, range(every, 41, every), 1.0),
        ("anew", True, range(every, 41, every), 2.0),
        ("further", True, range(4 * every, 41, every), 2.0),
    ]:
        rule.start(candidate(identity, resumed=resumed))
        stopped = [rule.report(TrialReport(identity, step, value))[0] == STOP for step in steps]
        assert any(stopped) is (identity == "anew")


@pytest.mark.parametrize(
    "known_from", ["by the task", "by the trial", "by one that completed", "by the island"]
)
def test_nobody_is_stopped_at_the_last_step(known_from: str) -> None:
    """Not even one that failed at the rung before, was asked to save there, and went on to the end."""
    rule = Pruner(
        HALVING,
        sign=1.0,
        forget=lambda identity: None,
        steps=lambda params: 9 if known_from == "by the task" else None,
    )
    if known_from == "by one that completed":
        verdicts(rule, "whole", *((step, 0.0) for step in range(1, 10)))
        rule.completed()
    elif known_from == "by the island":
        rule.learn_end(9)
    rule.observe([("other", step, -1.0) for step in (1, 3, 9)])
    last = 9 if known_from == "by the trial" else None

    rule.start(candidate("end"))
    assert rule.report(TrialReport("end", 9, 1.0, last_step=last)) == (GO, ("end", 9, 1.0))
    late = verdicts(rule, "late", (3, 1.0), (9, 1.0), (10, 1.0), last_step=last, saves=True)
    assert late == [PAUSE, GO, GO] and rule.last == (10, 1.0) and not rule.condemned


def test_a_whole_run_is_as_long_as_the_longest_that_completed() -> None:
    """A task may end its runs early for reasons of its own: where some ended, the verdict waits for a next report."""
    rule = stopping(HALVING, end=9)
    rule.learn_end(3)
    rule.observe([("other", step, 0.0) for step in (1, 3, 9)])
    rule.start(candidate("a"))
    assert rule.unsaid_lengths == (3, 9)
    assert rule.report(TrialReport("a", 3, 1.0, saves=True)) == (GO, ("a", 3, 1.0)) and not rule.condemned
    assert rule.report(TrialReport("a", 4, 2.0, saves=True)) == (PAUSE, None) and rule.condemned
    assert rule.last == (3, 1.0)
    assert verdicts(rule, "b", (9, 1.0), saves=True) == [GO]


def test_until_the_last_step_is_known_nobody_is_stopped() -> None:
    """What fails at a rung may be at its end there."""
    rule = stopping(HALVING, end=None)
    rule.observe([("other", step, 0.0) for step in (1, 3, 9)])
    assert verdicts(rule, "a", *((step, math.nan) for step in range(1, 10))) == [GO] * 9
    assert verdicts(rule, "b", (1, 1.0), saves=True) == [GO]
    rule.learn_end(9)
    assert rule.report(TrialReport("b", 2, 1.0))[0] == GO, "between rungs nothing is decided"
    assert rule.report(TrialReport("b", 3, 1.0))[0] == PAUSE


def test_a_paused_one_is_promoted_when_the_island_turns_out_worse() -> None:
    forgotten: list[str] = []
    rule = Pruner(HALVING, sign=1.0, forget=forgotten.append)
    rule.learn_end(9)
    assert verdicts(rule, "best", (1, 0.0)) + verdicts(rule, "second", (1, 0.5)) == [GO, PAUSE]
    rule.rest(candidate("second"), 1)
    for number in range(4):
        assert rule.promoted() is None
        rule.observe([(str(number), 1, 1.0 + number)])
    found = rule.promoted()  # 2 of 6 go on
    assert found is not None and (found.id, found.resumed_at_step) == ("second", 1)
    assert rule.promoted() is None and not forgotten


def test_of_many_paused_ones_that_may_go_on_the_latest_stay() -> None:
    forgotten: list[str] = []
    rule = Pruner(HALVING, sign=1.0, forget=forgotten.append)
    rule.observe([(str(number), 1, float(number)) for number in range(60)])
    # Of 60 the best 20 go on, and the worst 20 have no hope.
    for number in (*range(20, 40), 50):
        rule.rest(candidate(str(number)), 1)
    assert forgotten == ["20", "21", "22", "23", "50"] and not rule.can_promote


def test_of_paused_ones_that_may_go_on_the_furthest_does_first() -> None:
    rule = Pruner(HALVING, sign=1.0, forget=lambda identity: None)
    rule.observe([(f"far-{number}", 3, 2.0) for number in range(6)])
    for identity, step in (("near", 1), ("far", 3), ("also near", 1)):
        rule.observe([(identity, step, 1.0)])
        rule.rest(candidate(identity), step)
    rule.observe([(f"near-{number}", 1, 2.0) for number in range(6)])
    found = [rule.promoted() for _ in range(3)]
    assert found[0] is not None and found[0].id == "far"
    assert {one.id for one in found[1:] if one is not None} == {"near", "also near"}


def test_a_rung_keeps_its_latest() -> None:
    rule = Halving(HALVING)
    for number in range(5000):
        rule.observe(0, str(number), float(-number))
    assert len(rule.known()) == 1024
    assert rule.promotable(0, "4999") and not rule.promotable(0, "1")
    rule.observe(1, "4999", 0.0)
    assert [step for _, step, _ in rule.known(200)] == [1] * 94 + [3] and len(rule.known(1)) == 1


@pytest.mark.parametrize(
    "search, objectives, words",
    [
        ({"pruner": "halving"}, {"f1": "maximize", "seconds": "minimize"}, ["reported", '"f1", "seconds"']),
        ({"pruner": "median", "reported": "f2"}, {"f1": "maximize", "s": "minimize"}, ["'f2'", "f1"]),
        ({"pruner": "halving", "kind": "pbt"}, {"value": "minimize"}, ["pbt", "another kind"]),
    ],
)
def test_what_makes_no_sense_is_refused(search, objectives, words):
    refused(lambda: of_search(SearchSettings(**search), objectives), *words)


@pytest.mark.parametrize(("rule", "startup"), [("halving", 1), ("median", 5)])
def test_every_setting_of_early_stopping_holds(rule: str, startup: int) -> None:
    defaults = {"min_steps": 1, "reduction": 3, "patience": 0, "startup": startup, "promote": True}
    assert of_search(SearchSettings(pruner=rule), {"v": "minimize"}) == PruningSettings(rule=rule, **defaults)
    given = {"min_steps": 7, "reduction": 5, "patience": 2, "startup": 9, "promote": False}
    search = SearchSettings(pruner=rule, **given)
    assert of_search(search, {"v": "minimize"}) == PruningSettings(rule=rule, **given)


def test_a_pruned_member_is_never_the_best_and_gives_way_to_itself_when_it_has_completed() -> None:
    population = Population()
    population.add(Member("0-0-0", (0.5,), None, PRUNED, progress=(3, -100.0)))
    population.add(Member("0-0-1", (0.5,), (1.0,), COMPLETED))
    assert [one.id for one in population.best] == ["0-0-1"]
    assert [one.id for one in population.pruned] == ["0-0-0"] and not population.failures
    population.add(Member("0-0-0", (0.5,), (-200.0,), COMPLETED))
    assert [one.id for one in population.best] == ["0-0-0", "0-0-1"] and not population.pruned
    assert (population.seen, population.judged, population.completed) == (2, 2, 2)


def test_promoted_ones_go_on_where_they_paused() -> None:
    promoted, finished = Counter[str](), Counter[str]()
    for seed in range(20):
        simulation, _ = pruned_campaign(seed)
        simulation.run()
        for record in records_of(simulation):
            if isinstance(record, Started) and record.resumed_at_step:
                promoted[record.id] += 1
                assert simulation.saved[record.id] >= record.resumed_at_step
            if final(record) and record.resumed_at_step:
                finished[record.status] += 1
                step = record.metrics.get("pruned_step", 10)
                assert step > record.resumed_at_step, "it went further than where it had paused"
    assert sum(promoted.values()) > 10 and finished[COMPLETED] > 2 and finished[PRUNED] > 0


@pytest.mark.parametrize("chunk", cases([0], range(1, 10)))
def test_whatever_happens_with_pauses_the_budget_is_met_exactly(chunk: int) -> None:
    for seed in range(chunk * 40, chunk * 40 + 40):
        try:
            run_disturbed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_all_of_an_island_know_its_reports() -> None:
    simulation, _ = make(
        3, workers=6, islands=2, evaluations=60, curve=curve_of(3), pruning=HALVING, migration=0.0
    )
    simulation.leaders[0].meet([], [("0-99-0", 1, None)])  # of another launch
    simulation.run()
    reported = [(one.island, one.id, one.step) for one in records_of(simulation) if isinstance(one, Reported)]
    assert len(reported) > 60
    reported.append((0, "0-99-0", 1))
    for leader in simulation.leaders:
        known = {(leader.place.island, identity, step) for identity, step, _ in leader.reports(10**6)}
        assert known == {one for one in reported if one[0] == leader.place.island}


def pruned_launch(until: float = math.inf) -> tuple[list[Any], ResumeState]:
    """The records of a launch, and what the next knows of it."""
    simulation, _ = make(3, workers=4, islands=1, evaluations=40, curve=curve_of(3), pruning=HALVING)
    simulation.run(until=until)
    records = records_of(simulation)
    return records, fold(records, space=SPACE, islands=1, losses=losses)


def next_launch(earlier: ResumeState) -> Simulation:
    again, _ = make(
        4, workers=2, islands=1, evaluations=80, curve=curve_of(3), pruning=HALVING, earlier=earlier
    )
    return again


def test_a_resumed_campaign_knows_the_reports() -> None:
    records, earlier = pruned_launch(until=3.0)
    reported = [(one.id, one.step) for one in records if isinstance(one, Reported)]
    assert reported and [(identity, step) for identity, step, _ in earlier.reports[0]] == reported
    again = next_launch(earlier)
    assert {(one[0], one[1]) for one in again._starts[0].reports} == set(reported)


@pytest.mark.parametrize("there", [True, False])
def test_one_whose_checkpoint_is_gone_is_not_promoted(there: bool) -> None:
    _, earlier = pruned_launch()
    assert earlier.resting and earlier.saves
    layout = Layout.plan(ranks=2, sizes=[1] * 1)
    starts = start_messages(layout, earlier, 2, ["a", "a"], holds=lambda identity: there)
    owned = {identity for start in starts for identity in start.owned}
    assert bool(owned & earlier.resting.keys()) is there


def test_what_paused_goes_on_as_often_reopened_and_from_the_same_parent() -> None:
    """Or the end of it would not count: it is of the run before."""
    records, _ = pruned_launch()
    paused = next(one for one in records if isinstance(one, Finished) and one.resting)
    index = records.index(paused)
    records[index] = changed(paused, reopened=1, inherits="0-0-0", parents=("0-0-0",))
    earlier = fold(records, space=SPACE, islands=1, losses=losses)
    assert earlier.resting[paused.id] == (1, "0-0-0", paused.finished)
    again = next_launch(earlier)
    starts = [one for one in again._starts if paused.id in one.owned]
    assert len(starts) == 1 and starts[0].resting[paused.id] == (1, "0-0-0")
    member = Member(paused.id, SPACE.encode(paused.params), None, PRUNED, progress=(1, 0.5))
    candidate = again.leaders[0]._claims.paused_before(member, *starts[0].resting[paused.id])
    assert (candidate.reopened, candidate.inherits) == (1, "0-0-0")


@pytest.mark.parametrize("workers", [2, 12])
def test_of_all_that_paused_the_latest_may_go_on_however_many_a_later_launch_is_shown(workers: int) -> None:
    earlier = ResumeState()
    population = earlier.populations[0] = Population(pruned=1000)
    for number in range(150):
        identity = f"0-0-{number}"
        population.add(Member(identity, (0.5,), None, PRUNED, progress=(1, 0.5)))
        if number % 3:
            earlier.resting[identity] = Resting(0, "", finished=float(number * 7 % 150))
    layout = Layout.plan(ranks=workers, sizes=[1] * 1)
    starts = start_messages(layout, earlier, 2, ["a"] * workers)
    owned = {identity for start in starts for identity in start.owned}
    # Journals are read in no order of time.
    expected = sorted(earlier.resting, key=lambda one: earlier.resting[one].finished)[-16 * workers :]
    assert owned == set(expected)
    assert {one.id for one in starts[0].population} == {*expected, *(f"0-0-{n}" for n in range(86, 150))}


def test_what_is_killed_while_it_saves_itself_is_interrupted_and_goes_on() -> None:
    def curve(params: dict[str, Any]) -> Curve:
        return Curve(10.0, [abs(params["x"]) + 10.0, 1.0, 0.0], saves=False)

    simulation, _ = make(2, workers=2, islands=1, evaluations=8, curve=curve, pruning=HALVING, migration=0.0)
    # One of them is asked to pause after the first step, and is at the second.
    simulation.at(15.0, lambda: simulation.coordinator.stop("stopped"))
    simulation.at(15.1, lambda: simulation.coordinator.stop("stopped", urgent=True))
    simulation.run()
    ends = [record for record in records_of(simulation) if isinstance(record, Finished)]
    killed = [record for record in ends if record.status == "interrupted"]
    assert len(killed) == 2 and all(record.error and not record.resting for record in killed)
    earlier = fold(records_of(simulation), space=SPACE, islands=1, losses=losses)
    assert {one.id for one in earlier.pending} == {record.id for record in killed}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rule", ["halving", "median"])
def test_nobody_on_an_island_is_stopped_at_the_last_step(rule: str, seed: int) -> None:
    """Whoever completes first tells the others how long a run is, also those of the next launch."""

    def curve(params: dict[str, Any]) -> Curve:
        return Curve(1.0 + abs(params["y"]), [abs(params["x"]) + 1 / (1 + step) for step in range(9)])

    records: list[dict[str, Any]] = []
    for evaluations in (40, 120):
        simulation, _ = make(
            seed,
            workers=6,
            islands=1,
            evaluations=evaluations,
            curve=curve,
            pruning=pruning_settings(rule, startup=1, promote=False),
            migration=0.0,
            earlier=fold(records, space=SPACE, islands=1, losses=losses) if records else None,
        )
        simulation.run()
        records += records_of(simulation)
    ends = [record for record in records if isinstance(record, Finished)]
    pruned = [record.metrics["pruned_step"] for record in ends if record.status == PRUNED]
    assert len(pruned) > 20 and max(pruned) < 9
    assert {record.outcome.steps for record in ends if record.status == COMPLETED} == {9}


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize(
    ("objectives", "column"), [(["f1"], "value"), (["f1", "cost"], "metrics.pruned_value")]
)
def test_the_last_report_of_a_pruned_one_is_in_the_table(saves, objectives, column, tmp_path):
    """Whether it was stopped, or saved itself and paused."""

    def evaluate(trial: hpo.Trial) -> dict[str, float]:
        x = float(trial.params["x"])  # type: ignore[arg-type]
        for step in range(1, 10):
            trial.report(step, x * step)
            if saves and trial.should_checkpoint():
                raise hpo.Interrupted
        return dict.fromkeys(objectives, x)

    directions = dict.fromkeys(objectives, "maximize")
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.1, 1.0)), evaluate, objectives=directions)
    settings = {"isolation": "inline", "pruner": "halving", "reported": "f1"}
    result = hpo.Campaign(task, directory=tmp_path / "run", evaluations=40, **settings).run()
    table = result.dataframe()
    pruned = table[table["status"] == PRUNED]
    assert len(pruned) > 3
    assert list(pruned[column]) == pytest.approx(list(pruned["params.x"] * pruned["metrics.pruned_step"]))
    assert ("metrics.pruned_value" in table) is (len(objectives) > 1)
    assert result.front and all(one.status == COMPLETED for one in result.front)


def test_a_task_that_says_its_steps_is_stopped_from_the_first_on(tmp_path: Path) -> None:
    def evaluate(trial: hpo.Trial) -> float:
        for step in range(1, 10):
            trial.report(step, float(trial.id.rpartition("-")[2]))  # each is worse than those before
        return 0.0

    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    settings = {"evaluations": 10, "isolation": "inline", "pruner": "halving"}
    for steps in (9, None, 3):
        task = hpo.Task(space, evaluate, steps=steps)
        result = hpo.Campaign(task, directory=tmp_path / str(steps), **settings).run()
        assert sum(one.status == COMPLETED for one in result.individuals) == 1, steps
