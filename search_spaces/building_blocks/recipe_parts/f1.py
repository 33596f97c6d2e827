"""F₁ where a sample may have any of several classes, as scikit-learn computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.evaluation.metrics import Metric


def f1_metrics(classes: Sequence[str]) -> dict[str, Metric]:
    """F₁ of (logits, targets), both (n, classes), a class being predicted where its logit is above 0: "micro_f1", over
    all samples and classes; "macro_f1", the mean over the classes; and "f1/NAME" of each. A class that is neither there
    nor predicted has 0.
    """

    def of_class(column: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda logits, targets: _f1(logits[:, column], targets[:, column])

    return {
        "micro_f1": lambda logits, targets: _f1(logits.flatten(), targets.flatten()),
        "macro_f1": lambda logits, targets: _f1(logits, targets).mean(),
        **{f"f1/{name}": of_class(column) for column, name in enumerate(classes)},
    }


def _f1(logits: Tensor, targets: Tensor) -> Tensor:
    """Along the first axis, float64."""
    predicted, there = logits > 0, targets > 0
    hits, both = (predicted & there).sum(0), predicted.sum(0) + there.sum(0)
    return 2 * hits.double() / both.clamp(min=1)
