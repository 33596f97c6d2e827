"""The settings of a run, and the names of what it records."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from os import PathLike
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from trainers.arguments import check_argument, is_integer, is_number, is_whole, make_plain
from trainers.checkpoints.callables import settings_of
from trainers.data.batches import Batch, Disjoint, InTurn, SampleAssignment, length_of
from trainers.data.fetching import Collate, check_reading
from trainers.data.streams import stream_of
from trainers.evaluation.forward import Forward, Loss, Step
from trainers.evaluation.metrics import Metric, check_metrics
from trainers.methods.strategy import Steps, check_steps, steps_of
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.parameter_groups import GroupSettings
from trainers.optim.schedules import Schedule
from trainers.precision import PRECISIONS
from trainers.run.position import Length, Metrics, StepMetrics

TOTALS = ("bytes_between_nodes", "bytes_inside_nodes", "wait_s", "train_s", "evaluation_s")
OF_LAYERS = ("rank/", "stability/")
_RECORDED = {
    "epoch", "steps", "lr", "train_loss", "validation_loss",
    "trainable_fraction", "compression_ratio", "decomposition_s", "samples_per_s", "peak_memory_bytes", "mfu", *TOTALS,
    "synchronisations", "sync_every", "sync_delay", "world_every", "effective_batch_size",
    "mean_rank_fraction", "factored_compression_ratio",
}  # fmt: skip
_COMPARED = (
    "epochs", "steps", "evaluate_every", "accumulate", "schedule", "clip_norm", "clip_value", "label_smoothing",
    "ema_decay", "seed",
)  # fmt: skip
"""Settings that ranks, and the runs of a checkpoint, must have in common."""
_FLOATS = ("clip_norm", "clip_value", "label_smoothing", "ema_decay")


def _is_fraction(value: object) -> bool:
    return is_number(value) and 0 <= value < 1  # type: ignore[operator]


def _none_or_above_0(value: object) -> bool:
    return value is None or (is_number(value) and value > 0)  # type: ignore[operator]


_RULES: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("batch_size accumulate evaluation_batch_size", lambda v: is_whole(v, 1), "a whole number of at least 1"),
    ("epochs steps", lambda v: v is None or is_whole(v, 1), "a whole number of at least 1"),
    ("loader_processes", lambda v: is_whole(v, 0), "a whole number of at least 0"),
    ("data_on_device", lambda v: v in (True, False, "auto") and not is_number(v), 'True, False or "auto"'),
    ("seed", is_integer, "a whole number, the same on all ranks"),
    ("clip_norm clip_value flops_per_sample peak_flops", _none_or_above_0, "a number above 0, or None"),
    ("ema_decay", lambda v: v is None or _is_fraction(v), "at least 0 and below 1, or None for no average"),
    ("label_smoothing", _is_fraction, "at least 0 and below 1"),
    (
        "step parameter_groups collate interrupt report on_step",
        lambda v: v is None or callable(v),
        "None or a function",
    ),
    (
        "checkpoint profile",
        lambda v: v is None or isinstance(v, (str, PathLike)),
        "None or the path of a directory",
    ),
    ("schedule", lambda v: isinstance(v, Schedule), "a schedule, such as trainers.Cosine()"),
    (
        "early_stopping",
        lambda v: v is None or isinstance(v, EarlyStopping),
        "None or such as trainers.EarlyStopping(patience=5)",
    ),
    ("precision", lambda v: v in PRECISIONS, '"fp32", "tf32" or "bf16"'),
    (
        "activation_checkpointing",
        lambda v: (
            isinstance(v, (Sequence, Set)) and not isinstance(v, str) and all(isinstance(n, str) for n in v)
        ),
        'a sequence of names of modules, such as ("blocks.*",)',
    ),
    (
        "assignment",
        lambda v: callable(getattr(v, "epoch", None)) and not isinstance(v, type),
        "an assignment of samples, such as trainers.Disjoint()",
    ),
    (
        "checkpoint_every",
        lambda v: v is None or is_whole(v, 1) or (isinstance(v, timedelta) and v > timedelta(0)),
        "a whole number of steps of at least 1, a datetime.timedelta above 0, or None for after each evaluation",
    ),
    ("on_other_ranks", lambda v: v in ("refuse", "restart"), "refuse or restart"),
)
"""Arguments, the check of their values and its rule."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The arguments of ``train``, checked; ValueError for a value that is not allowed."""

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
    assignment: SampleAssignment
    loader_processes: int
    data_on_device: bool | str
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
    def dealing(self) -> SampleAssignment:
        """The ``assignment``, or the order of a stream."""
        return self.assignment if stream_of(self.train_set) is None else InTurn()

    def planned(self, *, epoch: int, rank: int, ranks: int, **sizes: int) -> Sequence[Sequence[Batch]]:
        """Batches of ``rank`` in each step of ``epoch``; ``sizes`` stand for batch_size and accumulate if given."""
        # On the CPU whatever the user's default device is, whose generators give other numbers.
        with torch.device("cpu"):
            return self.dealing.epoch(
                samples=length_of(self.train_set),
                epoch=epoch,
                seed=self.seed,
                rank=rank,
                ranks=ranks,
                **{"batch_size": self.batch_size, "accumulate": self.accumulate, **sizes},
            )

    @property
    def deals_all_alike(self) -> bool:
        """Whether each rank has the same training set: a user's own assignment may deal each rank another set."""
        return type(self.assignment).__module__.startswith("trainers.")

    @cached_property
    def forward(self) -> Forward:
        return Forward(loss=self.loss, step=self.step, label_smoothing=self.label_smoothing)

    def __post_init__(self) -> None:
        make_plain(self)
        check_metrics(self.metrics)
        self._check_each()
        self._check_together()
        self._check_data()
        # A length in steps has epochs only once the data are dealt, see ``length``.
        if self.epochs is not None:
            self._check_warmup(self.epochs)
        if self.evaluate_every is not None:
            check_steps("train", "evaluate_every", self.evaluate_every, least=1)

    def _check_each(self) -> None:
        """Check the values of arguments one by one."""
        for names, allowed, rule in _RULES:
            for name in names.split():
                check_argument(name, value := getattr(self, name), allowed(value), rule)
        if self.step is None or self.loss is not None:
            check_argument(
                "loss", self.loss, callable(self.loss), "a function of (outputs, targets), or give step"
            )

    def _check_together(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            given = f"epochs = {self.epochs!r}, steps = {self.steps!r}"
            raise ValueError(f"{given}: a run has one length. Give one of the two, and leave the other out.")
        if self.step is not None and self.label_smoothing:
            raise ValueError(
                f"label_smoothing = {self.label_smoothing}: step computes its own loss. Smooth there, and leave it 0."
            )
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "clip_norm and clip_value: the gradient is clipped by one of them. Leave one out."
            )
        if (self.flops_per_sample is None) != (self.peak_flops is None):
            raise ValueError(
                "flops_per_sample and peak_flops: mfu needs both. Give the other, too, or leave both out."
            )
        taken = sorted(name for name in self.metrics if name in _RECORDED or name.startswith(OF_LAYERS))
        if taken:
            raise ValueError(f"metrics: the loop or a method records {taken[0]!r}. Choose another name.")
        if self.metrics and self.validation_set is None:
            raise ValueError("metrics need a validation set. Pass one, or no metrics.")

    def _check_data(self) -> None:
        length_of(self.train_set, "train_set")
        if self.validation_set is not None and stream_of(self.validation_set) is None:
            length_of(self.validation_set, "validation_set")
        for name, samples in (("train_set", self.train_set), ("validation_set", self.validation_set)):
            check_reading(name, samples, loader_processes=self.loader_processes, collate=self.collate)
        if stream_of(self.train_set) is not None and self.assignment != Disjoint():
            raise ValueError(
                f"assignment = {self.assignment!r}: deals samples by number, and train_set streams them. Leave it out; "
                "with trainers.Stream(samples, sharded=True) each rank reads what its own data set gives."
            )

    def _check_warmup(self, epochs: float) -> None:
        warmup = self.schedule.warmup_epochs
        if warmup > epochs:
            raise ValueError(
                f"schedule: a warm-up of {warmup:g} epochs does not end in a run of {epochs:g}: the full rate would "
                "never be reached. Shorten the warm-up, or train longer."
            )

    def length(self, steps_per_epoch: int) -> Length:
        """Length of the run, in epochs of ``steps_per_epoch`` steps; ValueError if that is none, or a warm-up does not
        end in it.
        """
        if not steps_per_epoch:
            raise ValueError("assignment: it deals no step to this rank. Deal each rank at least one batch.")
        steps = self.steps if self.epochs is None else self.epochs * steps_per_epoch
        assert steps is not None
        every = self.evaluate_every
        every = steps_per_epoch if every is None else max(1, steps_of(every, steps))
        length = Length(steps_per_epoch=steps_per_epoch, steps=steps, evaluate_every=every)
        self._check_warmup(length.epochs)
        return length

    def agreed(self) -> dict[str, object]:
        """Settings that must be the same on all ranks, which would otherwise wait in vain or train apart."""
        ours, validation = self.deals_all_alike, self.validation_set
        return {
            **{name: getattr(self, name) for name in _COMPARED},
            # Ranks may give 1 or 1.0.
            **{name: None if (value := getattr(self, name)) is None else float(value) for name in _FLOATS},
            # A user's own assignment may have settings of its rank.
            "assignment": self.assignment if ours else type(self.assignment).__name__,
            "batch_size": self.batch_size if ours else "any",
            "samples of train_set": _samples_of(self.train_set)
            if ours or stream_of(self.train_set)
            else "any",
            "samples of validation_set": None if validation is None else _samples_of(validation),
            # Functions of ranks are different objects, and may hold a rank's device.
            "loss": "None" if self.loss is None else "a function",
            "step": "None" if self.step is None else "a function",
            "precision": self.precision,
            "metrics": list(self.metrics),
            "early_stopping": self.early_stopping,
            "checkpoint_every": self.checkpoint_every,
            "on_other_ranks": self.on_other_ranks,
        }

    def identity(self) -> dict[str, str]:
        """Settings that a checkpoint must have been written with to be continued."""
        return {
            **{name: settings_of(getattr(self, name)) for name in (*_COMPARED, "batch_size", "assignment")},
            "samples": _samples_of(self.train_set),
            "precision": self.precision,
            "metrics": ", ".join(sorted(self.metrics)) or "none",
            "samples of validation_set": _samples_of(self.validation_set),
        }


def _samples_of(samples: object) -> str:
    return "none" if samples is None else str(stream_of(samples) or length_of(samples))
