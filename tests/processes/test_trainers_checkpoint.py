"""A checkpoint that is damaged, of something else or out of reach is refused by name on all ranks, before any step;
nothing in it is run, and nothing of it is removed."""

from __future__ import annotations

import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from gloo import run_ranks
from resuming import After, assert_identical, assert_same_in_pieces, state_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import trainers
from trainers.checkpoints.host_copy import HostCopy
from trainers.checkpoints.shards import read_alone


def model(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 16), nn.Linear(16, 2))


def no_step() -> bool:
    raise AssertionError("a step was begun")


def samples(dtype: torch.dtype = torch.float32) -> TensorDataset:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(2)).to(dtype)
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(net: nn.Module, checkpoint: Path | str | None = None, **changed: Any) -> trainers.Result:
    settings: dict[str, Any] = {
        "loss": cross_entropy,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        "epochs": 2,
        "batch_size": 4,
    }
    dtype = next(net.parameters()).dtype
    return trainers.train(net, samples(dtype), checkpoint=checkpoint, **{**settings, **changed})


def interrupted(directory: Path | str, **changed: Any) -> None:
    with pytest.raises(trainers.Interrupted):
        train(model(), directory, interrupt=After(3), **changed)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def refused(directory: Path | str, net: nn.Module | None = None, **changed: Any) -> str:
    """The sentence that the run is refused with, before its first step; the files are as they were."""
    before = files(Path(directory))
    with pytest.raises(ValueError) as caught:
        train(net or model(), directory, interrupt=no_step, **changed)
    assert files(Path(directory)) == before
    message = str(caught.value)
    assert "\n" not in message and "weights_only" not in message and type(caught.value) is ValueError
    return message


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    interrupted(directory)
    return directory


def copied(saved: Path, to: Path) -> Path:
    return shutil.copytree(saved, to, dirs_exist_ok=True)


def sum_again(path: Path) -> None:
    """Let ``latest`` have the checksum of what ``path`` holds now."""
    latest = path.parents[1] / "latest"
    new = f"{path.name} {zlib.crc32(path.read_bytes()):08x}"
    latest.write_text(re.sub(rf"{path.name} \w+", new, latest.read_text()))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "one bit flipped": flipped,
    "zeroed": lambda content: content[:200] + bytes(200) + content[400:],
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "no file of torch": lambda content: b"hello",
}


@pytest.mark.parametrize("name", ["shared.pt", "rank-0.pt"])
@pytest.mark.parametrize(
    ("damage", "summed"),
    # Nothing but a checksum tells of one bit.
    cases(
        [("one bit flipped", False), ("cut", True), ("missing", False)],
        nightly=[(damage, summed) for damage in list(DAMAGE)[1:] for summed in (True, False)],
    ),
)
def test_a_damaged_or_missing_file_is_named(
    saved: Path, tmp_path: Path, name: str, damage: str, summed: bool
) -> None:
    directory = copied(saved, tmp_path)
    (path,) = directory.glob(f"step-*/{name}")
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        if summed:
            sum_again(path)
    assert str(path) in refused(directory)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_alone(directory)


@pytest.mark.parametrize("text", ["abc", "", "-1", "1\nshared.pt", "1\nshared.pt xyz", "é"])
def test_a_damaged_latest_is_named(saved: Path, tmp_path: Path, text: str) -> None:
    directory = copied(saved, tmp_path)
    (directory / "latest").write_text(text, encoding="latin-1")
    assert f"{directory}/latest" in refused(directory)


def test_a_run_that_died_between_the_files_of_a_step_goes_on_from_the_one_before(
    saved: Path, tmp_path: Path
) -> None:
    directory = copied(saved, tmp_path / "pieces")
    (step,) = directory.glob("step-*")
    begun = directory / "step-000000004"
    shutil.copytree(step, begun)
    (begun / "shared.pt").write_bytes(b"of a later step, and no whole one")
    (begun / "rank-0.pt.partial").write_bytes(b"")
    whole, pieces = model(), model()
    train(whole, tmp_path / "whole")
    train(pieces, directory)
    assert_identical(state_of(whole), state_of(pieces))


class Exploit:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[int]]:
        return os._exit, (77,)


@pytest.mark.parametrize(
    "content",
    [[1], {"x": 1}, {"ranks": 1}, {"ranks": 1, "identity": Exploit()}],
    ids=lambda c: type(c).__name__,
)
def test_what_is_no_checkpoint_of_a_run_is_refused_and_not_run(
    saved: Path, tmp_path: Path, content: object
) -> None:
    directory = copied(saved, tmp_path)
    (path,) = directory.glob("step-*/shared.pt")
    torch.save(content, path)
    sum_again(path)
    assert str(directory) in refused(directory)


@pytest.mark.parametrize(
    "method",
    [trainers.DDP(), trainers.OIALR(delay=2, update_every=2), trainers.AB(groups=False, warmup_steps=2)],
    ids=lambda method: type(method).__name__,
)
def test_a_checkpoint_of_another_model_is_refused_with_where_it_differs(
    tmp_path: Path, method: trainers.Method
) -> None:
    interrupted(tmp_path, method=method)
    deeper, frozen = nn.Sequential(*model(), nn.Linear(2, 2)), model()
    frozen[2].bias.requires_grad_(False)
    for other, words in (
        (model(width=20), ["0.weight", "(16, 6)", "(20, 6)", "4 more"]),
        (deeper, ["4.weight", "(2, 2)"]),
        (frozen, ["2.bias", "(16,) and frozen"]),
    ):
        message = refused(tmp_path, other, method=method)
        assert all(word in message for word in (str(tmp_path), *words)), message


class Kept:
    """What an optimizer may keep, and nobody reads from a disk."""


class Keeping(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("kept", Kept())


@pytest.mark.parametrize(("was", "now"), [({}, {"fused": True}), ({"foreach": True}, {"foreach": False})])
def test_the_way_in_which_an_optimizer_computes_may_be_another(
    was: dict[str, bool], now: dict[str, bool], tmp_path: Path
) -> None:
    """That of a GPU and that of the CPU, as ``fused=torch.cuda.is_available()`` makes them."""
    found: list[torch.optim.Optimizer] = []

    def adam(given: dict[str, bool]) -> Any:
        def make(parameters: Any) -> torch.optim.Optimizer:
            found.append(torch.optim.AdamW(parameters, lr=0.01, **given))
            return found[-1]

        return make

    net, expected = model(), model()
    interrupted(tmp_path, optimizer=adam(was))
    train(net, tmp_path, optimizer=adam(now))
    (group,) = found[-1].param_groups
    assert {name: group[name] for name in now} == now
    train(expected, tmp_path / "whole", optimizer=adam({}))
    for name, parameter in expected.named_parameters():
        if name != "0.bias":  # before a BatchNorm its gradient is rounding
            torch.testing.assert_close(net.get_parameter(name), parameter)


def test_what_could_not_be_read_again_is_refused_when_it_is_to_be_saved(tmp_path: Path) -> None:
    made: dict[str, Any] = {"optimizer": lambda parameters: Keeping(parameters, lr=0.01)}
    with pytest.raises(ValueError, match=r"test_trainers_checkpoint\.Kept"):
        train(model(), tmp_path, **made)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    trainers.train(model(), samples(), loss=cross_entropy, epochs=1, batch_size=4, **made)


class WithBuffer(nn.Module):
    def __init__(self, size: int, persistent: bool) -> None:
        super().__init__()
        self.net = model()
        self.register_buffer("mask", torch.ones(size), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


@pytest.mark.parametrize("persistent", [True, False])
def test_a_checkpoint_of_other_buffers_is_refused(tmp_path: Path, persistent: bool) -> None:
    with pytest.raises(trainers.Interrupted):
        train(WithBuffer(2, persistent), tmp_path, interrupt=After(1))
    message = refused(tmp_path, WithBuffer(3, persistent))
    assert all(word in message for word in (str(tmp_path), "mask", "(2,)", "(3,)"))


def test_a_checkpoint_of_parameters_grouped_otherwise_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path)

    def grouped(parameters: Any) -> torch.optim.Optimizer:
        first, *others = parameters
        return torch.optim.AdamW([{"params": [first]}, {"params": others}], lr=0.01)

    message = refused(tmp_path, optimizer=grouped)
    assert str(tmp_path) in message and "optimizer" in message


def by_numpy(parameters: Any) -> torch.optim.Optimizer:
    betas, amsgrad = tuple(np.array([0.9, 0.99])), np.bool_(True)
    return torch.optim.AdamW(
        parameters, lr=np.float64(0.01), betas=betas, weight_decay=np.float32(0.1), amsgrad=amsgrad
    )


@pytest.mark.parametrize(
    ("dtype", "optimizer"),
    [
        (torch.float32, lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01))),
        (torch.float32, by_numpy),
        # It keeps a product in single precision.
        (torch.bfloat16, lambda p: torch.optim.NAdam(p, lr=0.01)),
        (torch.float64, lambda p: torch.optim.NAdam(p, lr=0.01)),
    ],
    ids=["rate in a tensor", "numpy's numbers", "NAdam in bfloat16", "NAdam in double precision"],
)
def test_what_an_optimizer_keeps_is_resumed_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype, optimizer: Any
) -> None:
    made: list[tuple[torch.optim.Optimizer, object]] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        found = optimizer(parameters)
        made.append((found, found.param_groups[0]["lr"]))
        return found

    assert_same_in_pieces(train, lambda: model().to(dtype), tmp_path, (1, 2), optimizer=make, epochs=6)
    for found, rate in made:
        # A captured step reads that very tensor, on its device; the file's is on the CPU.
        assert not isinstance(rate, Tensor) or found.param_groups[0]["lr"] is rate


# Where it cannot be written


def out_of_reach(rank: int, directory: str, mine: str) -> str:
    """Rank 1 is told ``mine``."""
    with pytest.raises(ValueError) as caught:
        train(model(), mine if rank else directory, interrupt=no_step)
    return str(caught.value)


def test_a_directory_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for directory in (file, file / "below"):
        with pytest.raises(ValueError, match=f"checkpoint = '{directory}'"):
            train(model(), directory, interrupt=no_step)
    one, other = run_ranks(2, out_of_reach, str(tmp_path / "fine"), str(file))
    assert one.startswith("Rank 1 ") and f"checkpoint = '{file}'" in other
    assert list((tmp_path / "fine").iterdir()) == []


def test_a_finished_run_needs_not_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(model(), tmp_path)

    def read_only(self: Path, content: bytes) -> int:
        raise PermissionError

    monkeypatch.setattr(Path, "write_bytes", read_only)
    assert train(model(), tmp_path, interrupt=no_step).reason == "finished"


# Several ranks


DAMAGED = {"latest": [0], "shared.pt": [0, 1], "rank-0.pt": [0], "rank-1.pt": [1]}
"""The ranks that find the damage, by file."""


def refused_by_ranks(rank: int, directory: str) -> dict[str, str]:
    """What a run of two ranks is refused with where a file is damaged, or a rank alone cannot go on."""
    found = {}
    for name in (*DAMAGED, "optimizer", "settings"):
        place, options = f"{directory}/{name}", {"batch_size": 2}
        interrupted(place, **options)
        torch.distributed.barrier()
        if name in DAMAGED and rank == 0:
            (path,) = Path(place).glob(f"**/{name}")
            path.write_bytes(flipped(path.read_bytes()) if name != "latest" else b"abc")
        torch.distributed.barrier()
        with pytest.MonkeyPatch.context() as patched:
            if name == "optimizer" and rank == 1:
                # What the ranks are told is compared before: only what one of them finds in its part can differ yet.
                patched.setattr(trainers.run.thawing, "fill_optimizer", of_another_optimizer)
            own = {"clip_norm": 1.0} if name == "settings" and rank else {}
            found[name] = refused(place, **options, **own)
        torch.distributed.barrier()
    return found


def of_another_optimizer(*arguments: object, **where: object) -> None:
    raise ValueError("The checkpoint is of another optimizer")


def test_all_ranks_agree_on_refusing(tmp_path: Path) -> None:
    told = run_ranks(2, refused_by_ranks, str(tmp_path))
    for name, by in DAMAGED.items():
        for rank in range(2):
            assert name in told[rank][name] if rank in by else f"Rank {by[0]} " in told[rank][name]
    assert "Rank 1 " in told[0]["optimizer"] and "another optimizer" in told[1]["optimizer"]
    for rank, given in enumerate(("clip_norm = None", "clip_norm = 1.0")):
        assert f"{given} on rank {rank}" in told[rank]["settings"]


def disk_full(rank: int, directory: str, at: int) -> str:
    """The disk of rank 1 is full at its write of this number, from 0."""
    write, writes = trainers.checkpoints.files.write, iter(range(100))

    def full(path: Path, content: Any) -> int:
        if path.name == "rank-1.pt" and next(writes) == at:
            raise OSError(28, "No space left on device")
        return write(path, content)

    trainers.checkpoints.files.write = full
    with pytest.raises((OSError, ValueError)) as caught:
        train(model(), directory, batch_size=2)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("at", [0, 1])
def test_a_rank_that_cannot_save_ends_the_others_and_what_was_saved_stays(tmp_path: Path, at: int) -> None:
    one, other = run_ranks(2, disk_full, str(tmp_path), at)
    assert one.startswith("ValueError: Rank 1 ")
    assert other == "OSError: [Errno 28] No space left on device"
    assert (tmp_path / "latest").exists() == (at > 0)
    if at:
        assert read_alone(tmp_path)["epoch"] == 1


def slow_disk(rank: int, directory: str) -> tuple[list[int], int]:
    """Epochs whose checkpoint was whole when the epoch after them had been trained."""
    write, trained = trainers.checkpoints.checkpoint.write, threading.Event()

    def slow(path: Path, content: Any) -> int:
        if rank == 1 and path.name == "rank-1.sum" and "step-000000008" in str(path):
            assert trained.wait(60)  # the second epoch's is written while the third is trained
        return write(path, content)

    trainers.checkpoints.checkpoint.write = slow
    seen = []

    def report(epoch: int, metrics: dict[str, float]) -> None:
        seen.append(int(read_alone(directory)["epoch"]) if epoch > 1 else 0)
        if epoch == 3:
            trained.set()

    train(model(), directory, batch_size=2, report=report, epochs=3)
    return seen, int(read_alone(directory)["epoch"])


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    # At the third epoch's end the second's is not whole, and what counts is the first's.
    assert run_ranks(2, slow_disk, str(tmp_path)) == [([0, 1, 1], 3)] * 2


def test_a_host_without_page_locked_memory_gives_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that need none would wait for one that fails."""
    asked = []

    def empty_like(tensor: Tensor, *, device: str, pin_memory: bool = False) -> Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return torch.empty(tensor.shape, device=device)

    class OnGPU(Tensor):
        device = torch.device("cuda")

    monkeypatch.setattr("trainers.checkpoints.host_copy.torch.empty_like", empty_like)
    memory = HostCopy()
    assert [memory._memory_like(OnGPU(3)).shape for _ in range(2)] == [(3,), (3,)]
    assert asked == [True, False, False]


# One copy of what ranks have in common

NODES = trainers.DASO(warmup_epochs=0, cooldown_epochs=0, sync_every=2, sync_delay=1)
REPLICAS: dict[str, tuple[trainers.Method, list[str]]] = {
    "a node's": (NODES, ["replica-0.pt", "replica-2.pt"]),
    "a household's": (trainers.LocalSGD(households=2, world_every=3), ["replica-0.pt", "replica-2.pt"]),
    "a group's": (trainers.AB(warmup_steps=1, ab_steps=8, group_size=2), ["replica-0.pt", "replica-2.pt"]),
    "none": (trainers.LocalSGD(households=1, world_every=3), []),
    "all": (trainers.DDP(), []),
}


def in_replicas(rank: int, directory: str) -> None:
    for name, (method, _) in REPLICAS.items():
        options: dict[str, Any] = {
            "method": method,
            "batch_size": 2,
            "epochs": 4,
            "topology": trainers.Topology(ranks_per_node=2),
        }
        whole, pieces = model(64), model(64)
        train(whole, f"{directory}/whole", **options)
        if rank == 0:
            shutil.rmtree(f"{directory}/whole")
        torch.distributed.barrier()
        with pytest.raises(trainers.Interrupted):
            train(model(64), f"{directory}/{name}", interrupt=After(3), **options)
        torch.distributed.barrier()
        if rank == 0:
            # The run goes on in it, and what is to be looked at stays.
            shutil.copytree(f"{directory}/{name}", f"{directory}/kept/{name}")
        torch.distributed.barrier()
        train(pieces, f"{directory}/{name}", **options)
        assert_identical(state_of(whole), state_of(pieces))
        if method is NODES:
            # Earlier versions wrote all of each rank.
            strategy, earlier = trainers.methods.daso._DASOStrategy, model(64)
            with pytest.MonkeyPatch.context() as patched, pytest.raises(trainers.Interrupted):
                patched.setattr(strategy, "replica", None)
                train(model(64), f"{directory}/earlier", interrupt=After(3), **options)
            assert not list(Path(directory, "earlier").glob("*/replica-*"))
            train(earlier, f"{directory}/earlier", **options)
            assert_identical(state_of(whole), state_of(earlier))


def test_what_ranks_have_in_common_is_written_once(tmp_path: Path) -> None:
    run_ranks(4, in_replicas, str(tmp_path))
    sizes = {}
    for name, (_, expected) in REPLICAS.items():
        (place,) = (tmp_path / "kept" / name).glob("step-*")
        assert sorted(path.name for path in place.glob("replica-*")) == expected, name
        named = {line.split()[0] for line in (place.parent / "latest").read_text().splitlines()[1:]}
        assert named == {path.name for path in place.iterdir()}
        sizes[name] = sum(path.stat().st_size for path in place.iterdir())
        weights = read_alone(tmp_path / "kept" / name)["model"]
        assert isinstance(weights, dict) and "0.bias" in weights
    # Model and AdamW's two moments of four ranks, of two nodes, and once.
    assert sizes["a household's"] < 0.7 * sizes["none"]
    assert sizes["all"] < 0.7 * sizes["a household's"]
