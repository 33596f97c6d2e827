"""Which CPUs an evaluator gets: of those that the ranks of its host may use, a share of its own, beside its GPU.

A rank keeps what its launcher or its user bound it to, as does its evaluator. Where all ranks of a host may use the
same CPUs, nobody has dealt them out: then each evaluator gets a share, and what sizes itself by the CPUs of its process
(threads, data loaders, ``n_jobs=-1``) fits beside the others. Memory is not bound: Linux takes it from the NUMA node
of the CPU that first touches it.

How much CPU time the cgroups of this process allow, as ``docker --cpus``, Kubernetes' limits and systemd's ``CPUQuota``
set it, its set of CPUs does not show; more threads than that wait for each other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import NamedTuple

from hpo.evaluation.devices import visible_devices

_ROOT = Path("/")
_CGROUPS = Path("sys/fs/cgroup")
_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")
_PCI = Path("sys/bus/pci/devices")
_DRIVER = Path("proc/driver/nvidia/gpus")
_DEV = Path("dev")
_NVIDIA, _DISPLAYS = "0x10de", "0x03"
"""The bus' numbers of the vendor, and of the classes of devices that GPUs are in."""
_HYBRID = Path("sys/devices/cpu_atom")
"""Exists where some cores are slower than others; of equal shares some would be slower, too."""
_GLOBAL_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Numbers on the host. In CUDA_VISIBLE_DEVICES Slurm counts a job's own from 0, where it hides the others."""


class Core(NamedTuple):
    """A physical core: its hardware threads that may be used, and its NUMA node's position in ``HostCores``."""

    cpus: tuple[int, ...]
    node: int


@dataclass(frozen=True, kw_only=True)
class HostCores:
    """What a rank sees of its host.

    ``cores``: those that evaluators of this rank may use; ``distances``: from each NUMA node to each, as Linux gives
    them; ``gpu_nodes``: the NUMA node of each visible GPU, None where it is not known; ``total``: how many CPUs the
    system would let this rank use; ``uniform``: whether its cores are about as fast as each other; ``quota``: CPUs'
    worth of time that its cgroups allow."""

    cores: tuple[Core, ...]
    distances: tuple[tuple[int, ...], ...] = ((10,),)
    gpu_nodes: tuple[int | None, ...] = ()
    total: int
    uniform: bool = True
    quota: float = math.inf

    @property
    def fingerprint(self) -> str:
        """Equal on two ranks of a host that see the same of it."""
        return blake2b(repr(self).encode(), digest_size=8).hexdigest()

    @property
    def cpus(self) -> frozenset[int]:
        """Of all its cores."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)


class Share(NamedTuple):
    """The CPUs of an evaluator, and how many threads are to compute on them."""

    cpus: frozenset[int]
    threads: int


def evaluator_share(
    host: HostCores, environment: Mapping[str, str], *, local_rank: int, local_size: int, agreed: bool
) -> Share:
    """What the evaluator of ``local_rank``, of ``local_size`` ranks on this host, gets; ``agreed``: whether all of
    these see the same as this one.

    It is all that its rank may use where they do not, where there are fewer cores than ranks, where some cores are
    slower than others, and where the user wants more threads in each evaluator (OMP_NUM_THREADS) than the smallest
    share has CPUs. A quota of CPU time is shared alike, and bounds the threads."""
    shares = deal(host, local_size) if agreed and host.uniform else None
    if shares is not None and _wanted_threads(environment) <= min(map(len, shares)):
        # One a core, as torch has it, and the same for all: the ranks of a worker keep pace.
        threads = min(sum(share.issuperset(core.cpus) for core in host.cores) for share in shares)
        return Share(shares[local_rank], within(host.quota, threads, local_size))
    everything = len(host.cpus) if agreed else host.total
    threads = min(len(host.cpus), everything // local_size)
    return Share(host.cpus, within(host.quota, threads, local_size))


def deal(host: HostCores, ranks: int) -> list[frozenset[int]] | None:
    """The CPUs of each of ``ranks`` ranks; None where there are fewer cores than ranks. Each core goes to one rank, and
    no rank gets more than one core more than another.

    A rank takes cores of its home first, which is the NUMA node of its GPU, then those of the next nearest. Without a
    GPU, or where its node is not known, homes are such that ranks are dealt one after the other."""
    if len(host.cores) < ranks:
        return None
    cores = sorted(host.cores, key=lambda core: (core.node, core.cpus))
    left: dict[int, list[Core]] = {}
    for core in cores:
        left.setdefault(core.node, []).append(core)
    homes = [_home(host, cores, rank, ranks) for rank in range(ranks)]
    room = [len(cores) // ranks + (rank < len(cores) % ranks) for rank in range(ranks)]
    found: list[list[int]] = [[] for _ in range(ranks)]
    # Nearest pairs first, so that no rank takes from afar what another has at home.
    for distance, node in sorted({(host.distances[home][node], node) for home in homes for node in left}):
        while left[node] and (
            takers := [
                rank for rank in range(ranks) if room[rank] and host.distances[homes[rank]][node] == distance
            ]
        ):
            for index, rank in enumerate(takers):
                count = min(room[rank], -(-len(left[node]) // (len(takers) - index)))
                taken, left[node] = left[node][:count], left[node][count:]
                room[rank] -= len(taken)
                found[rank] += (cpu for core in taken for cpu in core.cpus)
    return [frozenset(cpus) for cpus in found]


def _home(host: HostCores, cores: Sequence[Core], rank: int, ranks: int) -> int:
    # By the rank's number, as devices are: see ``bind_device``.
    node = host.gpu_nodes[rank % len(host.gpu_nodes)] if host.gpu_nodes else None
    return cores[rank * len(cores) // ranks].node if node is None else node


def _wanted_threads(environment: Mapping[str, str]) -> int:
    first = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


# --- what there is ---------------------------------------------------------------------------------------------------


def cores_here() -> int:
    """How many CPUs processes of this host can keep busy, as far as the system lets this one know."""
    return within(cpu_quota(), len(may_use()))


def may_use() -> frozenset[int]:
    """The CPUs that the system would let this thread use, whatever it is bound to."""
    bound = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
        return frozenset(os.sched_getaffinity(0))
    except (OSError, ValueError):  # some systems refuse a set that is larger than theirs
        return frozenset(bound)
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, bound)


@contextmanager
def running_on(cpus: frozenset[int]) -> Iterator[None]:
    """Inside, this thread runs on ``cpus``, as will the processes that it starts."""
    former = os.sched_getaffinity(0)
    try:
        with suppress(OSError):  # they have been taken from us meanwhile
            os.sched_setaffinity(0, cpus)
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, former)


def read_host(environment: Mapping[str, str]) -> HostCores:
    """This host as this thread sees it. Of a thread that is bound to a single core evaluators leave the binding: it is
    what mpirun and srun do by default, and nobody's wish."""
    return described(environment, bound=frozenset(os.sched_getaffinity(0)), widest=may_use())


def described(
    environment: Mapping[str, str], *, bound: frozenset[int], widest: frozenset[int], root: Path = _ROOT
) -> HostCores:
    """The host below ``root`` as a rank sees it that is ``bound`` to these CPUs and might use the ``widest`` set. What
    cannot be read there is as on a machine with one NUMA node and one hardware thread a core."""
    siblings = {cpu: _siblings(root, cpu) for cpu in bound}
    if bound <= siblings[min(bound)]:
        bound = widest
        siblings = {cpu: _siblings(root, cpu) for cpu in bound}
    nodes = sorted(
        int(path.name.removeprefix("node")) for path in (root / _NODES).glob("node[0-9]*") if path.is_dir()
    )
    node_of = {
        cpu: position
        for position, node in enumerate(nodes)
        for cpu in read_list(_text(root / _NODES / f"node{node}/cpulist"))
    }
    threads = sorted({tuple(sorted(siblings[cpu] & bound)) for cpu in bound})
    return HostCores(
        cores=tuple(Core(cpus, node_of.get(cpus[0], 0)) for cpus in threads),
        distances=_distances(root, nodes),
        gpu_nodes=tuple(
            nodes.index(node) if node in nodes else None for node in _gpu_nodes(root, environment)
        ),
        total=len(widest),
        uniform=not (root / _HYBRID).exists(),
        quota=cpu_quota(root),
    )


def read_list(text: str) -> frozenset[int]:
    """The numbers in a list of Linux's, such as "0-3,8"; none where it is no such list."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The hardware threads of a CPU's core."""
    return read_list(_text(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list")) | {cpu}


def _distances(root: Path, nodes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    read = [_text(root / _NODES / f"node{node}/distance").split() for node in nodes]
    if not nodes or any(len(row) != len(nodes) or not all(map(str.isdecimal, row)) for row in read):
        size = max(1, len(nodes))
        return tuple(tuple(10 if one == other else 20 for other in range(size)) for one in range(size))
    return tuple(tuple(map(int, row)) for row in read)


def _gpu_nodes(root: Path, environment: Mapping[str, str]) -> list[int | None]:
    """The NUMA node's number of each visible GPU, in order; empty where that is not known."""
    visible = visible_devices(environment, root / _DRIVER, root / _DEV)
    there = _bus_ids(root)
    # Where the launcher gave each rank one, the others' are not known.
    if not there or len(visible) == 1 < len(there):
        return []
    for name in _GLOBAL_GPUS:
        numbers = tuple(environment.get(name, "").split(","))
        if len(numbers) == len(visible) and all(map(str.isdecimal, (*numbers, *visible))):
            visible = numbers
            break
    return [_node_of(root, _bus_id(root, name, there)) for name in visible]


def _bus_ids(root: Path) -> list[str]:
    """Of the host's GPUs, in their order. In containers without the driver's folder those of the bus, if all of them
    have a device file there.
    """
    with suppress(OSError):
        if found := sorted(path.name for path in (root / _DRIVER).iterdir()):
            return found
    with suppress(OSError):
        found = sorted(
            path.name
            for path in (root / _PCI).iterdir()
            if _text(path / "vendor").strip() == _NVIDIA and _text(path / "class").startswith(_DISPLAYS)
        )
        if len(found) == len(visible_devices({}, root / _DRIVER, root / _DEV)):
            return found
    return []


def _bus_id(root: Path, name: str, there: Sequence[str]) -> str | None:
    """Of the device that CUDA_VISIBLE_DEVICES calls ``name``; None where it is not known, as of MIG instances."""
    if name.isdecimal():
        return there[int(name)] if int(name) < len(there) else None
    if not name.startswith("GPU-"):
        return None
    found = [one for one in there if f" {name}" in _text(root / _DRIVER / one / "information").expandtabs(1)]
    return found[0] if len(found) == 1 else None


def _node_of(root: Path, bus_id: str | None) -> int | None:
    text = "" if bus_id is None else _text(root / _PCI / bus_id.lower() / "numa_node").strip()
    return int(text) if text.isdecimal() else None


# --- CPU time that cgroups allow ------------------------------------------------------------------------------------


def cpu_quota(root: Path = _ROOT) -> float:
    """CPUs' worth of time a second, the least of what this process' cgroups and theirs allow; infinite without a limit.
    See "cpu.max" in Linux's documentation of cgroups version 2, and "cpu.cfs_quota_us" in that of version 1.
    """
    return min(_limits(root), default=inf)


def within(quota: float, cpus: int, ranks: int = 1) -> int:
    """How many of its ``cpus`` each of ``ranks`` can keep busy within ``quota``, one at least."""
    return max(1, int(min(cpus, quota / ranks)))


def _limits(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            for folder in _up(root / _CGROUPS, path):
                yield from _limit(*_text(folder / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            # Folders have the controllers' names in an order of their own; "cpu" is a link to the right one.
            for base in dict.fromkeys((controllers, "cpu")):
                for folder in _up(root / _CGROUPS / base, path):
                    quota, period = (
                        _text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
                    )
                    yield from _limit(quota, period)


def _up(base: Path, path: str) -> Iterator[Path]:
    """The cgroup ``path`` and those that it is in. In a container its own may be ``base``, whatever ``path`` says."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield base.joinpath(*parts[:count])


def _limit(quota: str = "", period: str = "") -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="surrogateescape")
    return ""
