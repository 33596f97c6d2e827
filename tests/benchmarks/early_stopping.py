"""What early stopping saves on real learning curves: hours to what a search without it finds, and the quality.

    python tests/benchmarks/early_stopping.py [--seeds 20] [--first-seed 0] [--evaluations 200]

The curves are those of ``curves.csv.gz``: random configurations of search_spaces/digits, residual networks on
handwritten digits, 24 epochs each, with the processor time that they took; ``curves.py`` trained them. Eight workers
of the island protocol itself in simulated time, an epoch lasting as long as it did.

"random" draws rows of the table. "evolution" breeds in the space, and a configuration has the curve of the
nearest row. A search without early stopping evaluates so many; those with it have the same hours, and evaluate
what fits into them, of the same stream where that is random. "hours" is when a search with it had completed
something as good as the best that the one without it found, over when that had found it: the median over the
seeds, a seed in which it never did counting as infinite; then, by how much the best after the same hours is
better, in points of accuracy (mean over seeds and its standard error), and the same after as many evaluations.
Ends in one line of JSON."""

from __future__ import annotations

import argparse
import bisect
import json
import math
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy

import hpo
from hpo.breeding import RandomBreeder, TypedBreeder
from hpo.coordinator import EXHAUSTED
from hpo.individual import COMPLETED, PRUNED, Scalar
from hpo.pruning import PruningSettings
from hpo.simulation import Curve, Simulation

sys.path.insert(0, str(Path(__file__).parent))
import curves

from search_spaces import digits

WORKERS = 8
MORE = 6
"""With early stopping so many times as many individuals are allowed; the hours end it."""

FIRST = 4
"""Epochs of the longest warm-up in the space: before that curves say little, and the best are no better than others."""

RULES: dict[str, PruningSettings | None] = {
    "none": None,
    "halving": PruningSettings(rule="halving", min_steps=FIRST),
    "halving, without promotion": PruningSettings(rule="halving", min_steps=FIRST, promote=False),
    "halving, reduction 4": PruningSettings(rule="halving", min_steps=FIRST, reduction=4),
    "halving, reduction 2": PruningSettings(rule="halving", min_steps=FIRST, reduction=2),
    "halving, patience 1": PruningSettings(rule="halving", min_steps=FIRST, patience=1),
    "halving, from epoch 1": PruningSettings(rule="halving"),
    "median": PruningSettings(rule="median", min_steps=FIRST, startup=5),
}


class Table:
    """The rows as curves of errors, and the nearest one to a configuration."""

    def __init__(self) -> None:
        self.rows = curves.read()
        self._matrix = numpy.array([self._point(row.params) for row in self.rows])
        self._unordered = numpy.array(
            [
                isinstance(one, hpo.Categorical) and not isinstance(one, hpo.Ordinal)
                for one in digits.space.parameters.values()
            ]
        )
        self._nearest: dict[str, int] = {}

    @staticmethod
    def _point(params: Mapping[str, object]) -> list[float]:
        """A number from 0 to 1 a parameter, an index where there is no order, -1 where it does not exist."""
        genome = digits.space.encode(digits.space.validate(params))
        point = []
        for gene, (name, parameter) in zip(genome, digits.space.parameters.items()):
            scale = parameter.count - 1 if isinstance(parameter, hpo.Ordinal) else 1
            point.append(gene / scale if name in params else -1.0)
        return point

    def of_row(self, params: dict[str, Scalar]) -> Curve:
        return self.curve(int(params["row"]))  # type: ignore[arg-type]

    def of_nearest(self, params: dict[str, Scalar]) -> Curve:
        key = digits.space.key(params)
        if key not in self._nearest:
            apart = numpy.abs(self._matrix - self._point(params))
            apart[:, self._unordered] = apart[:, self._unordered] > 0
            self._nearest[key] = int(apart.sum(axis=1).argmin())
        return self.curve(self._nearest[key])

    def curve(self, row: int) -> Curve:
        found = self.rows[row]
        return Curve(found.epoch_s, [1.0 - accuracy for accuracy in found.accuracy])


@dataclass
class Found:
    """``times[k]``: hours after which ``errors[k]`` was the least of all completed."""

    times: list[float]
    errors: list[float]
    ends: list[tuple[float, float]]
    seconds: float

    def at(self, seconds: float) -> float:
        index = bisect.bisect_right(self.times, seconds)
        return self.errors[index - 1] if index else 1.0

    def reached(self, error: float) -> float:
        return next((when for when, reached in zip(self.times, self.errors) if reached <= error), math.inf)


def search(
    table: Table, kind: str, rule: PruningSettings | None, seed: int, evaluations: int, until: float
) -> Found:
    """One campaign; to the end of the budget, or of the hours."""
    space = (
        hpo.SearchSpace(row=hpo.Categorical(*range(len(table.rows)))) if kind == "random" else digits.space
    )
    simulation = Simulation(
        space,
        lambda params: 0.0,
        workers=WORKERS,
        islands=1,
        evaluations=evaluations,
        duration=lambda index: 0.0,
        breeder=lambda rank: RandomBreeder(space) if kind == "random" else TypedBreeder(space),
        curve=table.of_row if kind == "random" else table.of_nearest,
        pruning=rule,
        latency_s=0.001,
        seed=seed,
    )
    simulation.run(until=until)
    end = simulation.coordinator.end
    assert end is None or end.reason != EXHAUSTED or kind == "random"
    ends = sorted(
        (record["finished"], record["objectives"]["value"] if record["status"] == COMPLETED else math.inf)
        for journal in simulation.journals
        for record in journal.committed
        if record["type"] == "finished" and record["status"] in (COMPLETED, PRUNED)
    )
    best, times, errors = math.inf, [], []
    for when, error in ends:
        if error < best:
            best = error
            times.append(when)
            errors.append(error)
    return Found(times, errors, ends, simulation.time)


def main() -> None:
    """Run all, print a table, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=200)
    options = parser.parse_args()
    table = Table()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    report: dict[str, object] = {
        "benchmark": "early_stopping",
        "curves": len(table.rows),
        "seeds": len(seeds),
    }
    for kind in ("random", "evolution"):
        plain = {seed: search(table, kind, None, seed, options.evaluations, math.inf) for seed in seeds}
        print(
            f"{kind}: best of {options.evaluations} without early stopping, mean accuracy "
            f"{100 - 100 * statistics.mean(one.errors[-1] for one in plain.values()):.2f} %"
        )
        for name, rule in RULES.items():
            if rule is None:
                continue
            shares, gains, same, ends = [], [], [], []
            for seed, without in plain.items():
                found = search(table, kind, rule, seed, MORE * options.evaluations, without.seconds)
                shares.append(found.reached(without.errors[-1]) / without.times[-1])
                gains.append(100 * (without.errors[-1] - found.at(without.seconds)))
                few = found.ends[: options.evaluations]
                same.append(100 * (without.errors[-1] - min(error for _, error in few)))
                ends.append(few[-1][0] / without.seconds)
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            share = statistics.median(shares)
            print(
                f"  {name:28} hours {share:.2f}  never {sum(map(math.isinf, shares)):2}  points after the same hours "
                f"{statistics.mean(gains):+.2f} ± {error:.2f}, after {options.evaluations} evaluations "
                f"{statistics.mean(same):+.2f} in {statistics.mean(ends):.2f} of the hours"
            )
            report[f"{kind}, {name}"] = {
                "hours": round(share, 3),
                "never": sum(map(math.isinf, shares)),
                "points": round(statistics.mean(gains), 3),
                "points_se": round(error, 3),
                "points_after_as_many": round(statistics.mean(same), 3),
                "hours_of_as_many": round(statistics.mean(ends), 3),
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
