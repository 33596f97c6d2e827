"""The options of ``trainers.train`` on a GPU, beside the same run on the CPU; one rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from inductor import backend_for, recompilations
from test_gpu_training import Small, apart, classify, samples, weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import trainers

pytestmark = [pytest.mark.timeout(200), pytest.mark.filterwarnings("default")]

CPU = torch.device("cpu")
Run = tuple[Tensor, trainers.Result]


class Hits:
    """The share of right classes, counted where the batches are."""

    def reset(self) -> None:
        self.counts = torch.zeros(2)

    def update(self, outputs: Tensor, classes: Tensor) -> None:
        right = (outputs.argmax(1) == classes).sum()
        self.counts = self.counts.to(outputs.device) + torch.stack([right, right.new_tensor(len(classes))])

    def sums(self) -> list[Tensor]:
        return [self.counts]

    def compute(self) -> Tensor:
        return self.counts[0] / self.counts[1]


def accuracy(outputs: Tensor, classes: Tensor) -> float:
    return float((outputs.argmax(1) == classes).float().mean())


def weighted_loss(device: torch.device) -> Callable[[Tensor, Tensor], Tensor]:
    """A metric that holds a tensor on the device, while outputs come from the host's memory."""
    of_classes = torch.linspace(0.5, 1.5, 10, device=device)
    return lambda outputs, classes: cross_entropy(outputs, classes, weight=of_classes)


ALTERING: dict[str, dict[str, Any]] = {
    "ema_decay": {"ema_decay": 0.9},
    "early stopping": {"epochs": 12, "early_stopping": trainers.EarlyStopping(patience=2, restore_best=True)},
    "clip_value": {"clip_norm": None, "clip_value": 1e-3},
    "parameter_groups": {
        "parameter_groups": lambda name, parameter: {"lr": 0.01} if parameter.ndim < 2 else {}
    },
}
"""By name, options with which other weights are trained."""
NEUTRAL: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "evaluate_every": lambda device: {"evaluate_every": 3},
    "metrics": lambda device: {
        "metrics": {"accuracy": accuracy, "weighted": weighted_loss(device), "hits": Hits()}
    },
    "channels_last": lambda device: {"model": Small().to(memory_format=torch.channels_last)},
}
"""Those with which the weights are the same, but for roundings."""


@pytest.fixture(scope="module")
def plain() -> Run:
    return classify(CPU)


def assert_alike(found: Run, expected: Run, device: torch.device, start: Tensor) -> float:
    """The same training on ``device`` and on the CPU; how far their weights are apart."""
    distance = apart(found[0], expected[0], start)
    assert distance < 0.01
    assert found[1].reason == expected[1].reason
    assert len(found[1].history) == len(expected[1].history)
    for ours, theirs in zip(found[1].history, expected[1].history, strict=True):
        assert ours.keys() - theirs.keys() == ({"peak_memory_bytes"} if device.type == "cuda" else set())
        assert not theirs.keys() - ours.keys()
        for name in ("epoch", "steps", "lr"):
            assert ours[name] == theirs[name]
        for name in theirs.keys() & {"train_loss", "validation_loss", "weighted"}:
            assert ours[name] == pytest.approx(theirs[name], rel=0.01)
        # One of 64 samples may be between two classes.
        for name in theirs.keys() & {"accuracy", "hits"}:
            assert ours[name] == pytest.approx(theirs[name], abs=1.5 / 64)
    if device.type == "cuda":
        of_weights = 4 * len(start)
        assert of_weights < found[1].metrics["peak_memory_bytes"] < 2**30
    return distance


@pytest.mark.parametrize("name", [*ALTERING, *NEUTRAL])
def test_an_option_does_what_it_does_on_the_cpu(
    device: torch.device, plain: Run, figures: dict[str, Any], name: str
) -> None:
    found, expected = (
        classify(on, **(ALTERING[name] if name in ALTERING else NEUTRAL[name](on))) for on in (device, CPU)
    )
    start = weights(Small())
    figures.setdefault("options on the device from those on the CPU, over the way trained", {})[name] = (
        assert_alike(found, expected, device, start)
    )
    by_option = apart(expected[0], plain[0], start)
    assert by_option > 0.1 if name in ALTERING else by_option < 1e-5
    result = found[1]
    if name == "early stopping":
        assert result.reason == "stopped early" and len(result.history) < 12
        best = min(result.history, key=lambda entry: entry["validation_loss"])
        assert result.metrics["epoch"] == best["epoch"] < result.history[-1]["epoch"]
    if name == "metrics":
        assert all(entry["hits"] == pytest.approx(entry["accuracy"]) for entry in result.history)


def test_a_model_in_channels_last_stays_so(device: torch.device) -> None:
    model = Small().to(memory_format=torch.channels_last)
    classify(device, model=model, precision="bf16")
    convolution = model.features[0]
    assert isinstance(convolution, nn.Conv2d) and convolution.weight.device.type == device.type
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert not convolution.weight.is_contiguous()


def test_a_run_goes_on_from_what_was_saved_while_it_trained(
    device: torch.device, plain: Run, tmp_path: Path
) -> None:
    taken: list[int] = []

    def lose(steps: int, values: object) -> None:
        taken.append(steps)
        if len(taken) == 6:
            raise ConnectionError  # stands for what ends a process without a word

    settings = {"checkpoint": tmp_path, "checkpoint_every": timedelta(microseconds=1)}
    with pytest.raises(ConnectionError):
        classify(device, on_step=lose, **settings)
    found = classify(device, on_step=lambda steps, values: taken.append(steps), **settings)
    # Eight steps an epoch: without the clock the first epoch would begin anew.
    assert 1 < taken[6] <= 7 and taken == [*range(1, 7), *range(taken[6], 17)]
    assert_alike(found, plain, device, weights(Small()))


def test_a_profile_is_written(
    device: torch.device, plain: Run, figures: dict[str, Any], tmp_path: Path
) -> None:
    found = classify(device, profile=tmp_path)
    assert_alike(found, plain, device, weights(Small()))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::conv2d" for event in events)
    # There are none where the machine does not let programs see them.
    figures["kernels in a profile of three steps"] = sum(event.get("cat") == "kernel" for event in events)


# Low-rank layers in compiled blocks


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(24, 32)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(2)))
        self.last = nn.Linear(32, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last(self.blocks(self.first(inputs)))
        return out


def in_factors(device: torch.device, backend: str | None) -> Run:
    model = Blocks().to(device)
    for block in model.blocks if backend is not None else ():
        block.compile(backend=backend)
    result = trainers.train(
        model, samples(12 * 8, torch.float32), loss=mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), epochs=2, batch_size=8,
        method=trainers.OIALR(delay=6, update_every=9, sigma_cutoff=0.3, layer_step=1.0), progress=False,
    )  # fmt: skip
    return weights(model), result


def test_compiled_blocks_become_low_rank(device: torch.device, figures: dict[str, Any]) -> None:
    """Converted, and of a lower rank after an update: each time compiled anew."""
    backend = backend_for(device)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    # Blocks of one kind share the limit of eight.
    with recompilations(64):
        found = in_factors(device, backend)
    compiled = graphs["unique_graphs"] - before
    expected = in_factors(CPU, None)
    start = weights(Blocks())
    distance = assert_alike(found, expected, device, start)
    figures["blocks compiled and in factors"] = {
        "backend": backend,
        "graphs": compiled,
        "from eager ones on the CPU, over the way trained": distance,
    }
    for ours, theirs in zip(found[1].history, expected[1].history, strict=True):
        for name in theirs.keys() & {"rank/blocks.0.0", "rank/blocks.1.0"}:
            assert ours[name] == theirs[name]
    for place in range(2):
        assert found[1].metrics[f"rank/blocks.{place}.0"] < 32
    assert compiled >= 3, "whole, in factors, and in smaller ones"
