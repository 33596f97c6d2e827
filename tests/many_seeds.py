"""Simulated campaigns, each with deaths, real and merely reported, hangs, silent hosts, signals, slow ranks, sick
workers, storage that fails, commands and restarts of its own, to their end. Every eighth seed is also that of a
campaign of whole launches: with event loops, workers of one to four ranks, clocks that differ, and launches that
overlap; every fourth that of a campaign of several launches at the same time.

python tests/many_seeds.py SEED ...         replays single ones
python tests/many_seeds.py --seeds 100000   tries seeds from 0 up to that number
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import msgspec
from simulation.campaigns import (
    SPACE,
    ask,
    check_knowledge,
    check_overview,
    disturb,
    fail_storage,
    fall_sick,
    hang,
    losses,
    make,
    records_of,
    slow,
    standing,
)
from simulation.joint_campaigns import run_joint
from simulation.ledger import ASKED, SimulatedLedger
from simulation.whole_campaigns import run_whole

from hpo.islands.coordinator.worker_registry import NO_JOURNAL
from hpo.islands.end_reasons import DONE, NOTHING_COMPLETED
from hpo.islands.resume.fold import _Fold, fold
from hpo.islands.resume.snapshot import Snapshot
from hpo.islands.resume.state import ResumeState
from hpo.journal.commands import Unpause
from hpo.journal.records import Finished, Header, Record, Started

_LAUNCHES = 12
_WHOLE, _JOINT = 8, 4


def check_snapshots(records: list[Record], islands: int) -> None:
    """Check that a state by way of a snapshot after each launch is that of all ``records``."""
    before = None
    begins = [place for place, record in enumerate(records) if isinstance(record, Header)]
    for begin, end in zip(begins, [*begins[1:], len(records)]):
        folding = _Fold(SPACE, islands, losses, before)
        folding.add(records[begin:end])
        before = msgspec.msgpack.decode(msgspec.msgpack.encode(folding.snapshot({})), type=Snapshot)
    assert before is not None
    whole = fold(records, space=SPACE, islands=islands, losses=losses)
    assert comparable(_Fold(SPACE, islands, losses, before).finish()) == comparable(whole)


def comparable(state: ResumeState) -> dict[str, object]:
    """All of ``state`` by name, in forms that are equal for equal states."""
    found = {**vars(state), "pending": sorted(state.pending, key=lambda one: one.id)}
    found |= {name: sorted(found[name]) for name in ("ended", "failed", "continued")}
    parts = {
        island: (one.best, one.recent, one.pruned, one.failures) for island, one in state.populations.items()
    }
    ids = {island: [[(one.id, one.losses) for one in own] for own in kept] for island, kept in parts.items()}
    return {**found, "populations": ids}


def run(seed: int) -> None:
    """One campaign over as many launches as it takes; AssertionError where an invariant does not hold."""
    rng = random.Random(f"many/{seed}")
    in_file = budget = rng.randint(1, 30)
    records: list[Record] = []
    ledger = SimulatedLedger(budget, SPACE)
    unsure = False
    for launch in range(_LAUNCHES):
        workers = rng.randint(1, 8)
        islands = rng.randint(1, min(3, workers))
        earlier = fold(records, space=SPACE, islands=islands, losses=losses)
        # The last launches are left alone, so that each campaign comes to its end.
        alone = launch >= _LAUNCHES - 2
        ledger.start()
        if alone and ledger.state.paused:
            ledger.give(Unpause(**ASKED))  # type: ignore[arg-type]
        simulation, _ = make(
            seed * _LAUNCHES + launch,
            workers=workers,
            islands=islands,
            evaluations=in_file,
            earlier=earlier,
            ledger=ledger,
            recorded=list(records),
            migration=rng.choice([0.0, 0.5, 1.0]),
            hang_timeout=rng.choice([1.0, 4.0]),  # the former is too short for a slow network
            first_failures=rng.choice([None, 4, 30]),
            **slow(rng),
        )
        until = float("inf")
        if not alone:
            until = disturb(simulation, rng, workers)
            hang(simulation, rng, workers)
            for rank in rng.sample(range(workers), workers // 2 if rng.random() < 0.3 else 0):
                fall_sick(simulation, rank, rng.uniform(0, 8))
            fail_storage(simulation, rng, workers)
            ask(simulation, rng, ledger, workers, list(records))
        before = {(record.id, record.reopened) for record in standing(records)}
        report = simulation.run(until=until)  # raises where it comes to a standstill
        new = records_of(simulation)
        again = {(one.id, one.reopened) for one in new if isinstance(one, (Started, Finished))}
        assert not before & again, "a recorded evaluation was done again"
        # Without headers, records of another launch would be in the order of its own virtual time.
        records += [Header(version=1, launch=launch + 1, island=0, worker=0, time=0.0), *new]
        now = fold(records, space=SPACE, islands=islands, losses=losses)
        check_snapshots(records, islands)
        budget = ledger.state.limits.evaluations or 0
        ledger.check(records)
        everything = standing(records)
        ended = list({record.id: record for record in everything}.values())
        # What a worker could not record for so long that it gave up may be on the disk all the same.
        unsure |= any(reason == NO_JOURNAL for _, _, reason in simulation.left)
        assert unsure or len(everything) == len(ended), "an individual was recorded twice"
        assert len({SPACE.key(record.params) for record in ended}) == len(ended), "a configuration came twice"
        assert len(ended) == now.tally.final <= budget, "more than the budget"
        if report is not None:
            end = simulation.coordinator.end
            assert end is not None
            counted = simulation.coordinator.tally.final
            assert counted <= len(ended), "the coordinator has counted what is not on record"
            if not unsure and not simulation.unread:
                assert counted == len(ended), "the coordinator has miscounted"
                budget = simulation.coordinator.evaluations or 0
                # What `hpo retry` names once the launch is stopping is for the next launch.
                again = simulation.pool_at_end.intersection(record.id for record in ended)
                complete = len(ended) - len(again) == budget
                assert (end.exit_code == 0 or end.reason == NOTHING_COMPLETED) == complete
                check_knowledge(simulation)
                check_overview(simulation, records)
            if end.reason in (DONE, NOTHING_COMPLETED):
                # A command that came too late is for a launch that a person starts.
                budget = simulation.coordinator.evaluations or 0
                break
    assert len(ended) == budget, "the campaign did not complete"
    begun = {record.id for record in records if isinstance(record, Started)}
    assert begun <= {record.id for record in standing(records)}, "something begun was lost"


def replayable(seeds: Iterator[int]) -> None:
    for seed in seeds:
        try:
            run(seed)
            if seed % _WHOLE == 0:
                run_whole(seed // _WHOLE)
            if seed % _JOINT == 0:
                run_joint(seed // _JOINT)
        except Exception as error:
            raise AssertionError(f"python tests/many_seeds.py {seed}\n{error!r}") from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    replayable(iter(options.seed or range(options.seeds)))
    print("all held")
