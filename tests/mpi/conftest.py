"""Runs scripts under mpirun, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpo.campaign.launch import command, environment, find_mpirun
from hpo.config import reader as config

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def mpirun() -> Run:
    """``mpirun(ranks, script, *arguments)``; fails on a non-zero return code unless ``check=False``."""

    def run(
        ranks: int, *arguments: object, check: bool = True, timeout: float = 120, tolerant: bool = False
    ) -> subprocess.CompletedProcess[str]:
        rest = [sys.executable, *map(str, arguments)]
        line = command(find_mpirun(), "Open MPI 5", ranks, rest, tolerant=tolerant)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        base = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        variables = environment(base)
        del variables[config.STARTED_BY]  # as a user's own mpirun
        for _ in range(5):
            done = subprocess.run(
                line,
                env=variables,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            # Where a killed mpirun had the same process id and left its directory, this one cannot start.
            if "listener thread failed to start" not in done.stderr:
                break
        assert not check or done.returncode == 0, (
            f"mpirun returned {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done

    return run
