"""``trainers.train``, which checks its arguments and runs the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.arguments import check_argument
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import refuse_alone_among_many, refuse_other_optimizers
from trainers.communication.topology import Topology
from trainers.data.batches import Disjoint, SampleAssignment
from trainers.data.fetching import Collate
from trainers.evaluation.evaluate import current, device_of
from trainers.evaluation.forward import Loss, Step
from trainers.evaluation.metrics import Metric
from trainers.methods.ddp import DDP
from trainers.methods.sharded_models import errors_named, prepared
from trainers.methods.strategy import Method
from trainers.modes import warn_of_evaluation_mode
from trainers.optim.composite import Composite
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.muon import MuonAndOthers
from trainers.optim.parameter_groups import GroupSettings, grouped, refuse_unknown_settings
from trainers.optim.schedules import Constant, Schedule
from trainers.precision import autocast, matrix_products, without_autocast
from trainers.randomness import generators_kept
from trainers.run.model_checks import (
    agree_on_start,
    check_kinds_of,
    check_optimizer,
    refuse_foreign_tensors,
    refuse_wrapped,
)
from trainers.run.position import Metrics, Result, StepMetrics
from trainers.run.settings import TrainSettings
from trainers.run.training_run import TrainingRun

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer | Sequence[Optimizer]] | MuonAndOthers
"""Function that makes the optimizers of parameters."""


def train(
    model: nn.Module,
    train_set: Dataset[object],
    validation_set: Dataset[object] | None = None,
    *,
    loss: Loss | None = None,
    step: Step | None = None,
    optimizer: MakeOptimizer,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int,
    evaluate_every: int | float | None = None,
    metrics: Mapping[str, Metric] | None = None,
    method: Method | None = None,
    schedule: Schedule | None = None,
    early_stopping: EarlyStopping | None = None,
    seed: int = 0,
    precision: str = "fp32",
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    label_smoothing: float = 0.0,
    ema_decay: float | None = None,
    parameter_groups: GroupSettings | None = None,
    activation_checkpointing: Sequence[str] = (),
    assignment: SampleAssignment | None = None,
    loader_processes: int = 0,
    data_on_device: bool | str = "auto",
    evaluation_batch_size: int | None = None,
    collate: Collate | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | timedelta | None = None,
    on_other_ranks: str = "refuse",
    interrupt: Callable[[], bool] | None = None,
    report: Callable[[int, Metrics], None] | None = None,
    on_step: Callable[[int, StepMetrics], None] | None = None,
    progress: bool | None = None,
    flops_per_sample: float | None = None,
    peak_flops: float | None = None,
    profile: str | Path | None = None,
    topology: Topology | None = None,
    timeout: timedelta = timedelta(minutes=10),
    group: dist.ProcessGroup | None = None,
) -> Result:
    """Train ``model``, in place and on its device, with the ranks of the initialised group, or alone.

    README.md beside this file tells how these settings work together.

    Args:
        model (Module): model on the device where it is to be trained. Rank 0's parameters and buffers count. Modules
            that are in ``eval()`` stay so in training.
        train_set (Dataset): data set of pairs of inputs and targets, each a tensor or a structure: tuples, lists and
            dictionaries of them. A tuple or dictionary of inputs becomes the model's arguments. An IterableDataset has
            a ``__len__``, or comes as ``Stream``. A method ``set_epoch`` is called with the number of each epoch, from
            0; ``read_batch(indices)`` is asked for whole batches, and ``on_device(inputs, targets)`` for what the model
            and the loss get of a batch on the device.
        validation_set (Dataset; default None): data set as ``train_set``; see ``evaluate_every``.
        loss (callable; default None): ``loss(outputs, targets)``, a mean over its samples, of what the model returns
            and the data set gives. "validation_loss" is the mean of its values of batches, weighted by their samples;
            with weights of classes or an ``ignore_index`` it depends on the batches a little, and a batch without any
            target that counts is left out. With ``step`` it may be left out, or is the validation loss only.
        step (callable; default None): ``step(model, (inputs, targets))`` does the forward pass and returns a dictionary
            of "loss", a tensor without dimensions, the mean over the batch, and "outputs", which metrics and ``loss``
            get. In evaluation it is called without gradients, and "validation_loss" is then the mean of its losses over
            samples. None: "loss" is ``loss`` of the model's outputs.
        optimizer (callable): function of the parameters that require a gradient; it returns a torch optimizer, or a
            list of optimizers of different parameters; see ``parameter_groups``. Or ``trainers.muon(…)``.
        epochs (int, from 1; default None): the run's length in passes over the training set.
        steps (int, from 1; default None): its length in optimizer steps, in place of ``epochs``.
        batch_size (int, from 1): samples per rank and backward pass.
        evaluate_every (int, steps, or float, a fraction of the run; default None): how often the validation set is
            evaluated, ``metrics`` are recorded and ``report`` is called; at the run's end, too. None: after each epoch.
        metrics (dict; default None): by name, functions ``metric(outputs, targets)``, which get all outputs and targets
            of the validation set at once, in its order, on rank 0 and its CPU; tensors of batches are joined along
            their first axis, lists have an entry for each sample. Or objects that take a batch at a time, as
            ``StreamingMetric`` and torchmetrics'.
        method (Method; default None): how ranks work together; None: ``DDP()``.
        schedule (Schedule; default None): schedule of the learning rate; None: ``Constant()``.
        early_stopping (EarlyStopping; default None): when to end earlier; None: never.
        seed (int; default 0): the same seed gives every method the same batches, and the same run.
        precision (str; default "fp32"): "fp32" leaves all tensors as they are, "tf32" lets a GPU multiply float32
            matrices in TF32 (10 bits of mantissa), "bf16" is autocast. An autocast around the call does nothing; one in
            ``step`` does what it says.
        clip_norm (float; default None): the largest norm of the gradient that the optimizer gets; None: any.
        clip_value (float; default None): the largest absolute value of its elements; None: any.
        accumulate (int, from 1; default 1): backward passes per optimizer step, each with ``batch_size`` samples per
            rank.
        label_smoothing (float, 0 to below 1; default 0.0): this part of each target's probability is spread evenly over
            all classes (Szegedy et al. 2016), in the training loss only, which then gets probabilities as targets.
        ema_decay (float, 0 to below 1; default None): decay of an exponential moving average of the weights, updated
            after each step, which is evaluated, kept as the best and left in the model and in the last checkpoint. Not
            with OIALR and AB, whose weights change their form. None: there is none.
        parameter_groups (callable; default None): ``parameter_groups(name, parameter)`` returns a dictionary of the
            optimizer's settings for a parameter: ``lambda name, parameter: {"weight_decay": 0.0} if parameter.ndim < 2
            else {}`` keeps norms and biases from decaying. ``optimizer`` then gets groups of parameters, as torch's
            optimizers take them. None: it gets parameters.
        activation_checkpointing (sequence of str; default ()): names of modules whose activations are not kept but
            computed again in the backward pass, as in Chen et al. 2016; in ``("blocks.*",)`` the ``*`` stands for one
            part of a name. Results are the same.
        assignment (Disjoint, FullOverlap, Coarse, MediumCoarse or FineGrained; default None): how samples are dealt to
            ranks; None: ``Disjoint()``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead; as many more for the validation
            set. They live as long as the run, with the data set as it was when they were started.
        data_on_device (bool or str; default "auto"): whether all items are copied to the model's device, and the same
            batches gathered there: those of torch's TensorDataset, of a Subset of it, and of data sets with
            ``read_batch`` and ``fixed_items = True``. "auto": on a GPU, if they take 1/64 of its free memory, or, once
            they were read from the host, a quarter of what the run leaves free. True: before the first step, on the CPU
            too, and ValueError where ``train_set`` cannot be copied. False: never; for arrays of NumPy behind tensors
            that change during the run.
        evaluation_batch_size (int, from 1; default None): samples per rank and forward pass of the evaluation; None:
            ``batch_size``.
        collate (callable; default None): ``collate(items)`` makes the pair of inputs and targets of a batch from a list
            of the data set's items; None: as torch's DataLoader, but for tuples, which stay tuples.
        checkpoint (path; default None): a directory that all ranks see. The run continues from what it finds there, on
            the CPU bit for bit, and on another number of ranks where the method allows it. It saves when interrupted,
            at its end and as ``checkpoint_every`` says.
        checkpoint_every (int, steps, or timedelta; default None): how often it saves, between evaluations, too; by the
            clock of rank 0, after a step near that time. None: after each evaluation.
        on_other_ranks (str; default "refuse"): what happens where other ranks wrote the checkpoint, by number or by
            node, and the method cannot go on from it: "refuse" raises ValueError; "restart" warns and starts from the
            beginning, and the next save replaces that checkpoint.
        interrupt (callable; default None): ``interrupt()``, called on every rank before each step; must answer alike on
            all. When it is true the run saves and raises ``Interrupted``.
        report (callable; default None): ``report(number, metrics)``, called on every rank after each evaluation, which
            are counted from 1; what it raises ends the run (with an attribute ``on_all_ranks`` that is true all ranks
            raise it at once, and keep their groups). Methods ``set_last_epoch`` and ``check_metrics`` are called before
            the first step, with the number of the last evaluation (again, before the last report, where the run ends
            earlier), and with the names of what will be recorded, but for those of layers; the latter may raise.
        on_step (callable; default None): ``on_step(steps, values)``, called on every rank after each optimizer step,
            with the number of steps taken, and a dictionary of "loss" (float64 without dimensions, on the device, of
            this rank's samples and weighted by their share, so that the ranks' mean is that of all samples), "lr" and,
            with ``clip_norm``, "gradient_norm" (a tensor: that before clipping); what it raises ends the run.
        progress (bool; default None): whether rank 0 writes a progress line to stderr; None: if that is a terminal.
        flops_per_sample (float; default None): floating-point operations of the model for one sample, forward and
            backward. With ``peak_flops`` the run records "mfu", the model FLOPs utilisation; None: it does not.
        peak_flops (float, operations per second; default None): what one rank's device is capable of in this precision,
            by its data sheet.
        profile (path; default None): a directory in which rank 0 writes trace.json, by torch.profiler: steps 3 to 5,
            counted from where this call begins; chrome://tracing and ui.perfetto.dev show it. None: nothing is traced.
        topology (Topology; default None): which ranks share a node; None: those with the same host name.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): ranks that train together where others do something else; this rank must be
            in it. None: all ranks.

    Among the recorded seconds, means over the ranks, ``train_s`` are those spent in training steps and ``wait_s`` those
    in which the CPU, or the GPU's stream, waited for the method's communication. A GPU works behind the CPU: there
    ``train_s`` is right at an evaluation. ``peak_memory_bytes`` is counted by CUDA's peak counters, which are reset.
    Python's, numpy's and torch's global generators are restored afterwards.

    Raises:
        Interrupted: ``interrupt`` asked for it.
        ValueError: settings are not allowed or differ between ranks, a checkpoint is damaged or of other settings, or a
            directory cannot be written: before the first step, but for what only the training shows.
        TypeError: a data set is none, or the model, the loss or a metric returned something else than it should.
        CommunicationError: a rank is lost or hangs.
    """
    arguments = dict(locals())  # first of all, as these are settings by name
    method = DDP() if method is None else method
    check_kinds_of(model=model, method=method, topology=topology, timeout=timeout)
    check_argument("metrics", metrics, metrics is None or isinstance(metrics, Mapping), "functions by name")
    rule = "a function that makes it, such as lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
    check_argument("optimizer", optimizer, callable(optimizer), rule)
    arguments |= {
        "metrics": dict(metrics or {}),
        "schedule": Constant() if schedule is None else schedule,
        "assignment": Disjoint() if assignment is None else assignment,
        "evaluation_batch_size": batch_size if evaluation_batch_size is None else evaluation_batch_size,
        "device": device_of(model),
    }
    settings = TrainSettings(**{field.name: arguments[field.name] for field in fields(TrainSettings)})
    refuse_wrapped(model)
    refuse_alone_among_many()
    device, saved = settings.device, checkpoint is not None
    # The device first: a communicator may have a library allocate something there, and its generator is kept.
    with (
        current(device),
        generators_kept(),
        # Forward passes open their own, as ``precision`` says.
        without_autocast(device),
        matrix_products(device, precision),
        Communicator(topology=topology, timeout=timeout, device=device, among=group) as communicator,
    ):
        agreed = {**settings.agreed(), "checkpoint": "a directory" if saved else "None"}
        agree_on_start(communicator, model, method, agreed, saved=saved)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError("No parameter of the model requires a gradient: there is nothing to train.")
        # Deleted once the run has it: weights that a decomposition replaces would otherwise stay in memory.
        with autocast(device, precision), errors_named(communicator.world):
            data = prepared(method, model, communicator)
        made = _made(optimizer, model, parameter_groups)
        refuse_foreign_tensors(
            model.parameters(),
            made,
            remedy="Give what is trained of a loss to the model, and compute the loss in it or by step=.",
        )
        refuse_other_optimizers(communicator.service, made)
        if communicator.rank == 0:
            warn_of_evaluation_mode(model)
        run = TrainingRun(settings, communicator, made, method, data)
        del made
        with closing(run):
            return run.to_the_end()


def _made(
    optimizer: MakeOptimizer,
    model: nn.Module,
    groups_of: GroupSettings | None,
) -> Optimizer:
    """The checked optimizer that the user's function makes, several as one."""
    if groups_of is None:
        groups: Any = [parameter for parameter in model.parameters() if parameter.requires_grad]
    else:
        groups = grouped(model, groups_of)
    found: Any = optimizer(groups, model) if isinstance(optimizer, MuonAndOthers) else optimizer(groups)
    parts: Sequence[Optimizer] = found if isinstance(found, (list, tuple)) and found else [found]
    for part in parts:
        check_optimizer(part)
    made = Composite(parts) if len(parts) > 1 else parts[0]
    if groups_of is not None:
        refuse_unknown_settings(made, groups)
    return made
