"""What ``trainers`` computes on a GPU, beside what it computes on the CPU and alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_ins
import torch
import torch.distributed as dist
from gloo import run_ranks
from inductor import backend_for
from places import ROOT
from resuming import After
from skips import not_possible_here
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset, TensorDataset

import trainers
from search_spaces.building_blocks.data_sets.patch_images import UPSAMPLING, PatchImages
from search_spaces.readers.bigearthnet import load_bigearthnet
from search_spaces.readers.bigearthnet_files.dataset import BigEarthNet
from trainers.data.batches import in_order
from trainers.data.loader import Loader
from trainers.lowrank.layers import merged

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    "GLOO_SOCKET_IFNAME": "lo",
}
pytestmark = [pytest.mark.timeout(200), pytest.mark.filterwarnings("default")]

STEPS, EPOCHS, BATCH = 12, 2, 4
WIDTHS = (24, 32, 32, 32, 1)
PHASES: dict[str, Any] = {"warmup_steps": 3, "ab_steps": 6, "rebound_steps": 2, "lr_rebound_steps": 2}
RANKS: dict[str, Any] = {"delay": 4, "update_every": 3, "sigma_cutoff": 0.2, "layer_step": 0.5}
AT_ONCE = trainers.DASO(sync_every=1, sync_delay=0, warmup_epochs=0, cooldown_epochs=0, wire_dtype=None)
LATE = trainers.DASO(sync_every=3, sync_delay=2, warmup_epochs=0.2, cooldown_epochs=0.2)

AS_ONE_RANK: dict[str, tuple[trainers.Method, int]] = {
    "DDP": (trainers.DDP(), 2),
    "DASO in a node": (LATE, 2),
    "DASO at once": (AT_ONCE, 1),
    "local SGD before its start": (trainers.LocalSGD(world_every=3, start=STEPS * EPOCHS - 1), 1),
    "OIALR": (trainers.OIALR(**RANKS), 2),
    "OIALR over DASO": (trainers.OIALR(**RANKS, synchronisation=AT_ONCE), 1),
    "AB without groups": (trainers.AB(**PHASES, groups=False), 2),
}
"""Method and ranks a node: two ranks train what one trains with the batches of both."""
AS_ON_CPU: dict[str, tuple[trainers.Method, int]] = {
    **AS_ONE_RANK,
    "DDP bf16": (trainers.DDP(compression="bf16"), 2),
    "DDP PowerSGD": (trainers.DDP(compression="powersgd", powersgd_rank=2), 2),
    "DASO": (LATE, 1),
    "local SGD": (trainers.LocalSGD(world_every=3, start=2), 1),
    "AB": (trainers.AB(**PHASES), 1),
    "AB products": (trainers.AB(**PHASES, merge="products"), 1),
    "AB by loss": (trainers.AB(**PHASES, merge="loss-weighted"), 1),
}
ROUNDED = {"DDP bf16", "DASO"}
"""They send bfloat16: where numbers differ by a rounding in double precision, what is sent may by one in bfloat16."""


def perceptron(dtype: torch.dtype, *widths: int) -> nn.Sequential:
    torch.manual_seed(3)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def samples(count: int, dtype: torch.dtype, width: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(count, width, dtype=dtype, generator=generator)
    return TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def weights(model: nn.Module) -> Tensor:
    """All parameters of the whole model, in double precision on the CPU."""
    return torch.cat([p.detach().double().cpu().flatten() for p in merged(model).parameters()])


def apart(found: Tensor, expected: Tensor, start: Tensor) -> float:
    """How far two results are from one another, over how far training has come."""
    return float((found - expected).norm() / (expected - start).norm())


# Two ranks


def trained(device: str, batch: int, name: str, **changed: Any) -> Tensor:
    method, per_node = AS_ON_CPU[name]
    model = perceptron(torch.float64, *WIDTHS).to(device)
    trainers.train(
        model, samples(STEPS * BATCH * 2, torch.float64), loss=mse_loss, optimizer=sgd, method=method,
        epochs=EPOCHS, batch_size=batch, timeout=timedelta(seconds=60), progress=False,
        topology=trainers.Topology(ranks_per_node=per_node if dist.is_initialized() else 1), **changed,
    )  # fmt: skip
    assert all(parameter.device == torch.device(device) for parameter in model.parameters())
    return weights(model)


def trained_by_all(rank: int, device: str) -> dict[str, Any]:
    """By each method, or its error: of one that fails the others still say something. "wait_s" has each one's."""
    found: dict[str, Any] = {"wait_s": {}}
    for name in AS_ON_CPU:

        def report(number: int, metrics: dict[str, float], name: str = name) -> None:
            found["wait_s"][name] = metrics["wait_s"]

        try:
            found[name] = trained(device, BATCH, name, report=report)
        except Exception:
            found[name] = traceback.format_exc()
    return found


Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two_ranks(device: torch.device) -> Found:
    return run_ranks(2, trained_by_all, str(device), timeout_s=150, method="spawn")


@pytest.fixture(scope="module")
def two_ranks_on_cpu(device: torch.device) -> Found:
    return run_ranks(2, trained_by_all, "cpu", timeout_s=150, method="spawn")


def both(found: Found, name: str) -> Tensor:
    """What both ranks have."""
    for one in found:
        assert isinstance(one[name], Tensor), one[name]
    assert torch.equal(found[0][name], found[1][name])
    mine: Tensor = found[0][name]
    return mine


@pytest.fixture
def start() -> Tensor:
    return weights(perceptron(torch.float64, *WIDTHS))


@pytest.mark.parametrize("name", AS_ONE_RANK)
def test_two_ranks_on_one_device_train_what_one_does_with_both_batches(
    device: torch.device, two_ranks: Found, start: Tensor, name: str
) -> None:
    assert apart(both(two_ranks, name), trained(str(device), 2 * BATCH, name), start) < 1e-6


@pytest.mark.parametrize("name", AS_ON_CPU)
def test_two_ranks_on_one_device_train_what_two_do_on_the_cpu(
    two_ranks: Found, two_ranks_on_cpu: Found, start: Tensor, figures: dict[str, Any], name: str
) -> None:
    distance = apart(both(two_ranks, name), both(two_ranks_on_cpu, name), start)
    figures.setdefault("two ranks on the device from two on the CPU, over the way trained", {})[name] = (
        distance
    )
    assert distance < (0.02 if name in ROUNDED else 1e-6)


def test_what_ranks_wait_for_one_another_is_recorded(two_ranks: Found, figures: dict[str, Any]) -> None:
    """On a GPU between events of its stream, which a wait holds up and the CPU does not see."""
    waited = two_ranks[0]["wait_s"]
    figures["seconds that two ranks waited for one another"] = waited
    assert waited.keys() == AS_ON_CPU.keys()
    assert all(0 < seconds < 60 for seconds in waited.values()), waited


def test_torchrun_with_two_ranks(device: torch.device, tmp_path: Path) -> None:
    script = Path(__file__).with_name("under_torchrun.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "localhost"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", script, tmp_path],
        env=ENVIRONMENT,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    share = torch.cuda.device_count() < 2
    assert first["device"] == str(device) and first["backend"] == ("gloo" if share else "cpu:gloo,cuda:nccl")
    assert second["device"] == ("cpu" if device.type == "cpu" else "cuda:0" if share else "cuda:1")
    assert first["weights"] == second["weights"]
    alone = trained(str(device), 2 * BATCH, "DDP")
    torch.testing.assert_close(
        torch.tensor(first["weights"], dtype=torch.float64), alone, rtol=1e-6, atol=1e-9
    )


# Precision, clipping, accumulation, loading


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.GELU(), nn.AvgPool2d(2)
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.GELU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.classes(self.features(images))
        return out


def images(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(6)
    inputs = torch.randn(count, 3, 8, 8, generator=generator)
    return TensorDataset(inputs, torch.randint(10, (count,), generator=generator))


def classify(
    device: torch.device, *, model: nn.Module | None = None, **changed: Any
) -> tuple[Tensor, trainers.Result]:
    model = (Small() if model is None else model).to(device)
    settings: dict[str, Any] = {
        "clip_norm": 0.5,
        "accumulate": 2,
        "epochs": 2,
        "batch_size": 16,
        "progress": False,
    }
    result = trainers.train(
        model, images(256), images(64), loss=cross_entropy, optimizer=sgd, **{**settings, **changed}
    )
    return weights(model), result


@pytest.fixture(scope="module")
def classified(device: torch.device) -> tuple[Tensor, trainers.Result]:
    """On the CPU, in single precision."""
    return classify(torch.device("cpu"))


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 0.01), ("tf32", 0.02), ("bf16", 0.05)])
@pytest.mark.parametrize(("loader_processes", "data_on_device"), [(0, "auto"), (0, False), (2, False)])
def test_precisions_train_what_single_precision_does_on_the_cpu(
    device: torch.device,
    classified: tuple[Tensor, trainers.Result],
    figures: dict[str, Any],
    precision: str,
    tolerance: float,
    loader_processes: int,
    data_on_device: bool | str,
) -> None:
    found, result = classify(
        device, precision=precision, loader_processes=loader_processes, data_on_device=data_on_device
    )
    expected, reference = classified
    distance = apart(found, expected, weights(Small()))
    figures.setdefault("from single precision on the CPU, over the way trained", {})[precision] = distance
    assert distance < tolerance
    for name in ("train_loss", "validation_loss"):
        assert result.metrics[name] == pytest.approx(reference.metrics[name], rel=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precisions_train_a_compiled_model(
    device: torch.device, classified: tuple[Tensor, trainers.Result], precision: str
) -> None:
    backend = backend_for(device)
    before = torch.get_float32_matmul_precision()
    model = Small()
    model.compile(backend=backend)
    found, _ = classify(device, model=model, precision=precision)
    assert torch.get_float32_matmul_precision() == before
    assert apart(found, classified[0], weights(Small())) < 0.05


class OnTheDevice(Dataset[Any]):
    """Its samples are there already; the GPU is busy when a batch of them is asked for."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.values = torch.arange(1.0, count + 1, device=device)

    def __len__(self) -> int:
        return len(self.values)

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        places = indices.to(self.values.device)
        if places.is_cuda:
            torch.cuda._sleep(10**8)
        chosen = self.values[places]
        return chosen, -chosen

    def on_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * inputs, targets


def test_a_data_set_is_copied_to_the_device_and_the_same_batches_gathered_there(
    device: torch.device, patches: BigEarthNet
) -> None:
    samples, read = PatchImages(patches, size=20), []
    read_batch = samples.read_batch
    samples.read_batch = lambda indices: read.append(len(indices)) or read_batch(indices)  # type: ignore
    with (
        Loader(samples, device=device, processes=0) as host,
        Loader(samples, device=device, processes=0) as kept,
    ):
        kept.keep_on_device("auto" if device.type == "cuda" else True, "train_set")
        for epoch in range(2):
            batches = [*in_order([3, 1, 4, 11, 5, 9, 2, 6], batch_size=5)]
            expected = list(host.batches(batches, epoch=epoch))
            count = len(read)
            found = list(kept.batches(batches, epoch=epoch))
            assert len(read) - count == (1 if device.type == "cuda" and not epoch else 0)
            for one, other in zip(found, expected, strict=True):
                assert all(map(torch.equal, one, other))


def test_on_device_gets_what_the_data_set_made_on_the_device(device: torch.device) -> None:
    samples = OnTheDevice(device, 24)
    with Loader(samples, device=device, processes=0) as loader:
        batches = list(loader.batches(in_order(range(24), batch_size=4), epoch=0))
    found = [torch.cat(part).tolist() for part in zip(*batches, strict=True)]
    values = samples.values.tolist()
    assert found == [[2 * value for value in values], [-value for value in values]]


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> BigEarthNet:
    store = stand_ins.bigearthnet(tmp_path_factory.mktemp("stored") / "patches", patches=(12, 1, 1))
    pixels, draw = np.load(store / "pixels.npy"), np.random.default_rng(0)
    for band in pixels.dtype.names:
        pixels[band] = draw.integers(0, 10_000, pixels[band].shape)
    np.save(store / "pixels.npy", pixels)
    return load_bigearthnet(store, "train")


@pytest.mark.parametrize("size", [120, 100, 20])
@pytest.mark.parametrize("upsampling", UPSAMPLING)
def test_patches_become_the_same_images_on_the_device(
    device: torch.device, patches: BigEarthNet, upsampling: str, size: int
) -> None:
    samples = PatchImages(patches, size=size, upsampling=upsampling)
    expected, targets = samples.images(range(len(samples)))
    with Loader(samples, device=device, processes=0) as loader:
        batches = list(loader.batches(in_order(range(len(samples)), batch_size=4), epoch=0))
    images, found = (torch.cat(part) for part in zip(*batches, strict=True))
    assert images.device.type == device.type
    assert torch.allclose(images.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.cpu(), targets)


class DrawsOnTheDevice(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.zeros(3), index

    def on_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return torch.rand_like(inputs), targets


def test_what_the_device_draws_does_not_hang_on_who_reads(device: torch.device) -> None:
    """With processes that read ahead a batch comes to a GPU a step earlier."""
    found = []
    for processes, first in ((0, 0), (1, 0), (1, 2)):
        with Loader(DrawsOnTheDevice(), device=device, processes=processes) as loader:
            batches = in_order(range(24), batch_size=4)[first:]
            read = []
            for inputs, _ in loader.batches(batches, epoch=0):
                assert isinstance(inputs, Tensor) and inputs.device.type == device.type
                read.append(inputs.cpu())
                torch.rand(5, device=device)  # as dropout does
        found.append(torch.cat(read[2 - first :]))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(24, 64), nn.Dropout(0.5), nn.Linear(64, 1))
        forward = self.block.forward
        self.block.forward = lambda *, x: forward(x)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x=x)  # type: ignore[no-any-return]


def test_a_block_that_is_called_by_keyword_drops_the_same_when_it_is_computed_again(
    device: torch.device,
) -> None:
    ends = []
    for patterns in ((), ["block"]):
        torch.manual_seed(0)
        model = Dropped().to(device)
        trainers.train(
            model, samples(STEPS * BATCH, torch.float32), loss=mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            epochs=1, batch_size=BATCH, progress=False, activation_checkpointing=patterns,
        )  # fmt: skip
        ends.append(weights(model))
    torch.manual_seed(0)
    start = weights(Dropped())
    # So that a training that diverges, or does nothing, is not taken for one that drops others.
    assert 0.01 < (ends[0] - start).norm() / start.norm() < 1
    assert apart(ends[1], ends[0], start) < 1e-4


def wrapped_in_pieces(rank: int, on: str, saved_at: int | None) -> list[float]:
    device = torch.device(on)
    model = perceptron(torch.float32, 24, 32, 1).to(device)
    data = samples(16 * BATCH, torch.float32).tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    settings: dict[str, Any] = {
        "method": trainers.DASO(sync_every=3, sync_delay=1, warmup_epochs=0, cooldown_epochs=0),
        "topology": trainers.Topology(ranks_per_node=1), "epochs": 1, "steps_per_epoch": 8,
        "timeout": timedelta(seconds=60),
    }  # fmt: skip
    run = trainers.wrap(model, optimizer, **settings)
    try:
        for step in range(8):
            if step == saved_at:
                # The state's tensors stay where they are.
                state = deepcopy(run.state_dict())
                run.close()
                run = trainers.wrap(model, optimizer, **settings)
                run.load_state_dict(state)
            part = slice((2 * step + rank) * BATCH, (2 * step + rank + 1) * BATCH)
            inputs, targets = (one[part].to(device) for one in data)
            optimizer.zero_grad()
            run.backward(mse_loss(model(inputs), targets))
            optimizer.step()
    finally:
        run.close()
    return weights(model).tolist()


def test_a_loop_of_one_s_own_goes_on_from_a_state_on_the_device(device: torch.device) -> None:
    """DASO keeps what nodes have in common, and sums that are under way."""
    whole, pieces = (
        run_ranks(2, wrapped_in_pieces, str(device), at, timeout_s=150, method="spawn") for at in (None, 5)
    )
    apart_by = [
        max(abs(a - b) for a, b in zip(*both, strict=True)) for both in zip(whole, pieces, strict=True)
    ]
    assert max(apart_by) < 1e-5


# Resuming

RESUMED = ("DDP", "DASO", "OIALR", "AB without groups")


def in_pieces(device: torch.device, name: str, **changed: Any) -> Tensor:
    model = perceptron(torch.float32, 24, 32, 32, 32, 1).to(device)
    trainers.train(
        model, samples(STEPS * BATCH, torch.float32), loss=mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3), method=AS_ON_CPU[name][0],
        epochs=EPOCHS, batch_size=BATCH, progress=False, **changed,
    )  # fmt: skip
    return weights(model)


RESUMED_BY_TWO = (*RESUMED, "local SGD", "AB", "OIALR over DASO", "DDP PowerSGD")


def trained_in_pieces_by_all(rank: int, device: str, directory: Path) -> dict[str, Tensor | str]:
    found: dict[str, Tensor | str] = {}
    for name in RESUMED_BY_TWO:
        kept = directory / name
        try:
            for steps in (5, 6, 6):  # in the midst of phases, and with sums under way
                with suppress(trainers.Interrupted):
                    trained(device, BATCH, name, checkpoint=kept, interrupt=After(steps))
                    raise AssertionError("not interrupted")
            found[name] = trained(device, BATCH, name, checkpoint=kept)
        except Exception:
            found[name] = traceback.format_exc()
    return found


@pytest.fixture(scope="module")
def two_ranks_in_pieces(device: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("two ranks")
    return run_ranks(2, trained_in_pieces_by_all, str(device), directory, timeout_s=150, method="spawn")


@pytest.mark.parametrize("name", RESUMED_BY_TWO)
def test_an_interrupted_run_of_two_ranks_ends_as_an_undisturbed_one(
    device: torch.device, two_ranks: Found, two_ranks_in_pieces: Found, start: Tensor, name: str
) -> None:
    """DASO's base and its sums under way, the groups' factors, what PowerSGD has not sent: all of it from files."""
    # The same bits on the CPU; a GPU may add up in another order.
    distance = apart(both(two_ranks_in_pieces, name), both(two_ranks, name), start)
    assert distance <= ((0.02 if name in ROUNDED else 1e-6) if device.type == "cuda" else 0.0)


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("to_cpu", [True, False])
def test_a_checkpoint_goes_from_the_gpu_to_the_cpu_and_back(
    device: torch.device, tmp_path: Path, name: str, to_cpu: bool
) -> None:
    cpu = torch.device("cpu")
    first, then = (device, cpu) if to_cpu else (cpu, device)
    with pytest.raises(trainers.Interrupted):
        in_pieces(first, name, checkpoint=tmp_path, interrupt=After(14))
    found = in_pieces(then, name, checkpoint=tmp_path)
    start = weights(perceptron(torch.float32, 24, 32, 32, 32, 1))
    assert apart(found, in_pieces(cpu, name), start) < 0.01


# Decompositions


@contextmanager
def tf32_allowed(by: str) -> Iterator[None]:
    """As users allow it for their models, by torch's older setting or, from 2.9 on, its newer one."""
    if by == "older":
        torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision("highest")
        return
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def of_low_rank(width: int, rank: int) -> nn.Sequential:
    """Layers whose weights have few singular values, so that a decomposition leaves nothing out."""
    model = perceptron(torch.float32, width, width, width, width)
    generator = torch.Generator().manual_seed(8)
    for layer in model:
        if isinstance(layer, nn.Linear):
            left = torch.randn(width, rank, dtype=torch.float64, generator=generator)
            right = torch.randn(rank, width, dtype=torch.float64, generator=generator)
            layer.weight.data.copy_(left @ right / width)
    return model


@pytest.mark.parametrize("by", ["older", "newer"])
@pytest.mark.parametrize("name", ["OIALR", "AB"])
def test_decompositions_are_exact_where_tf32_is_allowed(
    device: torch.device, figures: dict[str, Any], name: str, by: str
) -> None:
    """A training with a learning rate of 0 decomposes and merges, and leaves the weights as they are."""
    if by == "newer" and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        not_possible_here("torch has this setting from 2.9 on")
    methods = {
        "OIALR": trainers.OIALR(delay=3, update_every=3, sigma_cutoff=1e-3, layer_step=1.0),
        "AB": trainers.AB(**PHASES, sigma_cutoff=1e-3, groups=False),
    }
    width, steps = 256, 16
    model = of_low_rank(width, 32).to(device)
    before = [p.detach().double().cpu() for p in model.parameters()]
    with tf32_allowed(by):
        if device.type == "cuda":
            a = torch.randn(width, width, device=device)
            exact = a.double() @ a.double()
            spoilt = float(((a @ a).double() - exact).norm() / exact.norm())
            assert spoilt > 5e-5, "TF32 is allowed and makes no difference"
            figures["error of a product in TF32"] = spoilt
        result = trainers.train(
            model, TensorDataset(torch.randn(steps * 8, width), torch.zeros(steps * 8, width)), loss=mse_loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0), method=methods[name], epochs=1,
            batch_size=8, progress=False,
        )  # fmt: skip
        if device.type == "cuda" and by == "newer":
            assert torch.backends.cuda.matmul.fp32_precision == "tf32", "the user's setting stays"
    assert result.metrics["decomposition_s"] > 0
    after = [p.detach().double().cpu() for p in merged(model).parameters()]
    worst = max(float((one - other).norm() / other.norm()) for one, other in zip(after, before, strict=True))
    figures.setdefault("what decompositions change where TF32 is allowed", {})[f"{name}, {by}"] = worst
    assert worst < 5e-6
