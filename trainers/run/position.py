"""The length of a run, the place of a run in it, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

Metrics = dict[str, float]
StepMetrics = dict[str, Tensor | float]


class Interrupted(Exception):
    """``interrupt`` asked the run to stop. With a ``checkpoint`` the state is saved (``saved`` is true), and the same
    call continues from there; without, nothing is saved.
    """

    saved = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of a run, the same on every rank.

    Attributes:
        metrics (dict): metrics of the last evaluation, or of the best where that was restored: your metrics by name,
            "epoch", "steps", "lr", "train_loss" (the mean since the evaluation before), "validation_loss", seconds,
            bytes and what the method records.
        history (tuple of dict): the same of each evaluation, of each epoch by default.
        reason (str): "finished", "stopped early", or "diverged": a loss was not finite, or all metrics, or early
            stopping's, were NaN at each evaluation of the run's first tenth, and the run ended there.
    """

    metrics: Metrics
    history: tuple[Metrics, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Length:
    """Length of a run in optimizer steps; its last epoch may be cut short."""

    steps_per_epoch: int
    steps: int
    evaluate_every: int

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    def ends_epoch(self, steps: int) -> bool:
        """Whether an epoch, or the run, is over after ``steps`` steps."""
        return steps % self.steps_per_epoch == 0 or steps == self.steps

    def evaluates(self, steps: int) -> bool:
        """Whether there is an evaluation after ``steps`` steps."""
        return steps % self.evaluate_every == 0 or steps == self.steps


@dataclass(kw_only=True)
class Position:
    """The state of a run apart from what model, optimizer and strategy hold."""

    steps: int = 0
    """Optimizer steps taken."""
    loss_sums: Tensor
    """Two sums over steps of the losses, on this rank: since the epoch began, and since the last evaluation."""
    history: list[Metrics] = field(default_factory=list)
    """An entry for each evaluation."""
    reason: str = ""
    """Empty until the run is over."""
    train_s: float = 0.0
    evaluation_s: float = 0.0
    recent_samples: int = 0
    """Samples of this rank's steps since the last evaluation, or since the run was resumed; not in checkpoints."""
    recent_s: float = 0.0
    """Seconds of these training steps."""
