"""The settings of a run, and the names of what it records."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.arguments import check_argument, is_integer, is_number, is_whole, make_plain
from trainers.checkpoints.callables import settings_of
from trainers.data.batches import Assignment, Disjoint, InTurn, length_of
from trainers.data.fetching import check_reading
from trainers.data.streams import stream_of
from trainers.evaluation.evaluate import device_of
from trainers.evaluation.forward import Forward, Loss, Step
from trainers.evaluation.metrics import Metric, check_metrics
from trainers.methods.strategy import Steps, check_steps, steps_of
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.schedules import Schedule
from trainers.options import Checkpointing, DataLoading, Monitoring, Optimisation
from trainers.run.position import Length

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
    optimisation: Optimisation
    data: DataLoading
    checkpointing: Checkpointing
    monitoring: Monitoring

    @property
    def assignment(self) -> Assignment:
        return Disjoint() if self.data.assignment is None else self.data.assignment

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
        return Forward(loss=self.loss, step=self.step, label_smoothing=self.optimisation.label_smoothing)

    @property
    def evaluation_batch_size(self) -> int:
        """Samples per rank and forward pass."""
        return self.data.evaluation_batch_size or self.batch_size

    def __post_init__(self) -> None:
        make_plain(self)
        self._check_kinds()
        if (self.epochs is None) == (self.steps is None):
            given = f"epochs = {self.epochs!r}, steps = {self.steps!r}"
            raise ValueError(f"{given}: a run has one length. Give one of the two, and leave the other out.")
        for name in ("steps" if self.epochs is None else "epochs", "batch_size"):
            if not is_whole(getattr(self, name), 1):
                raise ValueError(
                    f"{name} = {getattr(self, name)!r}: must be a whole number of at least 1. Correct it."
                )
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
            processes, collate = self.data.loader_processes, self.data.collate
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
        stopping = self.early_stopping
        check_metrics(self.metrics)
        if self.step is not None and self.optimisation.label_smoothing:
            raise ValueError(
                f"label_smoothing = {self.optimisation.label_smoothing!r}: step computes its own loss. Smooth there, "
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
        ):
            check_argument(name, getattr(self, name), allowed, rule)

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
            "accumulate": self.optimisation.accumulate,
            "schedule": self.schedule,
            "loss": "None" if self.loss is None else "a function",
            "step": "None" if self.step is None else "a function",
            "precision": self.optimisation.precision,
            "clip_norm": None if self.optimisation.clip_norm is None else float(self.optimisation.clip_norm),
            "clip_value": None
            if self.optimisation.clip_value is None
            else float(self.optimisation.clip_value),
            "label_smoothing": float(self.optimisation.label_smoothing),
            "ema_decay": None if self.optimisation.ema_decay is None else float(self.optimisation.ema_decay),
            "metrics": list(self.metrics),
            "early_stopping": self.early_stopping,
            "checkpoint_every": self.checkpointing.checkpoint_every,
            "on_other_ranks": self.checkpointing.on_other_ranks,
            "seed": int(self.seed),
        }

    def identity(self) -> dict[str, str]:
        """What a checkpoint must have been written with to be gone on from."""
        return {
            "epochs": str(self.epochs),
            "steps": str(self.steps),
            "evaluate_every": repr(self.evaluate_every),
            "batch_size": str(self.batch_size),
            "accumulate": str(self.optimisation.accumulate),
            "samples": str(stream_of(self.train_set) or length_of(self.train_set)),
            "schedule": settings_of(self.schedule),
            "precision": self.optimisation.precision,
            "clip_norm": repr(self.optimisation.clip_norm),
            "clip_value": repr(self.optimisation.clip_value),
            "label_smoothing": repr(self.optimisation.label_smoothing),
            "ema_decay": repr(self.optimisation.ema_decay),
            "assignment": settings_of(self.assignment),
            "seed": str(self.seed),
        }


def check_call(*, model: object, metrics: object, optimizer: object) -> None:
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
    device = device_of(model)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if exchanged and tensor.device.type != device.type:
            raise ValueError(
                f"model: {name} is on {tensor.device}, and the first parameter on {device}. Move all to one device: "
                "model.to(device), once all layers and buffers are there."
            )
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
