"""``trainers.train``: checks what it is given and trains the model by the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

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
from trainers.evaluation.evaluate import current, device_of
from trainers.evaluation.forward import Loss, Step
from trainers.evaluation.metrics import Metric
from trainers.keywords import combined, refuse_unknown, with_fields_of
from trainers.methods.ddp import DDP
from trainers.methods.strategy import Method, check_method
from trainers.modes import warn_of_evaluation_mode
from trainers.optim.composite import Composite
from trainers.optim.early_stopping import EarlyStopping
from trainers.optim.parameter_groups import grouped, refuse_unknown_settings
from trainers.optim.schedules import Constant, Schedule
from trainers.options import Checkpointing, DataLoading, Monitoring, Optimisation, Ranks
from trainers.precision import matrix_products, without_autocast
from trainers.randomness import generators_kept
from trainers.run.model_checks import refuse_foreign_tensors, refuse_wrapped
from trainers.run.result import Result
from trainers.run.settings import Settings, check_call, check_optimizer, check_tensors
from trainers.run.training_run import Run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trainers.options import Keywords


@with_fields_of(Optimisation, DataLoading, Checkpointing, Monitoring, Ranks)
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
    optimisation: Optimisation | None = None,
    data: DataLoading | None = None,
    checkpointing: Checkpointing | None = None,
    monitoring: Monitoring | None = None,
    ranks: Ranks | None = None,
    **keywords: Unpack[Keywords],
) -> Result:
    """Train ``model``, in place and on its device, with the ranks of the initialised group, or alone.

    Compile a model's blocks one by one: each block's gradients are sent while those before it compute theirs. With
    ``torch.compile(model)`` hardly any of the sending overlaps with the backward pass.

    What belongs together can be given as one value, or by keywords, or partly as each: ``clip_norm=1.0`` is
    ``optimisation=trainers.Optimisation(clip_norm=1.0)``.

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
        optimisation (Optimisation; default None): ``precision`` to ``activation_checkpointing`` below, as one value.
        data (DataLoading; default None): ``assignment`` to ``evaluation_batch_size``.
        checkpointing (Checkpointing; default None): ``checkpoint`` to ``interrupt``.
        monitoring (Monitoring; default None): ``report`` to ``progress``.
        ranks (Ranks; default None): ``topology`` to ``group``.

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
    fields = cast("dict[str, Any]", keywords)
    optimisation = combined("optimisation", optimisation, Optimisation, fields)
    data = combined("data", data, DataLoading, fields)
    checkpointing = combined("checkpointing", checkpointing, Checkpointing, fields)
    monitoring = combined("monitoring", monitoring, Monitoring, fields)
    ranks = combined("ranks", ranks, Ranks, fields)
    refuse_unknown(train, fields)
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
        optimisation=optimisation,
        data=data,
        checkpointing=checkpointing,
        monitoring=monitoring,
    )
    method = DDP() if method is None else method
    check_method(f"method = {method!r}", method)
    refuse_wrapped(model, instead="")
    refuse_alone_among_many()
    device, saved = settings.device, checkpointing.checkpoint is not None
    # The device first: a communicator may have a library allocate something there.
    with (
        generators_kept(),
        current(device),
        # Forward passes open their own, as ``precision`` says.
        without_autocast(device),
        matrix_products(device, optimisation.precision),
    ):
        communicator = Communicator(
            topology=ranks.topology, timeout=ranks.timeout, device=device, among=ranks.group
        )
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
            made = _made(optimizer, model, optimisation)
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
    options: Optimisation,
) -> Optimizer:
    if options.parameter_groups is None:
        return _as_one(optimizer([parameter for parameter in model.parameters() if parameter.requires_grad]))
    groups = grouped(model, options.parameter_groups)
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
