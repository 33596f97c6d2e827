"""Whole launches in virtual time: workers of several ranks, rank 0 that hangs, and launches that overlap."""

from __future__ import annotations

from pathlib import Path

from simulation.campaigns import SPACE, objective, standing
from simulation.evaluators import Fates
from simulation.launches import LaunchSettings, SimulatedLaunch
from simulation.ledger import SimulatedLedger
from simulation.world import SimulatedMachine, World

from hpo.config.layout import Layout
from hpo.config.settings import EvaluationSettings
from hpo.islands.resume.state import ResumeState


def machine(world: World, name: str) -> SimulatedMachine:
    return SimulatedMachine(world, name, skew_s=0.0, server_skew_s=0.0, runs=lambda pid: True)


def begun(
    world: World, directory: Path, *, workers: int = 2, size: int = 2, **changes: object
) -> SimulatedLaunch:
    """A launch of workers of ``size`` ranks whose evaluations take a second."""
    evaluation = {"isolation": changes.pop("isolation", "warm"), "hang_timeout": 10.0, "grace": 5.0}
    settings = LaunchSettings(
        layout=Layout.plan(ranks=workers * size, sizes=[size] * 1),
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
    return SimulatedLaunch(
        world,
        SPACE,
        objective,
        settings,
        ledger=SimulatedLedger(8, SPACE),
        earlier=lambda islands: ResumeState(),
        directory=directory,
        machine=machine(world, "n1"),
    )


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
