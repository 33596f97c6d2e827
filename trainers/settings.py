"""The settings of a run, and the names of what it records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.arguments import check_argument, is_integer, is_number, is_whole
from trainers.communication.topology import Topology
from trainers.data.batches import Assignment, length_of
from trainers.evaluation import Metric
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.schedules import Schedule
from trainers.precision import PRECISIONS

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
    """The arguments of ``train``, checked.

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
        self._check_kinds()
        for name, least in (
            ("epochs", 1),
            ("batch_size", 1),
            ("evaluation_batch_size", 1),
            ("accumulate", 1),
            ("loader_processes", 0),
        ):
            if not is_whole(getattr(self, name), least):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: must be a whole number of at least {least}. Correct it."
                )
        if self.checkpoint_every is not None and not is_whole(self.checkpoint_every, 1):
            raise ValueError(
                f"checkpoint_every = {self.checkpoint_every!r}: must be a whole number of steps of at least 1, "
                "or None for every epoch. Correct it."
            )
        if self.precision not in PRECISIONS:
            raise ValueError(f'precision = {self.precision!r}: must be "fp32", "tf32" or "bf16". Correct it.')
        if self.clip_norm is not None and not (is_number(self.clip_norm) and self.clip_norm > 0):
            raise ValueError(
                f"clip_norm = {self.clip_norm!r}: must be a number above 0, or None for no clipping. Correct it."
            )
        if not (is_number(self.label_smoothing) and 0 <= self.label_smoothing < 1):
            raise ValueError(
                f"label_smoothing = {self.label_smoothing!r}: must be at least 0 and below 1. Correct it."
            )
        taken = sorted(self.metrics.keys() & _RECORDED)
        if taken:
            raise ValueError(f"metrics: the loop itself records {taken[0]!r}. Choose another name.")
        taken = sorted(n for n in self.metrics if n in _OF_METHODS or n.startswith(OF_LAYERS))
        if taken:
            raise ValueError(f"metrics: methods record {taken[0]!r}. Choose another name.")
        length_of(self.train_set, "train_set")
        if self.validation_set is not None:
            length_of(self.validation_set, "validation_set")
        elif self.metrics:
            raise ValueError("metrics need a validation set. Pass one, or no metrics.")
        warmup = self.schedule.warmup_epochs
        if warmup > self.epochs:
            raise ValueError(
                f"schedule: a warm-up of {warmup:g} epochs does not end in a run of {self.epochs}: the full rate would "
                "never be reached. Shorten the warm-up, or train longer."
            )

    def _check_kinds(self) -> None:
        assignment, stopping = self.assignment, self.early_stopping
        dealing = callable(getattr(assignment, "epoch", None)) and not isinstance(assignment, type)
        functions = all(map(callable, self.metrics.values()))
        for name, allowed, rule in (
            ("loss", callable(self.loss), "a function of (outputs, targets)"),
            ("metrics", functions, "functions of (outputs, targets) by name"),
            ("schedule", isinstance(self.schedule, Schedule), "a schedule: trainers.Cosine(), say"),
            (
                "early_stopping",
                stopping is None or isinstance(stopping, EarlyStopping),
                "None or a trainers.EarlyStopping(patience=5), say",
            ),
            ("assignment", dealing, "an assignment of samples: trainers.Disjoint(), say"),
            (
                "report",
                self.report is None or callable(self.report),
                "None or a function of (epoch, metrics)",
            ),
            (
                "interrupt",
                self.interrupt is None or callable(self.interrupt),
                "None or a function without arguments",
            ),
            ("seed", is_integer(self.seed), "a whole number, the same on all ranks"),
        ):
            check_argument(name, getattr(self, name), allowed, rule)

    def agreed(self) -> dict[str, object]:
        """What has to be the same on all ranks, or they would wait for one another in vain, or train apart."""
        # A user's own assignment may deal each rank another set, or other batches; steps are compared with all.
        ours = type(self.assignment).__module__.startswith("trainers.")
        validation = None if self.validation_set is None else length_of(self.validation_set)
        return {
            "epochs": self.epochs,
            "assignment": self.assignment if ours else type(self.assignment).__name__,
            "batch_size": self.batch_size if ours else "any",
            "samples of train_set": length_of(self.train_set) if ours else "any",
            "samples of validation_set": validation,
            "accumulate": self.accumulate,
            "schedule": self.schedule,
            "precision": self.precision,
            "clip_norm": None if self.clip_norm is None else float(self.clip_norm),
            "label_smoothing": float(self.label_smoothing),
            "metrics": list(self.metrics),
            "early_stopping": self.early_stopping,
            "checkpoint_every": self.checkpoint_every,
            "seed": int(self.seed),
        }

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


def check_call(
    *,
    model: object,
    metrics: object,
    optimizer: object,
    topology: object,
    checkpoint: object,
    timeout: object,
) -> None:
    """ValueError where one of these, as ``train`` was given it, is of another kind than it says."""
    for name, value, allowed, rule in (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module: an instance, not its class"),
        ("metrics", metrics, metrics is None or isinstance(metrics, Mapping), "functions by name"),
        (
            "optimizer",
            optimizer,
            callable(optimizer),
            "a function that makes it: lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), say",
        ),
        (
            "topology",
            topology,
            topology is None or isinstance(topology, Topology),
            "None or a trainers.Topology(ranks_per_node=2), say",
        ),
        (
            "checkpoint",
            checkpoint,
            checkpoint is None or isinstance(checkpoint, (str, PathLike)),
            "None or the path of a directory",
        ),
        (
            "timeout",
            timeout,
            isinstance(timeout, timedelta) and timeout > timedelta(0),
            "a datetime.timedelta above 0: datetime.timedelta(minutes=10), say",
        ),
    ):
        check_argument(name, value, allowed, rule)


def check_tensors(model: nn.Module, *, exchanged: bool, saved: bool) -> None:
    """ValueError if tensors of ``model`` have no shape yet, or could not be ``exchanged`` with other ranks and be the
    same there, or be filled from where they are ``saved``.
    """
    for name, module in model.named_modules():
        limited = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None
        if exchanged and limited:
            raise ValueError(
                f"model: {name or 'it'} has max_norm={module.max_norm}, by which each pass changes the rows that this "
                "rank looks up, and ranks would not end with the same. Use max_norm=None, and scale what is looked up."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"model: {name} has no shape yet, as its layer is lazy. Put a batch through the model first: "
                "model(inputs)."
            )
        if exchanged and tensor.layout is not torch.strided:
            raise ValueError(
                f"model: {name} is sparse ({tensor.layout}), and ranks exchange dense tensors. Make it dense, or keep "
                "what does not change outside of the buffers."
            )
        # What is expanded has several numbers in one place.
        expanded = tensor.layout is torch.strided and any(
            size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        if expanded and (exchanged or saved):
            raise ValueError(
                f"model: {name} is an expanded tensor, which cannot be filled from other ranks or a checkpoint. Give "
                "it memory of its own: .expand(…).clone()."
            )


def check_optimizer(made: object) -> None:
    """ValueError unless ``made``, what the user's function returned, is an optimizer that the loop can drive."""
    check_argument(
        "optimizer(parameters)", made, isinstance(made, Optimizer), "a torch.optim.Optimizer: return it"
    )
    assert isinstance(made, Optimizer)
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optimizer: {type(made).__name__} computes gradients several times a step, and ranks average them once. "
            "Use another, torch.optim.AdamW say."
        )
    for index, group in enumerate(made.param_groups):
        rate = group.get("lr")
        if not (isinstance(rate, Tensor) or is_number(rate)):
            raise ValueError(
                f"optimizer: lr of its group {index} = {rate!r}: must be a number, which the schedule starts from. "
                f"Give {type(made).__name__} one, or, where it has none, use another, torch.optim.AdamW say."
            )
