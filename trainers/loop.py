"""``trainers.train``: checks what it is given and trains the model by the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.communication.buckets import broadcast_tensors
from trainers.communication.communicator import Communicator
from trainers.communication.rank_consistency import (
    refuse_alone_among_many,
    refuse_other_models,
    refuse_other_optimizers,
    refuse_other_settings,
)
from trainers.communication.topology import Topology
from trainers.data.batches import Assignment, Disjoint
from trainers.evaluation import Metric, current, device_of
from trainers.methods.ddp import DDP
from trainers.methods.strategy import Method, check_method
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.schedules import Constant, Schedule
from trainers.precision import matrix_products
from trainers.randomness import generators_kept
from trainers.result import Result
from trainers.run import Run
from trainers.settings import (
    Loss,
    Metrics,
    Settings,
    check_call,
    check_optimizer,
    check_tensors,
)


def train(
    model: nn.Module,
    train_set: Dataset[object],
    validation_set: Dataset[object] | None = None,
    *,
    loss: Loss,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    epochs: int,
    batch_size: int,
    metrics: Mapping[str, Metric] | None = None,
    method: Method | None = None,
    schedule: Schedule | None = None,
    precision: str = "fp32",
    clip_norm: float | None = None,
    accumulate: int = 1,
    label_smoothing: float = 0.0,
    early_stopping: EarlyStopping | None = None,
    assignment: Assignment | None = None,
    topology: Topology | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    report: Callable[[int, Metrics], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    loader_processes: int = 0,
    evaluation_batch_size: int | None = None,
    progress: bool | None = None,
    timeout: timedelta = timedelta(minutes=10),
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
) -> Result:
    """Train ``model``, in place and on its device, with the ranks of the initialised group, or alone.

    Args:
        model (Module): on the device where it is to be trained. Rank 0's parameters and buffers count.
        train_set (Dataset): its items are pairs of inputs and target; inputs are a tensor, or a tuple or dictionary
            that becomes the model's arguments. If it has a method ``set_epoch``, that is called with the number of
            each epoch, from 0, for augmentation that does not depend on how samples are dealt.
        validation_set (Dataset; default None): as ``train_set``; evaluated after each epoch.
        loss (callable): ``loss(outputs, targets)``, a mean over its samples.
        optimizer (callable): gets the parameters that require a gradient and returns a torch optimizer.
        epochs (int, from 1): passes over the training set.
        batch_size (int, from 1): samples per rank and backward pass.
        metrics (dict of callables; default None): by name, ``metric(outputs, targets)``; they and "validation_loss"
            get all outputs and targets of the validation set at once, in its order.
        method (Method; default None): how ranks work together; None: ``DDP()``.
        schedule (Schedule; default None): of the learning rate; None: ``Constant()``.
        precision (str; default "fp32"): "fp32" leaves all tensors as they are, "tf32" lets a GPU
            multiply float32 matrices in TF32 (10 bits of mantissa), "bf16" is autocast.
        clip_norm (float; default None): the largest norm of the gradient that the optimizer gets; None: any.
        accumulate (int, from 1; default 1): backward passes per optimizer step, each with ``batch_size`` samples per
            rank.
        label_smoothing (float, 0 to below 1; default 0.0): this part of each target's probability is spread evenly
            over all classes (Szegedy et al. 2016). The training loss then gets probabilities in place of class
            indices; the validation loss does not.
        early_stopping (EarlyStopping; default None): when to end before ``epochs``; None: never.
        assignment (Disjoint, FullOverlap, Coarse, MediumCoarse or FineGrained; default None): how samples are dealt
            to ranks; None: ``Disjoint()``.
        topology (Topology; default None): which ranks share a node; None: those with the same host name.
        checkpoint (path; default None): a directory that all ranks see. The run continues from what it finds there,
            on the CPU bit for bit. It saves when interrupted, at its end and every ``checkpoint_every`` steps.
        checkpoint_every (int, steps; default None): None: after each epoch.
        report (callable; default None): ``report(epoch, metrics)``, called on every rank after each epoch, counted
            from 1; what it raises ends the run. If it has a method ``set_last_epoch``, that is called with the number
            of epochs before the first step, and again, before the last report, where the run ends earlier.
        interrupt (callable; default None): ``interrupt()``, called on every rank before each step; must answer alike
            on all. When it is true the run saves and raises ``Interrupted``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead; as many again for the
            validation set. They live as long as the run, with the data set as it was when they were started.
        evaluation_batch_size (int, from 1; default None): samples per rank and forward pass of the evaluation; None:
            ``batch_size``.
        progress (bool; default None): whether rank 0 writes a progress line to stderr; None: if that is a terminal.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): ranks that train together where others do something else; this rank must
            be in it. None: all ranks.
        seed (int; default 0): the same seed gives every method the same batches, and the same run.

    Among the recorded seconds, means over the ranks, ``train_s`` are those spent in training steps and ``wait_s``
    those in which the CPU, or the GPU's stream, waited for the method's communication. A GPU works behind the CPU:
    there ``train_s`` is right at an epoch's end. Python's, numpy's and torch's global generators are restored
    afterwards.

    Raises:
        Interrupted: ``interrupt`` asked for it.
        ValueError: settings are not allowed or differ between ranks, a checkpoint is damaged or of other settings, a
            directory cannot be written, or a launcher's rank is in no group; all before the first step.
        TypeError: a data set is none, or the model, the loss or a metric returned something else than it should.
        CommunicationError: a rank is lost or hangs.
    """
    check_call(
        model=model,
        metrics=metrics,
        optimizer=optimizer,
        topology=topology,
        checkpoint=checkpoint,
        timeout=timeout,
    )
    settings = Settings(
        model=model,
        train_set=train_set,
        validation_set=validation_set,
        loss=loss,
        epochs=epochs,
        batch_size=batch_size,
        metrics=dict(metrics or {}),
        schedule=Constant() if schedule is None else schedule,
        precision=precision,
        clip_norm=clip_norm,
        accumulate=accumulate,
        label_smoothing=label_smoothing,
        early_stopping=early_stopping,
        assignment=Disjoint() if assignment is None else assignment,
        checkpoint_every=checkpoint_every,
        report=report,
        interrupt=interrupt,
        loader_processes=loader_processes,
        evaluation_batch_size=batch_size if evaluation_batch_size is None else evaluation_batch_size,
        seed=seed,
        device=device_of(model),
    )
    method = DDP() if method is None else method
    check_method(f"method = {method!r}", method)
    refuse_alone_among_many()
    communicator = Communicator(topology=topology, timeout=timeout, device=settings.device, among=group)
    try:
        with generators_kept(), current(settings.device), matrix_products(settings.device, precision):
            channel, device = communicator.service, settings.device
            check_tensors(model, exchanged=communicator.size > 1, saved=checkpoint is not None)
            refuse_other_models(channel, model, device)
            agreed = {
                **settings.agreed(),
                "method": method,
                "ranks of each node": communicator.nodes,
                "checkpoint": "None" if checkpoint is None else "a directory",
            }
            refuse_other_settings(channel, agreed, device)
            # Each rank's caller may have drawn other weights: rank 0's count.
            broadcast_tensors(communicator.service, [*model.parameters(), *model.buffers()])
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise ValueError("No parameter of the model requires a gradient: there is nothing to train.")
            # Kept nowhere here: what a decomposition replaces would else stay in memory to the run's end.
            made = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
            check_optimizer(made)
            refuse_other_optimizers(channel, made, device)
            run = Run(settings, communicator, made, method, checkpoint, progress)
            del made
            try:
                return run.to_the_end()
            finally:
                run.close()
    finally:
        communicator.close()
