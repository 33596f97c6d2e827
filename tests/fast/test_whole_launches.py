"""Whole launches in virtual time: workers of several ranks, rank 0 that hangs, and launches that overlap."""

from __future__ import annotations

from pathlib import Path

import pytest
from individuals import make_started
from simulation.campaigns import SPACE, losses, objective, standing
from simulation.evaluators import Fates
from simulation.launches import LaunchSettings, SimulatedLaunch
from simulation.world import SimulatedMachine, World

from hpo.config.layout import Layout
from hpo.config.settings import EvaluationSettings
from hpo.errors import LockLost
from hpo.islands.resume.fold import fold
from hpo.islands.resume.state import ResumeState
from hpo.journal.lock import STALE_S, acquire
from hpo.journal.records import Header, Launched, Started


def machine(world: World, name: str) -> SimulatedMachine:
    return SimulatedMachine(world, name, skew_s=0.0, server_skew_s=0.0, runs=lambda pid: True)


def begun(
    world: World, directory: Path, *, workers: int = 2, size: int = 2, **changes: object
) -> SimulatedLaunch:
    """A launch of workers of ``size`` ranks whose evaluations take a second."""
    evaluation = {"isolation": changes.pop("isolation", "warm"), "hang_timeout": 10.0, "grace": 5.0}
    settings = LaunchSettings(
        layout=Layout.plan(ranks=workers * size, islands=1, ranks_per_worker=size),
        evaluations=8,
        evaluation=EvaluationSettings(**evaluation),
        seconds=lambda: 1.0,
        skews=[0.0] * (workers * size),
        hosts=["n1"] * (workers * size),
        fates=changes.pop("fates", Fates.none()),
        latency_s=0.001,
        tolerant=True,
        migration=0.0,
        copy=False,
    )
    lock = acquire(directory, machine=machine(world, "n1"))
    return SimulatedLaunch(world, SPACE, objective, settings, number=1, earlier=ResumeState(), lock=lock)


def check_budget(launch: SimulatedLaunch) -> None:
    assert launch.coordinator.end is not None and launch.coordinator.end.exit_code == 0
    ended = standing(launch.records())
    assert len(ended) == len({one.id for one in ended}) == launch.coordinator.tally.final == 8


def test_what_a_broken_worker_has_finished_is_on_record_before_another_takes_its_place(
    tmp_path: Path,
) -> None:
    """Its journal cannot be written while it loses a rank, and can be again later."""
    world = World(1)
    launch = begun(world, tmp_path)
    journal = launch.ranks[2].journal
    assert journal is not None

    def fail() -> None:
        if 1.5 < world.time < 30.0:
            raise OSError(28, "No space left on device", "journal")

    journal.disturb = fail
    world.at(4.0, lambda: launch.kill(3))
    world.run(lambda: launch.settled)
    check_budget(launch)


def test_a_worker_that_waits_for_a_directory_and_for_its_evaluators_does_not_spin(tmp_path: Path) -> None:
    world = World(2)
    launch = begun(world, tmp_path, isolation="fresh", fates=Fates.none(start_s=8.0))
    launch.unwritable[2] = lambda: "No space left on device" if world.time < 60.0 else None
    world.run(lambda: launch.settled)  # it raises where there is no end to the turns
    check_budget(launch)


def test_where_rank_0_and_a_leader_hang_all_others_end(tmp_path: Path) -> None:
    world = World(4)
    launch = begun(world, tmp_path)
    for rank in (0, 2):
        world.at(3.0, launch.ranks[rank].stop)
    world.run(lambda: launch.settled)
    assert world.time < 60.0


# --- who was thought dead ---------------------------------------------------------------------------------------------


def test_who_was_stopped_does_nothing_before_it_has_looked_at_the_lock(tmp_path: Path) -> None:
    world = World(5)
    lock = acquire(tmp_path, machine=machine(world, "n1"))
    world.sleep(STALE_S)
    assert acquire(tmp_path, machine=machine(world, "n2")).contested
    with pytest.raises(LockLost, match="was taken away by process"):
        lock.check()


def test_who_cannot_refresh_its_lock_gives_up_before_another_may_take_it_over(tmp_path: Path) -> None:
    """Also where the call that refreshes it never returns, as on a file server that does not answer."""
    world = World(6)
    host = machine(world, "n1")
    lock = acquire(tmp_path, machine=host)
    host.unreachable = lambda: world.sleep(STALE_S - 1) or lock.check()
    with pytest.raises(LockLost, match="the file server does not answer"):
        lock.refresh()
    assert world.time < STALE_S


def begin(launch: int, identity: str) -> Started:
    sequence = int(identity.rpartition("-")[2])
    params = {"x": sequence / 100, "y": 0.0, "kind": "a"}
    return make_started(id=identity, params=params, operator="random", time=float(launch))


def test_what_a_silent_launch_may_use_is_left_to_it_by_all_later_ones() -> None:
    """The one that took over may have died before it could begin anything."""

    def header(launch: int) -> Header:
        return Header(version=1, launch=launch, island=0, worker=0, time=float(launch))

    taken_over = Launched(evaluations=9, deadline_s=None, islands=1, workers=1, time=2.0, contested=True)
    records = [header(1), begin(1, "0-0-4"), header(2), taken_over, begin(2, "0-1-104"), header(3)]
    state = fold(records, space=SPACE, islands=1, losses=losses)
    assert {one.id: one.attempt.contested for one in state.pending} == {"0-0-4": True, "0-1-104": False}
    assert [state.sequence(0, worker) for worker in range(3)] == [105, 105, 105]
    before = fold(records[:2], space=SPACE, islands=1, losses=losses)
    assert before.sequence(0, 0) == 5 and before.sequence(0, 1) == 0
    before.contest()
    assert [one.attempt.contested for one in before.pending] == [True] and before.contested
    assert before.sequence(0, 0) == before.sequence(0, 1) == 105
