"""What a run is told, and the names of what it records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainers.data import Assignment, length_of
from trainers.early_stopping import EarlyStopping
from trainers.evaluation import Metric
from trainers.schedules import Schedule

Loss = Callable[[Tensor, Tensor], Tensor]
Metrics = dict[str, float]

TOTALS = ("bytes_between_nodes", "bytes_inside_nodes", "wait_s", "train_s", "evaluation_s")
_RECORDED = {
    "epoch", "lr", "train_loss", "validation_loss",
    "trainable_fraction", "compression_ratio", "decomposition_s", *TOTALS,
}  # fmt: skip
_OF_METHODS = {
    "synchronisations", "sync_every", "sync_delay", "world_every", "effective_batch_size",
    "mean_rank_fraction", "factored_compression_ratio",
}  # fmt: skip
OF_LAYERS = ("rank/", "stability/")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``train`` was told, checked.

    Raises:
        ValueError: a value is not allowed.
    """

    model: nn.Module
    train_set: Dataset[object]
    validation_set: Dataset[object] | None
    loss: Loss
    epochs: int
    batch_size: int
    metrics: dict[str, Metric]
    schedule: Schedule
    precision: str
    clip_norm: float | None
    accumulate: int
    label_smoothing: float
    early_stopping: EarlyStopping | None
    assignment: Assignment
    checkpoint_every: int | None
    report: Callable[[int, Metrics], None] | None
    interrupt: Callable[[], bool] | None
    loader_processes: int
    evaluation_batch_size: int
    seed: int
    device: torch.device

    def __post_init__(self) -> None:
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("evaluation_batch_size", 1),
            ("accumulate", 1),
            ("loader_processes", 0),
        ):
            if not _is_whole(getattr(self, name), least):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: must be a whole number of at least {least}. Correct it."
                )
        if self.checkpoint_every is not None and not _is_whole(self.checkpoint_every, 1):
            raise ValueError(
                f"checkpoint_every = {self.checkpoint_every!r}: must be a whole number of steps of at least 1, "
                "or None for every epoch. Correct it."
            )
        if self.precision not in ("fp32", "bf16"):
            raise ValueError(f'precision = {self.precision!r}: must be "fp32" or "bf16". Correct it.')
        if self.clip_norm is not None and not (_is_number(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(
                f"clip_norm = {self.clip_norm!r}: must be a number above 0, or None for no clipping. Correct it."
            )
        if not (_is_number(self.label_smoothing) and 0 <= self.label_smoothing < 1):
            raise ValueError(
                f"label_smoothing = {self.label_smoothing!r}: must be at least 0 and below 1. Correct it."
            )
        taken = sorted(self.metrics.keys() & _RECORDED)
        if taken:
            raise ValueError(f"metrics: the loop itself records {taken[0]!r}. Choose another name.")
        taken = sorted(n for n in self.metrics if n in _OF_METHODS or n.startswith(OF_LAYERS))
        if taken:
            raise ValueError(f"metrics: methods record {taken[0]!r}. Choose another name.")
        if self.validation_set is None and self.metrics:
            raise ValueError("metrics need a validation set. Pass one, or no metrics.")

    def identity(self) -> dict[str, str]:
        """What a checkpoint must have been written with to be gone on from."""
        return {
            "epochs": str(self.epochs),
            "batch_size": str(self.batch_size),
            "accumulate": str(self.accumulate),
            "samples": str(length_of(self.train_set)),
            "schedule": repr(self.schedule),
            "precision": self.precision,
            "clip_norm": repr(self.clip_norm),
            "label_smoothing": repr(self.label_smoothing),
            "assignment": repr(self.assignment),
            "seed": str(self.seed),
        }


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
