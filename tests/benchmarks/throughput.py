"""Evaluations a second where an evaluation costs nothing: ten floats, 4 ranks in 2 islands, beside Propulate
and Optuna.

    python tests/benchmarks/throughput.py [--evaluations 4000] [--repeat 3]

Every system is counted in the same way: from the first evaluation of the worker that was last to begin one
(so that imports do not count) to the last evaluation, evaluations begun in that time over its length. Ours
runs Propulate's own genetic operators (kind "genetic") and the default kind. Optuna gets four processes on
one journal file and its random sampler, its fastest. A profile of one of our ranks tells where our time goes.
Ends in one line of JSON."""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

RANKS, ISLANDS, FLOATS = 4, 2, 10


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


def rate(directory: Path) -> tuple[float, int]:
    """Evaluations a second, and evaluations in all."""
    times = [json.loads(path.read_text()) for path in directory.glob("times-*.json")]
    times = [one for one in times if one]
    everything = sorted(moment for one in times for moment in one)
    begin, end = max(one[0] for one in times), everything[-1]
    return sum(1 for moment in everything if moment >= begin) / (end - begin), len(everything)


def ours(directory: Path, evaluations: int, kind: str, profile: bool) -> None:
    import hpo

    watch = Stopwatch(directory)
    function = watch(lambda trial: sphere(trial.params))
    space = hpo.SearchSpace({f"x{index}": hpo.Float(-5.12, 5.12) for index in range(FLOATS)})
    campaign = hpo.Campaign(
        hpo.Task(space, function),
        directory=directory / "campaign",
        evaluations=evaluations,
        islands=ISLANDS,
        isolation="inline",
        kind=kind,
    )
    if profile:
        profiler = cProfile.Profile()
        profiler.runcall(campaign.run)
        profiler.dump_stats(directory / f"profile-{os.getpid()}")
    else:
        campaign.run()
    watch.write()


def propulate(directory: Path, evaluations: int) -> None:
    import random

    from mpi4py import MPI
    from propulate import Islands, get_default_propagator, set_logger_config
    from propulate.propagators import SelectMin

    set_logger_config(level=50, log_to_stdout=False)
    comm = MPI.COMM_WORLD
    rng = random.Random(comm.rank)
    limits = {f"x{index}": (-5.12, 5.12) for index in range(FLOATS)}
    watch = Stopwatch(directory)
    islands = Islands(
        loss_fn=watch(sphere),
        propagator=get_default_propagator(pop_size=2 * comm.size, limits=limits, rng=rng),
        rng=rng,
        generations=evaluations // comm.size,
        num_islands=ISLANDS,
        migration_probability=0.9,
        pollination=False,
        emigration_propagator=SelectMin,
        checkpoint_path=directory / "propulate",
    )
    islands.propulate(logging_interval=10**9)
    watch.write()


def optuna(directory: Path, evaluations: int) -> None:
    import optuna as peer
    from optuna.storages.journal import JournalFileBackend

    peer.logging.set_verbosity(peer.logging.ERROR)
    storage = peer.storages.JournalStorage(JournalFileBackend(str(directory / "optuna.log")))
    study = peer.create_study(
        study_name="sphere",
        storage=storage,
        load_if_exists=True,
        sampler=peer.samplers.RandomSampler(seed=os.getpid()),
    )
    watch = Stopwatch(directory)

    def objective(trial: peer.Trial) -> float:
        return sphere({f"x{index}": trial.suggest_float(f"x{index}", -5.12, 5.12) for index in range(FLOATS)})

    study.optimize(watch(objective), n_trials=evaluations // RANKS)
    watch.write()


def where_time_goes(directory: Path) -> dict[str, float]:
    """Share of one rank's time by module, its own code only (time inside what it calls counts there)."""
    path = next(directory.glob("profile-*"))
    spent: dict[str, float] = defaultdict(float)
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(str(path)).stats.items():  # type: ignore[attr-defined]
        module = Path(file).name
        if "propulate" in file:
            module = "propulate"
        elif file == "~":
            module = next(
                (word for word in ("fsync", "poll", "select", "MPI", "deepcopy") if word in name), "builtins"
            )
        elif "hpo" not in Path(file).parts:
            module = "standard library, numpy"
        spent[module] += own
    total = sum(spent.values())
    return {module: own / total for module, own in sorted(spent.items(), key=lambda item: -item[1])[:12]}


def run(role: str, evaluations: int, *extra: str) -> tuple[float, int, Path]:
    """Start one system; its rate, its evaluations and its directory."""
    from hpo.launch import command, environment, find_mpirun

    directory = Path(tempfile.mkdtemp(prefix=f"throughput-{role}-"))
    arguments = [
        sys.executable,
        __file__,
        "--role",
        role,
        "--directory",
        str(directory),
        "--evaluations",
        str(evaluations),
        *extra,
    ]
    child_environment = environment({**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    if role == "optuna":
        processes = [subprocess.Popen(arguments, env=child_environment) for _ in range(RANKS)]
        codes = [process.wait(timeout=900) for process in processes]
    else:
        codes = [
            subprocess.run(
                command(find_mpirun(), "Open MPI 5", RANKS, arguments),
                env=child_environment,
                stderr=subprocess.DEVNULL,
                timeout=900,
                check=False,
            ).returncode
        ]
    if any(codes):
        raise SystemExit(f"{role} ended with {codes}")
    return *rate(directory), directory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--evaluations", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--role", choices=["ours", "propulate", "optuna"])
    parser.add_argument("--kind", default="genetic")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    if options.role == "ours":
        return ours(options.directory, options.evaluations, options.kind, options.profile)
    if options.role == "propulate":
        return propulate(options.directory, options.evaluations)
    if options.role == "optuna":
        return optuna(options.directory, options.evaluations)
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.repeat):
        for name, role, extra in (
            ("ours", "ours", ("--kind", "genetic")),
            ("ours default", "ours", ("--kind", "default")),
            ("propulate", "propulate", ()),
            ("optuna", "optuna", ()),
        ):
            # Optuna's rate falls with the number of trials too; a quarter of them flatters it and saves
            # minutes.
            count = options.evaluations // 4 if role == "optuna" else options.evaluations
            found, total, _ = run(role, count, *extra)
            rates[name].append(found)
            print(f"{name:14s} {found:9.1f} evaluations/s over {total}", flush=True)
    _, _, directory = run("ours", options.evaluations, "--kind", "genetic", "--profile")
    shares = where_time_goes(directory)
    print("where a rank's time goes (own time by module, under the profiler):")
    for module, share in shares.items():
        print(f"  {module:24s} {share:6.1%}")
    median = {name: statistics.median(values) for name, values in rates.items()}
    result = {
        "benchmark": "throughput",
        "evaluations": options.evaluations,
        "evaluations_per_s": median,
        "ratio_to_propulate": median["ours"] / median["propulate"],
        "ratio_to_optuna": median["ours"] / median["optuna"],
        "ratio_of_default_to_propulate": median["ours default"] / median["propulate"],
        "time_by_module": shares,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
