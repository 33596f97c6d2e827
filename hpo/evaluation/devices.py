"""What an evaluator gets of its host: the environment variables, a device, a share of the cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

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

_GPUS = Path("/proc/driver/nvidia/gpus")


def child_environment(
    base: Mapping[str, str], *, threads: int, devices: Sequence[str], package_root: Path
) -> dict[str, str]:
    """``base`` without anything that tells a library that it is a rank of the launcher's job.

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


def visible_devices(environment: Mapping[str, str], gpus: Path = _GPUS) -> tuple[str, ...]:
    """The CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them, without asking CUDA."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        try:
            return tuple(str(index) for index in range(len(list(gpus.iterdir()))))
        except OSError:
            return ()
    devices: list[str] = []
    for name in listed.split(","):
        if not name.strip() or name.strip() == "-1":  # CUDA ignores all that follow such an entry
            break
        devices.append(name.strip())
    return tuple(devices)


def bind_device(
    visible: Sequence[str], *, local_rank: int, worker_local_rank: int, worker_local_size: int
) -> tuple[tuple[str, ...], int | None]:
    """The devices that an evaluator may see, and the index among them of its own; ((), None) for the CPU.

    ``local_rank`` counts all ranks on the host, ``worker_local_*`` the worker's own there. An evaluator sees
    the devices of its worker on this host, so that code which picks its device by LOCAL_RANK, as under
    torchrun, gets its own; of MIG instances it sees its own alone. Ranks beyond the number of devices share
    them. One visible device is what the launcher gave to this rank, and is taken.
    """
    if not visible:
        return (), None
    if len(visible) == 1:
        return tuple(visible), 0
    if is_mig(visible):  # CUDA shows a process the first instance that is listed, and no other
        return (visible[local_rank % len(visible)],), 0
    # A worker's ranks are neighbours in the launch, so they are neighbours among the ranks of any one host.
    first = local_rank - worker_local_rank
    own = [visible[(first + index) % len(visible)] for index in range(worker_local_size)]
    distinct = tuple(dict.fromkeys(own))
    return distinct, distinct.index(own[worker_local_rank])


def own_device(environment: Mapping[str, str], local_rank: int) -> str:
    """The device of a rank that evaluates in its own process, where nothing can be hidden from CUDA."""
    visible = visible_devices(environment)
    if not visible:
        return "cpu"
    return "cuda:0" if is_mig(visible) else f"cuda:{local_rank % len(visible)}"


def is_mig(visible: Sequence[str]) -> bool:
    """Whether CUDA is given instances of partitioned GPUs (``MIG-…``), and so shows only the first of them."""
    return bool(visible) and visible[0].startswith("MIG-")


def choose_backend(devices: Sequence[tuple[str, str | None]]) -> str:
    """The torch.distributed backend for ranks with these (host, device identity) pairs, by worker rank.

    NCCL refuses two ranks on one device, so it is taken only where each rank has a device of its own. A MIG
    instance has no identity here: to NCCL all those of a GPU are that GPU.
    """
    own = [place for place in devices if place[1] is not None]
    return "cpu:gloo,cuda:nccl" if len(set(own)) == len(devices) else "gloo"


def thread_share(*, bound: int, widest: int, local_size: int) -> int:
    """Threads for one of ``local_size`` evaluators of a host with ``widest`` cores, bound to ``bound`` of them.

    One core is what mpirun binds a rank to by default; evaluators leave that binding.
    """
    share = max(1, widest // local_size)
    return share if bound == 1 else min(bound, share)


def count_cores() -> tuple[int, int]:
    """The cores that this thread is bound to and those it could have."""
    bound = os.sched_getaffinity(0)
    widen_affinity()
    widest = os.sched_getaffinity(0)
    os.sched_setaffinity(0, bound)
    return len(bound), len(widest)


def widen_affinity() -> None:
    """Allow this thread all cores that the system lets it have."""
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:
        pass  # some systems refuse a set that is larger than theirs; then the binding stays
