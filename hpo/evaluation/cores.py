"""Which CPUs an evaluator gets: a share of its own of the CPUs that the ranks of its host may use, beside its GPU.

A rank keeps what its launcher or its user bound it to, as does its evaluator. Where all ranks of a host may use the
same CPUs, nobody has dealt them out: then each evaluator gets a share, and what sizes itself by the CPUs of its process
(threads, data loaders, ``n_jobs=-1``) fits beside the others. Memory is not bound: Linux takes it from the NUMA node
of the CPU that first touches it.

The CPU time that cgroups allow (``docker --cpus``, Kubernetes' limits, systemd's ``CPUQuota``) bounds the threads, too:
a process's set of CPUs does not show it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from hpo.evaluation.devices import gpu_nodes, text_of

_ROOT = Path("/")
_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")
_HYBRID = Path("sys/devices/cpu_atom")
"""Exists where some cores are slower than others; of equal shares some would be slower, too."""


class Core(NamedTuple):
    """A physical core: its hardware threads that may be used, and its NUMA node's position in ``HostCores``."""

    cpus: tuple[int, ...]
    node: int


@dataclass(frozen=True, kw_only=True)
class HostCores:
    """A rank's view of its host."""

    cores: tuple[Core, ...]
    """Cores that evaluators of this rank may use."""
    distances: tuple[tuple[int, ...], ...] = ((10,),)
    """Distances between NUMA nodes, as Linux gives them."""
    gpu_nodes: tuple[int | None, ...] = ()
    """NUMA node of each visible GPU; None where it is not known."""
    total: int
    """Number of CPUs that the system would let this rank use."""
    uniform: bool = True
    """Whether its cores are about as fast as each other."""
    quota: float = math.inf
    """CPUs' worth of time that the cgroups allow."""

    @property
    def fingerprint(self) -> str:
        """Equal on two ranks of a host that see the same of it."""
        return blake2b(repr(self).encode(), digest_size=8).hexdigest()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for core in self.cores for cpu in core.cpus)


class Share(NamedTuple):
    """The CPUs of an evaluator, and how many threads are to compute on them."""

    cpus: frozenset[int]
    threads: int


def evaluator_share(
    host: HostCores, environment: Mapping[str, str], *, local_rank: int, local_size: int, agreed: bool
) -> Share:
    """The share of the evaluator of ``local_rank``, of ``local_size`` ranks on this host; ``agreed``: whether all of
    these see the same as this rank.

    It is all that its rank may use where they do not, where there are fewer cores than ranks, where some cores are
    slower than others, and where the user wants more threads in each evaluator (OMP_NUM_THREADS) than the smallest
    share has CPUs. A quota of CPU time is shared alike, and bounds the threads."""
    shares = deal(host, local_size) if agreed and host.uniform else None
    wanted = environment.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if shares is not None and (int(wanted) if wanted.isdecimal() else 0) <= min(map(len, shares)):
        # One thread a core, as torch has it, and as many in all shares: the ranks of a worker keep pace.
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
    free: dict[int, list[Core]] = {}
    for core in cores:
        free.setdefault(core.node, []).append(core)
    homes = [_home(host, cores, rank, ranks) for rank in range(ranks)]
    room = [len(cores) // ranks + (rank < len(cores) % ranks) for rank in range(ranks)]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    # Nearest pairs first, so that no rank takes from afar what another has at home.
    for distance, node in sorted({(host.distances[home][node], node) for home in homes for node in free}):
        while takers := [
            rank
            for rank in range(ranks)
            if free[node] and room[rank] and host.distances[homes[rank]][node] == distance
        ]:
            for index, rank in enumerate(takers):
                count = min(room[rank], -(-len(free[node]) // (len(takers) - index)))
                taken, free[node] = free[node][:count], free[node][count:]
                room[rank] -= len(taken)
                dealt[rank] += (cpu for core in taken for cpu in core.cpus)
    return [frozenset(cpus) for cpus in dealt]


def _home(host: HostCores, cores: Sequence[Core], rank: int, ranks: int) -> int:
    # Ranks take GPUs by number: see ``bind_device``.
    node = host.gpu_nodes[rank % len(host.gpu_nodes)] if host.gpu_nodes else None
    return cores[rank * len(cores) // ranks].node if node is None else node


# --- reading the host -------------------------------------------------------------------------------------------------


def cores_here() -> int:
    """How many CPUs processes of this host can keep busy, as far as the system lets this process know."""
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
    """This host as this thread sees it. Where the thread is bound to a single core, evaluators leave the binding: it is
    what mpirun and srun do by default, and nobody's wish."""
    return described(environment, bound=frozenset(os.sched_getaffinity(0)), widest=may_use())


def described(
    environment: Mapping[str, str], *, bound: frozenset[int], widest: frozenset[int], root: Path = _ROOT
) -> HostCores:
    """The host below ``root`` as a rank sees it that is ``bound`` to these CPUs and might use the ``widest`` set. What
    cannot be read there is as on a machine with one NUMA node and one hardware thread a core."""
    siblings = {cpu: _siblings(root, cpu) for cpu in widest | bound}
    if bound <= siblings[min(bound)]:
        bound = widest
    nodes = sorted(int(path.name.removeprefix("node")) for path in (root / _NODES).glob("node[0-9]*"))
    node_of = {
        cpu: position
        for position, node in enumerate(nodes)
        for cpu in read_list(text_of(root / _NODES / f"node{node}/cpulist"))
    }
    threads = sorted({tuple(sorted(siblings[cpu] & bound)) for cpu in bound})
    return HostCores(
        cores=tuple(Core(cpus, node_of.get(cpus[0], 0)) for cpus in threads),
        distances=_distances(root, nodes),
        gpu_nodes=tuple(
            nodes.index(node) if node in nodes else None for node in gpu_nodes(environment, root)
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
    return read_list(text_of(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list")) | {cpu}


def _distances(root: Path, nodes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    read = [text_of(root / _NODES / f"node{node}/distance").split() for node in nodes]
    if not nodes or any(len(row) != len(nodes) or not all(map(str.isdecimal, row)) for row in read):
        size = max(1, len(nodes))
        return tuple(tuple(10 if to == node else 20 for to in range(size)) for node in range(size))
    return tuple(tuple(map(int, row)) for row in read)


# --- CPU time that cgroups allow ------------------------------------------------------------------------------------


def cpu_quota(root: Path = _ROOT) -> float:
    """CPUs' worth of time a second, the least of what this process' cgroups and theirs allow; infinite without a limit.
    See "cpu.max" in Linux's documentation of cgroups version 2, and "cpu.cfs_quota_us" in that of version 1.
    """
    return min(_limits(root), default=math.inf)


def within(quota: float, cpus: int, ranks: int = 1) -> int:
    """How many of its ``cpus`` each of ``ranks`` can keep busy within ``quota``, one at least."""
    return max(1, int(min(cpus, quota / ranks)))


def _limits(root: Path) -> Iterator[float]:
    for numbers in cgroup_numbers("cpu", "cpu.max", "cpu.cfs_quota_us cpu.cfs_period_us", root):
        if len(numbers) == 2 and 0 not in numbers:
            yield numbers[0] / numbers[1]


def cgroup_numbers(controller: str, file: str, files_v1: str, root: Path = _ROOT) -> Iterator[list[int]]:
    """Numbers in the ``file`` of each cgroup that this process is in, or in the ``files_v1`` of version 1, whose names
    are separated by spaces; nothing for a cgroup without a limit there."""
    for line in text_of(root / "proc/self/cgroup").splitlines():
        hierarchy, controllers, path = [*line.split(":", 2), "", ""][:3]
        # Version 1's folder has its controllers' names in an order of its own; the controller's is a link to it.
        versions = {"": file} if hierarchy == "0" else {}
        if controller in controllers.split(","):
            versions = dict.fromkeys((controllers, controller), files_v1)
        # The cgroup and those that it is in. In a container its own may be the root, whatever ``path`` says.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for base, names in versions.items():
            for count in range(len(parts) + 1):
                folder = (root / "sys/fs/cgroup" / base).joinpath(*parts[:count])
                words = " ".join(text_of(folder / name) for name in names.split()).split()
                if words and all(map(str.isdecimal, words)):
                    yield list(map(int, words))
