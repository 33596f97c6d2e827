"""Six losses of Keras for targets with any number of classes. Importing this module imports torch.

Outputs are logits (N, classes), targets (N, classes) are zeros and ones; each loss returns the mean over N. All losses
use y = sigmoid(logits), so that a class is predicted if its logit is above 0. As in Keras, y is clipped to [1e-7,
1 - 1e-7] where its logarithm is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Keras' default of its backend.
_EPSILON = 1e-7


def binary_crossentropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the classes of -t log y - (1 - t) log(1 - y), computed from the logits without clipping."""
    return torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), targets.float())


def categorical_crossentropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-Σ t log(y / Σ y), as Keras normalises outputs to a distribution."""
    outputs = _outputs(logits)
    shares = outputs / outputs.sum(dim=1, keepdim=True)
    return -(targets * shares.clamp(_EPSILON, 1 - _EPSILON).log()).sum(dim=1).mean()


def categorical_hinge(logits: Tensor, targets: Tensor) -> Tensor:
    """max(0, 1 + max((1 - t) y) - Σ t y)."""
    outputs = _outputs(logits)
    right = (targets * outputs).sum(dim=1)
    wrong = ((1 - targets) * outputs).amax(dim=1)
    return (wrong - right + 1).clamp(min=0).mean()


def hinge(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the classes of max(0, 1 - s y) with s = 2 t - 1."""
    return (1 - (2 * targets - 1) * _outputs(logits)).clamp(min=0).mean()


def kl_divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """Σ t log(t / y), with t clipped like y. Targets are no distributions: absent classes add nothing."""
    targets = targets.clamp(_EPSILON, 1)
    return (targets * (targets / _outputs(logits).clamp(_EPSILON, 1)).log()).sum(dim=1).mean()


def squared_hinge(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the classes of max(0, 1 - s y)² with s = 2 t - 1."""
    return (1 - (2 * targets - 1) * _outputs(logits)).clamp(min=0).square().mean()


# Losses by the names that campaigns use.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary-crossentropy": binary_crossentropy,
    "categorical-crossentropy": categorical_crossentropy,
    "categorical-hinge": categorical_hinge,
    "hinge": hinge,
    "kl-divergence": kl_divergence,
    "squared-hinge": squared_hinge,
}


def _outputs(logits: Tensor) -> Tensor:
    """y in single precision, also under autocast, where logits may be bfloat16."""
    return logits.float().sigmoid()
