"""What early stopping saves on real learning curves: hours to what a search without it finds, and the quality.

    python tests/benchmarks/early_stopping.py [--seeds 20] [--first-seed 100] [--choice-seeds 20]
                                              [--evaluations 100] [--kinds KIND ...] [--rules RULE ...] [--quick]

The curves are those of ``curves.csv.gz``: random configurations of search_spaces/digits, residual networks on
handwritten digits, 24 epochs each, with the processor time that they took; ``curves.py`` trained them. Eight workers
of the island protocol itself in simulated time, an epoch lasting as long as it did.

"random" takes rows of the table in a random order, the same with and without early stopping; "evolution" and
"surrogate" propose as those kinds do, and evaluate the nearest row that they have not had yet. A search
without early stopping evaluates 100 of them; those with it have the same hours, and evaluate what fits into them.

"hours": after which share of the hours the best of those with it is as good, in the mean over all seeds, as that of
those without it in the end. "to the best": how long a search with it takes to complete something as good as what the
one without it finds, over how long that takes (median), and how many never do. Then, by how much the best after the
same hours is better, in points of accuracy (mean and its standard error), and the same after as many evaluations.

"chosen" is the rule to begin with: the one with the least "to the best" with random configurations on the seeds from 0
on (--choice-seeds of them), of equals the one that more often finds it. What is reported are other seeds, from
--first-seed on; the 600 curves are the same. Ends in one line of JSON."""

from __future__ import annotations

import bisect
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from arguments import parser_of
from msgspec.structs import replace

import hpo
from hpo.individual import COMPLETED, PRUNED, Scalar
from hpo.journal.records import Finished
from hpo.search.kinds.evolution import EvolutionBreeder, RandomBreeder
from hpo.search.kinds.surrogate import SurrogateBreeder
from hpo.search.population import Population
from hpo.search.protocols import Breeder, Genome, Offspring, WrappingBreeder
from hpo.search.stopping_rules import PruningSettings

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import curves  # noqa: E402
from simulation import Curve, Simulation, pruning_settings  # noqa: E402, pruning_settings

from search_spaces import digits  # noqa: E402

WORKERS = 8
WARM_UP = 4
"""Epochs of the longest warm-up in the space: before that curves say little of what is to come."""

RULES: dict[str, PruningSettings] = {
    "halving": pruning_settings("halving"),
    "halving, reduction = 4": pruning_settings("halving", reduction=4),
    "halving, promote = false": pruning_settings("halving", promote=False),
    "halving, patience = 1": pruning_settings("halving", patience=1),
    "halving, min_steps = 2": pruning_settings("halving", min_steps=2),
    "halving, min_steps = 4": pruning_settings("halving", min_steps=WARM_UP),
    "halving, min_steps = 4, reduction = 4": pruning_settings("halving", min_steps=WARM_UP, reduction=4),
    "median, min_steps = 4": pruning_settings("median", min_steps=WARM_UP, startup=5),
}


BREEDERS: dict[str, Callable[[hpo.SearchSpace], Breeder]] = {
    "evolution": EvolutionBreeder,
    "surrogate": SurrogateBreeder,
}


class Table:
    """The rows as curves of errors, by configuration, and which of them are near a point of the space."""

    def __init__(self) -> None:
        found = curves.read()
        self.rows = [digits.space.validate(row.params) for row in found]
        self.genomes = [digits.space.encode(params) for params in self.rows]
        self._curves = {
            digits.space.key(params): Curve(row.epoch_s, [1.0 - accuracy for accuracy in row.accuracy])
            for params, row in zip(self.rows, found)
        }
        self._matrix = numpy.array([self._point(genome) for genome in self.genomes])
        self._unordered = numpy.array(
            [
                isinstance(one, hpo.Categorical) and not isinstance(one, hpo.Ordinal)
                for one in digits.space.parameters.values()
            ]
        )

    def curve(self, params: dict[str, Scalar]) -> Curve:
        return self._curves[digits.space.key(params)]

    def nearest(self, genome: Sequence[float]) -> list[int]:
        """All rows, the nearest first."""
        apart = numpy.abs(self._matrix - self._point(genome))
        apart[:, self._unordered] = apart[:, self._unordered] > 0
        return [int(row) for row in apart.sum(axis=1).argsort(kind="stable")]

    @staticmethod
    def _point(genome: Sequence[float]) -> list[float]:
        """A number from 0 to 1 a parameter, an index where there is no order, -1 where it does not exist."""
        params = digits.space.decode(genome)
        point = []
        for gene, (name, parameter) in zip(genome, digits.space.parameters.items()):
            scale = parameter.count - 1 if isinstance(parameter, hpo.Ordinal) else 1
            point.append(gene / scale if name in params else -1.0)
        return point


class OfTheTable(WrappingBreeder):
    """Proposes the row nearest to what ``breeder`` would, of those that this leader has not proposed yet."""

    def __init__(self, breeder: Breeder, table: Table) -> None:
        super().__init__(breeder)
        self._table = table
        self._left = set(range(len(table.rows)))

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        child = super().breed(population, rng)
        row = next((row for row in self._table.nearest(child.genome) if row in self._left), 0)
        self._left.discard(row)
        return replace(child, genome=self._table.genomes[row])


class Stream(RandomBreeder):
    """The rows in one order for all leaders together."""

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(Rows(table))
        self._rows = iter(random.Random(f"stream/{seed}").sample(table.genomes, len(table.genomes)))

    def breed(self, population: Population, rng: random.Random) -> Offspring:
        return Offspring(next(self._rows, self._space.sample(rng)), operator="random")


class Rows(hpo.SearchSpace):
    """The space of which only the rows are drawn."""

    def __init__(self, table: Table) -> None:
        super().__init__(digits.space.parameters)
        self._genomes = table.genomes

    def sample(self, rng: random.Random) -> Genome:
        return rng.choice(self._genomes)


@dataclass
class Found:
    """``times[k]``: seconds after which ``errors[k]`` was the least of all completed; ``ends``: of all, in order, the
    error infinite of pruned ones."""

    times: list[float]
    errors: list[float]
    ends: list[tuple[float, float]]

    @property
    def seconds(self) -> float:
        return self.ends[-1][0]

    def at(self, seconds: float) -> float:
        index = bisect.bisect_right(self.times, seconds)
        return self.errors[index - 1] if index else 1.0

    def reached(self, error: float) -> float:
        return next((when for when, reached in zip(self.times, self.errors) if reached <= error), math.inf)


def search(
    table: Table, kind: str, rule: PruningSettings | None, seed: int, evaluations: int, until: float
) -> Found:
    """One campaign; to the end of the budget, or of the hours."""
    space, stream = Rows(table), Stream(table, seed)

    def breeder(rank: int) -> Breeder:
        return stream if kind == "random" else OfTheTable(BREEDERS[kind](space), table)

    simulation = Simulation(
        space,
        lambda params: 0.0,
        workers=WORKERS,
        islands=1,
        evaluations=evaluations,
        duration=lambda index: 0.0,
        breeder=breeder,
        curve=table.curve,
        pruning=rule,
        steps=curves.EPOCHS,  # as search_spaces/digits says
        latency_s=0.001,
        seed=seed,
    )
    simulation.run(until=until)
    last = {
        record.id: (record.finished, record.objectives["value"] if record.status == COMPLETED else math.inf)
        for journal in simulation.journals
        for record in journal.committed
        if isinstance(record, Finished) and record.status in (COMPLETED, PRUNED)
    }
    ends = sorted(last.values())
    times, errors = [], []
    for when, error in ends:
        if error < (errors[-1] if errors else math.inf):
            times.append(when)
            errors.append(error)
    return Found(times, errors, ends)


def measure(
    table: Table, kind: str, rules: Sequence[str], seeds: range, evaluations: int
) -> dict[str, dict[str, float]]:
    """What each rule saves and finds over these seeds; printed on the way."""
    most = int(0.9 * len(table.rows))
    plain = {seed: search(table, kind, None, seed, evaluations, math.inf) for seed in seeds}
    mean = statistics.mean(one.errors[-1] for one in plain.values())
    print(
        f"{kind}, seeds {seeds.start} to {seeds.stop - 1}: best of {evaluations} without early stopping "
        f"{100 - 100 * mean:.2f} %"
    )
    found = {}
    for name in rules:
        stopped = {
            seed: search(table, kind, RULES[name], seed, most, one.seconds) for seed, one in plain.items()
        }
        row = found[name] = compare(plain, stopped, evaluations)
        print(
            f"  {name:38} hours {row['hours']:.2f}, to the best {row['best']:.2f}, never {row['never']:.0f}; same "
            f"hours {row['points']:+.2f} ± {row['se']:.2f}; as many evaluations "
            f"{row['points_after_as_many']:+.2f} in {row['share_of_hours']:.2f} of the hours",
            flush=True,
        )
    return found


def main() -> None:
    """Choose a rule, run all on other seeds, print tables and one line of JSON."""
    parser = parser_of(__doc__, quick="a seed each, random configurations, 30 of them")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--choice-seeds", type=int, default=20, help="by which a rule is chosen: from 0 on")
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=["random", *BREEDERS])
    parser.add_argument("--rules", nargs="*", default=list(RULES), help="by their names in the report")
    options = parser.parse_args()
    if options.quick:
        options.seeds = options.choice_seeds = 1
        options.evaluations, options.kinds = 30, ["random"]
    if options.first_seed < options.choice_seeds:
        parser.error("--first-seed must be at least --choice-seeds: a rule is chosen on other seeds")
    table = Table()
    choice = measure(table, "random", options.rules, range(options.choice_seeds), options.evaluations)
    chosen = min(choice, key=lambda name: (choice[name]["best"], choice[name]["never"]))
    print(f"chosen: {chosen}")
    report: dict[str, object] = {
        "benchmark": "early_stopping",
        "curves": len(table.rows),
        "chosen": chosen,
        "choice_seeds": options.choice_seeds,
        "seeds": options.seeds,
        "first_seed": options.first_seed,
    }
    reported = range(options.first_seed, options.first_seed + options.seeds)
    for kind in options.kinds:
        for name, row in measure(table, kind, options.rules, reported, options.evaluations).items():
            report[f"{kind}: {name}"] = {key: round(value, 3) for key, value in row.items()}
    print(json.dumps(report, ensure_ascii=False))


def compare(plain: dict[int, Found], stopped: dict[int, Found], evaluations: int) -> dict[str, float]:
    """What ``stopped`` searches needed and found, beside those without early stopping, by seed."""
    shares, gains, same, part = [], [], [], []
    for seed, without in plain.items():
        found = stopped[seed]
        reached = found.reached(without.errors[-1])
        shares.append(reached / without.times[-1])
        gains.append(100 * (without.errors[-1] - found.at(without.seconds)))
        few = found.ends[:evaluations]
        same.append(100 * (without.errors[-1] - min(error for _, error in few)))
        part.append(few[-1][0] / without.seconds)
    goal = statistics.mean(one.errors[-1] for one in plain.values())

    def mean_after(share: float) -> float:
        return statistics.mean(stopped[seed].at(share * one.seconds) for seed, one in plain.items())

    shares_of_hours = (percent / 100 for percent in range(1, 101))
    return {
        "hours": next((share for share in shares_of_hours if mean_after(share) <= goal), math.inf),
        "best": statistics.median(shares),
        "never": float(sum(map(math.isinf, shares))),
        "points": statistics.mean(gains),
        "se": statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0,
        "points_after_as_many": statistics.mean(same),
        "share_of_hours": statistics.mean(part),
    }


if __name__ == "__main__":
    main()
