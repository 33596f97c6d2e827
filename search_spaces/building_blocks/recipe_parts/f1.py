"""F₁ scores for samples with any number of classes, the same as scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.evaluation.metrics import Metric


def f1_metrics(classes: Sequence[str]) -> dict[str, Metric]:
    """F₁ scores as functions of (logits, targets), both (n, classes): "micro_f1", "macro_f1", and "f1/NAME" by class.

    A class is predicted if its logit is above 0. "micro_f1" counts all samples and classes together, "macro_f1" is the
    mean over classes. The score of a class that is neither present nor predicted is 0.
    """

    def of_class(column: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda logits, targets: _f1(logits[:, column], targets[:, column])

    return {
        "micro_f1": lambda logits, targets: _f1(logits.flatten(), targets.flatten()),
        "macro_f1": lambda logits, targets: _f1(logits, targets).mean(),
        **{f"f1/{name}": of_class(column) for column, name in enumerate(classes)},
    }


def _f1(logits: Tensor, targets: Tensor) -> Tensor:
    """F₁ along the first axis, in double precision."""
    # 2 TP / (2 TP + FP + FN); without any prediction or target, both counts are 0 and so is the score.
    predicted, there = logits > 0, targets > 0
    hits, both = (predicted & there).sum(0), predicted.sum(0) + there.sum(0)
    return 2 * hits.double() / both.clamp(min=1)
