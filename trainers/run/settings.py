"""The settings of a run, and the names of what it records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from trainers.arguments import check_argument, is_integer, is_number, is_whole, make_plain
from trainers.checkpoints.callables import settings_of
from trainers.data.batches import Assignment, Disjoint, InTurn, length_of
from trainers.data.fetching import Collate, check_reading
from trainers.data.streams import stream_of
from trainers.evaluation.forward import Forward, Loss, Step
from trainers.evaluation.metrics import Metric, check_metrics
from trainers.methods.strategy import Steps, check_steps, steps_of
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.parameter_groups import GroupSettings
from trainers.optim.schedules import Schedule
from trainers.precision import PRECISIONS
from trainers.run.position import Length
from trainers.run.result import Metrics, StepMetrics

TOTALS = ("bytes_between_nodes", "bytes_inside_nodes", "wait_s", "train_s", "evaluation_s")
_RECORDED = {
    "epoch", "steps", "lr", "train_loss", "validation_loss",
    "trainable_fraction", "compression_ratio", "decomposition_s", "samples_per_s", "peak_memory_bytes", "mfu", *TOTALS,
}  # fmt: skip
_OF_METHODS = {
    "synchronisations", "sync_every", "sync_delay", "world_every", "effective_batch_size",
    "mean_rank_fraction", "factored_compression_ratio",
}  # fmt: skip
OF_LAYERS = ("rank/", "stability/")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of ``train``, checked.

    Raises:
        ValueError: a value is not allowed.
    """

    model: nn.Module
    train_set: Dataset[object]
    validation_set: Dataset[object] | None
    loss: Loss | None
    step: Step | None
    epochs: int | None
    steps: int | None
    evaluate_every: Steps | None
    batch_size: int
    metrics: dict[str, Metric]
    schedule: Schedule
    early_stopping: EarlyStopping | None
    seed: int
    device: torch.device
    precision: str
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    label_smoothing: float
    ema_decay: float | None
    parameter_groups: GroupSettings | None
    activation_checkpointing: Sequence[str]
    assignment: Assignment
    loader_processes: int
    evaluation_batch_size: int
    collate: Collate | None
    checkpoint: str | Path | None
    checkpoint_every: int | timedelta | None
    on_other_ranks: str
    interrupt: Callable[[], bool] | None
    report: Callable[[int, Metrics], None] | None
    on_step: Callable[[int, StepMetrics], None] | None
    progress: bool | None
    flops_per_sample: float | None
    peak_flops: float | None
    profile: str | Path | None

    @property
    def dealing(self) -> Assignment:
        """What deals the training set: the ``assignment``, or the order of a stream."""
        return self.assignment if stream_of(self.train_set) is None else InTurn()

    @property
    def deals_all_alike(self) -> bool:
        """Whether each rank has the same training set: a user's own assignment may deal each another set, or other
        batches.
        """
        return type(self.assignment).__module__.startswith("trainers.")

    @property
    def forward(self) -> Forward:
        """What is done with a batch."""
        return Forward(loss=self.loss, step=self.step, label_smoothing=self.label_smoothing)

    def __post_init__(self) -> None:
        make_plain(self)
        self._check_kinds()
        if (self.epochs is None) == (self.steps is None):
            given = f"epochs = {self.epochs!r}, steps = {self.steps!r}"
            raise ValueError(f"{given}: a run has one length. Give one of the two, and leave the other out.")
        for name, least in (
            ("steps" if self.epochs is None else "epochs", 1),
            ("batch_size", 1),
            ("accumulate", 1),
            ("loader_processes", 0),
            ("evaluation_batch_size", 1),
        ):
            value = getattr(self, name)
            check_argument(name, value, is_whole(value, least), f"a whole number of at least {least}")
        taken = sorted(self.metrics.keys() & _RECORDED)
        if taken:
            raise ValueError(f"metrics: the loop itself records {taken[0]!r}. Choose another name.")
        taken = sorted(n for n in self.metrics if n in _OF_METHODS or n.startswith(OF_LAYERS))
        if taken:
            raise ValueError(f"metrics: methods record {taken[0]!r}. Choose another name.")
        length_of(self.train_set, "train_set")
        if self.validation_set is not None:
            if stream_of(self.validation_set) is None:
                length_of(self.validation_set, "validation_set")
        elif self.metrics:
            raise ValueError("metrics need a validation set. Pass one, or no metrics.")
        self._check_reading()
        if self.epochs is not None:
            self._check_warmup(self.epochs)
        if self.evaluate_every is not None:
            check_steps("train", "evaluate_every", self.evaluate_every, least=1)

    def _check_warmup(self, epochs: float) -> None:
        warmup = self.schedule.warmup_epochs
        if warmup > epochs:
            raise ValueError(
                f"schedule: a warm-up of {warmup:g} epochs does not end in a run of {epochs:g}: the full rate would "
                "never be reached. Shorten the warm-up, or train longer."
            )

    def _check_reading(self) -> None:
        for name, samples in (("train_set", self.train_set), ("validation_set", self.validation_set)):
            processes, collate = self.loader_processes, self.collate
            check_reading(name, samples, loader_processes=processes, collate=collate)
        if stream_of(self.train_set) is not None and self.assignment != Disjoint():
            raise ValueError(
                f"assignment = {self.assignment!r}: deals samples by number, and train_set streams them. Leave it out; "
                "with trainers.Stream(samples, sharded=True) each rank reads what its own data set gives."
            )

    def length(self, steps_per_epoch: int) -> Length:
        """Of the run, where an epoch has ``steps_per_epoch`` steps. ValueError if a warm-up does not end in it."""
        steps = self.steps if self.epochs is None else self.epochs * steps_per_epoch
        assert steps is not None
        every = (
            steps_per_epoch if self.evaluate_every is None else max(1, steps_of(self.evaluate_every, steps))
        )
        length = Length(steps_per_epoch=steps_per_epoch, steps=steps, evaluate_every=every)
        self._check_warmup(length.epochs)
        return length

    def _check_kinds(self) -> None:
        stopping, every = self.early_stopping, self.checkpoint_every
        check_metrics(self.metrics)
        if self.step is not None and self.label_smoothing:
            raise ValueError(
                f"label_smoothing = {self.label_smoothing!r}: step computes its own loss. Smooth there, "
                "and set it to 0."
            )
        needed = self.step is None or self.loss is not None
        for name, allowed, rule in (
            ("loss", callable(self.loss) or not needed, "a function of (outputs, targets), or give step"),
            ("step", self.step is None or callable(self.step), "None or a function of (model, batch)"),
            ("schedule", isinstance(self.schedule, Schedule), "a schedule: trainers.Cosine(), say"),
            (
                "early_stopping",
                stopping is None or isinstance(stopping, EarlyStopping),
                "None or a trainers.EarlyStopping(patience=5), say",
            ),
            ("seed", is_integer(self.seed), "a whole number, the same on all ranks"),
            ("precision", self.precision in PRECISIONS, '"fp32", "tf32" or "bf16"'),
            ("clip_norm", _none_or_above_0(self.clip_norm), "a number above 0, or None for no clipping"),
            ("clip_value", _none_or_above_0(self.clip_value), "a number above 0, or None for no clipping"),
            (
                "ema_decay",
                self.ema_decay is None or _from_0_below_1(self.ema_decay),
                "at least 0 and below 1, or None for no average",
            ),
            ("label_smoothing", _from_0_below_1(self.label_smoothing), "at least 0 and below 1"),
            (
                "activation_checkpointing",
                not isinstance(self.activation_checkpointing, str)
                and all(isinstance(pattern, str) for pattern in self.activation_checkpointing),
                'a sequence of names of modules: ("blocks.*",), say',
            ),
            (
                "assignment",
                callable(getattr(self.assignment, "epoch", None)) and not isinstance(self.assignment, type),
                "an assignment of samples: trainers.Disjoint(), say",
            ),
            ("checkpoint", _none_or_path(self.checkpoint), "None or the path of a directory"),
            (
                "checkpoint_every",
                every is None
                or is_whole(every, 1)
                or (isinstance(every, timedelta) and every > timedelta(0)),
                "a whole number of steps of at least 1, a datetime.timedelta above 0, or None for after each "
                "evaluation",
            ),
            ("on_other_ranks", self.on_other_ranks in ("refuse", "restart"), "refuse or restart"),
            ("profile", _none_or_path(self.profile), "None or the path of a directory"),
            ("flops_per_sample", _none_or_above_0(self.flops_per_sample), "a number above 0, or None"),
            ("peak_flops", _none_or_above_0(self.peak_flops), "a number above 0, or None"),
            *(
                (name, given is None or callable(given), f"None or a function {of}")
                for name, given, of in (
                    ("parameter_groups", self.parameter_groups, "of (name, parameter)"),
                    ("collate", self.collate, "of a list of items"),
                    ("interrupt", self.interrupt, "without arguments"),
                    ("report", self.report, "of (number, metrics)"),
                    ("on_step", self.on_step, "of (steps, values)"),
                )
            ),
        ):
            check_argument(name, getattr(self, name), allowed, rule)
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "clip_norm and clip_value: the gradient is clipped by one of them. Leave one out."
            )
        if (self.flops_per_sample is None) != (self.peak_flops is None):
            raise ValueError(
                "flops_per_sample and peak_flops: mfu needs both. Give the other, too, or leave both out."
            )

    def agreed(self) -> dict[str, object]:
        """What has to be the same on all ranks, or they would wait for one another in vain, or train apart."""
        # Steps are compared with all.
        ours = self.deals_all_alike
        validation: object = None
        if self.validation_set is not None:
            validation = stream_of(self.validation_set) or length_of(self.validation_set)
        stream = stream_of(self.train_set)
        return {
            "epochs": self.epochs,
            "steps": self.steps,
            "evaluate_every": self.evaluate_every,
            "assignment": self.assignment if ours else type(self.assignment).__name__,
            "batch_size": self.batch_size if ours else "any",
            "samples of train_set": stream or (length_of(self.train_set) if ours else "any"),
            "samples of validation_set": validation,
            "accumulate": self.accumulate,
            "schedule": self.schedule,
            "loss": "None" if self.loss is None else "a function",
            "step": "None" if self.step is None else "a function",
            "precision": self.precision,
            "clip_norm": None if self.clip_norm is None else float(self.clip_norm),
            "clip_value": None if self.clip_value is None else float(self.clip_value),
            "label_smoothing": float(self.label_smoothing),
            "ema_decay": None if self.ema_decay is None else float(self.ema_decay),
            "metrics": list(self.metrics),
            "early_stopping": self.early_stopping,
            "checkpoint_every": self.checkpoint_every,
            "on_other_ranks": self.on_other_ranks,
            "seed": int(self.seed),
        }

    def identity(self) -> dict[str, str]:
        """What a checkpoint must have been written with to be gone on from."""
        return {
            "epochs": str(self.epochs),
            "steps": str(self.steps),
            "evaluate_every": repr(self.evaluate_every),
            "batch_size": str(self.batch_size),
            "accumulate": str(self.accumulate),
            "samples": str(stream_of(self.train_set) or length_of(self.train_set)),
            "schedule": settings_of(self.schedule),
            "precision": self.precision,
            "clip_norm": repr(self.clip_norm),
            "clip_value": repr(self.clip_value),
            "label_smoothing": repr(self.label_smoothing),
            "ema_decay": repr(self.ema_decay),
            "assignment": settings_of(self.assignment),
            "seed": str(self.seed),
        }


def _none_or_above_0(value: float | None) -> bool:
    return value is None or (is_number(value) and value > 0)


def _from_0_below_1(value: float) -> bool:
    return is_number(value) and 0 <= value < 1


def _none_or_path(value: object) -> bool:
    return value is None or isinstance(value, (str, PathLike))
