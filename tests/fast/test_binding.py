"""What an evaluator gets of its host, decided without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import amd, intel, on_bus, write

from hpo.evaluation.devices import (
    bind_device,
    choose_backend,
    described,
    gpu_nodes,
    restricted,
    vendor_of,
    visible_devices,
)
from hpo.evaluation.environment import child_environment, sharing
from hpo.evaluation.gpu import inline_device

FOUR = ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        ("0,1", ("0", "1")),
        ("GPU-8932f937, GPU-1f2d", ("GPU-8932f937", "GPU-1f2d")),
        ("2,-1,3", ("2",)),
        ("", ()),
        ("NoDevFiles", ()),
        ("1,none,2", ("1",)),
        ("MIG-5c1e", ("MIG-5c1e",)),
        (None, ("0", "1", "2")),
    ],
)
def test_visible_is_what_the_environment_lists_or_the_driver_or_device_files(
    tmp_path: Path, listed: str | None, devices: tuple[str, ...]
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / "a/dev" / name).mkdir(parents=True)
    for index in range(3):
        (tmp_path / "b/proc/driver/nvidia/gpus" / f"0000:{index:02x}:00.0").mkdir(parents=True)
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    for root in ("a", "b"):
        assert visible_devices(environment, tmp_path / root) == devices
    assert visible_devices({}, tmp_path / "none") == ()


def test_devices_are_described_by_number_and_model(tmp_path: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert (
        described(environment, tmp_path / "none") == "2 GPUs"
        and described({"CUDA_VISIBLE_DEVICES": ""}) == ""
    )
    assert described({}, amd(tmp_path / "amd", [0, 1])) == "2 AMD GPUs"
    for index, model in enumerate(("H100", "H100", "H200")):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:{index:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA {model}\nIRQ:   \t\t 42\n")
        assert described(environment, tmp_path) == ("2 GPUs" if model == "H200" else "2 NVIDIA H100")


R, H, C, Z = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
CARDS = {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}


@pytest.mark.parametrize(
    ("maker", "environment", "devices", "nodes", "last"),
    [
        (amd, {}, ("0", "1", "2", "3"), [3, 3, 1, 0], {H: "3"}),
        (amd, {R: "2,3"}, ("2", "3"), [1, 0], {R: "3"}),
        (amd, {H: "1,0"}, ("1", "0"), [3, 3], {H: "0"}),
        (amd, {C: "0,3"}, ("0", "3"), [3, 0], {C: "3"}),
        (amd, {R: "2,3", C: "2,3", Z: "2,3"}, ("2", "3"), [1, 0], {R: "3", Z: "2,3"}),  # as Slurm may set it
        (amd, {R: "3,2,1", H: "0,2,5,1"}, ("3", "1"), [0, 3], {R: "1"}),
        (amd, {R: "GPU-000000000000abc5,GPU-000000000000ABC2"}, None, [0, 3], {R: "GPU-000000000000ABC2"}),
        (amd, {R: "1,-1,2"}, ("1",), [], {R: "1"}),
        (amd, {R: "0,1", C: ""}, (), [], {R: "0,1", C: ""}),
        (intel, {}, tuple("01234567"), [3, 3, 3, 3, 1, 1, 0, 0], {Z: "7"}),
        (intel, {Z: "2,7"}, ("2", "7"), [3, 0], {Z: "7"}),
        (intel, {Z: ""}, tuple("01234567"), [3, 3, 3, 3, 1, 1, 0, 0], {Z: "7"}),
        (intel, {C: ""}, (), [], {C: ""}),
        (intel, CARDS, tuple("0123"), [3, 3, 1, 0], {Z: "3", **CARDS}),
        (intel, {Z: "0.0,2.0,2.1", **CARDS}, ("0.0", "2.0,2.1"), [3, 1], {Z: "2.0,2.1", **CARDS}),
    ],
)
def test_gpus_of_other_vendors_are_those_that_their_variables_leave(
    tmp_path: Path, maker, environment: dict[str, str], devices, nodes: list[int | None], last: dict[str, str]
) -> None:
    """``last``: the environment of a process that is to see the last of them alone, and sees it then."""
    root = maker(tmp_path, [3, 3, 1, 0])
    visible = visible_devices(environment, root)
    assert visible == (tuple(environment[R].split(",")) if devices is None else devices)
    assert gpu_nodes(environment, root) == nodes
    shown = restricted(environment, visible[-1:], root)
    assert shown == last and visible_devices(shown, root) == visible[-1:]


def test_graphics_that_are_not_to_train_and_hidden_devices_are_not_counted(tmp_path: Path) -> None:
    assert visible_devices({}, amd(tmp_path / "desktop", [0], simds=44)) == ()
    assert visible_devices({}, intel(tmp_path / "laptop", [])) == ()
    root = intel(tmp_path / "xe", [0, 0], tiles="tile{tile}")
    assert len(visible_devices({}, root)) == 4
    (root / "dev/dri/renderD129").unlink()
    assert len(visible_devices({}, root)) == 2
    on_bus(root, "0000:99:00.0", "0x10de")
    assert vendor_of({}, root).device == "xpu", "an NVIDIA GPU without a driver"
    write(root, {"dev/nvidia0": ""})
    assert vendor_of({Z: "0"}, root).name == "NVIDIA" and visible_devices({Z: "0,1"}, root) == ("0",)
    unseen = [
        vendor_of(variables, tmp_path / "none").name for variables in ({}, {C: "0"}, {R: "0"}, {Z: "0"})
    ]
    assert unseen == ["NVIDIA", "NVIDIA", "AMD", "Intel"]


def bound(
    visible: tuple[str, ...], local_rank: int, first: int, size: int
) -> tuple[tuple[str, ...], int | None]:
    """For a worker whose ranks on this host have the host's ranks ``first`` to ``first + size - 1``."""
    return bind_device(
        visible, local_rank=local_rank, worker_local_rank=local_rank - first, worker_local_size=size
    )


@pytest.mark.parametrize(
    ("visible", "worker", "expected"),
    [
        (FOUR, 2, [(("0", "1"), 0), (("0", "1"), 1), (("2", "3"), 0), (("2", "3"), 1)]),
        (FOUR, 1, [((name,), 0) for name in FOUR]),
        (("5",), 4, [(("5",), 0)] * 4),
        ((), 2, [((), None)] * 4),
        (("0", "1"), 4, [(("0", "1"), 0), (("0", "1"), 1)] * 2),
        # CUDA shows a process one MIG instance only, whatever else is listed.
        (("MIG-a", "MIG-b", "MIG-c"), 4, [((f"MIG-{name}",), 0) for name in "abca"]),
        (("MIG-GPU-a", "MIG-GPU-b"), 2, [((f"MIG-GPU-{name}",), 0) for name in "abab"]),
    ],
)
def test_each_rank_gets_its_own_of_its_workers_devices(
    visible: tuple[str, ...], worker: int, expected: list[tuple[tuple[str, ...], int | None]]
) -> None:
    assert [bound(visible, rank, rank // worker * worker, worker) for rank in range(4)] == expected


@given(count=st.integers(2, 9), first=st.integers(0, 20), size=st.integers(1, 9), index=st.integers(0, 8))
def test_ranks_use_the_device_of_their_number(count: int, first: int, size: int, index: int) -> None:
    visible = tuple(f"GPU-{number}" for number in range(count))
    rank = first + index % size
    devices, own = bound(visible, rank, first, size)
    assert own is not None and devices[own] == visible[rank % count]
    assert len(set(devices)) == len(devices) <= size, "CUDA refuses a list that names one twice"


def test_inline_ranks_take_a_device_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # a device that is assigned counts as working
    for visible, expected in (
        ("4,6", ["cuda:0", "cuda:1"]),
        ("4", ["cuda:0"] * 2),
        ("", ["cpu"] * 2),
        ("MIG-a,MIG-b", ["cuda:0"] * 2),
    ):
        environment = {"CUDA_VISIBLE_DEVICES": visible}
        assert [inline_device(environment, rank, "a rank").name for rank in (0, 1)] == expected


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        ([("a", "cuda/GPU-0"), ("a", "cuda/GPU-1")], "cpu:gloo,cuda:nccl"),
        ([("a", "cuda/GPU-0"), ("b", "cuda/GPU-0")], "cpu:gloo,cuda:nccl"),
        ([("a", "cuda/GPU-0"), ("a", "cuda/GPU-0")], "gloo"),
        ([("a", "cuda/GPU-0"), ("a", None)], "gloo"),
        ([("a", None), ("b", None)], "gloo"),
        ([("a", "xpu/0"), ("a", "xpu/1")], "cpu:gloo,xpu:xccl"),
        ([("a", "xpu/0"), ("b", "cuda/0")], "gloo"),
    ],
)
def test_nccl_only_where_each_rank_has_a_device_of_its_own(
    devices: list[tuple[str, str | None]], backend: str
) -> None:
    assert choose_backend(devices) == backend


def environment(base: dict[str, str], root: str = "/opt/site-packages") -> dict[str, str]:
    return child_environment(base, threads=3, package_root=Path(root))


def test_nothing_of_the_launcher_is_left() -> None:
    launcher = (
        "OMPI_COMM_WORLD_RANK OMPI_MCA_btl PMIX_RANK PMI_RANK PRTE_LAUNCHED HYDRA_PROXY HYDI_CONTROL_FD "
        "MPI_LOCALRANKID SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEP_ID SLURM_STEPID SLURM_NTASKS RANK "
        "WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT"
    )
    kept = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "4",
        "MPLBACKEND": "agg",
        "WANDB_MODE": "offline",
    }
    assert environment({**dict.fromkeys(launcher.split(), "1"), **kept}) == {**kept, "OMP_NUM_THREADS": "3"}


def test_what_the_user_has_set_stays() -> None:
    assert environment({"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"
    assert environment({"CUDA_VISIBLE_DEVICES": ""})["CUDA_VISIBLE_DEVICES"] == ""


def test_package_that_is_not_installed_is_found() -> None:
    assert environment({}, root="/home/me/hpo")["PYTHONPATH"] == "/home/me/hpo"
    assert environment({"PYTHONPATH": "/lib"}, root="/home/me/hpo")["PYTHONPATH"] == "/home/me/hpo:/lib"
    assert "PYTHONPATH" not in environment({})


@pytest.mark.parametrize(
    ("ranks", "gpus", "on_gpu"),
    [(1, 0, "1"), (8, 0, "1"), (4, 4, "1"), (2, 4, "1"), (8, 4, "2"), (5, 4, "2")],
)
def test_a_task_learns_how_many_ranks_share_memory(ranks: int, gpus: int, on_gpu: str) -> None:
    shared = sharing(ranks, gpus)
    assert shared == {"HPO_RANKS_ON_HOST": str(ranks), "HPO_RANKS_ON_GPU": on_gpu}
    kept = child_environment({**shared, "LOCAL_WORLD_SIZE": "9"}, threads=1, package_root=Path("/"))
    assert shared.items() <= kept.items() and "LOCAL_WORLD_SIZE" not in kept
