"""Which GPU each rank uses: the whole policy of binding, for evaluators and for ranks that evaluate inline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpo.evaluation import cuda
from hpo.evaluation.cuda import NoDevice, OwnDevice

_DRIVER = Path("/proc/driver/nvidia/gpus")
_NODES = Path("/dev")
_NAME = re.compile(r"[0-9]+$|GPU-|MIG-")


def visible_devices(
    environment: Mapping[str, str], driver: Path = _DRIVER, nodes: Path = _NODES
) -> tuple[str, ...]:
    """The CUDA devices that this process may use, as CUDA_VISIBLE_DEVICES names them, without asking CUDA.

    Where that is not set, the devices that the ``driver`` lists; in containers without that folder, those whose device
    files are among ``nodes``."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return tuple(map(str, range(_count(driver, ".*") or _count(nodes, "nvidia[0-9]+"))))
    devices: list[str] = []
    for name in listed.split(","):
        # CUDA ignores all that follow an entry such as -1, or Slurm's NoDevFiles.
        if not _NAME.match(name.strip()):
            break
        devices.append(name.strip())
    return tuple(devices)


def described(environment: Mapping[str, str], driver: Path = _DRIVER) -> str:
    """Number and model of the devices that this process may use, such as "4 NVIDIA H100"; "" for none."""
    number = len(visible_devices(environment, driver))
    try:
        texts = [path.read_text() for path in sorted(driver.glob("*/information"))]
    except OSError:
        texts = []
    models = {found[1] for text in texts if (found := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE))}
    return f"{number} {models.pop() if len(models) == 1 else 'GPU' + 's' * (number > 1)}" if number else ""


def _count(folder: Path, pattern: str) -> int:
    """The number of entries of ``folder`` whose names match ``pattern``; 0 where there is no such folder."""
    try:
        return sum(re.fullmatch(pattern, path.name) is not None for path in folder.iterdir())
    except OSError:
        return 0


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


def evaluator_device(environment: Mapping[str, str], index: int | None, label: str) -> OwnDevice:
    """The device of this ``index`` among those that ``bind_device`` lets an evaluator see; ``label`` names the rank."""
    name = "cpu" if index is None else f"cuda:{index}"
    return OwnDevice(name, label=label, visible=environment.get("CUDA_VISIBLE_DEVICES"))


def inline_device(environment: Mapping[str, str], local_rank: int, label: str) -> OwnDevice:
    """The device of a rank that evaluates in its own process, where nothing can be hidden from CUDA.

    ``local_rank``: among all ranks of the launch on its host; ``label`` names the rank."""
    visible = visible_devices(environment)
    index = 0 if is_mig(visible) else local_rank % max(1, len(visible))
    return evaluator_device(environment, index if visible else None, label)


def select_for_group(device: OwnDevice, environment: Mapping[str, str]) -> str | None:
    """Make ``device`` CUDA's current one; its identity for ``choose_backend``, None where NCCL cannot use it."""
    import torch.distributed

    try:
        if device.name == "cpu":
            return None
    except NoDevice:
        # The task gets the error when it asks for the device; one that wants no GPU goes on.
        device.take_fault()
        return None
    torch.cuda.set_device(device.index)
    if not torch.distributed.is_nccl_available() or is_mig(visible_devices(environment)):
        return None
    return cuda.identity(device.index)


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
