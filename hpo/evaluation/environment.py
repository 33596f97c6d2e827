"""The environment variables that an evaluator gets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
"""Folder from which ``hpo`` is imported."""

_LAUNCHERS = re.compile(
    r"(ALPS|FLUX|HYDI|HYDRA|I_MPI|MPI|MPIEXEC|MPIR|MV2|OMPI|PALS|PMI|PMIX|PRTE|PRRTE|TORCHELASTIC)_"
    r"|SLURM_(MPI_|PMI|SRUN_|STEP)"
    r"|SLURM_(GTIDS|LAUNCH_NODE_IPADDR|LOCALID|NODEID|NPROCS|NTASKS|NTASKS_PER_NODE|PROCID|TASKS_PER_NODE|TASK_PID)$"
    r"|((GROUP|LOCAL|NODE|ROLE)_)?RANK$|((GROUP|LOCAL|ROLE)_)?WORLD_SIZE$|MASTER_(ADDR|PORT)$"
)
"""Beginnings and whole names of the variables by which MPI, Slurm and torchrun describe a rank."""


def sharing(local_size: int, gpus: int) -> dict[str, str]:
    """Environment variables that tell an evaluated task how many ranks of the launch, here ``local_size``, share the
    memory of its host, and at most that of its GPU, on a host with ``gpus`` visible GPUs."""
    on_gpu = -(-local_size // gpus) if gpus else 1
    return {"HPO_RANKS_ON_HOST": str(local_size), "HPO_RANKS_ON_GPU": str(on_gpu)}


def child_environment(
    base: Mapping[str, str], *, threads: int, package_root: Path = PACKAGE_ROOT
) -> dict[str, str]:
    """``base`` without the variables by which a library takes the process for a rank of the launcher's job.

    ``package_root``: where ``hpo`` is imported from. A number of threads that the user has set stays.
    """
    environment = {name: value for name, value in base.items() if not _LAUNCHERS.match(name)}
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    if not {"site-packages", "dist-packages"} & set(package_root.parts):
        former = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(package_root) if not former else f"{package_root}{os.pathsep}{former}"
    return environment
