"""Large batches: learning rates scaled with the batch, and optimizers that scale the rate of each layer, which need a
warm-up as in their papers: ``trainers.Cosine(warmup_epochs=5, warmup_lr=0.1)``.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer


def linear_scaling(lr: float, *, batch_size: int, reference: int = 256) -> float:
    """Learning rate for a larger joint batch.

    "When the minibatch size is multiplied by k, multiply the learning rate by k" (Goyal et al. 2017, arXiv
    1706.02677, section 2.1). For local SGD take ``trainers.effective_batch_size``.

    Args:
        lr (float): learning rate for ``reference`` samples.
        batch_size (int, from 1): samples of all ranks together in a step.
        reference (int, from 1; default 256): samples in a step for which ``lr`` is right.
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
    """Optimizer with layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, arXiv 1708.03888, algorithm 1).

    A layer's rate is lr · trust_coefficient · |w| / (|∇| + weight_decay · |w|); biases and norms, of one dimension,
    get plain momentum SGD without decay.

    Args:
        parameters (iterable): parameters of the model.
        lr (float): learning rate.
        momentum (float; default 0.9): momentum of SGD.
        weight_decay (float; default 0.0): weight decay in the rule above.
        trust_coefficient (float; default 1e-3): factor of all layers' rates.
    """
    # Imported when it is used, as the package has hundreds of optimizers and most runs need none of them.
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
    """Optimizer with layer-wise adaptive Adam (You et al. 2020, arXiv 1904.00962, algorithm 2).

    There is no bias correction, as in the paper's third version, so it needs a warm-up. |w| is bounded by 10.

    Args:
        parameters (iterable): parameters of the model.
        lr (float): learning rate.
        betas (two floats; default (0.9, 0.999)): decay of the first and the second moment.
        weight_decay (float; default 0.0): weight decay, added to the update before its norm is taken.
        eps (float; default 1e-6): summand beside the square root of the second moment.
    """
    from pytorch_optimizer import Lamb

    return Lamb(
        list(parameters),
        lr=lr,
        betas=betas,
        weight_decay=weight_decay,
        # The decay is part of the update in the trust ratio, as in the paper but not by the library's default.
        weight_decouple=False,
        # The library's default divides the rate by 1 - beta_1^t, which is ten times the rate at the first step.
        adam_debias=True,
        eps=eps,
    )
