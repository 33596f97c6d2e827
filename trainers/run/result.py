"""What a training run returns, and the exception by which it says that it was interrupted."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Metrics = dict[str, float]
StepMetrics = dict[str, Tensor | float]


class Interrupted(Exception):
    """``interrupt`` asked the run to stop. With a ``checkpoint`` the state is saved (``saved`` is true), and the same
    call continues from there; without, nothing is saved.
    """

    saved = False
    """Whether the state is."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run brought; the same on every rank.

    Attributes:
        metrics (dict): of the last evaluation, or of the best where that was restored: your metrics by name, "epoch",
            "steps", "lr", "train_loss" (the mean since the evaluation before), "validation_loss", seconds, bytes and
            what the method records.
        history (tuple of dict): the same of each evaluation, of each epoch by default.
        reason (str): "finished", "stopped early", or "diverged": a loss was not finite, or all metrics, or early
            stopping's, were NaN at each evaluation of the run's first tenth, and the run ended there.
    """

    metrics: Metrics
    history: tuple[Metrics, ...]
    reason: str
