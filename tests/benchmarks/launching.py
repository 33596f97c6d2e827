"""Starts a benchmark's script as several ranks, the way ``hpo run`` does, and reads what they left."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hpo.cluster.mpirun_command import command, environment, find_mpirun

LIMITS = {f"x{index}": (-5.12, 5.12) for index in range(10)}
"""Ten floats, of ours and of Propulate's."""


def run_propulate(function: Callable[..., float], directory: Path, *, generations: int, islands: int) -> None:
    """Evaluate ``generations`` times on this rank, by Propulate."""
    from mpi4py import MPI
    from propulate import Islands, get_default_propagator, set_logger_config

    set_logger_config(level=50, log_to_stdout=False)
    comm = MPI.COMM_WORLD
    rng = random.Random(comm.rank)
    Islands(
        loss_fn=function,
        propagator=get_default_propagator(pop_size=2 * comm.size, limits=LIMITS, rng=rng),
        rng=rng,
        generations=generations,
        num_islands=islands,
        migration_probability=0.9 if islands > 1 else 0.0,  # it fails on sending nobody
        pollination=False,
        checkpoint_path=directory / "propulate",
    ).propulate(logging_interval=10**9)


def single_threaded() -> dict[str, str]:
    """This process's environment, with one thread a process: many processes share few cores here."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def start_ranks(ranks: int, script: str, *arguments: object, timeout_s: float = 900.0) -> None:
    """Run ``script`` under mpirun and wait for it; what it prints is kept for the case that it fails.

    Raises:
        SystemExit: it returned something else than 0; the end of what it printed is shown.
    """
    # Under mpi4py's module a rank that fails ends the others, which would wait for it else.
    rank = [sys.executable, "-m", "mpi4py", script, *map(str, arguments)]
    line = command(find_mpirun(), "Open MPI 5", ranks, rank)
    done = subprocess.run(
        line,
        env=environment(single_threaded()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} returned {done.returncode}:\n{done.stdout[-4000:]}")
