"""LARS and LAMB against their papers' formulas, written out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import data, network
from resuming import assert_same_in_pieces
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import trainers

LR, DECAY = 0.1, 0.02


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 3), (4,))
    return [nn.Parameter(torch.randn(s, dtype=torch.float64, generator=generator)) for s in shapes]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 + step)
    return [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in parameters()]


def test_lars_takes_the_papers_steps() -> None:
    trained, (matrix, vector) = parameters(), (p.detach().clone() for p in parameters())
    optimizer = trainers.lars(trained, lr=LR, momentum=0.9, weight_decay=DECAY, trust_coefficient=0.01)
    momenta = [torch.zeros_like(matrix), torch.zeros_like(vector)]
    for step in range(4):
        for parameter, gradient in zip(trained, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        g, h = gradients(step)
        local_rate = 0.01 * matrix.norm() / (g.norm() + DECAY * matrix.norm())
        momenta[0] = 0.9 * momenta[0] + local_rate * (g + DECAY * matrix)
        momenta[1] = 0.9 * momenta[1] + h
        matrix, vector = matrix - LR * momenta[0], vector - LR * momenta[1]
    torch.testing.assert_close([parameter.detach() for parameter in trained], [matrix, vector])


def test_lamb_takes_the_papers_steps() -> None:
    trained, expected = parameters(), [p.detach().clone() for p in parameters()]
    optimizer = trainers.lamb(trained, lr=LR, betas=(0.9, 0.99), weight_decay=DECAY, eps=1e-6)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in expected]
    for step in range(4):
        for parameter, gradient in zip(trained, gradients(step), strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
        for index, g in enumerate(gradients(step)):
            m, v = moments[index]
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
            moments[index] = m, v
            update = m / (v.sqrt() + 1e-6) + DECAY * expected[index]
            expected[index] = expected[index] - LR * expected[index].norm() / update.norm() * update
    torch.testing.assert_close([parameter.detach() for parameter in trained], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [trainers.lars, trainers.lamb])
def test_they_train_in_the_loop_and_resume(optimizer: Any, tmp_path: Path) -> None:
    def run(net: nn.Module, **options: Any) -> trainers.Result:
        result = trainers.train(
            net, data(32), loss=mse_loss, optimizer=lambda p: optimizer(p, lr=0.05), epochs=4, batch_size=8, **options
        )  # fmt: skip
        assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
        return result

    assert_same_in_pieces(run, lambda: network(6, 8, 1), tmp_path, [6])


def test_the_rate_is_scaled_with_the_batch() -> None:
    assert trainers.linear_scaling(0.1, batch_size=8192) == pytest.approx(3.2)
    with pytest.raises(ValueError, match="batch_size=0"):
        trainers.linear_scaling(0.1, batch_size=0)
