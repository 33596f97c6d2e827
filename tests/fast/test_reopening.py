"""Failures that do not count any more: their individuals are evaluated again under their ids."""

from __future__ import annotations

import itertools
import random

import pytest
from individuals import make_assignment, make_finished, make_started

import hpo
from hpo.individual import COMPLETED, FAILED, INVALID, Outcome
from hpo.islands.coordinator.health import Health
from hpo.islands.messages import EvaluationEnd
from hpo.islands.resume.fold import fold as fold_all
from hpo.islands.resume.individuals import failures
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Finished, Header, Record, Reopened, Started
from hpo.results.record import Fold

SPACE = hpo.SearchSpace(x=hpo.Float(0, 1))
HEADER = Header(version=1, launch=1, island=0, worker=0, time=1.0)
IDENTITY = {"id": "0-3-7", "params": {"x": 0.25}, "operator": "random"}


def ended(status: str, reopened: int = 0) -> Finished:
    return make_finished(
        **IDENTITY,
        reopened=reopened,
        started=10.0 * reopened,
        finished=10.0 * reopened + 5,
        status=status,
        objectives={"value": 1.0} if status == "completed" else None,
        metrics={},
        error=None if status == "completed" else "OSError: no such mount",
    )


def reopened(number: int) -> Reopened:
    return Reopened(id="0-3-7", number=number, reason="failing worker", time=7.0)


def begun(reopened: int) -> Started:
    return make_started(**IDENTITY, reopened=reopened, time=10.0 * reopened)


def fold(records: list[Record]) -> ResumeState:
    return fold_all([HEADER, *records], space=SPACE, islands=1, losses=lambda found: (found["value"],))


STORIES: list[tuple[list[Record], str]] = [
    ([begun(0), ended("failed")], "failed"),
    ([begun(0), ended("failed"), reopened(1)], "lost"),
    ([begun(0), ended("failed"), reopened(1), begun(1)], "lost"),
    ([begun(0), ended("failed"), reopened(1), begun(1), ended("completed", 1)], "completed"),
    ([ended("timeout"), reopened(1), ended("crashed", 1)], "crashed"),
    ([ended("failed"), reopened(1), ended("failed", 1), reopened(2)], "lost"),
    ([ended("failed"), reopened(1), ended("failed", 1), reopened(2), ended("completed", 2)], "completed"),
    ([ended("completed"), reopened(1)], "completed"),
]


@pytest.mark.parametrize(("records", "status"), STORIES)
def test_in_whatever_order_the_journals_are_read_the_last_run_counts(
    records: list[Record], status: str
) -> None:
    for order in itertools.permutations(records):
        read = Fold()
        read.add([HEADER, *order])
        (individual,) = read.individuals()
        assert individual.status == status, order

        state = fold(list(order))
        counts = {name: count for name, count in state.tally.counts.items() if count}
        assert counts == ({} if status == "lost" else {status: 1}), order
        assert len(state.pending) == (status == "lost")
        failed = {member.id for population in state.populations.values() for member in population.failures}
        assert ("0-3-7" in failed) == (status in ("failed", "crashed", "timeout")), order
        for assignment in state.pending:
            most = max((one.number for one in records if isinstance(one, Reopened)), default=0)
            assert (assignment.reopened, assignment.retries) == (most, 0)
            # Anew, unless it was begun again: then it may find what it has saved since.
            assert assignment.resumed == any(
                isinstance(one, Started) and one.reopened == most for one in records
            )


def test_only_failures_that_stand_may_be_reopened() -> None:
    assert failures([HEADER, ended("completed")], space=SPACE) == []
    assert failures([HEADER, ended("failed"), reopened(1)], space=SPACE) == []
    ((status, again),) = failures([HEADER, ended("failed"), reopened(1), ended("timeout", 1)], space=SPACE)
    assert (status, again.id, again.params, again.reopened) == ("timeout", "0-3-7", {"x": 0.25}, 2)
    assert again.admitted and not again.resumed


# Failures that the coordinator reopens


def over(number: int, status: str = FAILED, *, run: int = 0, reported: bool = False) -> EvaluationEnd:
    """The end of individual ``number``, which was reopened ``run`` times before."""
    identity, error = f"0-0-{number}", "OSError: no such mount"
    again = make_assignment(id=identity, params={}, key=identity, operator="random", reopened=run + 1)
    failed = status != COMPLETED
    return EvaluationEnd(
        token=number,
        id=identity,
        outcome=Outcome(status=status, error=error if failed else None, seconds=1.0),
        losses=None,
        reported=reported,
        fault=error if status == FAILED else None,
        again=again if failed else None,
    )


def check_a_random_launch(rng: random.Random) -> None:
    """Each run of an individual is reopened once at most, and only where it failed: else KeyError."""
    health = Health(30, patience_s=300, leaders=dict.fromkeys(range(4), 1))
    sick = {leader for leader in range(4) if rng.random() < 0.4}
    numbers = itertools.count()
    waiting: list[tuple[int, int]] = []
    failed: set[tuple[str, int]] = set()
    for _ in range(200):
        # Workers that were benched or died may have ended something that is learnt of later.
        leader = rng.randrange(4)
        again = waiting and rng.random() < 0.5
        number, run = waiting.pop(rng.randrange(len(waiting))) if again else (next(numbers), 0)
        bad = leader in sick or rng.random() < 0.1
        status = rng.choice([FAILED, FAILED, INVALID]) if bad else COMPLETED
        end = over(number, status, run=run, reported=rng.random() < 0.1)
        failed |= {(end.id, run + 1)} if bad else set()
        if rng.random() < 0.01:
            health.left(leader)
        actions = health.ended(leader, end)
        for one in [*actions.reopen, *([actions.test] if actions.test else [])]:
            failed.remove((one.again.id, one.again.reopened))
            waiting.append((int(one.again.id.split("-")[2]), one.again.reopened))
    for one in health.end_launch():
        failed.remove((one.again.id, one.again.reopened))


@pytest.mark.parametrize("seed", range(3))
def test_each_run_of_an_individual_is_reopened_once_and_only_after_it_has_failed(seed: int) -> None:
    rng = random.Random(f"reopened/{seed}")
    for _ in range(20):
        check_a_random_launch(rng)
