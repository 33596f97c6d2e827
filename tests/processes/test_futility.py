"""A launch in which the first evaluations all fail ends; one in which anything works does not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from simulation import Simulation

import hpo
from hpo.campaign import launch
from hpo.config.layout import WorkerPlacement
from hpo.errors import EXIT_RESUMABLE
from hpo.individual import COMPLETED, CRASHED, FAILED, INTERRUPTED, INVALID, PRUNED, STATUSES, TIMEOUT
from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.coordinator.ending import DEADLINE, DONE, FUTILE, IN_VAIN, STOPPED
from hpo.islands.coordinator.futility import Futility, fault
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.messages import (
    Claim,
    EvaluationEnd,
    Grant,
    Message,
    Recall,
    Results,
    Returned,
    StopRequest,
    Unfit,
    Want,
    decode,
    encode,
)
from hpo.islands.resume import DeadLeaderRecord, ResumeState, fold
from hpo.journal.records import Finished, Started
from hpo.search.early_stopping import Pruner
from hpo.search.kinds.evolution import RandomBreeder
from hpo.search.protocols import Candidate, TrialReport
from hpo.task.outcome import Outcome

# --- the rule ---------------------------------------------------------------------------------------------------------


def nobody() -> list[str]:
    return []


def unasked() -> list[str]:
    raise AssertionError("nobody needs to know yet")


def fail(watch: Futility, *numbers: int, error: str = "KeyError: 'x'") -> None:
    for number in numbers:
        watch.ended(f"k{number}", f"0-0-{number}", FAILED, reported=False, fault=error)


def test_so_many_failures_and_nobody_beside_them_are_enough() -> None:
    watch = Futility(3, patience_s=300)
    fail(watch, 0, 1)
    assert not watch.futile(unasked)
    fail(watch, 2)
    assert watch.futile(nobody)


def test_watching_for_nothing() -> None:
    watch = Futility(None, patience_s=300)
    fail(watch, *range(100))
    assert not watch.futile(unasked)


@pytest.mark.parametrize("status", [COMPLETED, PRUNED, INVALID])
def test_one_that_trained_ends_the_watch_for_good(status: str) -> None:
    watch = Futility(3, patience_s=300)
    fail(watch, 0, 1)
    watch.ended("k2", "0-0-2", status, reported=False, fault=None)
    fail(watch, *range(3, 100))
    assert watch.alive and not watch.futile(unasked)


@pytest.mark.parametrize("status", [FAILED, TIMEOUT, CRASHED, INTERRUPTED])
def test_one_that_reported_a_value_trained_however_it_ended(status: str) -> None:
    watch = Futility(1, patience_s=300)
    watch.ended("k0", "0-0-0", status, reported=True, fault="KeyError" if status == FAILED else None)
    fail(watch, 1, 2)
    assert not watch.futile(unasked)


@pytest.mark.parametrize("status", [TIMEOUT, CRASHED, INTERRUPTED])
def test_other_ends_say_neither(status: str) -> None:
    watch = Futility(2, patience_s=300)
    fail(watch, 0)
    watch.ended("k1", "0-0-1", status, reported=False, fault=None)
    assert not watch.futile(unasked)
    fail(watch, 2)
    assert watch.futile(nobody)


def test_only_failures_of_individuals_that_were_begun_here_count() -> None:
    for status, resumed in itertools.product(STATUSES, (False, True)):
        counted = fault(status, resumed=resumed, error="KeyError")
        assert counted == ("KeyError" if status == FAILED and not resumed else None)


def test_there_are_two_rounds_of_hope() -> None:
    watch = Futility(2, patience_s=300)
    fail(watch, 0, 1)
    assert not watch.futile(lambda: ["k2", "k3"])
    fail(watch, 2, 4, 5)  # those two were begun later, and are of no round yet
    assert not watch.futile(unasked)
    fail(watch, 3)
    assert not watch.futile(lambda: ["k6"])
    fail(watch, 7, 8, 9)
    assert not watch.futile(unasked)
    fail(watch, 6)
    assert watch.futile(unasked)


@pytest.mark.parametrize("round_", [1, 2])
def test_who_completes_in_a_round_of_hope_ends_the_watch(round_: int) -> None:
    watch = Futility(1, patience_s=300)
    fail(watch, 0)
    assert not watch.futile(lambda: ["k1", "k2"])
    fail(watch, 1)
    if round_ == 2:
        fail(watch, 2)
        assert not watch.futile(lambda: ["k3"])
    watch.ended("k9", "0-0-9", COMPLETED, reported=True, fault=None)
    fail(watch, 2, 3)
    assert not watch.futile(unasked)


def test_nothing_more_is_begun_once_as_many_again_have_failed() -> None:
    watch = Futility(3, patience_s=300)
    fail(watch, 0, 1, 2)
    assert not watch.futile(lambda: ["k9"]) and not watch.holds
    fail(watch, 3, 4)
    assert not watch.holds
    fail(watch, 5)
    assert watch.holds and not watch.futile(unasked)
    watch.ended("k9", "0-0-9", COMPLETED, reported=False, fault=None)
    assert not watch.holds
    assert not Futility(None, patience_s=300).holds


def test_that_holds_the_others_up_for_a_while_only() -> None:
    watch = Futility(3, patience_s=300)
    fail(watch, *range(5))
    assert not watch.lost_patience(0.0)
    assert not watch.futile(lambda: ["k9"])
    fail(watch, 5)
    assert watch.holds and not watch.lost_patience(1000.0) and not watch.lost_patience(1299.0)
    assert watch.lost_patience(1300.0) and not watch.holds
    # Once is enough, whatever fails then; who was hoped for is still waited for.
    fail(watch, *range(10, 100))
    assert not watch.holds and not watch.lost_patience(2000.0) and not watch.futile(unasked)
    fail(watch, 9)
    assert watch.futile(nobody)


def test_of_many_workers_as_many_may_fail() -> None:
    watch = Futility(3, patience_s=300, workers=50)
    fail(watch, *range(99))
    assert not watch.futile(lambda: ["k9999"]) and not watch.holds
    fail(watch, 99)
    assert watch.holds


def test_nobody_is_hoped_for_who_is_not_evaluated_after_all() -> None:
    watch = Futility(1, patience_s=300)
    fail(watch, 0)
    assert not watch.futile(lambda: ["k1", "k2"])
    watch.released("k1")
    watch.ended("k2", "0-0-2", INTERRUPTED, reported=False, fault=None)
    assert watch.futile(nobody)


def test_the_sentence_names_how_many_the_errors_their_output_the_rule_and_the_remedy() -> None:
    watch = Futility(3, patience_s=300, printed=lambda identity: f"run/{identity}.txt has what it printed")
    fail(watch, 0, 2, 3, error="FileNotFoundError: 'cifar'")
    fail(watch, 1, error="MemoryError")
    told = watch.sentence()
    for words in (
        "4 evaluations failed and none completed",
        "first_failures = 3",
        "3 of them for this, 0-0-3 the latest: FileNotFoundError: 'cifar'\n    run/0-0-3.txt has what it printed",
        "The last was 0-0-1: MemoryError\n    run/0-0-1.txt has what it printed",
        "What was recorded stays",
        "give the same command again",
        '"off"',
    ):
        assert words in told, told
    fail(watch, 4, error="FileNotFoundError: 'cifar'")
    assert "The last was" not in watch.sentence() and "4 of them for this, 0-0-4" in watch.sentence()


def test_errors_that_all_differ_take_no_more_and_more_memory() -> None:
    watch = Futility(3, patience_s=300)
    for number in range(1000):
        fail(watch, number, error=f"at {number}")
    assert len(watch._errors) <= 100 and "1000 evaluations failed" in watch.sentence()
    assert "1 of them for this, 0-0-999 the latest: at 999" in watch.sentence()


def test_who_has_reported_a_finite_value_is_remembered() -> None:
    stopping = Pruner(None, sign=1.0, forget=lambda identity: None)
    place = {"sequence": 0, "genome": (), "params": {}, "key": "", "operator": "random", "home": (0, 0)}
    stopping.start(Candidate(token=0, id="0-0-0", **place))  # type: ignore[arg-type]
    assert not stopping.reported("0-0-0")
    stopping.report(TrialReport("0-0-0", 1, float("nan")))
    assert not stopping.reported("0-0-0")
    stopping.report(TrialReport("0-0-0", 2, 0.5))
    stopping.report(TrialReport("0-0-0", 3, float("nan")))
    assert stopping.reported("0-0-0") and not stopping.reported("0-0-1")
    stopping.start(Candidate(token=1, id="0-0-1", **place))  # type: ignore[arg-type]
    assert not stopping.reported("0-0-1")


# --- whole campaigns in virtual time ----------------------------------------------------------------------------------

SPACE = hpo.SearchSpace(x=hpo.Float(-5, 5))
BROKEN = Outcome(status=FAILED, error="FileNotFoundError: 'cifar'")
WELL = Outcome(status=COMPLETED, objectives={"value": 1.0})


def simulate(
    outcome: Callable[[int], Outcome],
    *,
    duration: Callable[[int], float] = lambda index: 1.0,
    prepare: Callable[[Simulation], None] = lambda simulation: None,
    seed: int = 0,
    **changes: object,
) -> Simulation:
    """``outcome``: of the individual of that number, by the order in which they begin."""
    settings: dict[str, object] = {"workers": 4, "islands": 2, "evaluations": 300, "first_failures": 30}
    simulation = Simulation(
        SPACE,
        lambda params: 0.0,
        duration=duration,
        breeder=lambda rank: RandomBreeder(SPACE),
        jitter=True,
        durable_starts=True,
        seed=seed,
        **{**settings, **changes},  # type: ignore[arg-type]
    )
    simulation.evaluate = lambda candidate: outcome(simulation.evaluated.index(candidate.key))  # type: ignore[method-assign]
    prepare(simulation)
    simulation.run()
    return simulation


def records_of(simulation: Simulation) -> list[dict[str, object]]:
    return [record for journal in simulation.journals for record in journal.committed]


def finished(simulation: Simulation, status: str) -> int:
    return sum(isinstance(r, Finished) and r.status == status for r in records_of(simulation))


def end(simulation: Simulation) -> tuple[str, int]:
    assert simulation.coordinator.end is not None
    return simulation.coordinator.end.reason, simulation.coordinator.end.exit_code


@pytest.mark.parametrize("seed", range(10))
def test_a_campaign_in_which_all_fail_ends_and_keeps_what_it_did(seed: int) -> None:
    draws = [random.Random(seed).lognormvariate(0, 1) for _ in range(300)]
    simulation = simulate(lambda number: BROKEN, duration=lambda index: draws[index], seed=seed)
    assert end(simulation) == (FUTILE, 1)
    told = simulation.coordinator.end and simulation.coordinator.end.error
    assert told is not None and "FileNotFoundError: 'cifar'" in told
    # The thirty, and up to as many again, with what then runs at four workers; the rest is left to the next launch.
    assert 30 <= finished(simulation, FAILED) <= 64
    assert simulation.coordinator.tally.final == finished(simulation, FAILED)
    begun = {r.id for r in records_of(simulation) if isinstance(r, Started)}
    ended = {r.id for r in records_of(simulation) if isinstance(r, Finished) and r.status == FAILED}
    assert ended <= begun


def test_switched_off_it_spends_its_budget_and_says_that_it_was_in_vain() -> None:
    simulation = simulate(lambda number: BROKEN, first_failures=None)
    assert end(simulation) == (IN_VAIN, 1) and finished(simulation, FAILED) == 300


def test_a_budget_that_is_smaller_is_in_vain_too() -> None:
    simulation = simulate(lambda number: BROKEN, evaluations=20)
    assert end(simulation) == (IN_VAIN, 1) and finished(simulation, FAILED) == 20


def without_a_budget(simulation: Simulation) -> None:
    simulation.coordinator._evaluations = None


@pytest.mark.parametrize("others", [1.0, 1000.0])
def test_what_a_deadline_cuts_off_was_not_in_vain(others: float) -> None:
    simulation = simulate(
        lambda number: BROKEN,
        duration=lambda index: others if index else 1.0,
        evaluations=10_000,
        deadline=5.0,
        prepare=without_a_budget,
    )
    assert end(simulation) == ((IN_VAIN, 1) if others == 1.0 else (DEADLINE, 0))
    assert finished(simulation, INTERRUPTED)


class Refused:
    """A campaign that ends with an error after it has served, as where all fails."""

    exit_code = process_code = 0

    def run(self, *told: object) -> None:
        raise hpo.CampaignError("the first evaluations all failed")


@pytest.mark.parametrize(("rank", "ours", "code"), [(0, False, 1), (0, True, 0), (1, False, 0)])
def test_ranks_that_leave_without_mpi_leave_with_the_errors_code(
    rank: int, ours: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others died: rank 0 alone speaks, and to hpo's own mpirun it has spoken already."""
    campaign = Refused()
    monkeypatch.setattr(launch, "connect", lambda: SimpleNamespace(rank=rank, size=2))
    monkeypatch.setattr(launch.Campaign, "from_file", lambda file: campaign)
    with nullcontext() if rank else pytest.raises(hpo.CampaignError):
        assert launch._as_rank(Path("c.toml"), started_by_us=ours) == 0
    assert campaign.process_code == code


@pytest.mark.parametrize("well", [0, 15, 29])
def test_one_that_completes_among_the_first_is_enough(well: int) -> None:
    simulation = simulate(lambda number: WELL if number == well else BROKEN)
    assert end(simulation) == (DONE, 0) and finished(simulation, FAILED) == 299


def test_who_takes_longer_than_thirty_that_fail_is_waited_for() -> None:
    """Three work, and take a hundred times as long as those that fail at one other worker."""
    simulation = simulate(
        lambda number: WELL if number < 3 else BROKEN,
        duration=lambda index: 100.0 if index < 3 else 1.0,
    )
    assert end(simulation) == (DONE, 0) and finished(simulation, COMPLETED) == 3


@pytest.mark.parametrize("works", [True, False])
def test_while_one_worker_takes_long_the_others_do_not_use_the_budget_up(works: bool) -> None:
    """Its evaluators start, say, for as long as others fail ten thousand times."""
    simulation = simulate(
        lambda number: WELL if works and number == 3 else BROKEN,
        duration=lambda index: 100.0 if index == 3 else 0.01,
        latency_s=0.0001,
        evaluations=2000,
    )
    records = [record for record in records_of(simulation) if isinstance(record, Finished)]
    soon = [record for record in records if record.finished < 99]  # type: ignore[operator]
    assert len(soon) <= 70
    if works:  # and then the others go on
        assert end(simulation) == (DONE, 0) and len(records) == 2000
    else:
        assert end(simulation) == (FUTILE, 1) and len(records) <= 75


def looked_at_every_minute(simulation: Simulation) -> None:
    for minute in range(20):
        simulation.at(60.0 * minute, simulation.coordinator.step)


def test_workers_are_not_idle_for_as_long_as_one_trains() -> None:
    """Most configurations fail at once, and those that do not take hours and report nothing meanwhile."""
    simulation = simulate(
        lambda number: WELL if number % 40 == 3 else BROKEN,
        duration=lambda index: 7_200.0 if index % 40 == 3 else 1.0,
        prepare=looked_at_every_minute,
        evaluations=200,
    )
    assert end(simulation) == (DONE, 0) and finished(simulation, COMPLETED) == 5
    records = records_of(simulation)
    began = [float(str(r.started)) for r in records if isinstance(r, Finished) and r.status == COMPLETED]
    # The others begin theirs some minutes after the first, and not when it is over.
    assert sorted(began)[3] < 600.0


def two_workers(*seconds: float, well: int) -> Simulation:
    """Two failures are enough; evaluations last so long, then a second, and number ``well`` completes."""
    return simulate(
        lambda number: WELL if number == well else BROKEN,
        duration=lambda index: seconds[index] if index < len(seconds) else 1.0,
        workers=2,
        islands=1,
        evaluations=40,
        first_failures=2,
    )


def test_who_began_beside_the_last_of_them_is_waited_for_too() -> None:
    # At 1.5 s two have failed, and 2 is hoped for; that fails at 2 s, and 3, begun at 1.5 s, is hoped for.
    simulation = two_workers(1.0, 1.5, 1.0, 10.0, well=3)
    assert end(simulation) == (DONE, 0) and finished(simulation, FAILED) == 39


def test_what_is_begun_after_that_is_not_hoped_for_but_may_end_in_the_grace() -> None:
    # At 3 s the hopes are over; 4 runs from 2 s on.
    simulation = two_workers(1.0, 1.5, 1.0, 1.5, 30.0, well=40)
    assert end(simulation) == (FUTILE, 1)
    assert (finished(simulation, FAILED), finished(simulation, INTERRUPTED)) == (4, 1)
    simulation = two_workers(1.0, 1.5, 1.0, 1.5, 30.0, well=4)
    assert end(simulation) == (STOPPED, EXIT_RESUMABLE)
    assert (finished(simulation, FAILED), finished(simulation, COMPLETED)) == (4, 1)


def test_one_worker_needs_no_more_than_thirty() -> None:
    simulation = simulate(lambda number: BROKEN, workers=1, islands=1)
    assert end(simulation) == (FUTILE, 1) and finished(simulation, FAILED) == 30


def test_who_was_pruned_or_returned_nan_has_trained() -> None:
    invalid = Outcome(status=INVALID, error="objective 'value' is nan")
    simulation = simulate(lambda number: invalid)
    assert end(simulation) == (IN_VAIN, 1) and finished(simulation, INVALID) == 300
    simulation = simulate(lambda number: Outcome(status=PRUNED) if number == 3 else BROKEN)
    assert end(simulation) == (DONE, 0) and finished(simulation, FAILED) == 299


def test_crashes_and_time_outs_are_not_counted() -> None:
    for status in (CRASHED, TIMEOUT):
        simulation = simulate(lambda number, status=status: Outcome(status=status, error="gone"))  # type: ignore[misc]
        assert end(simulation) == (IN_VAIN, 1) and finished(simulation, status) == 300


def earlier_of(simulation: Simulation) -> ResumeState:
    losses = lambda objectives: tuple(objectives.values())  # noqa: E731
    return fold(records_of(simulation), space=SPACE, islands=2, losses=losses)


def test_the_next_launch_goes_on_with_a_new_count() -> None:
    first = simulate(lambda number: BROKEN)
    failed = finished(first, FAILED)
    again = simulate(lambda number: BROKEN, earlier=earlier_of(first), seed=1)
    assert end(again) == (FUTILE, 1)
    assert 30 <= finished(again, FAILED) < 100
    mended = simulate(lambda number: WELL, earlier=earlier_of(first), seed=1)
    assert end(mended) == (DONE, 0) and finished(mended, COMPLETED) == 300 - failed


def test_that_earlier_launches_completed_some_is_no_sign_of_life() -> None:
    first = simulate(lambda number: WELL, evaluations=50)
    assert end(first) == (DONE, 0)
    gone = simulate(lambda number: BROKEN, earlier=earlier_of(first), seed=1)
    assert end(gone) == (FUTILE, 1)


def test_what_was_cut_off_in_an_earlier_launch_does_not_count_as_a_failure() -> None:
    first = simulate(
        lambda number: BROKEN,
        workers=8,
        duration=lambda index: 1000.0,
        prepare=lambda simulation: simulation.at(
            5.0, lambda: simulation.post(1, 0, encode(StopRequest(STOPPED, True)))
        ),
    )
    assert end(first) == (STOPPED, EXIT_RESUMABLE) and finished(first, INTERRUPTED) == 8
    again = simulate(
        lambda number: BROKEN, workers=1, islands=1, first_failures=4, earlier=earlier_of(first), seed=1
    )
    # Eight that are resumed, and four of its own.
    assert end(again) == (FUTILE, 1) and finished(again, FAILED) == 12


@pytest.mark.parametrize("seed", range(10))
def test_deaths_of_ranks_neither_stop_the_watch_nor_hold_it_up(seed: int) -> None:
    rng = random.Random(seed)

    def deaths(simulation: Simulation) -> None:
        for rank in rng.sample(range(1, 6), rng.randint(1, 5)):
            simulation.at(
                rng.uniform(0, 12), lambda rank=rank: simulation.kill(rank, told_after=rng.choice([0.0, 1.0]))
            )

    simulation = simulate(lambda number: BROKEN, prepare=deaths, workers=6, seed=seed)
    assert end(simulation) == (FUTILE, 1)
    assert finished(simulation, FAILED) < 100


@pytest.mark.parametrize("seed", range(10))
def test_deaths_of_ranks_do_not_make_a_campaign_futile_in_which_all_else_completes(seed: int) -> None:
    rng = random.Random(seed)

    def deaths(simulation: Simulation) -> None:
        for rank in range(1, 6):
            simulation.at(rng.uniform(0, 12), lambda rank=rank: simulation.kill(rank, told_after=1.0))

    simulation = simulate(lambda number: WELL, prepare=deaths, workers=6, seed=seed, first_failures=1)
    assert end(simulation) == (DONE, 0) and finished(simulation, COMPLETED) == 300


class Listening:
    """A transport that keeps what is sent."""

    rank = 0

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []

    def send(self, destination: int, data: bytes) -> None:
        self.sent.append((destination, decode(data)))

    def now(self) -> float:
        return 0.0


BEGUN = Assignment(id="0-1-0", params={}, key="b", operator="random", resumed=True, admitted=True)


@pytest.mark.parametrize("news", [Unfit("no GPU", [(0, BEGUN)]), Returned([0, 1])])
def test_hope_ends_with_the_worker_where_it_was(news: Message) -> None:
    """Nothing more is begun while there is hope: without its end it would be a standstill."""
    transport = Listening()
    coordinator = Coordinator(
        transport=transport,  # type: ignore[arg-type]
        registry=WorkerRegistry(
            [WorkerPlacement(index=one, island=0, worker=one, ranks=(one,)) for one in (0, 1)]
        ),
        everyone=range(2),
        dead_leader_record=lambda place: DeadLeaderRecord(),
        journal_totals=ResumeState,
        evaluations=20,
        duplicates=False,
        grace_s=60.0,
        checkpoints=False,
        futility=Futility(1, patience_s=300),
    )
    coordinator.receive(1, Claim([Want(0, "b"), Want(1, "ahead")], False))
    for token in range(2):
        coordinator.receive(0, Claim([Want(token, f"a{token}")], False))
        coordinator.receive(
            0, Results([EvaluationEnd(token, f"0-0-{token}", FAILED, None, 1.0, False, "KeyError")])
        )
    assert (1, Recall(1)) in transport.sent and coordinator.end is None
    coordinator.receive(0, Claim([Want(2, "a2")], False))
    granted = [message.accepted for rank, message in transport.sent if isinstance(message, Grant)]
    assert granted == [[0, 1], [0], [1]]
    coordinator.receive(1, news)
    assert coordinator.end is not None and coordinator.end.reason == FUTILE


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_it_comes_to_an_end_and_is_futile_only_where_nothing_trained(seed: int) -> None:
    """Failures of any share, evaluations of very different length, deaths, signals: no standstill."""
    rng = random.Random(f"futility/{seed}")
    share, limit, workers = rng.choice([0.0, 0.02, 0.1, 0.5]), rng.randint(1, 12), rng.randint(1, 8)
    others = [Outcome(status=status, error="gone") for status in (CRASHED, TIMEOUT)]
    draws = [rng.lognormvariate(0, rng.choice([0.1, 2.0])) for _ in range(100)]
    outcomes = [
        WELL if rng.random() < share else rng.choice(others) if rng.random() < 0.1 else BROKEN
        for _ in range(400)
    ]

    def disturb(simulation: Simulation) -> None:
        if rng.random() < 0.5:
            for rank in rng.sample(range(1, workers), rng.randint(0, workers - 1)):
                when, told = rng.uniform(0, 30), rng.choice([0.0, 0.05, 1.0])
                simulation.at(when, lambda rank=rank, told=told: simulation.kill(rank, told_after=told))
        if rng.random() < 0.2:
            request = encode(StopRequest(STOPPED, rng.random() < 0.5))
            simulation.at(rng.uniform(0, 40), lambda: simulation.post(0, 0, request))

    simulation = simulate(
        lambda number: outcomes[number % 400],
        duration=lambda index: draws[index % 100],
        prepare=disturb,
        workers=workers,
        islands=rng.randint(1, min(3, workers)),
        evaluations=rng.randint(1, 200),
        first_failures=limit,
        latency_s=rng.choice([0.0005, 0.05, 0.5]),
        seed=seed,
    )
    reason, code = end(simulation)
    if finished(simulation, COMPLETED):
        assert reason in (DONE, STOPPED)
    else:
        assert (reason, code) in ((FUTILE, 1), (IN_VAIN, 1), (STOPPED, EXIT_RESUMABLE))
    if reason == FUTILE:
        assert finished(simulation, FAILED) >= limit
