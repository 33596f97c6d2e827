"""Starts a benchmark's script as several ranks, the way ``hpo run`` does, and reads what they left."""

from __future__ import annotations

import os
import subprocess
import sys

from hpo.cluster.mpirun_command import command, environment, find_mpirun


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
