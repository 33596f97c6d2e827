"""Workers that several launches share out among themselves, beside the same workers in one launch, in virtual time.

    python tests/benchmarks/launches.py [--seeds 30] [--quick]

All of ``simulation.launches`` is real but network, clocks and evaluators: ledger, signs of life, event loops, exchange
of the best. Busy shares are those from the last launch's first evaluation on, of campaigns of 600 evaluations of 20 s,
lognormal with a standard deviation of half their mean. The regret is log10 of the best value after 200 evaluations of a
function of two floats and a choice whose least value is 0. Ends in one line of JSON."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from arguments import parser_of
from simulation import world as simulated_world
from simulation.joint_campaigns import SimpleLaunches

MEAN_S = 20.0
GAP_S = 5.0
"""Seconds between the starts of two launches."""


class Measured(NamedTuple):
    busy: float
    """Share of the workers' time that evaluations took."""
    best: float
    entries_per_s: float


def measure(seed: int, launches: int, ranks: int, budget: int, sizes: Sequence[int] = (1,)) -> Measured:
    """One campaign of ``launches`` that have ``ranks`` each. ``sizes``: ranks of each worker, by island."""
    simulated_world._MOST_EVENTS = 10**9
    with tempfile.TemporaryDirectory() as directory:
        campaign = SimpleLaunches(seed, Path(directory), budget=budget, mean_s=MEAN_S)
        for number in range(1, launches):
            campaign.world.at(number * GAP_S, lambda: campaign.start(ranks, sizes))
        campaign.start(ranks, sizes)
        campaign.world.sleep(launches * GAP_S)
        records = campaign.run()
    assert len({one.id for one in records}) == budget
    end = max(one.finished for one in records)
    first = min(one.started or end for one in records) + (launches - 1) * GAP_S
    busy_s = sum(one.finished - max(one.started or first, first) for one in records if one.finished > first)
    best = min((one.objectives or {}).get("value", math.inf) for one in records)
    return Measured(
        busy_s / (campaign.ledger.state.workers * (end - first)),
        best,
        campaign.ledger.state.entries / campaign.world.time,
    )


def main() -> None:
    parser = parser_of(__doc__, "two seeds of a fifth as many evaluations")
    parser.add_argument("--seeds", type=int, default=30)
    options = parser.parse_args()
    seeds, budget = (2, 120) if options.quick else (options.seeds, 600)
    shares = {
        f"{launches} x {workers}": statistics.fmean(
            measure(seed, launches, workers, budget).busy for seed in range(3)
        )
        for launches, workers in ((1, 12), (6, 2), (12, 1))
    }
    mixed = "3 x 27, workers of 1, 2 and 8 ranks"
    shares[mixed] = statistics.fmean(measure(seed, 3, 27, 2 * budget, (1, 2, 8)).busy for seed in range(3))
    regrets = {
        shape: [math.log10(measure(seed, *shape, budget // 3).best) for seed in range(seeds)]
        for shape in ((1, 16), (4, 4))
    }
    differences = [four - one for one, four in zip(regrets[1, 16], regrets[4, 4])]
    for name, share in shares.items():
        print(f"{name}: busy {share:.3f}")
    spread = statistics.stdev(differences) / len(differences) ** 0.5
    print(f"4 x 4 behind 1 x 16: {statistics.fmean(differences):+.2f} decades, standard error {spread:.2f}")
    found = {
        "busy": shares,
        "busy_ratio": shares["6 x 2"] / shares["1 x 12"],
        "decades_behind": statistics.fmean(differences),
        "standard_error": spread,
    }
    print(json.dumps({"benchmark": "launches", "seeds": seeds, **found}))


if __name__ == "__main__":
    main()
