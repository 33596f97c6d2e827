"""Which GPU each rank uses: the whole policy of binding, and how each vendor's GPUs are counted and named.

Sources: NVIDIA's CUDA programming guide (CUDA_VISIBLE_DEVICES), AMD's "GPU isolation techniques" and Linux's KFD
topology, Intel's Level Zero specification (ZE_AFFINITY_MASK, ZE_FLAT_DEVICE_HIERARCHY). Only NVIDIA's were tried."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")
_DRIVER = Path("proc/driver/nvidia/gpus")
_KFD = Path("sys/class/kfd/kfd/topology/nodes")
PCI = Path("sys/bus/pci/devices")
_NAME = re.compile(r"\d+(\.\d+)?$|GPU-|MIG-")
_DISPLAYS = "0x03"
"""Number on the PCI bus of the classes of devices that GPUs are in."""
_LEAST_SIMDS = 48
"""Number of an AMD GPU that is to train: graphics inside a desktop's processor have up to 44, an RX 6600 has 56."""
_GLOBAL_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers on the host. In CUDA_VISIBLE_DEVICES Slurm counts a job's own from 0, where it hides the others."""


class Vendor(NamedTuple):
    """How a vendor's GPUs are named, and what torch needs to use them."""

    name: str
    variables: tuple[str, ...]
    """Environment variables that show GPUs to a process. A later variable numbers those that an earlier has left."""
    default: str
    """Variable to set where there is none."""
    device: str
    """Type of the device in torch."""
    builds: dict[str, str]
    """Builds of torch that can use them: attribute of ``torch.version``, and the software whose version it is."""
    tool: str
    """Command that lists them."""


_CUDA, _HIP, _ROCR, _ZE = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
# Where nothing is seen of the host's GPUs, as in some containers, CUDA's variable may stand for AMD's, too.
NVIDIA = Vendor("NVIDIA", (_CUDA,), _CUDA, "cuda", {"cuda": "CUDA", "hip": "ROCm"}, "nvidia-smi")
# HIP's, as Ray and vLLM refuse ROCR's.
AMD = Vendor("AMD", (_ROCR, _HIP, _CUDA), _HIP, "cuda", {"hip": "ROCm"}, "rocm-smi")
INTEL = Vendor("Intel", (_ZE,), _ZE, "xpu", {"xpu": "XPU"}, "xpu-smi")
BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
"""Backends of torch.distributed by type of device; AMD's RCCL goes by the name of NCCL."""


class Gpu(NamedTuple):
    """A GPU of the host, or a tile of one that is a device of its own. Empty texts where they are not known."""

    bus_id: str = ""
    uuid: str = ""
    """Name in variables beside its number."""
    model: str = ""


# --- the GPUs of a host -----------------------------------------------------------------------------------------------


def _nvidia(root: Path) -> list[Gpu]:
    """GPUs that the driver lists; in containers without its folder, as many as there are device files, with the places
    of those on the bus if these are as many."""
    with suppress(OSError):
        if folders := sorted((root / _DRIVER).iterdir()):
            return [_nvidia_gpu(folder) for folder in folders]
    files = sum(
        re.fullmatch("nvidia[0-9]+", path.name) is not None for path in (root / "dev").glob("nvidia*")
    )
    on_bus = [Gpu(folder.name) for folder in _on_bus(root, "0x10de")]
    return on_bus if len(on_bus) == files else [Gpu()] * files


def _nvidia_gpu(folder: Path) -> Gpu:
    said = dict(re.findall(r"^([^:\n]+):\s*(.+?)\s*$", text_of(folder / "information"), re.MULTILINE))
    return Gpu(folder.name.lower(), said.get("GPU UUID", ""), said.get("Model", ""))


def _amd(root: Path) -> list[Gpu]:
    """Nodes of the KFD topology that compute; of those that its cgroup hides from a process Linux shows it none."""
    found = []
    for folder in sorted((root / _KFD).glob("[0-9]*"), key=lambda path: int(path.name)):
        said = dict(re.findall(r"^(\w+) (\d+)$", text_of(folder / "properties"), re.MULTILINE))
        if int(said.get("simd_count", 0)) >= _LEAST_SIMDS:
            domain, place, unique = (int(said.get(key, 0)) for key in ("domain", "location_id", "unique_id"))
            bus_id = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"
            found.append(Gpu(bus_id, f"GPU-{unique:016x}" if unique else ""))
    return found


def _intel(root: Path, *, whole: bool) -> list[Gpu]:
    """Tiles, or ``whole`` cards, with a device file. Graphics inside a processor are on the first bus."""
    found = []
    for folder in _on_bus(root, "0x8086"):
        if folder.name[5:7] == "00" or not any(
            (root / "dev/dri" / node.name).exists() for node in folder.glob("drm/renderD*")
        ):
            continue
        tiles = [*folder.glob("tile[0-9]*")] or [*folder.glob("drm/card*/gt/gt[0-9]*")]
        found += [Gpu(folder.name)] * (1 if whole else max(1, len(tiles)))
    return found


def _on_bus(root: Path, vendor: str) -> Iterator[Path]:
    for folder in sorted((root / PCI).glob("*")):
        if text_of(folder / "vendor").strip() == vendor and text_of(folder / "class").startswith(_DISPLAYS):
            yield folder


def gpus_of_host(environment: Mapping[str, str], root: Path = _ROOT) -> tuple[Vendor, list[Gpu]]:
    """The vendor of this host's GPUs, and these; where none is seen, the vendor that the environment speaks of."""
    for vendor, read in ((NVIDIA, _nvidia), (AMD, _amd)):
        if found := read(root):
            return vendor, found
    if found := _intel(root, whole=_whole_cards(environment)):
        return INTEL, found
    named = (vendor for vendor in (NVIDIA, AMD, INTEL) if any(map(environment.get, vendor.variables)))
    return next(named, NVIDIA), []


def _whole_cards(environment: Mapping[str, str]) -> bool:
    return environment.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"


# --- those that a process may use -------------------------------------------------------------------------------------


def vendor_of(environment: Mapping[str, str], root: Path = _ROOT) -> Vendor:
    """The vendor of the GPUs of the host below ``root``."""
    return gpus_of_host(environment, root)[0]


def visible_devices(environment: Mapping[str, str], root: Path = _ROOT) -> tuple[str, ...]:
    """The GPUs that this process may use, as the vendor's variables name them, without asking the vendor's software:
    what these list, else what is seen below ``root``. With an empty CUDA_VISIBLE_DEVICES none, whoever made them."""
    vendor, present = gpus_of_host(environment, root)
    if environment.get(_CUDA) == "":
        return ()
    names: tuple[str, ...] | None = None
    read: set[str] = set()
    for variable in vendor.variables:
        value = environment.get(variable)
        # Slurm may set all of them to the same numbers, of which ROCm would count one by the other and find none. To
        # Level Zero an empty mask hides nothing.
        if value is None or value in read or (not value and vendor is INTEL):
            continue
        read.add(value)
        names = _listed(value, names)
    if names is None:
        return tuple(map(str, range(len(present))))
    return _by_card(names) if vendor is INTEL and _whole_cards(environment) else names


def _listed(value: str, among: Sequence[str] | None) -> tuple[str, ...]:
    """The names that a variable lists; a number is a place ``among`` those that another variable has left, if any."""
    found: list[str] = []
    for name in map(str.strip, value.split(",")):
        # All that follows an entry such as -1, or Slurm's NoDevFiles, is ignored.
        if not _NAME.match(name) or (among is not None and name.isdecimal() and int(name) >= len(among)):
            break
        found.append(among[int(name)] if among is not None and name.isdecimal() else name)
    return tuple(found)


def _by_card(names: Sequence[str]) -> tuple[str, ...]:
    """One name for each card, such as "0.0,0.1" for the tiles of a card that are one device."""
    cards: dict[str, list[str]] = {}
    for name in names:
        cards.setdefault(name.partition(".")[0], []).append(name)
    return tuple(map(",".join, cards.values()))


def restricted(environment: Mapping[str, str], devices: Sequence[str], root: Path = _ROOT) -> dict[str, str]:
    """``environment`` of a process that is to see these ``devices`` alone, by one variable; as it is without any."""
    if not devices:
        return dict(environment)
    vendor = vendor_of(environment, root)
    variable = next((name for name in vendor.variables if environment.get(name)), vendor.default)
    kept = {name: value for name, value in environment.items() if name not in vendor.variables}
    return {**kept, variable: ",".join(devices)}


def described(environment: Mapping[str, str], root: Path = _ROOT) -> str:
    """Number and model of the devices that this process may use, such as "4 NVIDIA H100"; "" for none."""
    number = len(visible_devices(environment, root))
    vendor, present = gpus_of_host(environment, root)
    models = {gpu.model for gpu in present} - {""}
    maker = f"{vendor.name} " if present and vendor is not NVIDIA else ""
    one = models.pop() if len(models) == 1 else f"{maker}GPU" + "s" * (number > 1)
    return f"{number} {one}" if number else ""


def visible_gpus(environment: Mapping[str, str], root: Path = _ROOT) -> list[Gpu | None]:
    """Each visible device, in order; None for those of which nothing is known, empty where nothing can be."""
    visible = visible_devices(environment, root)
    _, present = gpus_of_host(environment, root)
    # Where the launcher gave each rank one, the others' are not known.
    if not any(gpu.bus_id for gpu in present) or len(visible) == 1 < len(present):
        return []
    for name in _GLOBAL_GPUS:
        numbers = tuple(environment.get(name, "").split(","))
        if len(numbers) == len(visible) and all(map(str.isdecimal, (*numbers, *visible))):
            visible = numbers
            break
    return [named_gpu(name, present) for name in visible]


def named_gpu(name: str, present: Sequence[Gpu]) -> Gpu | None:
    """The GPU that a variable calls ``name``; None for MIG instances, and where it is not known."""
    number = name.partition(".")[0]
    if number.isdecimal():
        found = [*present[int(number) : int(number) + 1]]
    else:
        found = [gpu for gpu in present if name != "GPU-" and gpu.uuid.lower().startswith(name.lower())]
    return found[0] if len(found) == 1 else None


def gpu_nodes(environment: Mapping[str, str], root: Path = _ROOT) -> list[int | None]:
    """The NUMA node's number of each visible GPU, in order; empty where that is not known."""
    return [None if gpu is None else _node_of(root, gpu) for gpu in visible_gpus(environment, root)]


def _node_of(root: Path, gpu: Gpu) -> int | None:
    node = text_of(root / PCI / gpu.bus_id / "numa_node").strip()
    return int(node) if node.isdecimal() else None


# --- binding ----------------------------------------------------------------------------------------------------------


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


def is_mig(visible: Sequence[str]) -> bool:
    """Whether CUDA is given instances of partitioned GPUs (``MIG-…``), and so shows only the first of them."""
    return bool(visible) and visible[0].startswith("MIG-")


def choose_backend(devices: Sequence[tuple[str, str | None]]) -> str:
    """The torch.distributed backend for ranks with these (host, device identity) pairs, by worker rank.

    NCCL refuses two ranks on one device, so it, or Intel's xccl, is taken only where each rank has a device of its own.
    A MIG instance has no identity here: to NCCL all those of a GPU are that GPU.
    """
    own = [place for place in devices if place[1] is not None]
    kinds = {str(identity).partition("/")[0] for _, identity in own}
    return BACKENDS[kinds.pop()] if len({*own}) == len(devices) and len(kinds) == 1 else "gloo"


def text_of(path: Path) -> str:
    """Content of a file of the system; empty where it cannot be read."""
    with suppress(OSError):
        return path.read_text(errors="surrogateescape")
    return ""
