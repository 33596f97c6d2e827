"""How the protocol scales: 10 000 workers in 100 islands in virtual time, against an ideal global queue on
the same draws.

    python tests/benchmarks/scale.py [--workers 10000] [--islands 100] [--each 10] [--quick]

The code of leaders and coordinator is the real one; only time, network and evaluations are simulated.
Evaluations last minutes (lognormal, median 3 min, σ = 0.5), ten for each worker. Messages and bytes are those
of all ranks together, over the number of evaluations, in the large campaign and in four smaller ones whose
islands grow. One island of 512 workers has evaluations with a median of 10 s. Nothing here is left to chance:
one run is enough. Ends in one line of JSON."""

from __future__ import annotations

import gc
import json
import random
import resource
import sys
import time
from pathlib import Path

from arguments import parser_of

import hpo
from hpo.search.kinds.evolution import RandomBreeder

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation import Simulation, ideal_queue


def simulate(
    workers: int, islands: int, each: int, seed: int, median_s: float = 180.0, migration: float = 0.1
) -> dict[str, float]:
    """Busy shares, the ideal's and the cost of one simulated campaign."""
    rng = random.Random(seed)
    space = hpo.SearchSpace({f"x{i}": hpo.Float(-5, 5) for i in range(10)})
    draws = [median_s * rng.lognormvariate(0.0, 0.5) for _ in range(workers * each)]
    begun = time.perf_counter()
    simulation = Simulation(
        space,
        lambda params: sum(value * value for value in params.values()),
        workers=workers,
        islands=islands,
        evaluations=len(draws),
        duration=lambda index: draws[index],
        breeder=lambda rank: RandomBreeder(space),
        migration=migration,
        keep_journals=False,
        seed=seed,
    )
    report = simulation.run()
    ideal = sum(draws) / (workers * ideal_queue(draws, workers))
    return {
        "workers": workers,
        "islands": islands,
        "evaluations": report.evaluations,
        "busy": report.busy,
        "busy_ideal": ideal,
        "below_ideal": ideal - report.busy,
        "busy_until_last_admitted": report.busy_admitting,
        "messages_per_evaluation": report.messages,
        "bytes_per_evaluation": report.bytes,
        "seconds_to_simulate": time.perf_counter() - begun,
    }


def main() -> None:
    parser = parser_of(__doc__, quick="200 workers in 4 islands, 5 evaluations each")
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--islands", type=int, default=100)
    parser.add_argument("--each", type=int, default=10, help="evaluations a worker")
    options = parser.parse_args()
    sizes, alone = [10, 30, 100, 300], 512
    if options.quick:
        options.workers, options.islands, options.each, sizes, alone = 200, 4, 5, [5, 10, 20], 20
    # Millions of objects live until the end and none is garbage before: looking for it takes a quarter of the
    # time.
    gc.disable()
    row = simulate(options.workers, options.islands, options.each, seed=0)
    for key, value in row.items():
        print(f"{key:28s} {value:.4f}" if isinstance(value, float) else f"{key:28s} {value}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    large = simulate(alone, 1, options.each, seed=2, median_s=10.0, migration=0.0)
    print(
        f"one island of {large['workers']} workers, evaluations of 10 s: busy {large['busy']:.4f}, ideal "
        f"{large['busy_ideal']:.4f}",
        flush=True,
    )
    growth = []
    for per_island in sizes:
        small = simulate(4 * per_island, 4, options.each, seed=1)
        growth.append(
            {key: small[key] for key in ("messages_per_evaluation", "bytes_per_evaluation")}
            | {"workers_per_island": per_island}
        )
        print(
            f"{per_island:5d} workers an island: {small['messages_per_evaluation']:7.1f} messages, "
            f"{small['bytes_per_evaluation']:9.0f} bytes an evaluation",
            flush=True,
        )
    print(
        json.dumps(
            {"benchmark": "scale", **row, "one_island": large, "growth": growth, "peak_mib": round(peak)}
        )
    )


if __name__ == "__main__":
    main()
