"""Evaluations a second where an evaluation costs nothing: ten floats, 4 ranks in 2 islands, beside Propulate
and Optuna.

    python tests/benchmarks/throughput.py [--evaluations 1000 4000] [--repeat 3] [--quick]

Every system is counted in the same way: from the first evaluation of the worker that was last to begin one
(so that imports do not count) to the last evaluation, evaluations begun in that time over its length. All of
them evaluate in the process that proposes: ours with isolation = "inline", while a campaign's default is child
processes (overhead.py). Ours runs Propulate's own genetic operators (kind "genetic") and the default kind.
Optuna gets its random sampler, its fastest: in memory in one process, which is all that can share that, and on
one journal file in four; there a quarter of the evaluations, which saves minutes and flatters it, since its rate
falls with the number of trials, as Propulate's does: hence two counts. Medians over repeats.
Ends in one line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from arguments import parser_of
from launching import LIMITS, run_propulate, single_threaded, start_ranks

import hpo

RANKS, ISLANDS = 4, 2
PROCESSES = {"optuna": RANKS, "optuna_memory": 1}
"""Numbers of processes of the systems that run without MPI."""


def sphere(params: dict[str, float]) -> float:
    """The evaluation: ten multiplications."""
    return sum(value * value for value in params.values())


class Stopwatch:
    """Notes when each evaluation began; every process writes its own file."""

    def __init__(self, directory: Path) -> None:
        self.begun: list[float] = []
        self._path = directory / f"times-{os.getpid()}.json"

    def __call__(self, function: Callable[..., float]) -> Callable[..., float]:
        def timed(argument: object) -> float:
            self.begun.append(time.time())
            return function(argument)

        return timed

    def write(self) -> None:
        self._path.write_text(json.dumps(self.begun))


def rate(directory: Path, workers: int) -> tuple[float, int, float]:
    """Evaluations a second, evaluations in all, and the share of them that was begun in the time counted."""
    times = [json.loads(path.read_text()) for path in directory.glob("times-*.json")]
    if len(times) != workers or not all(times):
        raise SystemExit(f"not all of {workers} workers evaluated something: {[len(one) for one in times]}")
    everything = sorted(moment for one in times for moment in one)
    begin, end = max(one[0] for one in times), everything[-1]
    counted = sum(1 for moment in everything if moment >= begin)
    return counted / (end - begin), len(everything), counted / len(everything)


def ours(directory: Path, evaluations: int, kind: str) -> None:
    watch = Stopwatch(directory)
    function = watch(lambda trial: sphere(trial.params))
    space = hpo.SearchSpace({name: hpo.Float(*limits) for name, limits in LIMITS.items()})
    campaign = hpo.Campaign(
        hpo.Task(space, function),
        directory=directory / "campaign",
        evaluations=evaluations,
        islands=ISLANDS,
        isolation="inline",
        kind=kind,
    )
    campaign.run()
    watch.write()


def propulate(directory: Path, evaluations: int) -> None:
    watch = Stopwatch(directory)
    run_propulate(watch(sphere), directory, generations=evaluations // RANKS, islands=ISLANDS)
    watch.write()


def optuna(directory: Path, evaluations: int, *, in_memory: bool = False) -> None:
    import optuna as peer
    from optuna.storages.journal import JournalFileBackend

    peer.logging.set_verbosity(peer.logging.ERROR)
    journal = peer.storages.JournalStorage(JournalFileBackend(str(directory / "optuna.log")))
    study = peer.create_study(
        study_name="sphere",
        storage=None if in_memory else journal,
        load_if_exists=True,
        sampler=peer.samplers.RandomSampler(seed=os.getpid()),
    )
    watch = Stopwatch(directory)

    def objective(trial: peer.Trial) -> float:
        return sphere({name: trial.suggest_float(name, *limits) for name, limits in LIMITS.items()})

    study.optimize(
        watch(objective), n_trials=evaluations // PROCESSES["optuna_memory" if in_memory else "optuna"]
    )
    watch.write()


def start(role: str, directory: Path, evaluations: int, *extra: str) -> None:
    """Run one system to its end."""
    arguments = ["--role", role, "--directory", str(directory), "--evaluations", str(evaluations), *extra]
    if role not in PROCESSES:
        start_ranks(RANKS, __file__, *arguments)
        return
    line = [sys.executable, __file__, *arguments]
    processes = [subprocess.Popen(line, env=single_threaded()) for _ in range(PROCESSES[role])]
    codes = [process.wait(timeout=900) for process in processes]
    if any(codes):
        raise SystemExit(f"{role} ended with {codes}")


def compare(evaluations: int, repeat: int) -> tuple[dict[str, float], float]:
    """Median evaluations a second of each system, and the least share that was counted."""
    rates: dict[str, list[float]] = defaultdict(list)
    least_counted = 1.0
    for _ in range(repeat):
        for name, role, extra in (
            ("ours", "ours", ("--kind", "genetic")),
            ("ours default", "ours", ("--kind", "default")),
            ("propulate", "propulate", ()),
            ("optuna", "optuna", ()),
            ("optuna_memory", "optuna_memory", ()),
        ):
            count = evaluations // 4 if role == "optuna" else evaluations
            with tempfile.TemporaryDirectory(prefix=f"throughput-{role}-") as scratch:
                start(role, Path(scratch), count, *extra)
                found, total, counted = rate(Path(scratch), PROCESSES.get(role, RANKS))
            rates[name].append(found)
            least_counted = min(least_counted, counted)
            print(f"{name:14s} {found:9.1f} evaluations/s over {total}, {counted:.0%} counted", flush=True)
    return {name: statistics.median(values) for name, values in rates.items()}, least_counted


def main() -> None:
    parser = parser_of(__doc__, quick="400 evaluations, once")
    parser.add_argument("--evaluations", type=int, nargs="+", default=[1000, 4000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--role", choices=["ours", "propulate", *PROCESSES], help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="genetic", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "ours":
        ours(options.directory, options.evaluations[0], options.kind)
        return
    if options.role is not None:
        system = {"propulate": propulate, "optuna": optuna, "optuna_memory": partial(optuna, in_memory=True)}
        system[options.role](options.directory, options.evaluations[0])
        return
    if options.quick:
        options.evaluations, options.repeat = [400], 1
    rates: dict[int, dict[str, float]] = {}
    least_counted = 1.0
    for evaluations in options.evaluations:
        rates[evaluations], share = compare(evaluations, options.repeat)
        least_counted = min(least_counted, share)
    ratios = {
        f"{ratio}_to_{peer}": {count: median[ours] / median[peer] for count, median in rates.items()}
        for ratio, ours in (("ratio", "ours"), ("ratio_of_default", "ours default"))
        for peer in ("propulate", *PROCESSES)
    }
    result = {
        "benchmark": "throughput",
        "evaluations": options.evaluations,
        "evaluations_per_s": rates,
        **ratios,
        "least_share_counted": least_counted,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
