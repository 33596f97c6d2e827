"""The environment variables that an evaluator gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
"""Folder from which ``hpo`` is imported."""

_LAUNCHER_PREFIXES = (
    "ALPS_",
    "FLUX_",
    "HYDI_",
    "HYDRA_",
    "I_MPI_",
    "MPI_",
    "MPIEXEC_",
    "MPIR_",
    "MV2_",
    "OMPI_",
    "PALS_",
    "PMI_",
    "PMIX_",
    "PRTE_",
    "PRRTE_",
    "SLURM_MPI_",
    "SLURM_PMI",
    "SLURM_SRUN_",
    "SLURM_STEP",
    "TORCHELASTIC_",
)
_LAUNCHER_NAMES = frozenset(
    {
        "SLURM_GTIDS",
        "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_NPROCS",
        "SLURM_NTASKS",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_PROCID",
        "SLURM_TASKS_PER_NODE",
        "SLURM_TASK_PID",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "WORLD_SIZE",
    }
)

RANKS_ON_HOST, RANKS_ON_GPU = "HPO_RANKS_ON_HOST", "HPO_RANKS_ON_GPU"
"""Environment variables that tell an evaluated task how many ranks of the launch share its host, and at most its GPU:
they share the memory of both."""


def sharing(local_size: int, gpus: int) -> dict[str, str]:
    """Both variables for a host with ``local_size`` ranks of the launch and ``gpus`` visible GPUs."""
    return {RANKS_ON_HOST: str(local_size), RANKS_ON_GPU: str(-(-local_size // gpus) if gpus else 1)}


def child_environment(
    base: Mapping[str, str], *, threads: int, devices: Sequence[str], package_root: Path = PACKAGE_ROOT
) -> dict[str, str]:
    """``base`` without the variables by which a library takes the process for a rank of the launcher's job.

    ``devices``: what CUDA may see, untouched when empty. ``package_root``: where ``hpo`` is imported from.
    A number of threads that the user has set stays.
    """
    environment = {
        name: value
        for name, value in base.items()
        if not name.startswith(_LAUNCHER_PREFIXES) and name not in _LAUNCHER_NAMES
    }
    environment.setdefault("OMP_NUM_THREADS", str(threads))
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    if not {"site-packages", "dist-packages"} & set(package_root.parts):
        former = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(package_root) if not former else f"{package_root}{os.pathsep}{former}"
    return environment
