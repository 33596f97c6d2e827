"""Label smoothing outside of the loss, so that any loss can have it."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothed(targets: Tensor, outputs: Tensor, amount: float) -> Tensor:
    """Smoothed class probabilities in the shape of ``outputs`` (N, classes, ...), in single precision at least.

    ``amount`` is the probability that is spread evenly over all classes. TypeError if ``targets`` (N, ...) are no class
    indices, ValueError (on a GPU, a failed assertion of the device) if a target is of no class.
    """
    if targets.is_floating_point() or outputs.dim() != targets.dim() + 1:
        raise TypeError(
            f"label_smoothing needs class indices; targets are {targets.dtype} of shape {tuple(targets.shape)} "
            f"for outputs of shape {tuple(outputs.shape)}. Set it to 0, and smooth in the loss."
        )
    targets, classes = targets.long(), outputs.shape[1]
    wrong = (targets < 0) | (targets >= classes)
    remedy = "Correct the data, or, where a loss ignores some targets, set it to 0, and smooth in the loss."
    if targets.is_cuda:
        # Reading a target here would wait for the whole forward pass, and leave the GPU idle before the backward pass.
        torch._assert_async(
            ~wrong.any(), f"label_smoothing: a target is of no class of 0 to {classes - 1}. {remedy}"
        )
    elif wrong.any():
        raise ValueError(
            f"label_smoothing: a target is {targets[wrong][0].item()}, with outputs for classes 0 to {classes - 1}. "
            f"{remedy}"
        )
    # Single precision at least, because a row of bf16 numbers with eight bits would not sum to 1.
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    probabilities = torch.full_like(outputs, amount / classes, dtype=dtype, requires_grad=False)
    peak = torch.full_like(targets, 1 - amount, dtype=dtype)
    return probabilities.scatter_add_(1, targets.unsqueeze(1), peak.unsqueeze(1))
