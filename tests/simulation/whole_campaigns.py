"""Campaigns of whole launches with workers of one to four ranks, and what has to hold of them whatever happens."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hpo.config.layout import Layout
from hpo.config.settings import EvaluationSettings
from hpo.errors import CampaignError
from hpo.individual import COMPLETED
from hpo.islands.end_reasons import DONE, NOTHING_COMPLETED, STORAGE
from hpo.islands.resume.fold import fold
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Finished, Header, Record, Started
from hpo.ledger.joining import Newcomer, beside
from simulation.campaigns import SPACE, losses, objective, standing
from simulation.evaluators import Fates
from simulation.launches import LaunchSettings, SimulatedLaunch
from simulation.ledger import SimulatedLedger
from simulation.ranks import Rank
from simulation.world import SimulatedMachine, World

_LAUNCHES = 8
_HOSTS = ("n1", "n2")
"""Where rank 0 of a launch may run."""
_OTHER_HOSTS = ("n3", "n4")


def run_whole(seed: int) -> None:
    """One campaign over as many launches as it takes; AssertionError where an invariant does not hold."""
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(dir=shared) as directory:
        Campaign(seed, Path(directory)).run()


class Campaign:
    """A simulated campaign: its directory, its launches, and who starts them."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._rng = random.Random(f"whole/{seed}")
        self._world = World(seed)
        self._directory = directory
        self._budget = self._rng.randint(1, 20)
        self._ledger = SimulatedLedger(self._budget, SPACE)
        self._launches: list[SimulatedLaunch] = []
        self._server_skew_s = self._rng.choice([0.0, -7200.0, 7200.0])
        self._running: dict[int, Rank] = {}
        """Ranks of all launches by process number."""
        self._unsure = False
        self._overlaps = False
        """Whether the last launch is silent while it is at work, and the next one does not wait for its end."""

    def run(self) -> None:
        for number in range(1, _LAUNCHES + 1):
            alone = number > _LAUNCHES - 2
            for former in self._launches if alone else ():
                former.kill_all()
            if self._launch(number, alone):
                break
        self._end()

    def _end(self) -> None:
        """Kill all that is left, and check that everything begun has ended."""
        for launch in self._launches:
            launch.kill_all()
        records = self._records()
        ended = {record.id for record in standing(records)}
        assert len(ended) == self._budget, "the campaign did not complete"
        begun = {record.id for record in records if isinstance(record, Started)}
        assert begun <= ended, "something begun was lost"

    def _launch(self, number: int, alone: bool) -> bool:
        """Begin a launch and go on until something else is to begin; whether it has completed the campaign."""
        world, rng = self._world, self._rng
        machine = self._wait_for_turn()
        before = {(one.id, one.reopened) for one in standing(self._records())}
        self._overlaps = not alone and rng.random() < 0.2
        mean_s = rng.choice([30.0, 150.0, 150.0]) if self._overlaps else rng.choice([0.1, 1.0, 3.0])
        launch = self._begin(alone, machine, mean_s)
        self._running[machine.pid] = launch.ranks[0]
        self._running |= {rank.pid: rank for rank in launch.ranks[1:]}
        until = math.inf
        if not alone:
            # About how long it lasts.
            span_s = 1.0 + self._budget * mean_s / len(launch.journals)
            disturb(launch, machine, rng, min(span_s, 40.0))
            if self._overlaps:
                until = world.time + rng.uniform(0.0, span_s)
                silence(launch, machine, rng, until)
            elif rng.random() < 0.2:
                until = world.time + rng.uniform(0.0, span_s)
        self._launches.append(launch)
        world.run(lambda: launch.settled, until)
        again = {(one.id, one.reopened) for one in launch.records() if isinstance(one, (Started, Finished))}
        assert not before & again, "a recorded evaluation was done again"
        ended = self._check()
        end = launch.coordinator.end
        if end is None or not launch.settled or launch.ranks[0].dead or launch.closed_by_another:
            return False
        counted = launch.coordinator.tally.final
        assert counted <= ended, "the coordinator has counted what is not on record"
        # What was not waited for any longer may have been put on record after all.
        forced = launch.coordinator.running > 0
        if not self._unsure and not launch.unread and not forced:
            assert counted == ended, "the coordinator has miscounted"
            complete = end.exit_code == 0 or end.reason == NOTHING_COMPLETED
            # After the last result, the storage may keep a launch from saying that it was the last.
            assert complete == (ended == self._budget) or (end.reason == STORAGE and not complete)
        return end.reason in (DONE, NOTHING_COMPLETED)

    def _check(self) -> int:
        """What holds of the journals at any time; how many individuals have ended."""
        records = self._records()
        everything = standing(records)
        ended = list({record.id: record for record in everything}.values())
        # What a worker could not record for so long that it gave up may be on the disk all the same.
        self._unsure |= any(journal.discarded for launch in self._launches for journal in launch.journals)
        assert self._unsure or len(everything) == len(ended), "an individual was recorded twice"
        assert len({SPACE.key(one.params) for one in ended}) == len(ended), "a configuration came twice"
        now = fold(records, space=SPACE, islands=1, losses=losses)
        assert len(ended) == now.tally.final <= self._budget, "more than the budget"
        for record in ended:
            if record.status == COMPLETED:
                made = (record.id, record.objectives["value"])
                directories = self._world.directories
                # With an error, it was not waited for other ranks any longer: where one of these has failed and its
                # process is stopped, nobody learns of that.
                found = directories.returned if record.outcome.error else directories.completed
                assert made in found, f"{record.id} was completed by no worker"
        return len(ended)

    def _records(self) -> list[Record]:
        return records_of(self._launches, self._ledger)

    def _wait_for_turn(self) -> SimulatedMachine:
        """Rank 0's machine of a new launch, once it may begin; former ones may be at work all the same."""
        world, rng = self._world, self._rng
        machine = SimulatedMachine(
            world,
            rng.choice(_HOSTS),
            skew_s=rng.choice([0.0, -3600.0, 3600.0]),
            server_skew_s=self._server_skew_s,
            runs=lambda pid: pid in self._running and not self._running[pid].over,
        )
        waits = self._overlaps or rng.random() < 0.5
        former = self._launches[-1] if self._launches else None
        silent = [host for host in _OTHER_HOSTS if rng.random() < 0.2]
        for attempt in range(30):
            if former is not None and (not waits or attempt > 4 or former.ranks[0].over):
                # mpirun has ended what was left of it, as far as that answers.
                if silent:
                    former.end_of_mpirun(silent)
                else:
                    former.kill_all()
            try:
                beside(self._directory, lambda: self._ledger.state, Newcomer(join=False), machine=machine)
            except CampaignError:
                world.sleep(rng.uniform(1.0, 60.0))
                continue
            return machine
        raise AssertionError("no launch can begin")

    def _begin(
        self, alone: bool, machine: SimulatedMachine, mean_s: float, beside: Collection[int] = ()
    ) -> SimulatedLaunch:
        """The next launch, with a layout of its own. ``beside``: launches that go on beside it."""
        world, rng = self._world, self._rng
        slow = mean_s >= 10.0
        workers, ranks_per_worker = (
            (rng.randint(2, 3), rng.randint(1, 2)) if slow else (rng.randint(1, 4), rng.randint(1, 4))
        )
        islands = rng.randint(1, min(3, workers))
        ranks = workers * ranks_per_worker
        spread = rng.choice([0.0, 1.0, 3600.0])
        # Workers beside rank 0, or all over.
        hosts = [machine.host, *([] if rng.random() < 0.5 else _OTHER_HOSTS)]
        settings = LaunchSettings(
            layout=Layout.plan(ranks=ranks, sizes=[ranks_per_worker] * islands),
            evaluations=self._budget,
            evaluation=EvaluationSettings(
                isolation=rng.choice(["warm", "warm", "fresh"]),
                timeout=2000.0 if slow else 20.0,
                start_timeout=15.0,
                hang_timeout=300.0 if slow else rng.choice([6.0, 10.0]),
                grace=5.0,
                first_failures=rng.choice(["off", 30]),
            ),
            seconds=lambda: min(5 * mean_s, mean_s * world.rng.lognormvariate(0, 1)),
            skews=[rng.uniform(-spread, spread) for _ in range(ranks)],
            hosts=[hosts[rank // ranks_per_worker % len(hosts)] for rank in range(ranks)],
            fates=Fates.none() if alone else Fates(hangs=rng.choice([0.0, 0.0, 0.02])),
            latency_s=rng.choice([0.0005, 0.05, 0.2]),
            tolerant=rng.random() < 0.8,
            migration=rng.choice([0.0, 0.5, 1.0]),
            copy=rng.random() < 0.5,
        )

        def earlier(islands: int) -> ResumeState:
            """State that former launches left, once they are closed."""
            return fold(self._records(), space=SPACE, islands=islands, losses=losses)

        return SimulatedLaunch(
            world,
            SPACE,
            objective,
            settings,
            ledger=self._ledger,
            earlier=earlier,
            directory=self._directory,
            machine=machine,
            beside=beside,
        )


def records_of(launches: list[SimulatedLaunch], ledger: SimulatedLedger) -> list[Record]:
    """Records on disk that count, as the next launch reads them."""
    records: list[Record] = []
    for launch in launches:
        records.append(Header(version=1, launch=launch.number, island=0, worker=0, time=0.0))
        records += ledger.counted(launch.number)
    return records


def disturb(launch: SimulatedLaunch, machine: SimulatedMachine, rng: random.Random, span_s: float) -> None:
    """Within ``span_s`` seconds deaths, real and merely reported, and hangs of leading and other ranks and of rank 0,
    signals, storage that fails or is slow."""
    world, ranks = launch.world, launch.size
    now = world.time

    def victims(probability: float) -> list[int]:
        found = (
            rng.sample(range(ranks), rng.randint(1, max(1, ranks // 2))) if rng.random() < probability else []
        )
        return found if rng.random() < 0.3 else [rank for rank in found if rank]

    moment = rng.uniform(0, span_s)
    for rank in victims(0.4):
        when = now + (moment if rng.random() < 0.3 else rng.uniform(0, span_s))
        end = launch.cut if rng.random() < 0.3 else launch.kill
        world.at(when, partial(end, rank, told_after=rng.choice([0.0, 0.05, 1.0])))
    for rank in victims(0.4):
        when = now + rng.uniform(0, span_s)
        world.at(when, launch.ranks[rank].stop)
        world.at(when + rng.expovariate(rng.choice([0.01, 0.1, 0.5])), launch.ranks[rank].go_on)
    if rng.random() < 0.1:
        begin, end = sorted((now + rng.uniform(0, span_s), now + rng.uniform(0, 200)))
        machine.unreachable = partial(_fail_between, world, begin, end)
    if rng.random() < 0.2:
        rank = launch.ranks[rng.randrange(ranks)]
        for _ in range(rng.randint(1, 2)):
            world.at(now + rng.uniform(0, span_s), rank.signal)
    if rng.random() < 0.4:
        fail_storage(launch, machine, rng, span_s)


def silence(launch: SimulatedLaunch, machine: SimulatedMachine, rng: random.Random, when: float) -> None:
    """About ``when`` rank 0 stops, alone or with others, or its host loses the directory, so long that another
    launch may close ``launch``."""
    world = launch.world
    begin = max(world.time, when + rng.uniform(-30.0, 10.0))
    end = begin + rng.uniform(60.0, 400.0)
    if rng.random() < 0.7:
        for rank in (launch.ranks[0], *rng.sample(launch.ranks, rng.randint(0, launch.size))):
            world.at(begin, rank.stop)
            world.at(end + rng.choice([0.0, rng.uniform(-50.0, 50.0)]), rank.go_on)
    else:
        machine.unreachable = partial(_fail_between, world, begin, end)


def fail_storage(
    launch: SimulatedLaunch, machine: SimulatedMachine, rng: random.Random, span_s: float
) -> None:
    """Journals and directories of some ranks cannot be written for a while, or slowly."""
    world = launch.world
    for rank in rng.sample(launch.ranks, rng.randint(1, launch.size)):
        begin = world.time + rng.uniform(0, span_s)
        end = begin + rng.choice([0.5, 5.0, 50.0, 200.0])

        fail = partial(_fail_between, world, begin, end)

        kind = rng.randrange(4)
        journal = rank.journal
        if kind == 1 and journal is not None:
            journal.disturb = lambda rank=rank: rank.stall(world.rng.expovariate(2.0))
        elif kind in (0, 3) and journal is not None:
            journal.disturb = fail
            journal.reached = lambda number: world.rng.randint(0, number)
            if kind == 3:
                journal.unreadable = fail
                if rank.number == 0:
                    machine.unreachable = fail
        if kind >= 2:
            launch.unwritable[rank.number] = partial(_unwritable_between, world, begin, end)


def _fail_between(world: World, begin: float, end: float) -> None:
    if begin <= world.time < end:
        raise OSError(28, "No space left on device", "journal")


def _unwritable_between(world: World, begin: float, end: float) -> str | None:
    return "evaluations: No space left on device" if begin <= world.time < end else None
