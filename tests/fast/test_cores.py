"""Which CPUs evaluators get on machines that are not there."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import write

from hpo.config.layout import Layout
from hpo.evaluation.cores import (
    Core,
    HostCores,
    Share,
    cpu_quota,
    deal,
    described,
    evaluator_share,
    may_use,
    running_on,
)
from hpo.islands.resume.start import surroundings


def machine(
    nodes: int, cores: int, *, gpus: tuple[int | None, ...] = (), threads: int = 1, between: int = 21
) -> HostCores:
    """Of ``nodes`` NUMA nodes with that number of ``cores`` each; a core's second thread comes after all cores."""
    count = nodes * cores
    return HostCores(
        cores=tuple(
            Core(tuple(core + count * thread for thread in range(threads)), core // cores)
            for core in range(count)
        ),
        distances=tuple(
            tuple(10 if one == other else between for other in range(nodes)) for one in range(nodes)
        ),
        gpu_nodes=gpus,
        total=count * threads,
    )


FOUR_NODES = HostCores(  # two nodes a socket, GPUs at the second of each
    cores=tuple(Core((cpu,), cpu // 2) for cpu in range(8)),
    distances=((10, 12, 32, 32), (12, 10, 32, 32), (32, 32, 10, 12), (32, 32, 12, 10)),
    gpu_nodes=(3, 1),
    total=8,
)


def dealt(host: HostCores, ranks: int) -> list[list[int]]:
    shares = deal(host, ranks)
    assert shares is not None
    return [sorted(share) for share in shares]


@pytest.mark.parametrize(
    ("host", "ranks", "shares"),
    [
        # GPUs have the cores of their socket; firmware may number sockets and GPUs in opposite orders.
        (machine(2, 4, gpus=(0, 0, 1, 1)), 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (machine(2, 4, gpus=(1, 1, 0, 0)), 4, [[4, 5], [6, 7], [0, 1], [2, 3]]),
        (machine(2, 4, gpus=(0, 1, 0, 1)), 4, [[0, 1], [4, 5], [2, 3], [6, 7]]),
        # GPUs of one socket share the cores of the other, too; whose own socket it is comes first.
        (machine(2, 4, gpus=(1, 1)), 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (machine(2, 3, gpus=(0, 0, 0, 1)), 3, [[0, 3], [1, 4], [2, 5]]),
        (machine(2, 3, gpus=(0, 0, 1)), 3, [[0, 1], [2, 5], [3, 4]]),
        (FOUR_NODES, 2, [[4, 5, 6, 7], [0, 1, 2, 3]]),
        # Ranks that share a GPU are at home with it.
        (machine(2, 2, gpus=(1, 0)), 4, [[2], [0], [3], [1]]),
        # Without a GPU's node ranks are dealt one after the other.
        (machine(2, 2), 2, [[0, 1], [2, 3]]),
        (machine(2, 2, gpus=(None, None)), 2, [[0, 1], [2, 3]]),
        (machine(1, 5), 2, [[0, 1, 2], [3, 4]]),
        (machine(1, 4, threads=2), 2, [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
)
def test_ranks_get_the_cores_nearest_to_their_gpus(
    host: HostCores, ranks: int, shares: list[list[int]]
) -> None:
    assert dealt(host, ranks) == shares


@given(
    nodes=st.integers(1, 4),
    cores=st.integers(1, 9),
    threads=st.integers(1, 2),
    ranks=st.integers(1, 12),
    between=st.sampled_from([10, 12, 32]),
    data=st.data(),
)
def test_each_core_goes_to_one_rank_evenly(
    nodes: int, cores: int, threads: int, ranks: int, between: int, data: st.DataObject
) -> None:
    gpus = data.draw(st.lists(st.none() | st.integers(0, nodes - 1), max_size=8))
    host = machine(nodes, cores, gpus=tuple(gpus), threads=threads, between=between)
    shares = deal(host, ranks)
    if shares is None:
        assert nodes * cores < ranks
        return
    assert sorted(cpu for share in shares for cpu in share) == list(range(nodes * cores * threads))
    assert max(map(len, shares)) - min(map(len, shares)) in (0, threads)
    home = [host.gpu_nodes[rank % len(gpus)] if gpus else None for rank in range(ranks)]
    for rank, share in enumerate(shares):
        at_home = [core for core in host.cores if core.node == home[rank]]
        strangers = {
            other
            for other in range(ranks)
            for core in at_home
            if core.cpus[0] in shares[other] and home[other] not in (home[rank], None)
        }
        mine = [core for core in host.cores if core.cpus[0] in share]
        if home[rank] is not None and between > 10 and strangers:
            assert {core.node for core in mine} == {home[rank]}, "a stranger has a core that it lacks"


def share(host: HostCores, size: int, *, agreed: bool = True, **environment: str) -> list[Share]:
    return [
        evaluator_share(host, environment, local_rank=rank, local_size=size, agreed=agreed)
        for rank in range(size)
    ]


def test_evaluators_compute_with_as_many_threads_as_the_smallest_share_has() -> None:
    assert share(machine(1, 5), 2) == [Share(frozenset({0, 1, 2}), 2), Share(frozenset({3, 4}), 2)]
    assert share(machine(1, 8), 1) == [Share(frozenset(range(8)), 8)]
    assert share(machine(1, 4, threads=2), 2)[0] == ({0, 1, 4, 5}, 2)  # one thread computes on each core
    assert share(machine(1, 2), 4) == [Share(frozenset({0, 1}), 1)] * 4  # more ranks than cores share all


@pytest.mark.parametrize("cpus", [8, 32])
def test_what_somebody_else_has_bound_stays(cpus: int) -> None:
    """Three of four ranks' worth of 64 cores: bound to 8 each, or to 32 that two share."""
    own = HostCores(cores=tuple(Core((cpu,), 0) for cpu in range(cpus)), total=64)
    assert share(own, 4, agreed=False) == [Share(frozenset(range(cpus)), min(cpus, 16))] * 4


@pytest.mark.parametrize(("wanted", "cpus"), [("2", 2), ("2,1", 2), ("", 2), ("3", 4), ("3,2", 4)])
def test_more_threads_than_a_share_has_are_not_squeezed_into_it(wanted: str, cpus: int) -> None:
    assert [len(one.cpus) for one in share(machine(1, 4), 2, OMP_NUM_THREADS=wanted)] == [cpus] * 2


# --- reading a host --------------------------------------------------------------------------------------------------


BUS_IDS = ("0000:17:00.0", "0000:3D:00.0", "0000:97:00.0", "0000:BD:00.0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sockets of two cores of two threads, with two GPUs each, the first two at the second socket."""
    cpus = "sys/devices/system/cpu"
    files = {f"{cpus}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    for node, (listed, distance) in enumerate([("0-1,4-5", "10 32"), ("2-3,6-7", "32 10")]):
        files[f"sys/devices/system/node/node{node}/cpulist"] = listed
        files[f"sys/devices/system/node/node{node}/distance"] = distance
    for index, bus_id in enumerate(BUS_IDS):
        files[f"proc/driver/nvidia/gpus/{bus_id}/information"] = f"GPU UUID: \t GPU-{index}abc-1"
        files[f"sys/bus/pci/devices/{bus_id.lower()}/numa_node"] = "1" if index < 2 else "0"
    return write(tmp_path, files)


def seen(
    root: Path,
    bound: frozenset[int] = frozenset(range(8)),
    widest: frozenset[int] = frozenset(range(8)),
    **environment: str,
) -> HostCores:
    return described(environment, bound=bound, widest=widest, root=root)


def test_a_host_is_read(root: Path) -> None:
    host = seen(root)
    assert host.cores == (Core((0, 4), 0), Core((1, 5), 0), Core((2, 6), 1), Core((3, 7), 1))
    assert host.distances == ((10, 32), (32, 10)) and host.total == 8 and host.uniform
    assert host.gpu_nodes == (1, 1, 0, 0)
    assert dealt(host, 4) == [[2, 6], [3, 7], [0, 4], [1, 5]]


def test_a_binding_to_one_core_is_left_and_a_wider_one_and_a_cgroup_s_kept(root: Path) -> None:
    few = frozenset({1, 2, 3, 6})
    host = seen(root, few, few)
    assert dealt(host, 3) == [[2, 6], [3], [1]]
    assert host.fingerprint == seen(root, few, few).fingerprint != seen(root).fingerprint
    for bound in (frozenset({2}), frozenset({2, 6})):
        assert seen(root, bound) == seen(root), "mpirun binds to a core, whatever its number of threads"
    assert seen(root, frozenset({2, 3})).cpus == {2, 3}


@pytest.mark.parametrize(
    ("environment", "nodes"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3,0"}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3abc,GPU-0abc-1"}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3,GPU-9"}, (0, None)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-,9"}, (None, None)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, (None, None)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "2"}, ()),  # what the other ranks got is not known
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "1,2"}, (1, 0)),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "2,3", "SLURM_JOB_GPUS": "0,1"}, (0, 0)),
        ({"CUDA_VISIBLE_DEVICES": "0,3", "SLURM_JOB_GPUS": "0,1,2,3"}, (1, 0)),
    ],
)
def test_the_nodes_of_visible_gpus_are_found(
    root: Path, environment: dict[str, str], nodes: tuple[int | None, ...]
) -> None:
    assert seen(root, **environment).gpu_nodes == nodes


@pytest.mark.parametrize(
    ("files", "environment", "nodes"),
    [
        (range(4), {}, (1, 1, 0, 0)),
        (range(4), {"CUDA_VISIBLE_DEVICES": "3,0"}, (0, 1)),
        (range(4), {"CUDA_VISIBLE_DEVICES": "GPU-3abc-1,0"}, (None, 1)),
        (range(2), {}, ()),  # which of the four are the container's is not known
    ],
)
def test_in_a_container_without_the_driver_s_folder_gpus_are_those_of_the_bus(
    root: Path, files: range, environment: dict[str, str], nodes: tuple[int | None, ...]
) -> None:
    shutil.rmtree(root / "proc")
    if environment:  # or it is there, and empty
        (root / "proc/driver/nvidia/gpus").mkdir(parents=True)
    bus = "sys/bus/pci/devices"
    devices = {one.lower(): ("0x10de", "0x030200") for one in BUS_IDS}
    others = {"0000:00:02.0": ("0x8086", "0x030000"), "0000:05:00.0": ("0x10de", "0x068000")}
    for one, (vendor, kind) in {**devices, **others}.items():
        write(root, {f"{bus}/{one}/vendor": vendor, f"{bus}/{one}/class": kind})
    write(root, {f"dev/nvidia{number}": "" for number in files} | {"dev/nvidiactl": ""})
    assert seen(root, **environment).gpu_nodes == nodes


CGROUP, MAX, V1 = "proc/self/cgroup", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({CGROUP: "0::/", MAX: "400000 100000"}, 4.0),
        ({CGROUP: "0::/", MAX: "max 100000"}, math.inf),
        ({CGROUP: "0::/"}, math.inf),
        ({}, math.inf),
        # The least of its own and of those that it is in.
        (
            {
                CGROUP: "0::/system.slice/job/step",
                "sys/fs/cgroup/system.slice/job/step/cpu.max": "max 100000",
                "sys/fs/cgroup/system.slice/job/cpu.max": "150000 100000",
                "sys/fs/cgroup/system.slice/cpu.max": "300000 100000",
            },
            1.5,
        ),
        # Version 1; in a container its own cgroup is the root of what is mounted, and beside it an empty version 2.
        (
            {
                CGROUP: "4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n0::/",
                f"{V1},cpuacct/cpu.cfs_quota_us": "600000",
                f"{V1},cpuacct/cpu.cfs_period_us": "100000",
            },
            6.0,
        ),
        ({CGROUP: "4:cpu:/", f"{V1}/cpu.cfs_quota_us": "-1", f"{V1}/cpu.cfs_period_us": "100000"}, math.inf),
        (
            {
                CGROUP: "4:cpuacct,cpu:/job\n3:pids:/\udcff",
                f"{V1}/job/cpu.cfs_quota_us": "250000",
                f"{V1}/job/cpu.cfs_period_us": "100000",
            },
            2.5,
        ),
        ({CGROUP: "nonsense", MAX: "1 1"}, math.inf),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    assert cpu_quota(write(tmp_path, files)) == quota


def test_threads_of_all_evaluators_fit_into_the_quota(root: Path) -> None:
    write(root, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"})
    host = seen(root)
    assert host.fingerprint != seen(root.parent / "none").fingerprint
    for agreed in (True, False):
        threads = {size: {one.threads for one in share(host, size, agreed=agreed)} for size in (1, 2, 3, 8)}
        assert threads == {1: {2}, 2: {1}, 3: {1}, 8: {1}}
    # Where they run is not bound more closely: the quota is of time.
    assert [len(one.cpus) for one in share(host, 2)] == [4, 4]


def test_slow_cores_are_nobody_s_share(root: Path) -> None:
    write(root, {"sys/devices/cpu_atom/cpus": "2-3"})
    assert share(seen(root), 2) == [Share(frozenset(range(8)), 4)] * 2


def test_only_what_is_started_inside_is_bound() -> None:
    before = os.sched_getaffinity(0)
    with running_on(frozenset({max(before)})):
        assert os.sched_getaffinity(0) == {max(before)}
        assert may_use() >= before
        assert os.sched_getaffinity(0) == {max(before)}
    with running_on(frozenset({10**4})):  # there is none such
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before


def test_ranks_agree_where_all_of_their_host_see_the_same() -> None:
    layout = Layout.plan(ranks=5, sizes=[1] * 1)
    found = surroundings(layout, ["a", "b", "a", "b", "c"], ["x", "y", "x", "z", "x"])
    assert [one.cores_agreed for one in found] == [True, False, True, False, True]
    assert not any(one.cores_agreed for one in surroundings(layout, ["a"] * 5))
