"""Ten thousand simulated campaigns, each with deaths, signals, slow ranks and restarts of its own, to their end.

python tests/test_many_seeds.py SEED ...       replays single ones
python tests/test_many_seeds.py --seeds 100000 tries more
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import pytest
from simulation import Simulation
from test_protocol import SPACE, make, records_of

from hpo.islands.coordinator.ending import DONE
from hpo.islands.messages import StopRequest, encode
from hpo.islands.resume import fold
from hpo.journal.records import Finished, Migrated, Started

SEEDS = 10_000
CHUNKS = 20
_LEGS = 12


def losses(objectives: dict[str, float]) -> tuple[float, ...]:
    return tuple(objectives.values())


def disturb(simulation: Simulation, rng: random.Random, workers: int) -> float:
    """Deaths, signals and slow ranks; when the whole job is killed, if it is."""
    if rng.random() < 0.6:
        # Now and then all of them, rank 0 included; several at one moment, too.
        victims = rng.sample(range(workers), rng.randint(1, workers))
        if rng.random() < 0.7:
            victims = [rank for rank in victims if rank]
        moment = rng.uniform(0, 8)
        for rank in victims:
            when = moment if rng.random() < 0.3 else rng.uniform(0, 8)
            told_after = rng.choice([0.0, 0.05, 1.0])
            simulation.at(when, lambda rank=rank, told=told_after: simulation.kill(rank, told_after=told))
    if rng.random() < 0.3:
        rank, urgent = rng.randrange(workers), rng.random() < 0.3
        request = encode(StopRequest("stopped", urgent))
        simulation.at(
            rng.uniform(0, 10), lambda: rank in simulation.dead or simulation.post(rank, 0, request)
        )
    return rng.expovariate(0.1) if rng.random() < 0.3 else float("inf")


def slow(rng: random.Random) -> dict[str, object]:
    """Some evaluations take a hundred times as long as others."""
    draws = [rng.lognormvariate(0, rng.choice([0.1, 1.0, 2.0])) for _ in range(100)]
    return {"duration": lambda index: draws[index % 100]}


def run(seed: int) -> None:
    """One campaign over as many launches as it takes; AssertionError where an invariant does not hold."""
    rng = random.Random(f"many/{seed}")
    budget = rng.randint(1, 30)
    records: list[dict[str, object]] = []
    for leg in range(_LEGS):
        workers = rng.randint(1, 8)
        islands = rng.randint(1, min(3, workers))
        earlier = fold(records, space=SPACE, islands=islands, losses=losses)
        simulation, _ = make(
            seed * _LEGS + leg,
            workers=workers,
            islands=islands,
            evaluations=budget,
            earlier=earlier,
            migration=rng.choice([0.0, 0.5, 1.0]),
            **slow(rng),
        )
        # The last launches are left alone, so that each campaign comes to its end.
        until = disturb(simulation, rng, workers) if leg < _LEGS - 2 else float("inf")
        before = {record.id for record in records if final(record)}
        report = simulation.run(until=until)  # raises where it comes to a standstill
        new = records_of(simulation)
        again = {record.id for record in new if isinstance(record, (Started, Finished))}
        assert not before & again, "a recorded evaluation was done again"
        records += new
        ended = [record for record in records if final(record)]
        assert len({record.id for record in ended}) == len(ended), "an individual was recorded twice"
        assert len({SPACE.key(record.params) for record in ended}) == len(ended), "a configuration came twice"
        assert len(ended) <= budget, "more than the budget"
        if report is not None:
            end = simulation.coordinator.end
            assert end is not None
            assert simulation.coordinator.tally.final == len(ended), "the coordinator has miscounted"
            assert (end.exit_code == 0) == (len(ended) == budget)
            check_knowledge(simulation)
            if end.reason == DONE:
                break
    assert len([record for record in records if final(record)]) == budget, "the campaign did not complete"
    begun = {record.id for record in records if isinstance(record, Started)}
    assert begun <= {record.id for record in records if final(record)}, "something begun was lost"


def final(record: dict[str, object]) -> bool:
    return isinstance(record, Finished) and record.status != "interrupted"


def check_knowledge(simulation: Simulation) -> None:
    """Every living leader knows all that its island finished in this launch and did not send away."""
    # Once the end is decided nobody is told of deaths any more, and nobody needs to know anything more.
    untold = simulation.dead - simulation.coordinator.dead
    moved = {record.id for record in records_of(simulation) if isinstance(record, Migrated)}
    for leader in simulation.leaders:
        if leader.place.leader in simulation.dead:
            continue
        known = {member.id for member in (*leader.population, *leader.population.failures)}
        for other in simulation.leaders:
            if other.place.island != leader.place.island or other.place.leader in untold:
                continue
            for record in simulation.journals[other.place.leader].committed:
                if final(record) and record.island == leader.place.island and record.id not in moved:
                    assert record.id in known, f"{record['id']} is unknown on its island"


def replayable(seeds: Iterator[int]) -> None:
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"python tests/test_many_seeds.py {seed}\n{error!r}") from error


@pytest.mark.timeout(300)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whatever_happens_the_budget_is_met_exactly_and_nothing_is_lost_or_done_twice(chunk: int) -> None:
    replayable(iter(range(chunk * SEEDS // CHUNKS, (chunk + 1) * SEEDS // CHUNKS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    replayable(iter(options.seed or range(options.seeds)))
    print("all held")
