"""Evaluation of a model on a whole data set, whose samples the ranks share."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainers.arguments import check_argument, is_whole
from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.communication.gathering import sent_to_all
from trainers.data.batches import in_order, length_of, share
from trainers.data.fetching import Collate, check_reading
from trainers.data.loader import Loader
from trainers.data.streams import stream_of
from trainers.evaluation.forward import Forward, Step
from trainers.evaluation.metrics import MeanLoss, Metric, Scores, check_metrics, full
from trainers.gpu import is_gpu, module_of
from trainers.methods.sharded_models import Sharded, errors_named, sharding_of
from trainers.methods.strategy import DataRanks
from trainers.modes import modes_of, restore_modes
from trainers.precision import PRECISIONS, autocast, matrix_products
from trainers.structures import mapped, moved

_Counted = tuple[object, object, int]
"""Inputs and targets of a batch, and how many of its samples count."""


def evaluate(
    model: nn.Module,
    samples: Dataset[object],
    *,
    metrics: Mapping[str, Metric],
    batch_size: int,
    precision: str = "fp32",
    loader_processes: int = 0,
    timeout: timedelta = timedelta(minutes=10),
    group: dist.ProcessGroup | None = None,
    step: Step | None = None,
    collate: Collate | None = None,
) -> dict[str, float]:
    """Metrics of ``model`` on ``samples`` by name, equal on all ranks of the initialised group, or on a single process.

    The ranks' models must be equal. Modules stay in the mode, training or evaluation, that they are in.

    Args:
        model (Module): model, on the device that evaluates it.
        samples (Dataset): pairs of inputs and targets, the same as for ``train``.
        metrics (dict): metrics by name, the same as for ``train``.
        batch_size (int, from 1): samples per rank and forward pass.
        precision (str; default "fp32"): "fp32", "tf32" or "bf16", the same as for ``train``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead.
        timeout (timedelta; default timedelta(minutes=10)): longest time that ranks wait for each other.
        group (ProcessGroup; default None): ranks that evaluate; None: all.
        step (callable; default None): the user's own step, the same as for ``train``; None: the model's return values
            are the outputs.
        collate (callable; default None): function that makes batches, the same as for ``train``.

    Raises:
        ValueError: a setting is not allowed.
        TypeError: the same as for ``train``.
        CommunicationError: a rank is lost or hangs.
    """
    check_argument("batch_size", batch_size, is_whole(batch_size, 1), "a whole number of at least 1")
    check_argument("precision", precision, precision in PRECISIONS, '"fp32", "tf32" or "bf16"')
    check_metrics(metrics)
    check_reading("samples", samples, loader_processes=loader_processes, collate=collate)
    device, sharded = device_of(model), sharding_of(model)
    with (
        current(device),
        matrix_products(device, precision),
        Communicator(topology=None, timeout=timeout, device=device, among=group) as communicator,
        Loader(
            samples,
            device=device,
            processes=loader_processes,
            collate=collate,
            rank=(data := _data_ranks(sharded, communicator)).rank,
            ranks=data.ranks,
        ) as loader,
        errors_named(communicator.service) if sharded else nullcontext(),
    ):
        return scores(
            model,
            samples,
            loader,
            forward=Forward(step=step),
            metrics=metrics,
            batch_size=batch_size,
            precision=precision,
            channel=communicator.service,
            data=data,
            equal_passes=sharded is not None,
        )


def _data_ranks(sharded: Sharded | None, communicator: Communicator) -> DataRanks:
    """Place of this rank in an evaluation; ValueError for a sharded model without all of its ranks."""
    if sharded is None:
        return DataRanks(communicator.rank, communicator.size)
    if communicator.size != sharded.channel.size:
        raise ValueError(
            f"The model is sharded over {sharded.channel.size} ranks, and {communicator.size} would evaluate it. Call "
            "trainers.evaluate on each of these ranks, with their group, while their process group is there; or "
            "evaluate trainers.whole(model)."
        )
    return sharded.data


# Not inference_mode: tensors that a model keeps from a forward pass, such as masks, could not be used in training.
@torch.no_grad()
def scores(
    model: nn.Module,
    samples: Dataset[object],
    loader: Loader,
    *,
    forward: Forward,
    metrics: Mapping[str, Metric],
    batch_size: int,
    precision: str,
    channel: Channel,
    data: DataRanks,
    equal_passes: bool = False,
) -> dict[str, float]:
    """Same as ``evaluate``, with the ranks of ``channel`` and an open loader. Collective: see ``Scores.values``.

    A metric of the class ``MeanLoss`` gets the losses of batches, by the loss or the step of ``forward``. Of ranks that
    ``data`` gives the same samples, the first counts. With ``equal_passes``, all ranks have as many forward passes.
    """
    device = device_of(model)
    stream = stream_of(samples)
    # Each rank evaluates all samples if there are fewer samples than ranks: a rank without any has no metrics.
    shared = stream is not None or length_of(samples) >= data.ranks
    counts = channel.rank % (channel.size // data.ranks) == 0 if shared else channel.rank == 0
    computed = Scores(metrics, channel=channel, device=device)
    losses = [metric for metric in metrics.values() if isinstance(metric, MeanLoss)]
    needed = len(losses) < len(metrics)
    needs_outputs = needed or forward.loss is not None
    modes = modes_of(model)
    model.eval()
    try:
        batches = _batches(samples, loader, batch_size=batch_size, data=data, equal_passes=equal_passes)
        if equal_passes and stream is not None:
            batches = _until_all_end(batches, channel, device)
        with closing(batches):
            computing: tuple[object, object, int] | None = None
            for inputs, targets, count in batches:
                # Metrics get the previous batch only now that this batch is on its way to the GPU, because the host
                # waits for the GPU when metrics read their inputs.
                if computing is not None:
                    computed.update(*computing)
                    computing = None
                with autocast(device, precision):
                    loss, outputs = forward.evaluated(model, inputs, targets, outputs=needs_outputs)
                outputs = mapped(outputs, full)
                if model.training:  # where the user's step has left it so
                    model.eval()
                if not (counts and count):
                    continue
                for mean in losses:
                    # Per batch: outputs of a whole set may not fit in memory, such as classes of pixels.
                    if forward.loss is not None:
                        mean.add(forward.validation_loss(outputs, targets), count, outputs)
                    elif loss is not None:
                        mean.add(loss, count)
                if needed:
                    computing = outputs, targets, count
            if computing is not None:
                computed.update(*computing)
    finally:
        restore_modes(model, modes)
    return computed.values(shared=shared)


def _batches(
    samples: Dataset[object], loader: Loader, *, batch_size: int, data: DataRanks, equal_passes: bool
) -> Generator[_Counted]:
    """Inputs, targets and numbers of samples of this rank's batches; 0 for a batch that comes again, in vain."""
    if stream_of(samples) is not None:
        yield from loader.to_the_end(batch_size)
        return
    count = length_of(samples)
    of_ranks = [range(count)]
    if count >= data.ranks:
        of_ranks = [share(count, rank=rank, ranks=data.ranks) for rank in range(data.ranks)]
    planned = in_order(of_ranks[data.rank % len(of_ranks)], batch_size=batch_size)
    most = -(-max(map(len, of_ranks)) // batch_size) if equal_passes else len(planned)
    counts = [len(batch.indices) for batch in planned]
    in_vain = most - len(planned)
    with closing(loader.batches([*planned, *planned[:1] * in_vain])) as batches:
        for number, (inputs, targets) in zip([*counts, *[0] * in_vain], batches, strict=True):
            yield inputs, targets, number


def _until_all_end(
    batches: Generator[_Counted], channel: Channel, device: torch.device
) -> Generator[_Counted]:
    """``batches`` of a stream, and one again, which counts as no sample, while another rank has more. Collective."""
    last: _Counted | None = None
    with closing(batches):
        while True:
            found = next(batches, None)
            having = [rank for rank, has in enumerate(channel.number_of_each(int(found is not None))) if has]
            if not having:
                return
            if last is None and len(having) < channel.size:  # the first pass, on all ranks
                mine = None if found is None else mapped(found[:2], Tensor.cpu)
                sent = moved(sent_to_all(mine, channel, source=having[0]), device)
                last = (*cast("tuple[object, object]", sent), 0)
            last = last and (*last[:2], 0) if found is None else found
            assert last is not None
            yield last


def device_of(model: nn.Module) -> torch.device:
    """Device of the model's parameters; ValueError for several devices, or without parameters."""
    sharded = sharding_of(model)
    devices = {sharded.device} if sharded else {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "none, as it has no parameters"
        raise ValueError(
            f"The model must be on one device, and is on {found}. Move it with model.to(device)."
        )
    return devices.pop()


def current(device: torch.device) -> AbstractContextManager[object]:
    """Context in which ``device`` is torch's current device if it is a GPU."""
    # Libraries that allocate memory without naming a device use the current device. By default, that is the first GPU
    # of the node, which would get a context of every rank.
    return module_of(device).device(device) if is_gpu(device) else nullcontext()
