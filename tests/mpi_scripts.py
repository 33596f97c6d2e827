"""Runs a script on several ranks under mpirun, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

from places import ROOT
from programs import called

from hpo.cluster.mpirun_command import command, environment, find_mpirun
from hpo.config import process

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run(
    ranks: int, *arguments: object, check: bool = True, timeout: float = 120, tolerant: bool = False
) -> subprocess.CompletedProcess[str]:
    """``mpirun -n RANKS python ARGUMENTS``. With ``check`` a return code other than 0 is an AssertionError;
    ``tolerant``: with MPI's fault tolerance."""
    line = command(find_mpirun(), "Open MPI 5", ranks, [sys.executable], tolerant=tolerant)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = environment({**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path})
    del variables[process.STARTED_BY]  # as a user's own mpirun
    # A directory of its own: a killed mpirun leaves its session's behind, and one of the same process id cannot start.
    with tempfile.TemporaryDirectory(prefix="mpi-", ignore_cleanup_errors=True) as scratch:
        environ = {**variables, "TMPDIR": scratch}
        return called(*line, *arguments, returns=0 if check else None, timeout=timeout, env=environ)
