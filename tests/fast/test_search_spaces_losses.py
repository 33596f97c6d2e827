from __future__ import annotations

import math

import pytest
import torch

from search_spaces.building_blocks.recipe_parts.losses import LOSSES

# Two samples of three classes, whose outputs are y = (0.8, 0.5, 0.2) and (0.6, 0.9, 0.5).
OUTPUTS = torch.tensor([[0.8, 0.5, 0.2], [0.6, 0.9, 0.5]])
TARGETS = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
log = math.log

# Keras' definitions by hand; the mean of the two samples.
EXPECTED = {
    "binary-crossentropy": (-(log(0.8) + log(0.5) + log(0.8)) / 3 - (log(0.6) + log(0.9) + log(0.5)) / 3) / 2,
    "categorical-crossentropy": (-log(0.8 / 1.5) - log(0.6 / 2.0) - log(0.9 / 2.0)) / 2,
    # max(0, 1 + 0.5 - 0.8) = 0.7 and max(0, 1 + 0.5 - 1.5) = 0
    "categorical-hinge": 0.35,
    # (0.2 + 1.5 + 1.2) / 3 and (0.4 + 0.1 + 1.5) / 3
    "hinge": (2.9 / 3 + 2.0 / 3) / 2,
    "kl-divergence": (-log(0.8) - log(0.6) - log(0.9)) / 2,
    # (0.04 + 2.25 + 1.44) / 3 and (0.16 + 0.01 + 2.25) / 3
    "squared-hinge": (3.73 / 3 + 2.42 / 3) / 2,
}


def test_values_are_those_of_keras_by_hand() -> None:
    found = {name: loss(OUTPUTS.logit(), TARGETS).item() for name, loss in LOSSES.items()}
    assert found == pytest.approx(EXPECTED, abs=2e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_any_size_have_finite_losses_and_gradients(name: str, dtype: torch.dtype) -> None:
    logits = torch.tensor([[200.0, -200.0, 0.0]] * 3, dtype=dtype, requires_grad=True)
    targets = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    loss = LOSSES[name](logits, targets)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
