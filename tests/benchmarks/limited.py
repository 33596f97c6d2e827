"""How good the results are that keep limits of outcomes: the default beside random search, evolution and Optuna's
samplers.

    python tests/benchmarks/limited.py [--seeds 10] [--only NAME ...] [--systems NAME ...] [--first-seed 0]
                                       [--curves FILE.jsonl] [--quick]

Eight workers in simulated time, asynchronous, as in search.py, whose --curves and --first-seed this has too.

Problems, with the number of limits: Gramacy's toy function (2), Ackley's in five dimensions (2; Eriksson and Poloczek
2021), a spring (4) and a speed reducer (11), both of engineering (Coello Coello and Mezura-Montes 2002), search.py's
"training" with limited memory and step time (2), and a table of trainings with limited seconds (1).

Peers, of Optuna: TPE, its default, and "optuna-gp", GPSampler, by --systems; both are given each limit by
``trial.set_constraint``.

The measure is log10 of the regret of the best that keeps all limits, relative to that of the median of random
configurations that keep them, at 50 and 100 evaluations, between -4 and 0, which is also that of none. Ends in one line
of JSON."""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import peers
import search
from arguments import parser_of
from objectives import _means, _shown
from search import FLOOR, Params, Stopwatch, _floats, in_simulated_time

import hpo

BUDGETS = (50, 100)
Found = tuple[float, list[float]]
"""Value, to be minimised, and numbers that are above 0 where they break a limit."""


@dataclass(frozen=True)
class Problem:
    space: hpo.SearchSpace
    evaluate: Callable[[Params], Found]
    optimum: float
    limits: int
    median: float
    """Median of the values of random configurations that keep all limits."""
    seconds: Callable[[Params], float] | None = None


def toy() -> Problem:
    def evaluate(params: Params) -> Found:
        x, y = params.values()
        return x + y, [
            1.5 - x - 2 * y - 0.5 * math.sin(2 * math.pi * (x * x - 2 * y)),
            x * x + y * y - 1.5,
        ]

    return Problem(_floats(2, 0.0, 1.0), evaluate, 0.5997881, 2, 1.25)


def ackley() -> Problem:
    def evaluate(params: Params) -> Found:
        x = numpy.array([*params.values()])
        value = (
            -20 * math.exp(-0.2 * math.sqrt((x**2).mean()))
            - math.exp(numpy.cos(2 * math.pi * x).mean())
            + 20
            + math.e
        )
        return float(value), [float(x.sum()), float(numpy.linalg.norm(x)) - 5.0]

    return Problem(_floats(5, -5.0, 10.0), evaluate, 0.0, 2, 8.0)


def spring() -> Problem:
    space = hpo.SearchSpace(wire=hpo.Float(0.05, 2.0), coil=hpo.Float(0.25, 1.3), turns=hpo.Float(2.0, 15.0))

    def evaluate(params: Params) -> Found:
        d, c, n = params.values()
        return (n + 2) * c * d * d, [
            1 - c**3 * n / (71785 * d**4),
            (4 * c * c - c * d) / (12566 * (c * d**3 - d**4) or 1e-9) + 1 / (5108 * d * d) - 1,
            1 - 140.45 * d / (c * c * n),
            (c + d) / 1.5 - 1,
        ]

    return Problem(space, evaluate, 0.0126652, 4, 0.056)


def reducer() -> Problem:
    space = hpo.SearchSpace(
        face=hpo.Float(2.6, 3.6),
        module=hpo.Float(0.7, 0.8),
        teeth=hpo.Int(17, 28),
        first=hpo.Float(7.3, 8.3),
        second=hpo.Float(7.3, 8.3),
        shaft1=hpo.Float(2.9, 3.9),
        shaft2=hpo.Float(5.0, 5.5),
    )

    def evaluate(params: Params) -> Found:
        a, b, c, d, e, f, g = params.values()
        value = (
            0.7854 * a * b * b * (3.3333 * c * c + 14.9334 * c - 43.0934)
            - 1.508 * a * (f * f + g * g)
            + 7.4777 * (f**3 + g**3)
            + 0.7854 * (d * f * f + e * g * g)
        )
        return value, [
            27 / (a * b * b * c) - 1,
            397.5 / (a * b * b * c * c) - 1,
            1.93 * d**3 / (b * c * f**4) - 1,
            1.93 * e**3 / (b * c * g**4) - 1,
            math.sqrt((745 * d / (b * c)) ** 2 + 16.9e6) / (110 * f**3) - 1,
            math.sqrt((745 * e / (b * c)) ** 2 + 157.5e6) / (85 * g**3) - 1,
            b * c / 40 - 1,
            5 * b / a - 1,
            a / (12 * b) - 1,
            (1.5 * f + 1.9) / d - 1,
            (1.1 * g + 1.9) / e - 1,
        ]

    return Problem(space, evaluate, 2994.471, 11, 4540.0)


def training() -> Problem:
    """search.py's "training"; memory by width, depth, optimizer and activation, and a step time."""
    plain = search.training()

    def evaluate(params: Params) -> Found:
        states = {"sgd": 1.5, "rmsprop": 2.0, "adam": 3.0}[params["optimizer"]]
        memory = params["width"] * params["depth"] ** 0.5 * states
        step = (
            params["width"]
            * params["depth"]
            * {"relu": 1.0, "tanh": 1.2, "sigmoid": 1.2, "gelu": 1.6}[params["activation"]]
        )
        return plain.truth(params), [memory / 100 - 1, step / 200 - 1]

    return Problem(plain.space, evaluate, 0.075, 2, 0.89)


def table() -> Problem:
    plain = search.table("HPOBench", "segment")
    assert plain.seconds is not None
    seconds = {json.dumps(one): plain.seconds(one) for one in plain.space.enumerate()}
    most = float(numpy.quantile([*seconds.values()], 0.1))
    kept = [plain.truth(one) for one in plain.space.enumerate() if seconds[json.dumps(one)] <= most]

    def evaluate(params: Params) -> Found:
        return plain.truth(params), [seconds[json.dumps(params)] / most - 1]

    median = statistics.median(kept)
    return Problem(plain.space, evaluate, min(kept), 1, median, lambda params: seconds[json.dumps(params)])


PROBLEMS = {one.__name__: one for one in (toy, ackley, spring, reducer, training, table)}


@functools.lru_cache(maxsize=2)
def problem(name: str) -> Problem:
    return PROBLEMS[name]()


class Ours(search.Ours):
    """hpo.Search with limits."""

    def __init__(self, one: Problem, seed: int, kind: str) -> None:
        super().__init__(
            one.space, seed, kind=kind, at_most={f"c{place}": 0.0 for place in range(one.limits)}
        )

    def tell(self, asked: object, value: Found) -> None:  # type: ignore[override]
        self._search.tell(asked, {"value": value[0], **{f"c{i}": one for i, one in enumerate(value[1])}})


class Optuna(peers.Optuna):
    def __init__(self, one: Problem, seed: int, sampler: str) -> None:
        super().__init__(one.space, seed, sampler)

    def tell(self, asked: Any, value: Found) -> None:
        for place, one in enumerate(value[1]):
            asked.set_constraint(f"c{place}", one)
        super().tell(asked, value[0])


SYSTEMS: dict[str, Callable[[Problem, int], Any]] = {
    **{kind: functools.partial(Ours, kind=kind) for kind in ("random", "evolution", "default", "tpe")},
    "optuna": functools.partial(Optuna, sampler="tpe"),
    "optuna-gp": functools.partial(Optuna, sampler="gp"),
}
NAMED_ONLY = ("tpe", "optuna-gp")


def run(job: search.Job) -> tuple[search.Job, list[float], float]:
    """log10 of the relative regret after each evaluation, and mean seconds to propose."""
    _, name, system, seed, evaluations = job
    one = problem(name)
    rng = random.Random(f"{name}/{seed}")
    asked_of = SYSTEMS[system](one, seed)
    curve: list[float] = []
    best, watch = math.inf, Stopwatch()
    for token, params in in_simulated_time(lambda: watch(asked_of.ask), one.seconds, rng, evaluations):
        value, excess = one.evaluate(params)
        watch(asked_of.tell, token, (value, excess))
        if max(excess) <= 0.0:
            best = min(best, value)
        regret = (best - one.optimum) / (one.median - one.optimum)
        curve.append(math.log10(min(1.0, max(FLOOR, regret))))
    return job, curve, watch.seconds / evaluations


def main() -> None:
    parser = parser_of(__doc__, quick="one seed, 50 evaluations, two problems")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--curves", type=Path, help="keeps all runs; those in it are not run again")
    options = parser.parse_args()
    budgets, seeds, names = BUDGETS, options.seeds, options.only
    if options.quick:
        budgets, seeds, names = BUDGETS[:1], 1, names[:2]
    systems = options.systems or [name for name in SYSTEMS if name not in NAMED_ONLY]
    jobs = [
        ("limited", name, system, seed, budgets[-1])
        for name in names
        for system in systems
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    found: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    cost: dict[str, list[float]] = defaultdict(list)
    for (_, name, system, _, _), curve, spent in search.kept(
        jobs, options.curves, lambda _, rest: map(run, rest)
    ):
        found[name, system].append([curve[budget - 1] for budget in budgets])
        cost[system].append(spent)
        if len(found[name, system]) == seeds:
            print(f"{name:12s} {system:10s} {_shown(found[name, system])}", flush=True)
    result: dict[str, list[tuple[float, float]]] = {}
    for system in systems:
        by_seed = numpy.mean([found[name, system] for name in names], axis=0).tolist()
        result[system] = _means(by_seed)
        print(f"{'all':12s} {system:10s} {_shown(by_seed)}")
    report = {
        "benchmark": "limited",
        "seeds": seeds,
        "budgets": budgets,
        "log10_regret": result,
        "ms_a_proposal": {name: round(1e3 * statistics.fmean(all_), 2) for name, all_ in cost.items()},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
