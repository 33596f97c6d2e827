"""Label smoothing outside of the loss, so that any loss has it."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed(targets: Tensor, outputs: Tensor, amount: float) -> Tensor:
    """Class indices, of shape (N, ...), as probabilities in the shape of ``outputs``, (N, classes, ...), in
    single precision at least.

    TypeError if targets are no class indices, ValueError if one is of no class.
    """
    if targets.is_floating_point() or outputs.dim() != targets.dim() + 1:
        raise TypeError(
            f"label_smoothing needs class indices; targets are {targets.dtype} of shape {tuple(targets.shape)} "
            f"for outputs of shape {tuple(outputs.shape)}. Set it to 0, and smooth in the loss."
        )
    targets, classes = targets.long(), outputs.shape[1]
    wrong = targets[(targets < 0) | (targets >= classes)]
    if len(wrong):
        raise ValueError(
            f"label_smoothing: a target is {wrong[0].item()}, with outputs for classes 0 to {classes - 1}. "
            "Correct the data, or, where a loss ignores some targets, set it to 0, and smooth in the loss."
        )
    # In the eight bits of bf16 a row would not sum to 1.
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    probabilities = torch.full_like(outputs, amount / classes, dtype=dtype, requires_grad=False)
    peak = torch.full_like(targets, 1 - amount, dtype=dtype)
    return probabilities.scatter_add_(1, targets.unsqueeze(1), peak.unsqueeze(1))
