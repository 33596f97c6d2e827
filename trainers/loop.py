"""``trainers.train``: checks what it is given and trains the model by the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from trainers.arguments import check_argument
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
from trainers.data.fetching import Collate
from trainers.evaluation.evaluate import current, device_of
from trainers.evaluation.forward import Loss, Step
from trainers.evaluation.metrics import Metric
from trainers.methods.ddp import DDP
from trainers.methods.strategy import Method, is_method
from trainers.modes import warn_of_evaluation_mode
from trainers.optim.composite import Composite
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.parameter_groups import GroupSettings, grouped, refuse_unknown_settings
from trainers.optim.schedules import Constant, Schedule
from trainers.precision import matrix_products, without_autocast
from trainers.randomness import generators_kept
from trainers.run.model_checks import (
    check_call,
    check_optimizer,
    check_ranks,
    check_tensors,
    refuse_foreign_tensors,
    refuse_wrapped,
)
from trainers.run.result import Metrics, Result, StepMetrics
from trainers.run.settings import Settings
from trainers.run.training_run import Run


def train(
    model: nn.Module,
    train_set: Dataset[object],
    validation_set: Dataset[object] | None = None,
    *,
    loss: Loss | None = None,
    step: Step | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer | Sequence[Optimizer]],
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
    assignment: Assignment | None = None,
    loader_processes: int = 0,
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

    Compile a model's blocks one by one: each block's gradients are sent while those before it compute theirs. With
    ``torch.compile(model)`` hardly any of the sending overlaps with the backward pass.

    Args:
        model (Module): on the device where it is to be trained. Rank 0's parameters and buffers count. Modules that are
            in ``eval()`` stay so in training.
        train_set (Dataset): its items are pairs of inputs and targets, each a tensor or a structure: tuples, lists
            and dictionaries of them. A tuple or dictionary of inputs becomes the model's arguments. An IterableDataset
            has a ``__len__``, or comes as ``Stream``, which says how ranks share it. If it has a method ``set_epoch``,
            that is called with the number of each epoch, from 0, for augmentation that does not depend on how samples
            are dealt. ``read_batch(indices)`` is asked for whole batches, and ``on_device(inputs, targets)`` for what
            the model and the loss get of a batch that has come to the device.
        validation_set (Dataset; default None): as ``train_set``; see ``evaluate_every``.
        loss (callable; default None): ``loss(outputs, targets)``, a mean over its samples, of what the model returns
            and the data set gives. With ``step`` it may be left out, and if given is the validation loss only. That
            is of all outputs, which rank 0's memory has to hold, as for ``metrics``; with ``step`` alone of none.
        step (callable; default None): ``step(model, (inputs, targets))`` does the forward pass and returns a dictionary
            of "loss", a tensor without dimensions, the mean over the batch, and "outputs", which metrics and ``loss``
            get. It is called in training and, without gradients, in evaluation, where "validation_loss" is then the
            mean of its losses over samples. None: "loss" is ``loss`` of the model's outputs.
        optimizer (callable): gets the parameters that require a gradient and returns a torch optimizer, or a list of
            optimizers of different parameters; see ``parameter_groups``.
        epochs (int, from 1; default None): the run's length in passes over the training set.
        steps (int, from 1; default None): its length in optimizer steps, in place of ``epochs``.
        batch_size (int, from 1): samples per rank and backward pass.
        evaluate_every (int, steps, or float, a fraction of the run; default None): how often the validation set is
            evaluated, ``metrics`` are recorded and ``report`` is called; at the run's end, too. None: after each epoch.
            Within an epoch this changes nothing for the training: of ranks that differ the mean is evaluated.
        metrics (dict; default None): by name, functions ``metric(outputs, targets)``: they and ``loss`` get all outputs
            and targets of the validation set at once, in its order, on rank 0 and its CPU; tensors of batches are
            joined along their first axis, lists have an entry for each sample. Or objects that take a batch at a time,
            as ``StreamingMetric`` and torchmetrics': then nothing is kept.
        method (Method; default None): how ranks work together; None: ``DDP()``.
        schedule (Schedule; default None): of the learning rate; None: ``Constant()``.
        early_stopping (EarlyStopping; default None): when to end earlier; None: never.
        seed (int; default 0): the same seed gives every method the same batches, and the same run.
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
        assignment (Disjoint, FullOverlap, Coarse, MediumCoarse or FineGrained; default None): how samples are dealt
            to ranks; None: ``Disjoint()``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead; as many again for the
            validation set. They live as long as the run, with the data set as it was when they were started.
        evaluation_batch_size (int, from 1; default None): samples per rank and forward pass of the evaluation; None:
            ``batch_size``.
        collate (callable; default None): ``collate(items)`` makes the pair of inputs and targets of a batch from a list
            of the data set's items, in the process that reads them; None: as torch's DataLoader, but for tuples, which
            stay tuples.
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
        topology (Topology; default None): which ranks share a node; None: those with the same host name.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): ranks that train together where others do something else; this rank must
            be in it. None: all ranks.

    Among the recorded seconds, means over the ranks, ``train_s`` are those spent in training steps and ``wait_s``
    those in which the CPU, or the GPU's stream, waited for the method's communication. A GPU works behind the CPU:
    there ``train_s`` is right at an evaluation. ``samples_per_s`` is the throughput of all ranks in the training steps
    since the last evaluation, waiting included; ``peak_memory_bytes``, on GPUs only, the most memory that torch has
    allocated on a rank's device in this run (CUDA's peak counters begin anew with it). Python's, numpy's and torch's
    global generators are restored afterwards.

    Raises:
        Interrupted: ``interrupt`` asked for it.
        ValueError: settings are not allowed or differ between ranks, a checkpoint is damaged or of other settings, a
            directory cannot be written, or a launcher's rank is in no group: before the first step, but for what only
            the training shows, such as sparse gradients.
        TypeError: a keyword does not exist, a data set is none, or the model, the loss or a metric returned something
            else than it should.
        CommunicationError: a rank is lost or hangs.
    """
    check_call(model=model, metrics=metrics, optimizer=optimizer)
    check_ranks(topology, timeout)
    settings = Settings(
        model=model,
        train_set=train_set,
        validation_set=validation_set,
        loss=loss,
        step=step,
        epochs=epochs,
        steps=steps,
        evaluate_every=evaluate_every,
        batch_size=batch_size,
        metrics=dict(metrics or {}),
        schedule=Constant() if schedule is None else schedule,
        early_stopping=early_stopping,
        seed=seed,
        device=device_of(model),
        precision=precision,
        clip_norm=clip_norm,
        clip_value=clip_value,
        accumulate=accumulate,
        label_smoothing=label_smoothing,
        ema_decay=ema_decay,
        parameter_groups=parameter_groups,
        activation_checkpointing=activation_checkpointing,
        assignment=Disjoint() if assignment is None else assignment,
        loader_processes=loader_processes,
        evaluation_batch_size=batch_size if evaluation_batch_size is None else evaluation_batch_size,
        collate=collate,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        on_other_ranks=on_other_ranks,
        interrupt=interrupt,
        report=report,
        on_step=on_step,
        progress=progress,
        flops_per_sample=flops_per_sample,
        peak_flops=peak_flops,
        profile=profile,
    )
    method = DDP() if method is None else method
    check_argument("method", method, is_method(method), "a method's settings, DDP() say")
    refuse_wrapped(model, instead="")
    refuse_alone_among_many()
    device, saved = settings.device, checkpoint is not None
    # The device first: a communicator may have a library allocate something there.
    with (
        generators_kept(),
        current(device),
        # Forward passes open their own, as ``precision`` says.
        without_autocast(device),
        matrix_products(device, precision),
    ):
        communicator = Communicator(topology=topology, timeout=timeout, device=device, among=group)
        try:
            channel = communicator.service
            check_tensors(model, exchanged=communicator.size > 1, saved=saved)
            refuse_other_models(channel, model)
            agreed = {
                **settings.agreed(),
                "method": method,
                "ranks of each node": communicator.nodes,
                "checkpoint": "a directory" if saved else "None",
            }
            refuse_other_settings(channel, agreed)
            # Each rank's caller may have drawn other weights: rank 0's count.
            broadcast_tensors(communicator.service, [*model.parameters(), *model.buffers()])
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise ValueError("No parameter of the model requires a gradient: there is nothing to train.")
            # Kept nowhere here: what a decomposition replaces would else stay in memory to the run's end.
            made = _made(optimizer, model, parameter_groups)
            refuse_foreign_tensors(
                model.parameters(),
                made,
                remedy="Give what is trained of a loss to the model, and compute the loss in it or by step=.",
            )
            refuse_other_optimizers(channel, made)
            if communicator.rank == 0:
                warn_of_evaluation_mode(model)
            run = Run(settings, communicator, made, method)
            del made
            try:
                result = run.to_the_end()
            finally:
                run.close()
            communicator.close(keep=True)
            return result
        except Exception as error:
            # One that says so is raised by all ranks after the same call, as where ``report`` ends a poor run.
            communicator.close(keep=getattr(error, "on_all_ranks", False) is True)
            raise
        finally:
            communicator.close()


def _made(
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer | Sequence[Optimizer]],
    model: nn.Module,
    groups_of: GroupSettings | None,
) -> Optimizer:
    if groups_of is None:
        return _as_one(optimizer([parameter for parameter in model.parameters() if parameter.requires_grad]))
    groups = grouped(model, groups_of)
    made = _as_one(optimizer(cast("Any", groups)))
    refuse_unknown_settings(made, groups)
    return made


def _as_one(made: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """Checked optimizer that the user's function returned, a list of them as one."""
    if not isinstance(made, (list, tuple)) or not made:
        check_optimizer(made)
        return cast("Optimizer", made)
    for part in made:
        check_optimizer(part)
    return Composite(made) if len(made) > 1 else made[0]
