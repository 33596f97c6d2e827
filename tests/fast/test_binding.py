"""What an evaluator gets of its host, decided without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo.evaluation.devices import bind_device, choose_backend, described, inline_device, visible_devices
from hpo.evaluation.environment import child_environment, sharing

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
        (tmp_path / "dev" / name).mkdir(parents=True)
    for index in range(3):
        (tmp_path / "driver" / f"0000:{index:02x}:00.0").mkdir(parents=True)
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    for driver, nodes in (("driver", "none"), ("none", "dev")):
        assert visible_devices(environment, tmp_path / driver, tmp_path / nodes) == devices
    assert visible_devices({}, tmp_path / "none", tmp_path / "none") == ()


def test_devices_are_described_by_number_and_model(tmp_path: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert (
        described(environment, tmp_path / "none") == "2 GPUs"
        and described({"CUDA_VISIBLE_DEVICES": ""}) == ""
    )
    for index, model in enumerate(("H100", "H100", "H200")):
        folder = tmp_path / f"0000:{index:02x}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t NVIDIA {model}\nIRQ:   \t\t 42\n")
        assert described(environment, tmp_path) == ("2 GPUs" if model == "H200" else "2 NVIDIA H100")


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
        ([("a", "GPU-0"), ("a", "GPU-1")], "cpu:gloo,cuda:nccl"),
        ([("a", "GPU-0"), ("b", "GPU-0")], "cpu:gloo,cuda:nccl"),
        ([("a", "GPU-0"), ("a", "GPU-0")], "gloo"),
        ([("a", "GPU-0"), ("a", None)], "gloo"),
        ([("a", None), ("b", None)], "gloo"),
    ],
)
def test_nccl_only_where_each_rank_has_a_device_of_its_own(
    devices: list[tuple[str, str | None]], backend: str
) -> None:
    assert choose_backend(devices) == backend


def environment(
    base: dict[str, str], devices: tuple[str, ...] = (), root: str = "/opt/site-packages"
) -> dict[str, str]:
    return child_environment(base, threads=3, devices=devices, package_root=Path(root))


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
    assert environment({"CUDA_VISIBLE_DEVICES": "0,1"}, ("1",))["CUDA_VISIBLE_DEVICES"] == "1"


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
    kept = child_environment(
        {**shared, "LOCAL_WORLD_SIZE": "9"}, threads=1, devices=(), package_root=Path("/")
    )
    assert shared.items() <= kept.items() and "LOCAL_WORLD_SIZE" not in kept
