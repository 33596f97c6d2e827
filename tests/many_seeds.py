"""Simulated campaigns, each with deaths, hangs, signals, slow ranks and restarts of its own, to their end.

python tests/many_seeds.py SEED ...         replays single ones
python tests/many_seeds.py --seeds 100000   tries seeds from 0 up to that number
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from simulation.campaigns import SPACE, check_knowledge, disturb, final, hang, losses, make, records_of, slow

from hpo.islands.coordinator.ending import DONE
from hpo.islands.resume import fold
from hpo.journal.records import Finished, Started

_LAUNCHES = 12


def run(seed: int) -> None:
    """One campaign over as many launches as it takes; AssertionError where an invariant does not hold."""
    rng = random.Random(f"many/{seed}")
    budget = rng.randint(1, 30)
    records: list[dict[str, object]] = []
    for launch in range(_LAUNCHES):
        workers = rng.randint(1, 8)
        islands = rng.randint(1, min(3, workers))
        earlier = fold(records, space=SPACE, islands=islands, losses=losses)
        simulation, _ = make(
            seed * _LAUNCHES + launch,
            workers=workers,
            islands=islands,
            evaluations=budget,
            earlier=earlier,
            migration=rng.choice([0.0, 0.5, 1.0]),
            hang_timeout=rng.choice([1.0, 4.0]),  # the former is too short for a slow network
            **slow(rng),
        )
        # The last launches are left alone, so that each campaign comes to its end.
        until = float("inf")
        if launch < _LAUNCHES - 2:
            until = disturb(simulation, rng, workers)
            hang(simulation, rng, workers)
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


def replayable(seeds: Iterator[int]) -> None:
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(f"python tests/many_seeds.py {seed}\n{error!r}") from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    replayable(iter(options.seed or range(options.seeds)))
    print("all held")
