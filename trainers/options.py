"""The options of ``train`` that belong together, as values that can be kept and passed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import TypedDict

import torch.distributed as dist
from torch import Tensor

from trainers.arguments import check_argument, is_number, is_whole, make_plain
from trainers.communication.topology import Topology
from trainers.data.batches import Assignment
from trainers.data.fetching import Collate
from trainers.optim.parameter_groups import GroupSettings
from trainers.precision import PRECISIONS

Metrics = dict[str, float]
StepMetrics = dict[str, Tensor | float]


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How a step is computed from its batches.

    Args:
        precision (str; default "fp32"): "fp32" leaves all tensors as they are, "tf32" lets a GPU
            multiply float32 matrices in TF32 (10 bits of mantissa) and changes nothing on a CPU, "bf16" is autocast.
            An autocast around the call does nothing; one in ``step`` does what it says.
        clip_norm (float; default None): the largest norm of the gradient that the optimizer gets; None: any.
        clip_value (float; default None): the largest absolute value of its elements; None: any.
        accumulate (int, from 1; default 1): backward passes per optimizer step, each with ``batch_size`` samples per
            rank.
        label_smoothing (float, 0 to below 1; default 0.0): this part of each target's probability is spread evenly
            over all classes (Szegedy et al. 2016). The training loss then gets probabilities in place of class
            indices; the validation loss does not.
        ema_decay (float, 0 to below 1; default None): of an exponential moving average of the weights, updated after
            each step, in 0.999 of which a step counts for a thousandth. It is what is evaluated, kept as the best and
            left in the model and in the last checkpoint. Not with OIALR and AB, whose weights change their form.
            None: there is none.
        parameter_groups (callable; default None): ``parameter_groups(name, parameter)`` returns a dictionary of the
            optimizer's settings for a parameter: ``lambda name, parameter: {"weight_decay": 0.0} if parameter.ndim < 2
            else {}`` keeps norms and biases from decaying. ``optimizer`` then gets groups of parameters, as torch's
            optimizers take them. None: it gets parameters.
        activation_checkpointing (sequence of str; default ()): names of modules whose activations are not kept but
            computed again in the backward pass, as in Chen et al. 2016; in ``("blocks.*",)`` the ``*`` stands for one
            part of a name. Results are the same.

    Raises:
        ValueError: a value is not allowed.
    """

    precision: str = "fp32"
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    label_smoothing: float = 0.0
    ema_decay: float | None = None
    parameter_groups: GroupSettings | None = None
    activation_checkpointing: Sequence[str] = ()

    def __post_init__(self) -> None:
        make_plain(self)
        _check_whole("accumulate", self.accumulate, 1)
        if self.precision not in PRECISIONS:
            raise ValueError(f'precision = {self.precision!r}: must be "fp32", "tf32" or "bf16". Correct it.')
        for name, value in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(
                    f"{name} = {value!r}: must be a number above 0, or None for no clipping. Correct it."
                )
        if self.clip_norm is not None and self.clip_value is not None:
            raise ValueError(
                "clip_norm and clip_value: the gradient is clipped by one of them. Leave one out."
            )
        if self.ema_decay is not None and not (is_number(self.ema_decay) and 0 <= self.ema_decay < 1):
            raise ValueError(
                f"ema_decay = {self.ema_decay!r}: must be at least 0 and below 1, or None for no average. Correct it."
            )
        _check_callable("parameter_groups", self.parameter_groups, "of (name, parameter)")
        patterns = self.activation_checkpointing
        check_argument(
            "activation_checkpointing",
            patterns,
            not isinstance(patterns, str) and all(isinstance(pattern, str) for pattern in patterns),
            'a sequence of names of modules: ("blocks.*",), say',
        )
        if not (is_number(self.label_smoothing) and 0 <= self.label_smoothing < 1):
            raise ValueError(
                f"label_smoothing = {self.label_smoothing!r}: must be at least 0 and below 1. Correct it."
            )


@dataclass(frozen=True, kw_only=True)
class DataLoading:
    """How samples reach the ranks.

    Args:
        assignment (Disjoint, FullOverlap, Coarse, MediumCoarse or FineGrained; default None): how samples are dealt
            to ranks; None: ``Disjoint()``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead; as many again for the
            validation set. They live as long as the run, with the data set as it was when they were started.
        evaluation_batch_size (int, from 1; default None): samples per rank and forward pass of the evaluation; None:
            ``batch_size``.
        collate (callable; default None): ``collate(items)`` makes the pair of inputs and targets of a batch from a list
            of the data set's items, in the process that reads them; None: as torch's DataLoader, but for tuples, which
            stay tuples.

    Raises:
        ValueError: a value is not allowed.
    """

    assignment: Assignment | None = None
    loader_processes: int = 0
    evaluation_batch_size: int | None = None
    collate: Collate | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        dealing = callable(getattr(self.assignment, "epoch", None)) and not isinstance(self.assignment, type)
        check_argument(
            "assignment",
            self.assignment,
            self.assignment is None or dealing,
            "an assignment of samples: trainers.Disjoint(), say",
        )
        _check_whole("loader_processes", self.loader_processes, 0)
        if self.evaluation_batch_size is not None:
            _check_whole("evaluation_batch_size", self.evaluation_batch_size, 1)
        _check_callable("collate", self.collate, "of a list of items")


@dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """How a run is stopped and goes on later.

    Args:
        checkpoint (path; default None): a directory that all ranks see. The run continues from what it finds there,
            on the CPU bit for bit, and on another number of ranks where the method allows it: ``batch_size`` and
            ``accumulate`` may then be others, such that a step has the same samples. It saves when interrupted, at its
            end and as ``checkpoint_every`` says.
        checkpoint_every (int, steps, or timedelta; default None): how often it saves, between evaluations, too; by the
            clock of rank 0, after a step near that time. None: after each evaluation.
        on_other_ranks (str; default "refuse"): what happens where other ranks wrote the checkpoint, by number or by
            node, and the method cannot go on from it: "refuse" raises ValueError; "restart" warns and begins anew, and
            the next save replaces that checkpoint.
        interrupt (callable; default None): ``interrupt()``, called on every rank before each step; must answer alike
            on all. When it is true the run saves and raises ``Interrupted``.

    Raises:
        ValueError: a value is not allowed.
    """

    checkpoint: str | Path | None = None
    checkpoint_every: int | timedelta | None = None
    on_other_ranks: str = "refuse"
    interrupt: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        check_argument(
            "checkpoint",
            self.checkpoint,
            self.checkpoint is None or isinstance(self.checkpoint, (str, PathLike)),
            "None or the path of a directory",
        )
        every = self.checkpoint_every
        by_clock = isinstance(every, timedelta) and every > timedelta(0)
        if every is not None and not by_clock and not is_whole(every, 1):
            raise ValueError(
                f"checkpoint_every = {self.checkpoint_every!r}: must be a whole number of steps of at least 1, "
                "a datetime.timedelta above 0, or None for after each evaluation. Correct it."
            )
        check_argument(
            "on_other_ranks",
            self.on_other_ranks,
            self.on_other_ranks in ("refuse", "restart"),
            "refuse or restart",
        )
        _check_callable("interrupt", self.interrupt, "without arguments")


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """What a run shows while it goes on.

    Args:
        report (callable; default None): ``report(number, metrics)``, called on every rank after each evaluation, which
            are counted from 1 and come after each epoch by default; what it raises ends the run (with an attribute
            ``on_all_ranks`` that is true all ranks raise it at once, and keep their groups). If it has a method
            ``set_last_epoch``, that is called with the number of the last one before the first step, and again, before
            the last report, where the run ends earlier. A method ``check_metrics`` is called before the first
            step with the names of what will be recorded, but for those of layers, and may raise.
        on_step (callable; default None): ``on_step(steps, values)``, called on every rank after each optimizer step,
            with how many have been taken, and a dictionary of "loss" (float64 without dimensions, of this rank's
            samples and weighted by their share, so that the ranks' mean is that of all samples; on the device, where
            reading it waits for the GPU), "lr" and, with ``clip_norm``, "gradient_norm"
            (a tensor: that before clipping); what it raises ends the run.
        progress (bool; default None): whether rank 0 writes a progress line to stderr; None: if that is a terminal.
        flops_per_sample (float; default None): floating-point operations of the model for one sample, forward and
            backward. With ``peak_flops`` the run records "mfu", the model FLOPs utilisation; None: it does not.
        peak_flops (float, operations per second; default None): what one rank's device is capable of in this
            precision, by its data sheet.
        profile (path; default None): a directory in which rank 0 writes trace.json, by torch.profiler: steps 3 to 5,
            counted from where this call begins, with what lies between them; chrome://tracing and ui.perfetto.dev
            show it. A run that ends earlier leaves those of them that it took. None: nothing is traced.

    Raises:
        ValueError: a value is not allowed.
    """

    report: Callable[[int, Metrics], None] | None = None
    on_step: Callable[[int, StepMetrics], None] | None = None
    progress: bool | None = None
    flops_per_sample: float | None = None
    peak_flops: float | None = None
    profile: str | Path | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        _check_callable("report", self.report, "of (number, metrics)")
        _check_callable("on_step", self.on_step, "of (steps, values)")
        check_argument(
            "profile",
            self.profile,
            self.profile is None or isinstance(self.profile, (str, PathLike)),
            "None or the path of a directory",
        )
        for name, value in (("flops_per_sample", self.flops_per_sample), ("peak_flops", self.peak_flops)):
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(f"{name} = {value!r}: must be a number above 0, or None. Correct it.")
        if (self.flops_per_sample is None) != (self.peak_flops is None):
            raise ValueError(
                "flops_per_sample and peak_flops: mfu needs both. Give the other, too, or leave both out."
            )


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which ranks train together, and how long they wait for one another.

    Args:
        topology (Topology; default None): which ranks share a node; None: those with the same host name.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): ranks that train together where others do something else; this rank must
            be in it. None: all ranks.

    Raises:
        ValueError: a value is not allowed.
    """

    topology: Topology | None = None
    timeout: timedelta = timedelta(minutes=10)
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        check_argument(
            "topology",
            self.topology,
            self.topology is None or isinstance(self.topology, Topology),
            "None or a trainers.Topology(ranks_per_node=2), say",
        )
        check_argument(
            "timeout",
            self.timeout,
            isinstance(self.timeout, timedelta) and self.timeout > timedelta(0),
            "a datetime.timedelta above 0: datetime.timedelta(minutes=10), say",
        )


class Keywords(TypedDict, total=False):
    """For type checkers: the fields of all of these values are keywords of ``train``, too."""

    precision: str
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    label_smoothing: float
    ema_decay: float | None
    parameter_groups: GroupSettings | None
    activation_checkpointing: Sequence[str]
    assignment: Assignment | None
    loader_processes: int
    evaluation_batch_size: int | None
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
    topology: Topology | None
    timeout: timedelta
    group: dist.ProcessGroup | None


def _check_whole(name: str, value: object, least: int) -> None:
    if not is_whole(value, least):
        raise ValueError(f"{name} = {value!r}: must be a whole number of at least {least}. Correct it.")


def _check_callable(name: str, value: object, of: str) -> None:
    check_argument(name, value, value is None or callable(value), f"None or a function {of}")
