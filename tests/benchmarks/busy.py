"""How busy workers are when run times differ: lognormal sleeps on 16 ranks, one island and four, beside
Propulate.

    python tests/benchmarks/busy.py [--ranks 16] [--islands 1 4] [--repeat 3] [--quick] [--isolation inline]

Evaluations sleep (lognormal, mean 0.4 s, σ = 1), 20 a rank. Busy is the time slept over workers times the
time from the first evaluation of the worker that was last to begin one to the end of the last evaluation;
what was slept before that is left out, for both. Beside each run stands its ideal: a global queue without
any cost, simulated on the same draws in the order in which they were used, whose workers come when those of
the run began, counted in the same way. ``ideal`` is that of workers who come all at once. Propulate gives every rank
the same number of evaluations: ``static_quota`` is such a queue without any cost, on the same draws. What a system
lies below its bound is what it costs itself; where there are more ranks than cores, that is also ranks that wait in
MPI, which takes processor time from those that work (--ranks 2: each has a core). Ours runs in warm
evaluators, as campaigns do; Propulate inside its ranks, as it does. With --isolation inline ours does so too, with
kind "evolution", and nothing else is measured. Medians over repeats. Ends in one line of JSON."""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import random
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from arguments import parser_of
from launching import LIMITS, run_propulate, start_ranks

SIGMA = 1.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """``mean_s``: of the sleeps; ``islands``: to be compared."""

    ranks: int = 16
    evaluations: int = 320
    mean_s: float = 0.4
    islands: tuple[int, ...] = (1, 4)

    @property
    def quota(self) -> int:
        """Evaluations of each rank, where all have as many."""
        return self.evaluations // self.ranks


QUICK = Size(ranks=4, evaluations=32, mean_s=0.1, islands=(2,))
PER_RANK = 20


def draws(size: Size) -> list[float]:
    """Seconds of the evaluations, in the order in which they are begun."""
    rng = random.Random(7)
    return [rng.lognormvariate(math.log(size.mean_s) - SIGMA**2 / 2, SIGMA) for _ in range(size.evaluations)]


def nap(directory: Path, seconds: list[float], argument: object) -> float:
    """Sleep for the next draw, and note it. Numbers are handed out by exclusive creation of files: any
    process may ask."""
    begun = time.time()
    number = len(os.listdir(directory))
    while True:
        try:
            handle = os.open(directory / f"{number:04d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            break
        except FileExistsError:
            number += 1
    time.sleep(seconds[number % len(seconds)])
    os.write(handle, json.dumps([begun, time.time(), os.getpid()]).encode())
    os.close(handle)
    return float(number)


def ours(directory: Path, size: Size, islands: int, *, inline: bool = False) -> None:
    import hpo

    space = hpo.SearchSpace({name: hpo.Float(*limits) for name, limits in LIMITS.items()})
    naps, seconds = directory / "naps", draws(size)
    hpo.Campaign(
        hpo.Task(space, lambda trial: nap(naps, seconds, trial)),
        directory=directory / "campaign",
        evaluations=size.evaluations,
        islands=islands,
        **({"isolation": "inline", "kind": "evolution"} if inline else {}),
    ).run()


def propulate(directory: Path, size: Size, islands: int) -> None:
    function = partial(nap, directory / "naps", draws(size))
    run_propulate(function, directory, generations=size.quota, islands=islands)


ROLES = {"ours": ours, "inline": partial(ours, inline=True), "propulate": propulate}


def arrivals(naps: list[tuple[float, float, int]]) -> list[float]:
    """When each worker began its first evaluation."""
    first: dict[int, float] = {}
    for begin, _, worker in sorted(naps):
        first.setdefault(worker, begin)
    return list(first.values())


def busy(naps: list[tuple[float, float, int]]) -> float:
    """Share of worker time spent asleep from the last worker's first start on."""
    first = arrivals(naps)
    start, end = max(first), max(one[1] for one in naps)
    return sum(max(0.0, stop - max(begin, start)) for begin, stop, _ in naps) / (len(first) * (end - start))


def ideal(seconds: list[float], begun: list[float], *, quota: int | None = None) -> float:
    """What a queue that costs nothing reaches on these draws with workers who come at these times and evaluate
    ``quota`` each (None: whoever is free takes the next)."""
    left = [len(seconds) if quota is None else quota] * len(begun)
    free = [(begin, worker) for worker, begin in enumerate(begun)]
    heapq.heapify(free)
    naps = []
    for length in seconds:
        begin, worker = heapq.heappop(free)
        naps.append((begin, begin + length, worker))
        left[worker] -= 1
        if left[worker]:
            heapq.heappush(free, (begin + length, worker))
    return busy(naps)


def run(role: str, size: Size, islands: int) -> tuple[float, float, int]:
    """Start one system; its busy share, its ideal's, and its number of evaluations."""
    with tempfile.TemporaryDirectory(prefix=f"busy-{role}-") as scratch:
        naps = Path(scratch, "naps")
        naps.mkdir()
        start_ranks(
            size.ranks,
            __file__,
            *("--role", role, "--directory", scratch, "--islands", islands),
            *("--size", json.dumps(asdict(size))),
        )
        found = [tuple(json.loads(path.read_text())) for path in naps.iterdir()]
    begun = arrivals(found)
    if len(begun) != size.ranks:
        raise SystemExit(f"{role}: {len(begun)} workers evaluated something where there are {size.ranks}")
    return busy(found), ideal(draws(size), begun), len(found)


def main() -> None:
    parser = parser_of(__doc__, quick=f"{QUICK}, once")
    parser.add_argument("--ranks", type=int, default=Size.ranks)
    parser.add_argument("--islands", type=int, nargs="+", default=Size.islands)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--isolation", choices=["warm", "inline"], default="warm")
    parser.add_argument("--role", choices=[*ROLES], help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=lambda text: Size(**json.loads(text)), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        (islands,) = options.islands
        ROLES[options.role](options.directory, options.size, islands)
        return
    size, repeat = (
        Size(ranks=options.ranks, evaluations=PER_RANK * options.ranks, islands=tuple(options.islands)),
        options.repeat,
    )
    if options.quick:
        size, repeat = QUICK, 1
    at_once = [0.0] * size.ranks
    best, quota = ideal(draws(size), at_once), ideal(draws(size), at_once, quota=size.quota)
    print(f"ideal queue                {best:.3f}\nstatic quota               {quota:.3f}")
    result: dict[str, float] = {"ranks": size.ranks, "ideal": best, "static_quota": quota}
    roles = ("inline",) if options.isolation == "inline" else ("ours", "propulate")
    for role in roles:
        for islands in size.islands:
            found, below = [], []
            for _ in range(repeat):
                share, its_ideal, count = run(role, size, islands)
                found.append(share)
                below.append(its_ideal - share)
                print(
                    f"{role:10s} {islands} island(s)   {share:.3f} over {count}, its ideal {its_ideal:.3f}",
                    flush=True,
                )
            result[f"{role}_{islands}"] = statistics.median(found)
            result[f"{role}_{islands}_below_ideal"] = statistics.median(below)
    for islands in size.islands if len(roles) > 1 else ():
        result[f"ratio_to_propulate_{islands}"] = result[f"ours_{islands}"] / result[f"propulate_{islands}"]
    print(json.dumps({"benchmark": "busy", **result}))


if __name__ == "__main__":
    main()
