"""How the protocol scales: 10 000 workers in 100 islands in virtual time, against an ideal global queue on
the same draws.

    python tests/benchmarks/scale.py

The code of leaders and coordinator is the real one; only time, network and evaluations are simulated.
Evaluations last minutes (lognormal, median 3 min, σ = 0.5), ten for each worker. Ends in one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time

import hpo
from hpo.breeding import RandomBreeder
from hpo.simulation import Simulation, ideal_queue


def simulate(workers: int, islands: int, each: int, seed: int) -> dict[str, float]:
    """Busy shares, the ideal's and the cost of one simulated campaign."""
    rng = random.Random(seed)
    space = hpo.SearchSpace({f"x{i}": hpo.Float(-5, 5) for i in range(10)})
    draws = [180.0 * rng.lognormvariate(0.0, 0.5) for _ in range(workers * each)]
    begun = time.perf_counter()
    simulation = Simulation(
        space,
        lambda params: sum(value * value for value in params.values()),
        workers=workers,
        islands=islands,
        evaluations=len(draws),
        duration=lambda index: draws[index],
        breeder=lambda rank: RandomBreeder(space),
        migration=0.1,
        keep_journals=False,
        seed=seed,
    )
    report = simulation.run()
    ideal = ideal_queue(draws, workers)
    return {
        "workers": workers,
        "islands": islands,
        "evaluations": report.evaluations,
        "busy": report.busy,
        "busy_ideal": sum(draws) / (workers * ideal),
        "busy_until_last_admitted": report.busy_admitting,
        "messages_per_evaluation": report.messages,
        "bytes_per_evaluation": report.bytes,
        "seconds_to_simulate": time.perf_counter() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--islands", type=int, default=100)
    parser.add_argument("--each", type=int, default=10, help="evaluations a worker")
    options = parser.parse_args()
    growth = []
    for per_island in (10, 30, 100, 300):
        row = simulate(4 * per_island, 4, options.each, seed=1)
        growth.append(
            {key: row[key] for key in ("messages_per_evaluation", "bytes_per_evaluation")}
            | {"workers_per_island": per_island}
        )
        print(
            f"{per_island:5d} workers an island: {row['messages_per_evaluation']:7.1f} messages, "
            f"{row['bytes_per_evaluation']:9.0f} bytes an evaluation"
        )
    row = simulate(options.workers, options.islands, options.each, seed=0)
    for key, value in row.items():
        print(f"{key:28s} {value:.4f}" if isinstance(value, float) else f"{key:28s} {value}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"benchmark": "scale", **row, "growth": growth, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
