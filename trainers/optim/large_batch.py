"""Helpers for large batches: learning rates scaled with the batch, and optimizers that scale them by layer.

Use them with a warm-up, as their papers do::

    lr = trainers.linear_scaling(0.1, batch_size=128 * ranks)
    trainers.train(..., optimizer=lambda p: trainers.lars(p, lr=lr, weight_decay=1e-4),
                   schedule=trainers.Cosine(warmup_epochs=5, warmup_lr=0.1))
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer


def linear_scaling(lr: float, *, batch_size: int, reference: int = 256) -> float:
    """The learning rate for a larger joint batch.

    "When the minibatch size is multiplied by k, multiply the learning rate by k" (Goyal et al. 2017, arXiv
    1706.02677, section 2.1). For local SGD take ``trainers.effective_batch_size``.

    Args:
        lr (float): right for ``reference`` samples.
        batch_size (int, from 1): samples of all ranks together at a step.
        reference (int, from 1; default 256): samples.
    """
    if batch_size < 1 or reference < 1:
        raise ValueError(
            f"linear_scaling(batch_size={batch_size}, reference={reference}): both must be at least 1. Correct it."
        )
    return lr * batch_size / reference


def lars(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float = 1e-3,
) -> Optimizer:
    """An optimizer with layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, arXiv 1708.03888, algorithm
    1).

    A layer's rate is lr · trust_coefficient · |w| / (|∇| + weight_decay · |w|); biases and norms, of one dimension,
    get plain momentum SGD without decay.

    Args:
        parameters (iterable): of the model.
        lr (float): learning rate.
        momentum (float; default 0.9): of SGD.
        weight_decay (float; default 0.0): see above.
        trust_coefficient (float; default 1e-3): see above.
    """
    # Not at the top: it has hundreds of optimizers, of which most runs use none.
    from pytorch_optimizer import LARS

    return LARS(
        list(parameters),
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        trust_coefficient=trust_coefficient,
    )


def lamb(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
    eps: float = 1e-6,
) -> Optimizer:
    """An optimizer with layer-wise adaptive Adam (You et al. 2020, arXiv 1904.00962, algorithm 2).

    Without the bias correction, as in the paper's third version: warm up instead. |w| is bounded by 10.

    Args:
        parameters (iterable): of the model.
        lr (float): learning rate.
        betas (two floats; default (0.9, 0.999)): decay of the first and the second moment.
        weight_decay (float; default 0.0): part of the update whose norm is bounded.
        eps (float; default 1e-6): added to the root of the second moment.
    """
    from pytorch_optimizer import Lamb

    return Lamb(
        list(parameters),
        lr=lr,
        betas=betas,
        weight_decay=weight_decay,
        # Part of the update whose norm the trust ratio is of, as in the paper; the library's default is not.
        weight_decouple=False,
        # Its default divides the rate by 1 - beta_1^t: ten times the rate at the first step.
        adam_debias=True,
        eps=eps,
    )
