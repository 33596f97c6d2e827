"""Evaluations by two ranks of one device, with what they exchange for it, beside the same on the CPU."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import Any

import pytest
import torch
from gloo import run_ranks
from test_gpu_training import BATCH, EPOCHS, LATE, STEPS, samples, sgd, weights
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import trainers

pytestmark = [pytest.mark.timeout(200), pytest.mark.filterwarnings("default")]

METHODS: dict[str, tuple[trainers.Method, int, float]] = {
    "DDP": (trainers.DDP(), 2, 1e-6),
    "DASO": (LATE, 1, 0.02),
    "local SGD": (trainers.LocalSGD(households=1, world_every=5, average_at_epoch_end=False), 1, 1e-6),
}
"""Method, ranks a node, and how far the device may be from the CPU: DASO sends bfloat16."""


class SquaredError:
    """Summed where the batches are."""

    def reset(self) -> None:
        self.sums_of = torch.zeros(2, dtype=torch.float64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        error = (outputs - targets).double().square().sum()
        self.sums_of = self.sums_of.to(outputs.device) + torch.stack([error, error.new_tensor(len(outputs))])

    def sums(self) -> list[Tensor]:
        return [self.sums_of]

    def compute(self) -> Tensor:
        return self.sums_of[0] / self.sums_of[1]


def absolute_error(outputs: Tensor, targets: Tensor) -> float:
    return (outputs - targets).abs().mean().item()


def evaluated(rank: int, device: str) -> dict[str, Any]:
    """By each method its history, weights and buffers, or its error. Means of batches are buffers that differ between
    ranks, and so are the averages of weights.
    """
    found: dict[str, Any] = {}
    for name, (method, per_node, _) in METHODS.items():
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1)).double()
        try:
            result = trainers.train(
                model.to(device), samples(STEPS * BATCH * 2, torch.float64), samples(37, torch.float64),
                loss=mse_loss, metrics={"absolute": absolute_error, "squared": SquaredError()}, optimizer=sgd,
                method=method, topology=trainers.Topology(ranks_per_node=per_node), epochs=EPOCHS,
                batch_size=BATCH, evaluate_every=5, ema_decay=0.9, timeout=timedelta(seconds=60), progress=False,
            )  # fmt: skip
            buffers = [one.detach().double().cpu() for one in model.buffers()]
            found[name] = (result.history, weights(model), buffers)
        except Exception:
            found[name] = traceback.format_exc()
    return found


@pytest.fixture(scope="module")
def on_device(device: torch.device) -> list[dict[str, Any]]:
    return run_ranks(2, evaluated, str(device), timeout_s=150, method="spawn")


@pytest.fixture(scope="module")
def on_cpu(device: torch.device) -> list[dict[str, Any]]:
    return run_ranks(2, evaluated, "cpu", timeout_s=150, method="spawn")


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_evaluate_what_two_do_on_the_cpu(
    on_device: list[dict[str, Any]], on_cpu: list[dict[str, Any]], name: str
) -> None:
    for one in (*on_device, *on_cpu):
        assert isinstance(one[name], tuple), one[name]
    (history, found, buffers), (other_history, other, other_buffers) = (one[name] for one in on_device)
    assert torch.equal(found, other) and all(map(torch.equal, buffers, other_buffers))
    expected_history, expected, expected_buffers = on_cpu[0][name]
    tolerance = METHODS[name][2]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(buffers, expected_buffers, rtol=tolerance, atol=tolerance)
    assert len(history) == len(expected_history) == 2 * STEPS // 5 + 1
    for entry, again, wanted in zip(history, other_history, expected_history, strict=True):
        for key in ("validation_loss", "absolute", "squared"):
            assert entry[key] == again[key]
            assert entry[key] == pytest.approx(wanted[key], rel=tolerance)
        assert entry["squared"] == pytest.approx(entry["validation_loss"], rel=1e-9)
