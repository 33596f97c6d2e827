"""Commands to a campaign: to one that runs, that has stopped, that goes on; each twice, and nonsense."""

from __future__ import annotations

import errno
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import journals
import pytest
from cases import cases
from individuals import make_assignment, make_started
from simulation import MemoryInbox, Simulation
from simulation.campaigns import SPACE, fall_sick, final, finished, losses, make, objective, records_of

import hpo
from hpo import cli
from hpo.campaign.commands import COMMANDS
from hpo.errors import EXIT_RESUMABLE, CampaignError, UsageError
from hpo.individual import COMPLETED, ENQUEUED, FAILED, INVALID
from hpo.islands.end_reasons import DEADLINE, DONE, STOPPED
from hpo.islands.resume.fold import fold
from hpo.islands.resume.state import ResumeState
from hpo.journal.commands import (
    MOST_BYTES,
    RETRIED,
    Drain,
    Enqueue,
    Inbox,
    Pause,
    Request,
    Retry,
    Set,
    Standing,
    Stop,
    Unpause,
    clear_stop,
    give,
    record_of,
    request_of,
    stop_pending,
    waiting,
)
from hpo.journal.directory import write_identity
from hpo.journal.records import Command, Launched, Record, decode, encode
from hpo.results import overview
from hpo.results import result as results
from hpo.task.outcome import TaskOutcome
from hpo.views import text

ASKED: dict[str, Any] = {"time": 1.0, "by": "me@here"}
POINTS: list[dict[str, Any]] = [{"x": float(one), "y": 0.5, "kind": "a"} for one in range(4)]


def started(simulation: Simulation) -> list[float]:
    return sorted(begin for begin, _ in simulation.evaluations)


def applied(records: list[Record]) -> list[Command]:
    return [record for record in records if isinstance(record, Command)]


class Steered:
    """A simulated campaign, over launches, and what is asked of it."""

    def __init__(self, **settings: Any) -> None:
        self.inbox = MemoryInbox()
        self.records: list[Record] = []
        self.settings = {
            "workers": 4,
            "islands": 2,
            "duration": lambda index: 1.0,
            "latency_s": 0.001,
        } | settings

    def earlier(self) -> ResumeState:
        return fold(self.records, space=SPACE, islands=self.settings["islands"], losses=losses)

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
        for identity in [one for one, request in self.inbox.look().requests if isinstance(request, Stop)]:
            del self.inbox.requests[identity]
        for when, request in requests:
            if not when:
                self.inbox.give(request)
        settings = self.settings | settings
        simulation, _ = make(
            seed, earlier=self.earlier(), inbox=self.inbox, recorded=list(self.records), **settings
        )

        def ask(request: Request) -> None:
            self.inbox.give(request)
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
    assert [record.name for record in applied(steered.records)] == ["pause", "pause", "unpause"]
    assert all(record.by == "me@here" and record.given == 1.0 for record in applied(steered.records))


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
    first = steered.launch(
        (4.3, Drain(**ASKED, worker="1-0")), (5.0, Drain(**ASKED, worker="1-0")), (9.0, Stop(**ASKED))
    )
    places = {(one.place.island, one.place.worker): one.place for one in first.leaders}
    place = places[1, 0]
    mine = first.journals[place.leader].committed
    assert max(record.finished for record in mine if final(record)) < 6
    assert first.left == [(1, 0, "drained")]
    second = steered.launch()
    assert any(final(record) for record in second.journals[place.leader].committed)
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


def test_a_point_that_was_given_twice_and_begun_once_is_left_once() -> None:
    """It may be evaluated twice, with ``duplicates``."""
    given = [record_of(f"{n:020d}-{n:016x}", Enqueue(**ASKED, points=POINTS[:1]), time=2.0) for n in (1, 2)]
    begun = make_started(id="0-0-0", params=POINTS[0], operator=ENQUEUED, time=3.0)
    state = fold([*given, begun], space=SPACE, islands=1, losses=losses)
    assert [one.params for one in state.enqueued] == POINTS[:1]


def test_points_beyond_the_budget_wait_for_a_larger_one() -> None:
    steered = Steered(evaluations=10, workers=1, islands=1)
    steered.launch((0, Enqueue(**ASKED, points=POINTS)), (0, Set(**ASKED, evaluations=3)))
    assert enqueued(steered.records) == [0.0, 1.0, 2.0] and steered.done() == 3
    steered.launch((0, Set(**ASKED, evaluations=4)))
    assert enqueued(steered.records) == [0.0, 1.0, 2.0, 3.0] and steered.done() == 4


REFUSED: list[tuple[Request, str]] = [
    (Enqueue(**ASKED, points=[POINTS[0], {"x": 9.0, "y": 0.0, "kind": "a"}]), "point 2: x = 9.0"),
    (Drain(**ASKED, worker="7-7"), "7-7"),
    *(
        (Set(**ASKED, **wrong), "")
        for wrong in ({"evaluations": 0}, {"deadline_s": -1.0}, {}, {"deadline_s": 1e300})
    ),
]


@pytest.mark.parametrize(("request_", "named"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_with_all_of_its_command(request_: Request, named: str) -> None:
    steered = Steered(evaluations=20)
    simulation = steered.launch((1.0, request_))
    (command,) = applied(steered.records)
    assert command.refused and named in command.refused
    assert "by me@here: refused" in simulation.coordinator.remarks[0]
    assert enqueued(steered.records) == [] and steered.done() == 20


# --- set ------------------------------------------------------------------------------------------------------------


def test_a_budget_that_was_set_holds_until_the_file_says_something_new() -> None:
    steered = Steered(evaluations=20)
    steered.launch((0, Set(**ASKED, evaluations=25)), (5.0, Set(**ASKED, evaluations=30)))
    assert steered.done() == 30
    steered.launch()
    assert steered.done() == 30
    steered.launch(evaluations=25)  # the file: smaller, and later
    assert steered.done() == 30
    steered.launch(evaluations=35)
    assert steered.done() == 35


def test_a_deadline_counts_from_the_beginning_also_where_it_was_set_and_ends_a_pause() -> None:
    steered = Steered(evaluations=1000)
    simulation = steered.launch((5.0, Set(**ASKED, deadline_s=20.0)))
    assert simulation.coordinator.end.reason == DEADLINE and 20 <= simulation.time < 23
    simulation = steered.launch((3.0, Pause(**ASKED)), deadline=60.0)
    assert simulation.coordinator.end.reason == DEADLINE and 60 <= simulation.time < 62


def test_what_was_changed_later_holds_also_when_the_file_says_the_old_again() -> None:
    standing = Standing()
    command = record_of(
        f"{1:020d}-{0:016x}", Set(**ASKED, evaluations=40), time=2.0, in_file={"evaluations": 24}
    )
    standing.add(command)

    def launch(in_file: int) -> int | None:
        evaluations = standing.evaluations(in_file)
        standing.launched(Launched(evaluations=evaluations, deadline_s=None, islands=1, workers=1, time=3.0))
        return evaluations

    assert [launch(24), launch(24), launch(50), launch(24)] == [40, 40, 50, 24]


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


# --- exactly once ---------------------------------------------------------------------------------------------------


def test_a_command_on_record_whose_file_is_still_there_is_not_applied_again() -> None:
    steered = Steered(evaluations=20)
    requests = [Enqueue(**ASKED, points=POINTS), Pause(**ASKED), Unpause(**ASKED)]
    steered.launch(*((2.0 + number, one) for number, one in enumerate(requests)))
    assert len(applied(steered.records)) == 3 and not steered.inbox.requests
    steered.inbox = MemoryInbox()
    for one in requests[:2]:  # as after a crash between journal and directory
        steered.inbox.give(one)
    simulation = steered.launch(evaluations=22)
    assert simulation.coordinator.end.reason == DONE and not steered.inbox.requests
    assert len(applied(steered.records)) == 3 and len(enqueued(steered.records)) == 4


def test_a_command_waits_for_journals_that_cannot_be_read_for_now() -> None:
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
            simulation.at(when, lambda: kept.append(len(steered.inbox.requests)))

    steered.launch((3.0, Retry(**ASKED, statuses=RETRIED)), prepare=prepare)
    assert kept == [1, 0]
    (command,) = applied(steered.records)
    assert command.refused is None and steered.done() == 40


def test_the_test_of_a_worker_does_not_wait_for_all_that_was_asked_for() -> None:
    """Two workers; of what worker 1 begins, the third to fifth fail anywhere, as their configurations do."""
    inbox = MemoryInbox()
    points = [{"x": -5 + number / 100, "y": 1.0, "kind": "a"} for number in range(300)]
    inbox.give(Enqueue(**ASKED, points=points))
    simulation, _ = make(
        1, workers=2, islands=1, evaluations=400, duration=lambda index: 60.0, inbox=inbox, migration=0.0
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


def test_a_command_whose_record_cannot_be_written_keeps_its_file_until_it_is() -> None:
    steered = Steered(evaluations=60)
    kept: list[int] = []

    def full(simulation: Simulation) -> None:
        if 2.9 < simulation.time < 9:
            raise OSError(28, "No space left on device")

    def look(simulation: Simulation) -> None:
        simulation.coordinator.step()
        kept.append(len(steered.inbox.requests))

    def prepare(simulation: Simulation) -> None:
        simulation.journals[0].disturb = lambda: full(simulation)
        for when in (5.0, 8.0, 12.0):
            simulation.at(when, lambda: look(simulation))

    steered.launch((3.0, Enqueue(**ASKED, points=POINTS)), prepare=prepare)
    assert kept == [1, 1, 0] and len(applied(steered.records)) == 1
    assert sorted(enqueued(steered.records)) == [0.0, 1.0, 2.0, 3.0] and steered.done() == 60


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

        if last:
            steered.inbox.requests.clear()
        simulation = steered.launch(*asks, seed=100 * seed + launch, prepare=prepare)
        counts = {status: count for status, count in steered.earlier().tally.counts.items() if count}
        assert {key: count for key, count in simulation.coordinator.tally.counts.items() if count} == counts
        assert sum(counts.values()) <= budget
    assert sum(counts.values()) == budget


# --- files ----------------------------------------------------------------------------------------------------------


def test_commands_are_found_in_order_and_each_file_goes_when_it_is_finished(tmp_path: Path) -> None:
    requests: list[Request] = [
        Stop(**ASKED),
        Pause(**ASKED),
        Unpause(**ASKED),
        Drain(**ASKED, worker="0-3"),
        Retry(**ASKED, statuses=("failed", "timeout")),
        Enqueue(**ASKED, points=POINTS),
        Set(**ASKED, evaluations=7, deadline_s=90.0),
    ]
    former = os.umask(0o027)
    try:
        identities = [give(tmp_path, one) for one in requests]
    finally:
        os.umask(former)
    assert (tmp_path / "commands").stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "commands").iterdir()} == {0o640}
    inbox = Inbox(tmp_path)
    assert inbox.look() == (list(zip(identities, requests)), [])
    for identity, request in zip(identities, requests):
        record = record_of(identity, request, time=2.0)
        read = decode(encode(record))
        assert isinstance(read, Command) and request_of(read) == request
        inbox.finish(identity, request)
        inbox.finish(identity, request)
    assert inbox.look() == ([], []) and not list((tmp_path / "commands").iterdir())


def test_commands_keep_the_order_in_which_they_are_given_whatever_the_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([5_000_000_000, 2_000_000_000, 10**20])
    monkeypatch.setattr(time, "time_ns", lambda: next(now))
    given = [give(tmp_path, request) for request in (Pause(**ASKED), Unpause(**ASKED), Stop(**ASKED))]
    assert [identity for identity, _ in Inbox(tmp_path).look().requests] == given


def nonsense(folder: Path) -> list[Path]:
    """Files that are no commands; of one in the place of each, what it is."""
    made = [folder / f"{number:020d}-{number:016x}.json" for number in range(10)]
    contents = [
        *(b"", b"\xff\xfe", b"[" * 100_000, b'{"name":"stop","time":1,"by":"me"}' + b" " * MOST_BYTES),
        *(b'{"name":"rm","time":1,"by":"me"}', b'{"name":"stop","time":1,"by":"me","force":true}'),
        b'{"name":"drain","time":1,"by":"me","worker":"../../x"}',
    ]
    for path, content in zip(made, contents):
        path.write_bytes(content)
    made[7].symlink_to("/etc/hostname")
    os.mkfifo(made[8])
    made[9].mkdir()
    good = b'{"name":"stop","time":1,"by":"me"}'
    others = [folder / name for name in ("note.txt", "\x1b[2J.json", "x" * 255, "00000000000000000001.json")]
    for path in others:
        path.write_bytes(good)
    return made + others


def test_nonsense_is_said_once_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    (tmp_path / "target").write_text("untouched")
    made = nonsense(tmp_path / "commands")
    identity = give(tmp_path, Pause(**ASKED))
    inbox = Inbox(tmp_path)
    found = inbox.look()
    assert found.requests == [(identity, Pause(**ASKED))]
    assert sorted(name for name, _ in found.nonsense) == sorted(path.name for path in made)
    assert not stop_pending(tmp_path)
    for name, _ in found.nonsense:
        inbox.set_aside(name)
    assert inbox.look() == ([(identity, Pause(**ASKED))], [])
    assert waiting(tmp_path) == 1
    # All but the one whose name is too long for it was renamed, so that no later launch says it again.
    assert [name for name, _ in Inbox(tmp_path).look().nonsense] == ["x" * 255]


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "commands").mkdir(parents=True)
    give(elsewhere, Stop(**ASKED))
    run = tmp_path / "run"
    run.mkdir()
    (run / "commands").symlink_to(elsewhere / "commands")
    inbox = Inbox(run)
    assert inbox.look() == ([], []) and not stop_pending(run)
    assert inbox.error is not None and inbox.error.errno in (errno.ELOOP, errno.ENOTDIR)
    with pytest.raises(CampaignError, match="symbolic link"):
        give(run, Pause(**ASKED))
    assert len(list((elsewhere / "commands").iterdir())) == 1


def test_what_is_too_large_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Give it in parts"):
        give(tmp_path, Enqueue(**ASKED, points=[{"x": "y" * MOST_BYTES}]))
    (tmp_path / "commands").write_text("")
    with pytest.raises(CampaignError, match="commands cannot be written"):
        give(tmp_path, Pause(**ASKED))
    assert Inbox(tmp_path).look() == ([], [])


def test_a_stop_holds_until_it_is_cleared(tmp_path: Path) -> None:
    assert not stop_pending(tmp_path)
    identity = give(tmp_path, Stop(**ASKED))
    give(tmp_path, Stop(**ASKED))
    paused = give(tmp_path, Pause(**ASKED))
    assert stop_pending(tmp_path)
    Inbox(tmp_path).finish(identity, Stop(**ASKED))
    assert stop_pending(tmp_path)
    clear_stop(tmp_path)
    assert not stop_pending(tmp_path)
    assert Inbox(tmp_path).look().requests == [(paused, Pause(**ASKED))]
    identity = give(tmp_path, Stop(**ASKED))
    Inbox(tmp_path).finish(identity, Stop(**ASKED))
    assert waiting(tmp_path) == 1 and stop_pending(tmp_path)
    clear_stop(tmp_path)
    assert not stop_pending(tmp_path)


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
    return [request for _, request in Inbox(run).look().requests]


def like(request: Request) -> dict[str, Any]:
    return {"time": request.time, "by": request.by}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["drain", "DIR", "0-7"], ["'0-7'", "0-0, 0-1"]),
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
    assert not (run / "commands").exists()


def test_where_no_campaign_is_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"drain": ["0-0"], "enqueue": ['{"x": 1}'], "set": ["evaluations=3"]}
    for command in COMMANDS:
        assert cli.main([command, str(tmp_path), *more.get(command, [])]) == 1
        assert "holds no campaign" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_given_twice_between_launches_waits_twice(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(run, journals.finished("0-0-0", params=POINTS[0]), ended("stopped", 75))
    (run.parent / "points.csv").write_text("x,y,kind\n1,2,a\n-1,0.5,b\n")
    given = [["pause"], ["unpause"], ["drain", "0-1"], ["retry"], ["retry", "--status", "all"]]
    given += [["enqueue", '{"x": 1, "y": 2, "kind": "c"}'], ["enqueue", str(run.parent / "points.csv")]]
    for words in (*given, ["set", "evaluations=200", "deadline=1h30m"]):
        for _ in range(2):
            assert cli.main([words[0], str(run), *words[1:]]) == 0
            assert "when the next launch begins" in capsys.readouterr().out
    found = requests(run)[::2]
    assert found[:3] == [
        Pause(**like(found[0])),
        Unpause(**like(found[1])),
        Drain(**like(found[2]), worker="0-1"),
    ]
    assert [one.statuses for one in found[3:5]] == [("failed",), RETRIED]
    assert found[5].points == [{"x": 1.0, "y": 2.0, "kind": "c"}]
    assert found[6].points == [{"x": 1.0, "y": 2.0, "kind": "a"}, {"x": -1.0, "y": 0.5, "kind": "b"}]
    assert found[7].values == {"evaluations": 200, "deadline_s": 5400.0}
    assert "16 not applied yet" in text.status(run, overview.of(run))


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
    assert stop_pending(run) == comes_back and waiting(run) == comes_back


def test_applied_commands_that_cannot_be_removed_are_in_nobodys_way(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a commands/ of another user."""
    for number in range(20):
        (run / "commands").mkdir(exist_ok=True)
        path = run / "commands" / f"{number:020d}-{number:016x}.json"
        path.write_bytes(b'{"name":"pause","time":1,"by":"me"}')
    launched(run, *(command(number, Pause(**ASKED)) for number in range(20)))
    assert waiting(run) == 0
    stop = give(run, Stop(**ASKED))
    assert waiting(run) == 1 and stop_pending(run)
    inbox = Inbox(run)
    found = inbox.look().requests
    assert found[-1] == (stop, Stop(**ASKED)) and len(found) == 21

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        for identity, request in found:
            inbox.finish(identity, request)
        assert not inbox.look().requests


def test_a_command_whose_record_was_given_up_is_applied_by_the_next_launch_once() -> None:
    steered = Steered(evaluations=40)

    def give_up(simulation: Simulation) -> None:
        def fail() -> None:
            if 3.0 <= simulation.time < 3.5:
                raise OSError(errno.EIO, "Input/output error", "journal")

        journal = simulation.journals[0]
        journal.disturb = fail
        simulation.at(3.3, journal.discard)
        simulation.at(4.0, simulation.coordinator.look_at_commands)

    steered.launch((3.2, Pause(**ASKED)), kills=[(6.0, 0)], prepare=give_up)
    assert not applied(steered.records) and steered.inbox.has(Pause)
    steered.launch((8.0, Unpause(**ASKED)))
    assert [record.name for record in applied(steered.records)] == ["pause", "unpause"]
    assert not steered.inbox.requests


# --- what is shown --------------------------------------------------------------------------------------------------


def command(number: int, request: Request, **more: Any) -> dict[str, Any]:
    table = journals.fields(record_of(f"{number:020d}-{number:016x}", request, time=2.0, **more))
    return {"type": "command", **table}


def test_status_has_the_state_and_the_budget_that_hold(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> object:
        return results.status(results.load(run))["state"]

    assert state() == "stopped"
    launched(
        run, command(1, Pause(**ASKED)), command(2, Set(**ASKED, evaluations=40), in_file={"evaluations": 24})
    )
    status = results.status(results.load(run))
    assert status["budget"] == {"evaluations": 40, "deadline": None}
    assert status["state"] == "stopped" and "paused" in text.status(run, overview.of(run))
    monkeypatch.setattr("hpo.journal.lock.holder", lambda directory: "somebody")
    assert state() == "paused"
    assert "state             paused" in text.status(run, overview.of(run))
    launched(run, command(1, Pause(**ASKED)), command(2, Unpause(**ASKED)))
    assert state() == "running"
    give(run, Stop(**ASKED))
    assert state() == "stopping"
    monkeypatch.undo()
    clear_stop(run)
    launched(run, ended("done", 0))
    assert state() == "done"


def test_commands_of_another_version_are_left_out() -> None:
    standing = Standing()
    later = journals.record(command(1, Pause(**ASKED)) | {"name": "dance", "arguments": {"with": "me"}})
    assert isinstance(later, Command) and standing.add(later) is None
    assert standing.applied == {later.id} and not standing.paused
    assert json.loads(encode(later))["arguments"] == {"with": "me"}


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
    assert stop_pending(launch.run) and waiting(launch.run) == 0
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
    (launch.run / "commands" / "nonsense").write_text("{")
    assert launch(20, deadline="1s") == (DEADLINE, EXIT_RESUMABLE) and launch.count == 10
    said = capsys.readouterr().err
    assert "refused: point 1: a constraint refuses {'x': 0.5}" in said
    assert said.count("commands/nonsense is no command") == 1
    assert cli.main(["drain", str(launch.run), "0-0"]) == 0
    assert launch(20) == (STOPPED, EXIT_RESUMABLE) and launch.count == 10
    said = capsys.readouterr().err
    assert "worker 0-0 gets nothing more" in said and "paused" in said
    status = results.status(results.load(launch.run))
    assert status["left"] == [{"worker": "0-0", "reason": "drained"}]
    assert cli.main(["status", str(launch.run)]) == 0 and "worker 0-0: drained" in capsys.readouterr().out
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
    assert results.status(results.load(launch.run))["budget"] == {"evaluations": 5, "deadline": None}
    assert launch(14) == (DONE, 0) and launch.count == 14  # the file says something new


def test_what_failed_is_evaluated_again_by_the_next_launch(launch: Launches) -> None:
    launch.broken_from = 6
    assert launch(9)[1] == 0
    failed = {one.id for one in results.load(launch.run).individuals if one.status == FAILED}
    assert len(failed) == 4
    launch.broken_from = 0
    for _ in range(2):
        assert cli.main(["retry", str(launch.run)]) == 0
    assert launch(9) == (DONE, 0)
    individuals = results.load(launch.run).individuals
    assert [one.status for one in individuals] == [COMPLETED] * 9
    assert {one.id for one in individuals} >= failed and launch.count == 9 + len(failed)


def test_a_failure_that_was_reopened_and_is_not_on_record_yet_is_not_reopened_again() -> None:
    """A retry reads the journals, and rank 0's may not be written for now."""
    simulation, _ = make(1, workers=2, evaluations=5)
    coordinator = simulation.coordinator
    coordinator.tally.counts["failed"] = 1
    failure = make_assignment(id="0-0-0", params={}, key="k", operator="random", admitted=True, reopened=1)
    assert coordinator.retry([("failed", failure)], "hpo retry by me") == 1
    assert coordinator.retry([("failed", failure)], "hpo retry by me") == 0
    assert coordinator.tally.counts["failed"] == 0
