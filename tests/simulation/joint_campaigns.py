"""Campaigns of one to eight whole launches that are at work at the same time, on hosts of their own, and what has to
hold of them whatever happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpo.config.layout import Layout
from hpo.config.settings import EvaluationSettings
from hpo.individual import birthplace
from hpo.islands.end_reasons import DONE, EARLY
from hpo.islands.resume.fold import fold
from hpo.journal.commands import Set
from hpo.journal.records import Finished, Record, Started
from hpo.ledger.joining import Newcomer, beside
from hpo.space.space import SearchSpace
from simulation.campaigns import SPACE, losses, objective, standing
from simulation.evaluators import Fates
from simulation.launches import LaunchSettings, SimulatedLaunch
from simulation.ledger import ASKED, SimulatedLedger
from simulation.whole_campaigns import Campaign, disturb, records_of, silence
from simulation.world import SimulatedMachine, World

_CALM_S = 1000.0
"""Seconds of faults; launches that begin later have none."""
_MOST_S = 20_000.0


def run_joint(seed: int) -> None:
    """One campaign; AssertionError where an invariant does not hold."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=shared) as directory:
        JointCampaign(seed, Path(directory)).run()


class SimpleLaunches:
    """Launches without faults on hosts of their own, whose evaluations take ``mean_s`` seconds on average, lognormal
    with half of that as standard deviation. ``budget``: number of evaluations of the campaign; ``limits``: more of its
    file."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        *,
        budget: int,
        mean_s: float,
        space: SearchSpace = SPACE,
        **limits: Any,
    ) -> None:
        self.world = World(seed)
        self.ledger = SimulatedLedger(budget, space, **limits)
        self.begun: list[SimulatedLaunch] = []
        self._directory = directory
        self._mean_s = mean_s

    restarts = False
    """Whether another launch is started where one ends because ranks died."""
    latency_s = 0.0005
    """Mean time that a message takes."""

    def start(self, ranks: int, sizes: Sequence[int] = (1,), first_island: int = 0) -> SimulatedLaunch:
        """A launch of ``ranks`` begins; other arguments as of ``Layout.plan``."""
        number, world = len(self.begun), self.world
        machine = SimulatedMachine(
            world,
            f"h{number}",
            skew_s=0.0,
            server_skew_s=0.0,
            runs=lambda pid: not self.begun[number].ranks[0].over,
        )
        _, at_work = beside(self._directory, lambda: self.ledger.state, Newcomer(), machine=machine)
        settings = LaunchSettings(
            layout=Layout.plan(ranks=ranks, sizes=sizes, joins=True, first_island=first_island),
            evaluations=self.ledger.evaluations,
            evaluation=EvaluationSettings(timeout=1e5, first_failures="off"),
            seconds=lambda: self._mean_s * world.rng.lognormvariate(-0.11, 0.47),
            skews=[0.0] * ranks,
            hosts=[machine.host] * ranks,
            fates=Fates.none(),
            latency_s=self.latency_s,
            tolerant=True,
            migration=0.0,
            copy=False,
            suits=lambda island, assignment: (
                not assignment.id or sizes[birthplace(assignment.id)[0]] == sizes[island]
            ),
            restarts=self.restarts,
        )
        self.begun.append(
            SimulatedLaunch(
                world,
                self.ledger.space,
                objective,
                settings,
                ledger=self.ledger,
                earlier=lambda islands: fold(
                    self.records(), space=self.ledger.space, islands=islands, losses=losses
                ),
                directory=self._directory,
                machine=machine,
                beside=[*at_work],
            )
        )
        return self.begun[-1]

    def records(self) -> list[Record]:
        return records_of(self.begun, self.ledger)

    def run(self, until: float = math.inf) -> list[Finished]:
        """Let time pass until all launches have ended, at most ``until``; the ends on record."""
        self.world.run(lambda: all(one.settled for one in self.begun), until)
        return standing(self.records())


class JointCampaign(Campaign):
    """A simulated campaign whose launches begin and end at any time."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__(seed, directory)
        rng = self._rng
        self._budget = rng.randint(1, 60)
        # Many campaigns end early: by a value, by the hours, or as 4 evaluations are to gain little.
        limits = rng.choice(
            [{}, {"stop_value": rng.uniform(0.1, 3.0)}, {"rank_hours": rng.uniform(0.0, 0.1)}]
        )
        if rng.random() < 0.2:
            limits = {"stop_gain": rng.choice([0.01, 1.0]), "stop_over": 4}
        self._ledger = SimulatedLedger(self._budget, self._ledger.space, **limits)
        self._mean_s = rng.choice([1.0, 10.0, 40.0])
        self._hosts = 0

    def run(self) -> None:
        world, rng = self._world, self._rng
        for _ in range(rng.randint(1, 8)):
            world.at(rng.uniform(0.0, rng.choice([1.0, 300.0, 600.0])), self._start)
        while world.time < _MOST_S:
            world.run(lambda: False, world.time + rng.uniform(1.0, 60.0))
            if not all(launch.settled for launch in self._launches):
                continue
            if self._check() == self._budget:
                break
            if self._ledger.state.completed is not None:
                self._go_on()
            if world.time > _CALM_S and all(launch.settled for launch in self._launches):
                self._start()
        self._end()

    def _go_on(self) -> None:
        """Let a launch that comes too late end, and the campaign go on without what has ended it."""
        state = self._ledger.state
        assert state.completed is not None and state.completed.name in EARLY
        begun, ends = self._begun(), state.limits
        self._start(calm=True)
        late = self._launches[-1]
        self._world.run(lambda: late.settled, self._world.time + 1000.0)
        end, state = late.coordinator.end, self._ledger.state
        assert end is not None and (end.reason, end.exit_code) == (state.completed.name, 0)
        assert self._begun() <= begun, "something was begun after the end"
        # Of a launch that died and is not closed yet, the hours are not in the ledger.
        used_up = ends.rank_hours is None or 3600 * ends.rank_hours <= state.rank_s
        assert used_up or state.open, "it ended too soon"
        self._ledger.give(Set(**ASKED, rank_hours=1e9, stop_value=-1.0, stop_over=1000))
        assert self._ledger.state.completed is None

    def _begun(self) -> set[str]:
        """Individuals whose begin is on record."""
        return {one.id for one in records_of(self._launches, self._ledger) if isinstance(one, Started)}

    def _start(self, *, calm: bool = False) -> None:
        """A launch begins on a host of its own, beside all that seem to be at work."""
        world, rng, calm = self._world, self._rng, calm or self._world.time > _CALM_S
        self._hosts += 1
        machine = SimulatedMachine(
            world,
            f"h{self._hosts}",
            skew_s=rng.choice([0.0, -7200.0, 7200.0]),
            server_skew_s=self._server_skew_s,
            runs=lambda pid: pid in self._running and not self._running[pid].over,
        )
        _, at_work = beside(self._directory, lambda: self._ledger.state, Newcomer(), machine=machine)
        launch = self._begin(calm, machine, self._mean_s, [*at_work])
        self._running[machine.pid] = launch.ranks[0]
        self._running |= {rank.pid: rank for rank in launch.ranks[1:]}
        self._launches.append(launch)
        if calm:
            return
        span_s = rng.choice([10.0, 100.0, 400.0])
        if rng.random() < 0.5:
            disturb(launch, machine, rng, span_s)
        if rng.random() < 0.3:
            silence(launch, machine, rng, world.time + rng.uniform(0.0, span_s))
        if rng.random() < 0.3:
            world.at(world.time + rng.uniform(0.0, span_s), launch.kill_all)
            if rng.random() < 0.7:
                world.at(world.time + span_s + rng.uniform(0.0, 200.0), self._start)

    def _check(self) -> int:
        ended = super()._check()
        state = self._ledger.state
        counted = {one for launch in state.closed for one in self._ledger.ended_in(launch)}
        assert state.final == len(counted), "the ledger has miscounted"
        assert self._budget - state.final - state.held == state.free >= 0, "more units than the budget"
        for launch in self._launches:
            end = launch.coordinator.end
            if end is not None and end.reason == DONE and not launch.closed_by_another:
                # The others may only have to close.
                assert math.isclose(len(counted) + self._held_and_ended(), self._budget), "it ended too soon"
        return ended

    def _held_and_ended(self) -> int:
        """Number of individuals that have ended in launches that are open."""
        return sum(len({*self._ledger.ended_in(one)}) for one in self._ledger.state.open)
