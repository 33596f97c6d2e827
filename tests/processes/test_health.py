"""A launch in which the first evaluations all fail ends; one in which anything works does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from individuals import make_assignment
from simulation import Simulation
from simulation.campaigns import fall_sick, losses, records_of

import hpo
from hpo.campaign import rank_entry
from hpo.individual import COMPLETED, CRASHED, FAILED, INTERRUPTED, INVALID, PRUNED, TIMEOUT, Outcome
from hpo.islands.coordinator.ending import Overdue
from hpo.islands.coordinator.health import Health
from hpo.islands.end_reasons import DEADLINE, DONE, FUTILE, NOTHING_COMPLETED
from hpo.islands.leader.evaluations import fault
from hpo.islands.messages import EvaluationEnd
from hpo.islands.resume.fold import fold
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Finished, Started
from hpo.ledger.entries import Limits
from hpo.search.kinds.evolution import RandomBreeder
from hpo.task.outcome import TaskOutcome

# --- the rule ---------------------------------------------------------------------------------------------------------


def watching(limit: int | None, workers: int = 1, **settings: object) -> Health:
    return Health(limit, **{"patience_s": 300.0, "leaders": dict.fromkeys(range(workers), 1), **settings})  # type: ignore[arg-type]


def over(
    number: int,
    status: str = FAILED,
    *,
    error: str = "KeyError: 'x'",
    reported: bool = False,
    resumed: bool = False,
    seconds: float = 1.0,
) -> EvaluationEnd:
    """The end of individual ``number``."""
    again = make_assignment(
        id=f"0-0-{number}", params={}, key=f"k{number}", operator="random", admitted=True, reopened=1
    )
    counted = fault(status, resumed=resumed, error=error)
    failed = status not in (COMPLETED, PRUNED, INTERRUPTED)
    return EvaluationEnd(
        token=number,
        id=f"0-0-{number}",
        outcome=Outcome(status=status, error=error, seconds=seconds),
        losses=None,
        reported=reported,
        fault=counted,
        again=again if failed else None,
    )


def fail(watch: Health, *numbers: int, leader: int = 0, **how: str) -> None:
    for number in numbers:
        watch.ended(leader, over(number, **how))  # type: ignore[arg-type]


def with_a_suspect(workers: int) -> Health:
    """Twenty completed on worker 1, and the last three, 20 to 22, failed on worker 0."""
    watch = watching(None, workers=workers)
    for number in range(20):
        watch.ended(1, over(number, COMPLETED))
    for number in (20, 21, 22):
        watch.ended(0, over(number))
    return watch


def test_a_launch_in_which_all_fails_begins_nothing_more() -> None:
    watch = watching(3)
    fail(watch, 0, error="a")
    watch.ended(0, over(9, INTERRUPTED))  # it says nothing of the launch
    fail(watch, 1, error="b")
    assert not watch.holds_all and not watch.holds(0)
    fail(watch, 2, error="b")
    assert watch.holds_all and watch.holds(0)
    assert [one.again.id for one in watch.end_launch()] == ["0-0-0", "0-0-1", "0-0-2"]
    for limit, workers, others in ((None, 1, 100), (2, 4, 3)):  # off; fewer than workers
        watch = watching(limit, workers=workers)
        for leader in range(others):
            fail(watch, leader, leader=leader % workers, error=str(leader))
        assert not watch.holds_all


@pytest.mark.parametrize("status", [COMPLETED, INVALID])
def test_one_that_trained_begins_the_count_anew(status: str) -> None:
    watch = watching(2)
    fail(watch, 0, 1)
    assert watch.holds_all
    watch.ended(0, over(2, status))
    fail(watch, 3, error="a")
    assert not watch.holds_all


@pytest.mark.parametrize("status, works", [(INTERRUPTED, True), (FAILED, False)])
def test_reports_show_that_a_launch_works_unless_nothing_comes_of_them(status: str, works: bool) -> None:
    watch = watching(3)
    fail(watch, 1, 2)
    watch.ended(0, over(0, status, reported=True))
    fail(watch, 3)
    assert watch.holds_all is not works


@pytest.mark.parametrize(
    "status, earlier, needed, reported",
    [
        (TIMEOUT, (0, 9), 30, False),  # their errors are always the same
        (CRASHED, (0, 9), 10, True),
        (CRASHED, (50, 5), 30, False),
        (TIMEOUT, (3, 9), None, False),  # few completed before: many in vain are no surprise
        (FAILED, (50, 5), 10, True),
    ],
)
def test_time_outs_and_crashes_count_and_so_does_what_completed_before(
    status: str, earlier: tuple[int, int], needed: int | None, reported: bool
) -> None:
    watch = watching(30, workers=1, earlier=earlier)
    held = []
    for number in range(100):
        watch.ended(0, over(number, status, reported=reported))
        held.append(watch.holds_all)
    assert (held.index(True) + 1 if any(held) else None) == needed


def test_what_takes_as_long_as_a_time_out_is_waited_for_as_long() -> None:
    watch = watching(2, workers=2)
    for number in (0, 1):
        watch.ended(0, over(number, TIMEOUT, seconds=1800.0))
    assert not watch.lost_patience(0.0, lambda: [1]) and not watch.lost_patience(1799.0, lambda: [1])
    assert watch.lost_patience(1800.0, lambda: [1])
    assert "2 timeout" in watch.sentence() and "[evaluation] timeout" in watch.sentence()


def test_a_launch_that_has_worked_needs_a_row_that_is_improbable() -> None:
    """Nine of ten fail: fifty in a row do not mean anything."""
    watch = watching(30)
    for number in range(0, 300, 10):
        watch.ended(0, over(number, COMPLETED))
        fail(watch, *range(number + 1, number + 10))
    fail(watch, *range(300, 350))
    assert not watch.holds_all
    fail(watch, *range(350, 420))
    assert watch.holds_all


def test_what_runs_is_waited_for_and_then_the_others_begin_again_until_it_has_ended() -> None:
    watch = watching(2, workers=2)
    fail(watch, 0, 1, error="a")
    assert watch.holds_all and not watch.lost_patience(1000.0, lambda: [1])
    assert not watch.lost_patience(1299.0, lambda: [1])
    assert watch.lost_patience(1300.0, lambda: [1])
    assert not watch.holds_all
    fail(watch, 2, 3, 4)
    assert not watch.holds_all
    fail(watch, 5, leader=1)
    assert watch.holds_all and not watch.lost_patience(2000.0, list)


def test_a_worker_whose_individual_fails_elsewhere_too_goes_on_for_twice_as_long() -> None:
    watch = with_a_suspect(workers=2)
    found = watch.ended(1, over(22))
    assert not found.bench and not found.reopen and not watch.holds(0)
    tests = [watch.ended(0, over(number)).test for number in range(30, 42)]
    assert [one is not None for one in tests].index(True) >= 5


def test_a_suspect_that_works_after_all_is_none() -> None:
    watch = with_a_suspect(workers=2)
    assert watch.holds(0)
    watch.ended(0, over(23, COMPLETED))
    assert not watch.holds(0)
    assert not watch.ended(1, over(22, COMPLETED)).bench


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("gone", ["benched", "dead"])
def test_a_test_ends_where_the_worker_that_makes_it_is_benched_or_dies_meanwhile(
    works: bool, gone: str
) -> None:
    """Else the suspect got nothing more in this launch, whatever the test had shown."""
    watch = watching(None, workers=3)
    for number in range(20):
        watch.ended(1, over(number, COMPLETED))
        watch.ended(2, over(100 + number, COMPLETED))
    for number in (20, 21, 22):
        watch.ended(0, over(number))
    assert watch.holds(0)
    # Individual 22 begins on worker 1, which is found to fail, or dies, before it ends.
    if gone == "benched":
        for number in (130, 131, 132):
            watch.ended(1, over(number))
        assert watch.ended(2, over(132, COMPLETED)).bench
    else:
        watch.left(1)
    found = watch.ended(1, over(22, COMPLETED if works else CRASHED))
    assert (found.bench, watch.holds(0)) == (works, works)
    if works:
        assert [one.again.id for one in found.reopen] == ["0-0-20", "0-0-21"]


def test_an_individual_that_no_other_worker_could_take_tests_nothing() -> None:
    watch = with_a_suspect(workers=3)
    watch.left(1)
    assert not watch.holds(0)
    again = watch.ended(0, over(22))
    assert again.test is None
    watch.ended(2, over(40, COMPLETED))  # now another could
    assert not watch.holds(0)
    found = watch.ended(0, over(23))
    assert found.test is not None and found.test.again.id == "0-0-23"
    works = watch.ended(2, over(23, COMPLETED))
    assert [one.again.id for one in works.reopen] == ["0-0-20", "0-0-21", "0-0-22"]


def test_the_sentence_names_how_many_the_errors_their_output_the_rule_and_the_remedy() -> None:
    watch = watching(3, printed=lambda identity: f"run/{identity}.txt has what it printed")
    fail(watch, 0, 2, 3, error="FileNotFoundError: 'cifar'")
    fail(watch, 1, error="MemoryError")
    sentence = watch.sentence()
    for words in (
        "4 evaluations failed",
        "first_failures = 3",
        "0-0-3 the latest: FileNotFoundError: 'cifar'\n    run/0-0-3.txt",
        "0-0-1: MemoryError\n    run/0-0-1.txt",
        "same command again",
        '"off"',
    ):
        assert words in sentence, sentence
    fail(watch, 4, error="FileNotFoundError: 'cifar'")
    assert "MemoryError" not in watch.sentence() and "0-0-4 the latest" in watch.sentence()


# --- whole campaigns in virtual time ----------------------------------------------------------------------------------

SPACE = hpo.SearchSpace(x=hpo.Float(-5, 5))
BROKEN = TaskOutcome(status=FAILED, error="FileNotFoundError: 'cifar'")
WELL = TaskOutcome(status=COMPLETED, objectives={"value": 1.0})


def simulate(
    outcome: Callable[[int], TaskOutcome],
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


def finished(simulation: Simulation, status: str) -> int:
    return sum(isinstance(r, Finished) and r.status == status for r in records_of(simulation))


def end(simulation: Simulation) -> tuple[str, int]:
    assert simulation.coordinator.end is not None
    return simulation.coordinator.end.reason, simulation.coordinator.end.exit_code


@pytest.mark.parametrize("seed", range(4))
def test_a_campaign_in_which_all_fail_ends_and_keeps_what_it_did(seed: int) -> None:
    draws = [random.Random(seed).lognormvariate(0, 1) for _ in range(300)]
    simulation = simulate(lambda number: BROKEN, duration=lambda index: draws[index], seed=seed)
    assert end(simulation) == (FUTILE, 1)
    told = simulation.coordinator.end and simulation.coordinator.end.error
    assert told is not None and "FileNotFoundError: 'cifar'" in told
    # Ten with the same error, and what then runs at four workers. None of them counts.
    assert 10 <= finished(simulation, FAILED) <= 13
    assert simulation.coordinator.tally.final == 0
    earlier = earlier_of(simulation)
    assert earlier.tally.final == 0 and len(earlier.pending) == finished(simulation, FAILED)
    begun = {r.id for r in records_of(simulation) if isinstance(r, Started)}
    ended = {r.id for r in records_of(simulation) if isinstance(r, Finished) and r.status == FAILED}
    assert ended <= begun


@pytest.mark.parametrize(("limit", "evaluations"), [(None, 300), (30, 9)])
def test_switched_off_or_with_a_smaller_budget_it_spends_that_in_vain(
    limit: int | None, evaluations: int
) -> None:
    simulation = simulate(lambda number: BROKEN, first_failures=limit, evaluations=evaluations)
    assert end(simulation) == (NOTHING_COMPLETED, 1) and finished(simulation, FAILED) == evaluations


def without_a_budget(simulation: Simulation) -> None:
    simulation.coordinator.evaluations = None
    assert simulation.coordinator._commands is not None
    simulation.coordinator._commands.participation.state.limits = Limits()


@pytest.mark.parametrize("others", [1.0, 1000.0])
def test_what_a_deadline_cuts_off_was_not_in_vain(others: float) -> None:
    simulation = simulate(
        lambda number: BROKEN,
        duration=lambda index: others if index else 1.0,
        evaluations=10_000,
        deadline=5.0,
        prepare=without_a_budget,
    )
    assert end(simulation) == ((FUTILE, 1) if others == 1.0 else (DEADLINE, 0))
    assert finished(simulation, INTERRUPTED) == (0 if others == 1.0 else 4)


class Refused:
    """A rank of a campaign that ends with an error after it has served, as where all fails."""

    exit_code = process_code = 0

    def run(self) -> None:
        raise hpo.CampaignError("the first evaluations all failed")


@pytest.mark.parametrize(("rank", "ours", "code"), [(0, False, 1), (0, True, 0), (1, False, 0)])
def test_ranks_that_leave_without_mpi_leave_with_the_errors_code(
    rank: int, ours: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others died: rank 0 alone speaks, and to hpo's own mpirun it has spoken already."""
    refused = Refused()
    monkeypatch.setattr(rank_entry, "connect", lambda: SimpleNamespace(rank=rank, size=2))
    monkeypatch.setattr(rank_entry, "Rank", lambda *arguments: refused)
    with nullcontext() if rank else pytest.raises(hpo.CampaignError):
        assert rank_entry.as_rank(lambda: None, started_by_us=ours) == 0
    assert refused.process_code == code


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


def earlier_of(simulation: Simulation) -> ResumeState:
    return fold(records_of(simulation), space=SPACE, islands=2, losses=losses)


def test_the_next_launch_goes_on_with_a_new_count() -> None:
    first = simulate(lambda number: BROKEN)
    again = simulate(lambda number: BROKEN, earlier=earlier_of(first), seed=1)
    assert end(again) == (FUTILE, 1)
    assert 10 <= finished(again, FAILED) <= 13
    mended = simulate(lambda number: WELL, earlier=earlier_of(first), seed=1)
    # What had failed is evaluated under its id.
    assert end(mended) == (DONE, 0) and finished(mended, COMPLETED) == 300
    ids = {one.id for one in records_of(mended) if isinstance(one, Finished)}
    assert {one.id for one in records_of(first) if isinstance(one, Finished)} <= ids


@pytest.mark.parametrize("sick", [0, 7])
def test_a_sick_worker_costs_no_individual(sick: int) -> None:
    """From 20 s on, its evaluations fail after 0.1 s."""
    simulation = simulate(
        lambda number: WELL,
        duration=lambda index: 1.0 + index % 7,
        prepare=lambda simulation: fall_sick(simulation, sick, 20.0),
        workers=8,
    )
    assert end(simulation) == (DONE, 0)
    assert simulation.coordinator.tally.counts == {COMPLETED: 300, FAILED: 0}
    state = earlier_of(simulation)
    assert state.tally.counts[COMPLETED] == 300 and not state.tally.counts.get(FAILED) and not state.pending
    assert any("gets nothing more" in remark for remark in simulation.coordinator.remarks)
    assert [reason for _, _, reason in simulation.left] == ["failing"]
    ends = [one.finished for one in records_of(simulation) if isinstance(one, Finished)]
    assert max(ends) < 300 * 4.0 / 6, "the rest is not idle: six workers could do it in 200 s"


@pytest.mark.parametrize(("timed", "said"), [(False, 1), (True, 0)])
def test_an_evaluation_that_far_exceeds_the_median_is_said_once(timed: bool, said: int) -> None:
    def prepare(simulation: Simulation) -> None:
        simulation.coordinator._overdue = Overdue(timed=timed)
        for minute in range(600):
            simulation.at(60.0 * minute, simulation.coordinator.step)

    simulation = simulate(
        lambda number: WELL,
        duration=lambda index: 30_000.0 if index == 20 else 30.0,
        evaluations=60,
        prepare=prepare,
    )
    remarks = [one for one in simulation.coordinator.remarks if "nothing ends it" in one]
    assert len(remarks) == said
    if said:
        assert "worker" in remarks[0] and "[evaluation] timeout" in remarks[0]
