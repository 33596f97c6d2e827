"""Campaigns of whole launches with workers of one to four ranks, and what has to hold of them whatever happens."""

from __future__ import annotations

import random

from hpo.islands.coordinator.ending import DONE, IN_VAIN
from hpo.islands.resume import fold
from hpo.journal.records import Finished, Header, Record, Started
from simulation.campaigns import SPACE, losses, objective, standing
from simulation.evaluators import Fates
from simulation.launches import SimulatedLaunch, World

_LAUNCHES = 8


def run_whole(seed: int) -> None:
    """One campaign over as many launches as it takes; AssertionError where an invariant does not hold."""
    rng = random.Random(f"whole/{seed}")
    world = World(seed)
    budget = rng.randint(1, 20)
    launches: list[SimulatedLaunch] = []
    unsure = False
    for number in range(1, _LAUNCHES + 1):
        alone = number > _LAUNCHES - 2
        before = {(one.id, one.reopened) for one in standing(records_of(launches))}
        launch = begin(world, rng, number, budget, launches, alone)
        launches.append(launch)
        until = float("inf")
        if not alone:
            disturb(launch, rng)
            if rng.random() < 0.2:
                until = world.time + rng.expovariate(0.1)
        world.run(lambda: launch.settled, until)
        cut_off = not launch.settled
        launch.kill_all()
        records = records_of(launches)
        new = launch.records()
        again = {(one.id, one.reopened) for one in new if isinstance(one, (Started, Finished))}
        assert not before & again, "a recorded evaluation was done again"
        everything = standing(records)
        ended = list({record.id: record for record in everything}.values())
        # What a worker could not record for so long that it gave up may be on the disk all the same.
        unsure |= any(journal.discarded for journal in launch.journals)
        assert unsure or len(everything) == len(ended), "an individual was recorded twice"
        assert len({SPACE.key(record.params) for record in ended}) == len(ended), "a configuration came twice"
        now = fold(records, space=SPACE, islands=1, losses=losses)
        assert len(ended) == now.tally.final <= budget, "more than the budget"
        for record in ended:
            if record.status == "completed":
                made = (record.id, record.objectives["value"])
                assert made in world.directories.completed, f"{record.id} was completed by no worker"
        end = launch.coordinator.end
        if end is not None and not cut_off and not launch.ranks[0].dead:
            counted = launch.coordinator.tally.final
            assert counted <= len(ended), "the coordinator has counted what is not on record"
            if not unsure and not launch.unread:
                assert counted == len(ended), "the coordinator has miscounted"
                assert (end.exit_code == 0 or end.reason == IN_VAIN) == (len(ended) == budget)
            if end.reason in (DONE, IN_VAIN):
                break
    assert len(ended) == budget, "the campaign did not complete"
    begun = {record.id for record in records if isinstance(record, Started)}
    assert begun <= {record.id for record in standing(records)}, "something begun was lost"


def records_of(launches: list[SimulatedLaunch]) -> list[Record]:
    """What is on disk, as the next launch reads it."""
    records: list[Record] = []
    for launch in launches:
        records += [Header(version=1, launch=launch.number, island=0, worker=0, time=0.0), *launch.records()]
    return records


def begin(
    world: World,
    rng: random.Random,
    number: int,
    budget: int,
    launches: list[SimulatedLaunch],
    alone: bool,
) -> SimulatedLaunch:
    """The next launch, with a layout of its own."""
    workers, ranks_per_worker = rng.randint(1, 4), rng.randint(1, 4)
    islands = rng.randint(1, min(3, workers))
    ranks = workers * ranks_per_worker
    earlier = fold(records_of(launches), space=SPACE, islands=islands, losses=losses)
    spread = rng.choice([0.0, 1.0, 3600.0])
    mean = rng.choice([0.1, 1.0, 3.0])
    return SimulatedLaunch(
        world,
        SPACE,
        objective,
        number=number,
        workers=workers,
        islands=islands,
        ranks_per_worker=ranks_per_worker,
        evaluations=budget,
        seconds=lambda: min(15.0, mean * world.rng.lognormvariate(0, 1)),
        earlier=earlier,
        skews=[rng.uniform(-spread, spread) for _ in range(ranks)],
        fates=Fates(0, 0, 0, 0, 0, 0) if alone else Fates(hangs=rng.choice([0.0, 0.0, 0.02])),
        latency_s=rng.choice([0.0005, 0.05, 0.2]),
        hang_timeout_s=rng.choice([6.0, 10.0]),
        tolerant=rng.random() < 0.8,
        migration=rng.choice([0.0, 0.5, 1.0]),
        copy=rng.random() < 0.5,
        first_failures=rng.choice([None, 30]),
        isolation=rng.choice(["warm", "warm", "fresh"]),
        seed=number,
    )


def disturb(launch: SimulatedLaunch, rng: random.Random) -> None:
    """Deaths and hangs of leading and other ranks and of rank 0, signals, storage that fails or is slow."""
    world, ranks = launch.world, launch.layout_ranks
    now = world.time

    def victims(probability: float) -> list[int]:
        found = (
            rng.sample(range(ranks), rng.randint(1, max(1, ranks // 2))) if rng.random() < probability else []
        )
        return found if rng.random() < 0.3 else [rank for rank in found if rank]

    moment = rng.uniform(0, 8)
    for rank in victims(0.4):
        when = now + (moment if rng.random() < 0.3 else rng.uniform(0, 8))
        world.at(
            when, lambda rank=rank, after=rng.choice([0.0, 0.05, 1.0]): launch.kill(rank, told_after=after)
        )
    for rank in victims(0.4):
        when = now + rng.uniform(0, 8)
        world.at(when, launch.ranks[rank].stop)
        world.at(when + rng.expovariate(0.1), launch.ranks[rank].go_on)
    if rng.random() < 0.2:
        rank = launch.ranks[rng.randrange(ranks)]
        for _ in range(rng.randint(1, 2)):
            world.at(now + rng.uniform(0, 10), lambda: signal(launch, rank.number))
    if rng.random() < 0.4:
        fail_storage(launch, rng)


def signal(launch: SimulatedLaunch, number: int) -> None:
    rank = launch.ranks[number]
    rank.signals.count += 1
    rank.wake_soon()


def fail_storage(launch: SimulatedLaunch, rng: random.Random) -> None:
    """Journals and directories of some ranks cannot be written for a while, or slowly."""
    world = launch.world
    for rank in rng.sample(launch.ranks, rng.randint(1, launch.layout_ranks)):
        begin = world.time + rng.uniform(0, 8)
        end = begin + rng.choice([0.5, 5.0, 50.0, 200.0])

        def fail(begin: float = begin, end: float = end) -> None:
            if begin <= world.time < end:
                raise OSError(28, "No space left on device", "journal")

        def unwritable(begin: float = begin, end: float = end) -> str | None:
            return "evaluations: No space left on device" if begin <= world.time < end else None

        kind = rng.randrange(4)
        journal = rank.journal
        if kind == 1 and journal is not None:
            journal.disturb = lambda rank=rank: stall(rank, rng.expovariate(2.0))
        elif kind in (0, 3) and journal is not None:
            journal.disturb = fail
            journal.reached = lambda number: world.rng.randint(0, number)
            if kind == 3:
                journal.unreadable = fail
        if kind >= 2:
            launch.unwritable[rank.number] = unwritable


def stall(rank: object, seconds: float) -> None:
    rank.stalled = rank.time + seconds
