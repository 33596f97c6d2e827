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
from pathlib import Path
from typing import NamedTuple

from arguments import parser_of
from simulation import world as simulated_world
from simulation.campaigns import SPACE, losses, objective, standing
from simulation.evaluators import Fates
from simulation.launches import LaunchSettings, SimulatedLaunch
from simulation.ledger import SimulatedLedger
from simulation.whole_campaigns import records_of
from simulation.world import SimulatedMachine, World

from hpo.config.layout import Layout
from hpo.config.settings import EvaluationSettings
from hpo.islands.resume.fold import fold
from hpo.ledger.joining import Newcomer, beside

MEAN_S = 20.0
GAP_S = 5.0
"""Seconds between the starts of two launches."""


class Measured(NamedTuple):
    busy: float
    """Share of the workers' time that evaluations took."""
    best: float
    entries_per_s: float


def measure(seed: int, launches: int, workers: int, budget: int) -> Measured:
    """One campaign of ``launches`` that have ``workers`` each."""
    simulated_world._MOST_EVENTS = 10**9
    world, begun = World(seed), list[SimulatedLaunch]()
    ledger = SimulatedLedger(budget, SPACE)

    def start(number: int, directory: Path) -> None:
        machine = SimulatedMachine(
            world,
            f"h{number}",
            skew_s=0.0,
            server_skew_s=0.0,
            runs=lambda pid: not begun[number].ranks[0].over,
        )
        _, at_work = beside(directory, lambda: ledger.state, Newcomer(), machine=machine)
        settings = LaunchSettings(
            layout=Layout.plan(ranks=workers, islands=1, ranks_per_worker=1),
            evaluations=budget,
            evaluation=EvaluationSettings(timeout=1e5, first_failures="off"),
            seconds=lambda: MEAN_S * world.rng.lognormvariate(-0.11, 0.47),
            skews=[0.0] * workers,
            hosts=[machine.host] * workers,
            fates=Fates.none(),
            latency_s=0.0005,
            tolerant=True,
            migration=0.0,
            copy=False,
        )
        begun.append(
            SimulatedLaunch(
                world,
                SPACE,
                objective,
                settings,
                ledger=ledger,
                earlier=lambda islands: fold(
                    records_of(begun, ledger), space=SPACE, islands=islands, losses=losses
                ),
                directory=directory,
                machine=machine,
                beside=[*at_work],
            )
        )

    with tempfile.TemporaryDirectory() as directory:
        for number in range(launches):
            world.at(number * GAP_S, lambda number=number: start(number, Path(directory)))  # type: ignore[misc]
        world.run(lambda: len(begun) == launches and all(one.settled for one in begun))
    records = standing(records_of(begun, ledger))
    assert len({one.id for one in records}) == budget
    end = max(one.finished for one in records)
    first = min(one.started or end for one in records) + (launches - 1) * GAP_S
    busy_s = sum(one.finished - max(one.started or first, first) for one in records if one.finished > first)
    best = min((one.objectives or {}).get("value", math.inf) for one in records)
    return Measured(busy_s / (launches * workers * (end - first)), best, ledger.state.entries / world.time)


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
    regrets = {
        shape: [math.log10(measure(seed, *shape, budget // 3).best) for seed in range(seeds)]
        for shape in ((1, 16), (4, 4))
    }
    differences = [four - one for one, four in zip(regrets[1, 16], regrets[4, 4])]
    for name, share in shares.items():
        print(f"{name:>7}: busy {share:.3f}")
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
