"""Commands to a campaign: to one that runs, that has stopped, that goes on; each twice, and nonsense."""

from __future__ import annotations

import errno
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import journals
import living
import pytest
from cases import cases
from individuals import make_assignment
from simulation import Simulation
from simulation.campaigns import SPACE, fall_sick, final, finished, losses, make, objective, records_of
from simulation.ledger import SimulatedLedger

import hpo
from hpo import cli
from hpo.campaign.commands import COMMANDS
from hpo.campaign.rank import rank as rank_module
from hpo.errors import EXIT_RESUMABLE, CampaignError, UsageError
from hpo.individual import COMPLETED, ENQUEUED, FAILED, INVALID, LOST
from hpo.islands.coordinator.health import ReopenableFailure
from hpo.islands.end_reasons import DEADLINE, DONE, INCOMPLETE, STOPPED
from hpo.islands.resume.fold import fold
from hpo.islands.resume.state import ResumeState
from hpo.journal.commands import RETRIED, Drain, Enqueue, Pause, Request, Retry, Set, Stop, Unpause
from hpo.journal.directory import write_identity
from hpo.journal.records import Record
from hpo.ledger.entries import Commanded, Go, Limits
from hpo.ledger.joining import Newcomer
from hpo.ledger.launches import budget_use
from hpo.ledger.opening import give, open_ledger, state_of
from hpo.results import overview
from hpo.results import result as results
from hpo.task.outcome import TaskOutcome
from hpo.views import text

ASKED: dict[str, Any] = {"time": 1.0, "by": "me@here"}
POINTS: list[dict[str, Any]] = [{"x": float(one), "y": 0.5, "kind": "a"} for one in range(4)]


def started(simulation: Simulation) -> list[float]:
    return sorted(begin for begin, _ in simulation.evaluations)


class Steered:
    """A simulated campaign, over launches, and what is asked of it."""

    def __init__(self, **settings: Any) -> None:
        self.records: list[Record] = []
        self.settings = {
            "workers": 4,
            "islands": 2,
            "duration": lambda index: 1.0,
            "latency_s": 0.001,
        } | settings
        self.ledger = SimulatedLedger(self.settings["evaluations"], SPACE)

    def earlier(self) -> ResumeState:
        return fold(self.records, space=SPACE, islands=self.settings["islands"], losses=losses)

    def give(self, request: Request, records: Sequence[Record] = ()) -> None:
        self.ledger.give(request, [*self.records, *records])

    def launch(
        self,
        *requests: tuple[float, Request],
        seed: int = 1,
        kills: Sequence[tuple[float, int]] = (),
        prepare: Callable[[Simulation], None] = lambda simulation: None,
        **settings: Any,
    ) -> Simulation:
        """One launch by a person, with these requests at these times; those at 0 were given before it began.
        ``kills``: when which ranks die; ``prepare``: called before it begins."""
        self.ledger.start()
        for when, request in requests:
            if not when:
                self.give(request)
        settings = self.settings | settings
        self.ledger.evaluations = settings["evaluations"]
        simulation, _ = make(
            seed, earlier=self.earlier(), ledger=self.ledger, recorded=list(self.records), **settings
        )

        def ask(request: Request) -> None:
            self.give(request, records_of(simulation))
            if 0 not in simulation.dead:
                simulation.coordinator.step()

        for when, request in requests:
            if when:
                simulation.at(when, lambda request=request: ask(request))
        prepare(simulation)
        for when, rank in kills:
            simulation.at(when, lambda rank=rank: simulation.kill(rank))
        simulation.run()
        self.records += records_of(simulation)
        self.ledger.check(self.records)
        return simulation

    def done(self) -> int:
        """How many individuals have ended, each once."""
        counts = Counter(record.id for record in self.records if final(record))
        assert {*counts.values()} <= {1}
        return len(counts)


# --- pause ----------------------------------------------------------------------------------------------------------


def test_paused_what_runs_goes_on_and_nothing_new_starts() -> None:
    steered = Steered(evaluations=40)
    simulation = steered.launch((3.3, Pause(**ASKED)), (5.0, Pause(**ASKED)), (100.0, Unpause(**ASKED)))
    times = started(simulation)
    assert next(time for time in times if time > 3.4) >= 100.0
    assert len(times) == len(finished(simulation)) == 40
    assert simulation.coordinator.end.reason == DONE
    pause, unpause = Pause(**ASKED), Unpause(**ASKED)
    assert [one.request for one in steered.ledger.state.commands] == [pause, pause, unpause]


def test_what_is_granted_ahead_waits_for_a_pause_and_obeys_a_smaller_budget() -> None:
    """Where an evaluation takes as long as an answer, leaders hold more than they evaluate."""
    ahead = {"duration": lambda index: 0.01, "latency_s": 0.05, "workers": 2, "islands": 1}
    steered = Steered(evaluations=2000, **ahead)
    simulation = steered.launch((5.0, Pause(**ASKED)), (50.0, Unpause(**ASKED)))
    assert not [time for time in started(simulation) if 5.3 < time < 50.0]
    assert len(finished(simulation)) == 2000
    steered = Steered(evaluations=5000, **ahead)
    simulation = steered.launch((5.0, Set(**ASKED, evaluations=10)))
    assert simulation.time < 6.0 and simulation.coordinator.end.reason == DONE
    assert len(simulation.evaluations) == steered.done()


def test_a_pause_lasts_over_launches_and_a_stop_ends_it_all_the_same() -> None:
    steered = Steered(evaluations=40)
    first = steered.launch((3.0, Pause(**ASKED)), (20.0, Stop(**ASKED)))
    assert (first.coordinator.end.reason, first.coordinator.end.exit_code) == (STOPPED, EXIT_RESUMABLE)
    assert 0 < len(finished(first)) < 40 and first.time < 25
    second = steered.launch((30.0, Stop(**ASKED)), (31.0, Stop(**ASKED)))
    assert not second.evaluations and second.coordinator.end.reason == STOPPED
    third = steered.launch((0, Unpause(**ASKED)))
    assert third.coordinator.end.reason == DONE
    assert steered.done() == 40


# --- drain ----------------------------------------------------------------------------------------------------------


def test_a_drained_worker_gets_nothing_more_in_this_launch_and_the_others_all() -> None:
    steered = Steered(evaluations=60)
    drain = Drain(**ASKED, worker="1-2")
    first = steered.launch((4.3, drain), (5.0, drain), (9.0, Stop(**ASKED)))
    mine = first.journals[2].committed
    assert max(record.finished for record in mine if final(record)) < 6
    assert first.left == [(1, 2, "drained")]
    second = steered.launch()
    assert any(final(record) for record in second.journals[2].committed)
    assert steered.done() == 60


@pytest.mark.parametrize("when", cases([0.5, 4.5], nightly=[0.87, 1.5]))
def test_what_is_drained_tests_no_worker_and_leaves_no_launch_with_failing_ones_only(when: float) -> None:
    """A worker that is not healthy is suspected or benched by then, or not yet."""
    steered = Steered(evaluations=60, workers=2, islands=1, first_failures=30)
    drain = Drain(**ASKED, worker="0-0")
    simulation = steered.launch((when, drain), prepare=lambda simulation: fall_sick(simulation, 1, 0.0))
    # Where it was benched, nobody is left; else it goes on, and nothing works.
    failing = (0, 1, "failing") in simulation.left
    assert simulation.coordinator.end.reason == (STOPPED if failing else DONE)
    steered.launch()
    assert steered.earlier().tally.final == 60


# --- enqueue --------------------------------------------------------------------------------------------------------


def enqueued(records: list[Record]) -> list[float]:
    return [record.params["x"] for record in records if final(record) and record.operator == ENQUEUED]


def test_points_come_next_in_their_order_once_and_count_for_the_budget() -> None:
    steered = Steered(evaluations=30, workers=1, islands=1)
    steered.launch((4.5, Enqueue(**ASKED, points=POINTS)), (4.6, Enqueue(**ASKED, points=POINTS)))
    assert enqueued(steered.records) == [0.0, 1.0, 2.0, 3.0]
    order = sorted((record for record in steered.records if final(record)), key=lambda record: record.started)
    first = [record.operator for record in order].index(ENQUEUED)
    assert {record.operator for record in order[first : first + 4]} == {ENQUEUED} and first <= 7
    assert steered.done() == 30


def test_a_point_that_is_given_twice_is_evaluated_once() -> None:
    steered = Steered(evaluations=20, workers=1, islands=1)
    twice = Enqueue(**ASKED, points=[POINTS[0], POINTS[0]])
    steered.launch((0, twice), (4.5, twice), (6.5, Stop(**ASKED)))
    steered.launch((0, twice))
    assert enqueued(steered.records) == [0.0] and steered.done() == 20


def test_points_beyond_the_budget_wait_for_a_larger_one() -> None:
    steered = Steered(evaluations=10, workers=1, islands=1)
    steered.launch((0, Enqueue(**ASKED, points=POINTS)), (0, Set(**ASKED, evaluations=3)))
    assert enqueued(steered.records) == [0.0, 1.0, 2.0] and steered.done() == 3
    steered.launch((0, Set(**ASKED, evaluations=4)))
    assert enqueued(steered.records) == [0.0, 1.0, 2.0, 3.0] and steered.done() == 4


def test_a_point_that_the_task_refuses_is_left_out_and_a_worker_of_another_launch_is_nobodys() -> None:
    steered = Steered(evaluations=20)
    wrong = Enqueue(**ASKED, points=[POINTS[0], {"x": 9.0, "y": 0.0, "kind": "a"}])
    simulation = steered.launch((1.0, wrong), (1.5, Drain(**ASKED, worker="7-7")))
    said = [one for one in simulation.coordinator.remarks if "point 2" in one]
    assert len(said) == 1 and "x = 9.0" in said[0]
    assert enqueued(steered.records) == [0.0] and steered.done() == 20
    assert not any("drain" in one for one in simulation.coordinator.remarks)


@pytest.mark.parametrize(
    "wrong", [{"evaluations": 0}, {"evaluations": -3}, {"deadline_s": -1.0}, {"deadline_s": 1e300}], ids=str
)
def test_limits_that_no_campaign_can_have_are_no_entry(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Steered(evaluations=20).give(Set(**ASKED, **wrong))


# --- set ------------------------------------------------------------------------------------------------------------


def test_a_deadline_counts_from_the_beginning_also_where_it_was_set_and_ends_a_pause() -> None:
    steered = Steered(evaluations=1000)
    simulation = steered.launch((5.0, Set(**ASKED, deadline_s=20.0)))
    assert simulation.coordinator.end.reason == DEADLINE and 20 <= simulation.time < 23
    simulation = steered.launch((3.0, Pause(**ASKED)), deadline=60.0)
    assert simulation.coordinator.end.reason == DEADLINE and 60 <= simulation.time < 62


def test_what_was_changed_later_holds_also_when_the_file_says_the_old_again() -> None:
    steered = Steered(evaluations=24)
    steered.give(Set(**ASKED, evaluations=40))
    held = []
    for in_file in (24, 24, 50, 24):
        steered.ledger.evaluations = in_file
        steered.ledger.join(1, list)
        held.append(steered.ledger.state.limits.evaluations)
    assert held == [40, 40, 50, 24]


# --- retry ----------------------------------------------------------------------------------------------------------


class Failing(Simulation):
    """Evaluations with x below 0 fail while ``broken``; those above 4 return NaN."""

    broken = True

    def evaluate(self, candidate: Any) -> TaskOutcome:
        if self.broken and candidate.params["x"] < 0:
            return TaskOutcome(status=FAILED, error="OSError")
        if self.broken and candidate.params["x"] > 4:
            return TaskOutcome(status=INVALID, error="NaN")
        return super().evaluate(candidate)


@pytest.mark.parametrize(("statuses", "running"), [(("failed",), True), (RETRIED, False)])
def test_failures_are_evaluated_again_under_their_ids(
    monkeypatch: pytest.MonkeyPatch, statuses: tuple[str, ...], running: bool
) -> None:
    monkeypatch.setattr("simulation.campaigns.Simulation", Failing)
    monkeypatch.setattr(Failing, "broken", True)
    steered = Steered(evaluations=40, workers=2)
    steered.launch(seed=3)
    ended = {record.id: record.status for record in steered.records if final(record)}
    again = {identity for identity, status in ended.items() if status in statuses}
    assert 5 < len(again) < 40 and set(ended.values()) == {COMPLETED, FAILED, INVALID}
    monkeypatch.setattr(Failing, "broken", False)
    retry = Retry(**ASKED, statuses=statuses)
    more = {"evaluations": 45} if running else {}
    second = steered.launch((0.5 if running else 0, retry), (0.7, retry), seed=4, **more)
    assert second.coordinator.end.reason == DONE
    assert {record.id for record in finished(second)} >= again
    assert len(finished(second)) == len(again) + (5 if running else 0)
    counts = steered.earlier().tally.counts
    assert counts.get(FAILED, 0) == 0 and sum(counts.values()) == (45 if running else 40)


def test_failures_that_wait_for_workers_of_another_size_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.campaigns.Simulation", Failing)
    steered = Steered(evaluations=40, workers=2)
    steered.launch(seed=3)

    def prepare(simulation: Simulation) -> None:
        granting = simulation.coordinator._granting
        granting._suits = granting.budget._suits = lambda island, assignment: not assignment.id

    second = steered.launch(
        (0.5, Retry(**ASKED, statuses=(FAILED,))), seed=4, evaluations=45, prepare=prepare
    )
    failed = len(steered.ledger.state.pool)
    assert steered.ledger.state.free == failed > 10
    assert second.coordinator.final == 45 - failed and second.coordinator.end.reason == INCOMPLETE
    assert second.coordinator.standing[LOST] == failed


# --- storage that fails ------------------------------------------------------------------------------------------


def test_a_command_waits_for_journals_that_cannot_be_read_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.campaigns.Simulation", Failing)
    monkeypatch.setattr(Failing, "broken", True)
    steered = Steered(evaluations=40)
    kept: list[int] = []

    def prepare(simulation: Simulation) -> None:
        failures = simulation.coordinator._commands.failures  # type: ignore[union-attr]

        def read() -> Any:
            if simulation.time < 5:
                raise OSError(errno.ESTALE, "Stale file handle")
            return failures()

        simulation.coordinator._commands.failures = read  # type: ignore[union-attr]
        for when in (4.0, 6.0):
            simulation.at(when, simulation.coordinator.look_at_commands)
            simulation.at(
                when,
                lambda: kept.append(len(simulation.coordinator._commands._again)),  # type: ignore[union-attr]
            )

    steered.launch((3.0, Retry(**ASKED, statuses=RETRIED)), prepare=prepare, seed=3)
    assert kept[0] == 0 < kept[1] and steered.ledger.state.final == 40


def test_the_test_of_a_worker_does_not_wait_for_all_that_was_asked_for() -> None:
    """Two workers; of what worker 1 begins, the third to fifth fail anywhere, as their configurations do."""
    ledger = SimulatedLedger(400, SPACE)
    points = [{"x": -5 + number / 100, "y": 1.0, "kind": "a"} for number in range(300)]
    ledger.give(Enqueue(**ASKED, points=points))
    simulation, _ = make(
        1, workers=2, islands=1, evaluations=400, duration=lambda index: 60.0, ledger=ledger, migration=0.0
    )
    judge, bad, begun = simulation.evaluate, set(), []

    def evaluate(candidate: Any) -> TaskOutcome:
        if simulation.crews[1]._candidate is candidate and candidate.id not in begun:
            begun.append(candidate.id)
            bad.update(begun[2:5])
        return TaskOutcome(status=FAILED, error="ValueError: no") if candidate.id in bad else judge(candidate)

    simulation.evaluate = evaluate  # type: ignore[method-assign]
    report = simulation.run()
    assert report is not None and report.busy > 0.9


@pytest.mark.parametrize("reaches", [False, True])
def test_units_are_drawn_once_whatever_the_storage_says_of_the_draw(reaches: bool) -> None:
    steered = Steered(evaluations=30)
    store = steered.ledger.store

    def prepare(simulation: Simulation) -> None:
        def fail() -> None:
            # The commands themselves are given from another host.
            if 2.9 < simulation.time < 9 and giving == []:
                raise OSError(errno.ENOSPC, "No space left on device")

        store.disturb, store.reaches = fail, lambda: reaches
        for when in range(3, 12):
            simulation.at(float(when), simulation.coordinator.look_at_commands)

    giving: list[bool] = []
    give_one = steered.give

    def give(request: Request, records: Sequence[Record] = ()) -> None:
        giving.append(True)
        give_one(request, records)
        giving.clear()

    steered.give = give  # type: ignore[method-assign]
    asked = [
        (3.0, Enqueue(**ASKED, points=POINTS)),
        (4.0, Set(**ASKED, evaluations=40)),
        (7.0, Set(**ASKED, evaluations=35)),
    ]
    simulation = steered.launch(*asked, prepare=prepare)
    assert simulation.coordinator.end.reason == DONE
    assert sorted(enqueued(steered.records)) == [0.0, 1.0, 2.0, 3.0] and steered.done() == 35
    assert steered.ledger.state.final == 35


# In the first two an end is on record, and its news under way.
@pytest.mark.parametrize("seed", cases([652, 717, *range(4)], nightly=range(4, 18)))
def test_what_is_retried_while_workers_are_suspected_is_counted_once(seed: int) -> None:
    rng = random.Random(f"retries/{seed}")
    budget = rng.randint(20, 60)
    steered = Steered(
        evaluations=budget, workers=rng.randint(2, 5), islands=1, first_failures=rng.choice([4, 5, 30])
    )
    for launch in range(9):
        last = launch > 5
        asks = [(rng.uniform(0.1, 20), Retry(**ASKED, statuses=RETRIED)) for _ in range(0 if last else 8)]
        sick = [] if last else [(rng.randrange(steered.settings["workers"]), rng.uniform(0, 5))]

        def prepare(simulation: Simulation, sick: list[tuple[int, float]] = sick) -> None:
            for rank, when in sick:
                fall_sick(simulation, rank, when)

        simulation = steered.launch(*asks, seed=100 * seed + launch, prepare=prepare)
        counts = {status: count for status, count in steered.earlier().tally.counts.items() if count}
        assert {key: count for key, count in simulation.coordinator.tally.counts.items() if count} == counts
        assert sum(counts.values()) <= budget
    assert sum(counts.values()) == budget


def test_a_failure_of_which_rank_0_has_not_heard_is_retried_as_soon_as_it_has() -> None:
    steered = Steered(evaluations=2, workers=2, islands=1, duration=lambda index: 1000.0)

    def prepare(simulation: Simulation) -> None:
        fall_sick(simulation, 1, 0.0)
        journal = simulation.journals[1]
        commit = journal.commit

        def commit_and_retry() -> None:
            commit()
            if any(map(final, journal.committed)):
                journal.commit = commit  # type: ignore[method-assign]
                steered.give(Retry(**ASKED, statuses=RETRIED), journal.committed)
                simulation.coordinator.look_at_commands()

        journal.commit = commit_and_retry  # type: ignore[method-assign]
        for when in range(1, 10):
            simulation.at(float(when), simulation.coordinator.step)

    simulation = steered.launch(prepare=prepare)
    assert [time < 10 for time in started(simulation)] == [True] * 3
    assert steered.ledger.state.final == 2


# --- the ledger -----------------------------------------------------------------------------------------------------


def test_commands_are_entries_in_the_order_in_which_they_are_given(run: Path) -> None:
    asked: list[Request] = [
        Stop(**ASKED),
        Pause(**ASKED),
        Unpause(**ASKED),
        Drain(**ASKED, worker="0-3"),
        Retry(**ASKED, statuses=("failed", "timeout")),
        Enqueue(**ASKED, points=POINTS),
        Set(**ASKED, evaluations=7, deadline_s=90.0),
    ]
    for one in asked:
        give(run, one)
    assert requests(run) == asked
    state = state_of(run)
    assert state.stop_pending and not state.paused and state.limits == Limits(evaluations=7, deadline_s=90.0)


def test_a_ledger_that_is_a_link_or_no_folder_is_refused(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "ledger").symlink_to(elsewhere)
    with pytest.raises(CampaignError, match="cannot be used"):
        give(run, Pause(**ASKED))
    assert not list(elsewhere.iterdir())
    (run / "ledger").unlink()
    (run / "ledger").write_text("")
    with pytest.raises(CampaignError, match="cannot be used"):
        give(run, Pause(**ASKED))


def test_what_is_too_large_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo.ledger.store.MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="Give it in parts"):
        give(run, Enqueue(**ASKED, points=[{"x": "y" * 1000}]))
    assert not requests(run)


# --- the commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A campaign's directory, before its first launch."""
    run = tmp_path / "run"
    task = hpo.Task(SPACE, lambda trial: objective(trial.params))
    write_identity(run, {"task": "a:b", "options": {}, **task.describe()})
    return run


def launched(run: Path, *tables: dict[str, Any]) -> None:
    journals.write(run, [journals.launched(evaluations=24, workers=2), *tables])
    journals.write(run, [], worker=1)


def ended(reason: str, code: int) -> dict[str, Any]:
    return {"type": "ended", "reason": reason, "exit": code, "time": 2.0}


def requests(run: Path) -> list[Any]:
    return [one.request for one in state_of(run).commands]


def like(request: Request) -> dict[str, Any]:
    return {"time": request.time, "by": request.by}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["drain", "DIR", "0-7"], ["'0-7'", "No campaign is running there"]),
        (["enqueue", "DIR", '{"x": 9, "y": 0, "kind": "a"}'], ["x = 9", "-5.0 to 5.0"]),
        (["enqueue", "DIR", '{"x": 1'], ["POINTS"]),
        (["enqueue", "DIR", "nowhere.csv"], ["nowhere.csv"]),
        (["set", "DIR", "evaluations=" + "9" * 5000], ["evaluations = ", "whole number"]),
        (["set", "DIR", "deadline=soon"], ["deadline = 'soon'", "duration"]),
        (["set", "DIR", "evalutions=3"], ["'evalutions=3'", '"evaluations"']),
        (["set", "DIR", "evaluations"], ["'evaluations'", "evaluations=40"]),
        (["retry", "DIR", "--status", "completed"], ["'completed'", "failed, crashed"]),
        (["retry", "DIR", "--sttaus", "failed"], ["--sttaus", '"--status"']),
        (["bset", "DIR"], ["'bset'", '"best"']),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: list[str]
) -> None:
    launched(run)
    try:
        code = cli.main([str(run) if word == "DIR" else word for word in words])
    except SystemExit as error:
        code = int(error.code or 0)
    said = capsys.readouterr().err
    assert code == 2 and all(word in said for word in named) and "Traceback" not in said
    assert not (run / "ledger").exists()


def test_where_no_campaign_is_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"drain": ["0-0"], "enqueue": ['{"x": 1}'], "set": ["evaluations=3"], "close": ["1"]}
    for command in COMMANDS:
        assert cli.main([command, str(tmp_path), *more.get(command, [])]) == 1
        assert "holds no campaign" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_given_twice_between_launches_waits_twice(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(run, journals.finished("0-0-0", params=POINTS[0]), ended("stopped", 75))
    (run.parent / "points.csv").write_text("x,y,kind\n1,2,a\n-1,0.5,b\n")
    given = [["pause"], ["unpause"], ["retry"], ["retry", "--status", "all"]]
    given += [["enqueue", '{"x": 1, "y": 2, "kind": "c"}'], ["enqueue", str(run.parent / "points.csv")]]
    for words in (*given, ["set", "evaluations=200", "deadline=1h30m"]):
        for _ in range(2):
            assert cli.main([words[0], str(run), *words[1:]]) == 0
            assert "when the next launch begins" in capsys.readouterr().out
    found = requests(run)[::2]
    assert found[:2] == [Pause(**like(found[0])), Unpause(**like(found[1]))]
    assert [one.statuses for one in found[2:4]] == [("failed",), RETRIED]
    assert found[4].points == [{"x": 1.0, "y": 2.0, "kind": "c"}]
    assert found[5].points == [{"x": 1.0, "y": 2.0, "kind": "a"}, {"x": -1.0, "y": 0.5, "kind": "b"}]
    assert found[6].values == {"evaluations": 200, "deadline_s": 5400.0}
    assert "14 not applied yet" in text.status(run, overview.of(run))
    assert list(state_of(run).pool) == ["0-0-0"]


@pytest.mark.parametrize(
    ("reason", "code", "comes_back"), [("done", 0, False), ("futile", 1, False), ("stopped", 75, True)]
)
def test_stop_between_launches_is_kept_where_the_campaign_may_come_back(
    run: Path, capsys: pytest.CaptureFixture[str], reason: str, code: int, comes_back: bool
) -> None:
    launched(run, ended(reason, code))
    for _ in range(2):
        assert cli.main(["stop", str(run)]) == 0
        assert "no campaign is running there" in capsys.readouterr().out
    state = state_of(run)
    assert state.stop_pending == comes_back and state.unseen_commands == comes_back


# --- what is shown --------------------------------------------------------------------------------------------------


def test_status_has_the_state_and_the_budget_that_hold(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> object:
        return results.status(results.load(run))["state"]

    assert state() == "stopped"
    launched(run)
    give(run, Pause(**ASKED))
    give(run, Set(**ASKED, evaluations=40))
    status = results.status(results.load(run))
    assert status["budget"] == {"evaluations": 40, "deadline": None, "rank_hours": None}
    assert status["state"] == "stopped" and "paused" in text.status(run, overview.of(run))
    monkeypatch.setattr("hpo.results.record.living", lambda directory, state: {1: "somebody"})
    assert state() == "paused"
    assert "state             paused" in text.status(run, overview.of(run))
    give(run, Unpause(**ASKED))
    assert state() == "running"
    give(run, Stop(**ASKED))
    assert state() == "stopping"
    monkeypatch.undo()
    open_ledger(run).append(lambda state: Commanded(request=Go(**ASKED)))
    launched(run, ended("done", 0))
    assert state() == "done"


# --- over launches, for real ----------------------------------------------------------------------------------------


class Launches:
    """Launches of a campaign in this process."""

    def __init__(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = run
        self._monkeypatch = monkeypatch
        self.count = 0
        self._stop_at = 0
        self.broken_from = 0
        """The evaluation from which on all fail, 0 for none."""

    def _evaluate(self, trial: hpo.Trial) -> float:
        self.count += 1
        if self.count == self._stop_at:
            give(self.run, Stop(**ASKED))
        if self._stop_at:
            time.sleep(0.01)  # stops are looked for once a second
        if 0 < self.broken_from <= self.count:
            raise OSError("no such mount")
        return float(trial.params["x"])

    def __call__(
        self, evaluations: int, *, stop_at: int = 0, requeued: bool = False, deadline: str | None = None
    ) -> tuple[str | None, int]:
        """Why a launch ended, and its exit code. ``stop_at``: the evaluation in which `hpo stop` is given;
        ``requeued``: Slurm, and no person, starts it."""
        self._stop_at = stop_at
        self._monkeypatch.setenv("SLURM_RESTART_COUNT", str(int(requeued)))
        space, constraint = hpo.SearchSpace(x=hpo.Float(0, 1)), lambda params: params["x"] != 0.5
        campaign = hpo.Campaign(
            hpo.Task(space, self._evaluate, constraints=[constraint]),
            directory=self.run,
            evaluations=evaluations,
            deadline=deadline,
            isolation="inline",
            kind="random",
        )
        return campaign.run().reason, campaign.exit_code


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(tmp_path / "run", monkeypatch)


def test_a_stop_holds_back_jobs_until_a_person_starts_the_campaign(
    launch: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(100_000, stop_at=3) == (STOPPED, EXIT_RESUMABLE)
    assert state_of(launch.run).stop_pending
    count = launch.count
    capsys.readouterr()
    for _ in range(2):
        assert launch(count + 5, requeued=True) == (STOPPED, 0)
        assert "nothing is started: `hpo stop" in capsys.readouterr().err
        assert cli.main(["stop", str(launch.run)]) == 0
    assert launch.count == count and len(results.load(launch.run).launches) == 1
    assert launch(count + 5) == (DONE, 0) and launch.count == count + 5
    assert launch(count + 7, requeued=True) == (DONE, 0) and launch.count == count + 7


def test_commands_between_launches_hold_before_anything_is_granted(
    launch: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(10) == (DONE, 0)
    for words in (["pause"], ["enqueue", '{"x": 0.25}'], ["enqueue", '{"x": 0.5}']):
        assert cli.main([words[0], str(launch.run), *words[1:]]) == 0
    assert launch(20, deadline="1s") == (DEADLINE, EXIT_RESUMABLE) and launch.count == 10
    said = capsys.readouterr().err
    assert said.count("a constraint refuses {'x': 0.5}") == 1 and "paused" in said
    assert cli.main(["unpause", str(launch.run)]) == 0
    assert cli.main(["set", str(launch.run), "evaluations=12"]) == 0
    assert launch(20) == (DONE, 0) and launch.count == 12
    first = results.load(launch.run).individuals[10]
    assert (first.operator, first.params) == (ENQUEUED, {"x": 0.25})
    # Less than what is done is done, and said so.
    capsys.readouterr()
    assert cli.main(["set", str(launch.run), "evaluations=5"]) == 0
    assert launch(20) == (DONE, 0) and launch.count == 12
    last, why = capsys.readouterr().err.splitlines()[-2:]
    assert last.startswith("done: 12 evaluated (budget 5)  best ") and "the budget is 5" in why
    assert results.status(results.load(launch.run))["budget"] == {
        "evaluations": 5,
        "deadline": None,
        "rank_hours": None,
    }
    assert launch(14) == (DONE, 0) and launch.count == 14  # the file says something new


def test_a_command_that_is_given_while_a_launch_reads_the_journals_holds_for_it(
    launch: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch(3) == (DONE, 0)
    fold_directory = rank_module.fold_directory

    def fold_slowly(home: Path, **keywords: Any) -> ResumeState:
        give(home, Stop(**ASKED))
        return fold_directory(home, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(rank_module, "fold_directory", fold_slowly)
        assert launch(9) == (STOPPED, EXIT_RESUMABLE) and launch.count < 9
    assert launch(9) == (DONE, 0) and launch.count == 9


def test_a_retry_that_is_given_while_a_launch_reads_the_journals_is_not_forgotten(
    launch: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.broken_from = 6
    assert launch(9)[1] == 0
    launch.broken_from = 0
    fold_directory = rank_module.fold_directory

    def fold_slowly(home: Path, **keywords: Any) -> ResumeState:
        found = fold_directory(home, **keywords)
        assert cli.main(["retry", str(home)]) == 0
        return found

    with monkeypatch.context() as patched:
        patched.setattr(rank_module, "fold_directory", fold_slowly)
        assert launch(10) == (DONE, 0)
    individuals = results.load(launch.run).individuals
    assert [one.status for one in individuals] == [COMPLETED] * 10 and launch.count == 14


def test_a_retry_holds_where_a_launch_is_refused_before_it_begins(
    launch: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.broken_from = 6
    assert launch(9)[1] == 0
    launch.broken_from = 0
    for _ in range(2):
        assert cli.main(["retry", str(launch.run)]) == 0
    with monkeypatch.context() as patched, pytest.raises(CampaignError, match="no hello"):
        patched.setattr(rank_module, "greet", lambda *given: (_ for _ in ()).throw(CampaignError("no hello")))
        launch(9)
    use = budget_use(launch.run, Limits(evaluations=9))
    assert use.final == 5 and not use.complete
    assert launch(9) == (DONE, 0) and launch.count == 9 + 4
    assert [one.status for one in results.load(launch.run).individuals] == [COMPLETED] * 9


def test_a_failure_that_was_reopened_and_is_not_on_record_yet_is_not_reopened_again() -> None:
    """A retry reads the journals, and rank 0's may not be written for now."""
    simulation, _ = make(1, workers=2, evaluations=5)
    coordinator = simulation.coordinator
    coordinator.tally.counts["failed"] = 1
    again = make_assignment(id="0-0-0", params={}, key="k", operator="random", admitted=True, reopened=1)
    failure = ReopenableFailure("failed", again, "")
    for _ in range(2):
        assert coordinator.retry([failure], 3) == {"0-0-0"}
        assert coordinator.tally.counts["failed"] == 0


# --- launches -------------------------------------------------------------------------------------------------------


def test_launches_are_listed_and_closed_by_hand(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["launches", str(run), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    first, second = living.joined(run, 2), living.at_work(run, newcomer=Newcomer(job="7.0"))
    second.show(3, 0, 1, 0.0)
    second.refresh()
    assert cli.main(["launches", str(run), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)[len(before) :]
    assert [(one["number"], one["workers"], one["done"], one["job"], one["state"]) for one in listed] == [
        (first.number, 2, 0, "", "open"),
        (first.number + 1, 1, 3, "7.0", "open"),
    ]
    assert [one["ranks_per_worker"] for one in listed] == [1, 1] and listed[0]["silent_s"] is None
    assert 0 <= listed[1]["silent_s"] < 60
    assert cli.main(["close", str(run), str(first.number)]) == 0
    assert f"launch {first.number} is closed" in capsys.readouterr().out
    state = open_ledger(run).state
    assert state.closed[first.number].by == 0 and [*state.open] == [first.number + 1]
    assert cli.main(["close", str(run), str(first.number)]) == 2
    assert f"an open launch of {run}" in capsys.readouterr().err
    assert cli.main(["launches", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["launch", "state", "workers"] and len(lines) == 3 + len(before)
    assert cli.main(["status", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launches"][-1]["number"] == first.number + 1
