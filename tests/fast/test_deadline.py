"""Close to the end of a launch: what would not be over in time is not begun, unless it saves itself."""

from __future__ import annotations

import itertools
import random
from collections import deque
from types import SimpleNamespace

import pytest
from cases import cases
from simulation import GRACE_S, Simulation

import hpo
from hpo.config.layout import Layout
from hpo.islands.coordinator.ending import Ending
from hpo.islands.coordinator.granting import Granting
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.launch import Backlog, LaunchRules
from hpo.islands.coordinator.tally import Tally
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.end_reasons import DEADLINE, STOPPED
from hpo.islands.messages import Claim, Message, Want, decode
from hpo.islands.resume.fold import fold
from hpo.journal.records import Finished
from hpo.search.kinds.evolution import RandomBreeder

SPACE = hpo.SearchSpace(x=hpo.Float(-5, 5))


def simulate(*, seconds: float, deadline: float | None, seed: int = 0, **changes: object) -> Simulation:
    """Eight workers; evaluations of ``seconds``, a tenth more or less."""
    rng = random.Random(seed)
    draws = [seconds * rng.uniform(0.9, 1.1) for _ in range(200)]
    simulation = Simulation(
        SPACE,
        lambda params: params["x"] ** 2,
        workers=8,
        islands=2,
        duration=lambda index: draws[index % 200],
        breeder=lambda rank: RandomBreeder(SPACE),
        jitter=True,
        durable_starts=True,
        deadline=deadline,
        seed=seed,
        **{"evaluations": 1000, **changes},  # type: ignore[arg-type]
    )
    simulation.run()
    return simulation


def statuses(simulation: Simulation) -> list[str]:
    records = itertools.chain.from_iterable(journal.committed for journal in simulation.journals)
    return [str(record.status) for record in records if isinstance(record, Finished)]


@pytest.mark.parametrize("seed", cases(range(3), nightly=range(3, 10)))
def test_what_would_not_be_over_in_time_is_not_begun(seed: int) -> None:
    simulation = simulate(seconds=10, deadline=95, seed=seed)
    begun = [when for when, _ in simulation.evaluations]
    assert set(statuses(simulation)) == {"completed"}
    assert 80 < max(begun) < 86  # as late as it may be
    assert simulation.time < 97  # nobody waits for the deadline with nothing to do
    assert simulation.coordinator.end is not None
    assert (simulation.coordinator.end.reason, simulation.coordinator.end.exit_code) == (DEADLINE, 75)


def test_what_saves_itself_is_begun_to_the_last() -> None:
    simulation = simulate(seconds=10, deadline=95, checkpoints=True)
    assert max(when for when, _ in simulation.evaluations) > 86


def test_what_the_launch_before_took_counts_but_where_no_launch_is_long_enough() -> None:
    """Eight have completed in the grace after the deadline; that they took longer than a launch holds back nothing in
    the next, which would never get any further."""
    first = simulate(seconds=40, deadline=30)
    assert statuses(first) == ["completed"] * 8
    earlier = fold(
        itertools.chain.from_iterable(journal.committed for journal in first.journals),
        space=SPACE,
        islands=2,
        losses=lambda objectives: tuple(objectives.values()),
    )
    assert simulate(seconds=40, deadline=30, earlier=earlier).started == 8
    assert simulate(seconds=40, deadline=60, earlier=earlier).started == 8
    assert simulate(seconds=40, deadline=60).started > 8, "nothing is known when the first have ended"


def test_a_job_that_ends_without_a_warning_stops_a_grace_before_its_end() -> None:
    simulation = simulate(seconds=10, deadline=None, checkpoints=True, must_end=150)
    begun = [when for when, _ in simulation.evaluations]
    assert 75 < max(begun) < 150 - GRACE_S + 1
    assert simulation.coordinator.end is not None
    assert (simulation.coordinator.end.reason, simulation.coordinator.end.exit_code) == (STOPPED, 75)


def test_times_count_by_the_size_of_the_workers() -> None:
    """Evaluations on workers of two ranks last 100 s and the others 10 s, and 60 s are left."""
    layout = Layout.plan(ranks=3, sizes=[1, 2])
    large, small = sorted(layout.workers, key=lambda place: -len(place.ranks))
    ending = Ending(began=0.0, deadline=1060.0, must_end=None, grace_s=0.0, checkpoints=False)
    tally = Tally(recent_s={small.island: [10.0] * 64, large.island: [100.0] * 5})
    sent: list[tuple[int, Message]] = []
    granting = Granting(
        transport=SimpleNamespace(now=lambda: 1000.0, send=lambda to, data: sent.append((to, decode(data)))),  # type: ignore[arg-type]
        registry=WorkerRegistry(layout.workers),
        rules=LaunchRules(ranks=3, evaluations=9, duplicates=False, checkpoints=False, grace_s=0.0),
        backlog=Backlog(units=9, tally=tally),
        health=Health(None, patience_s=300, leaders={place.leader: 1 for place in layout.workers}),
        ending=ending,
        remarks=deque(),
    )
    for place in (large, small):
        granting.answer(place.leader, Claim([Want(0, f"key {place.leader}")], False))
    assert [to for to, _ in sent] == [small.leader] and granting.idle_are_too_late
