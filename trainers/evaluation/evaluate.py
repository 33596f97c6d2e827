"""Scores of a model on a whole data set, its samples shared by the ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from trainers.arguments import is_whole
from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.data.batches import in_order, length_of, share
from trainers.data.fetching import Collate, check_reading
from trainers.data.loader import Loader
from trainers.data.streams import stream_of
from trainers.evaluation.forward import Forward, Step
from trainers.evaluation.metrics import MeanLoss, Metric, Scores, check_metrics
from trainers.modes import modes_of, restore_modes
from trainers.precision import PRECISIONS, autocast, matrix_products


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
    """Metrics of ``model`` on ``samples``, by name; the same on every rank of the initialised group, or alone.

    The ranks' models must be the same. Each module is left in the mode, training or evaluation, that it was in.

    Args:
        model (Module): on the device where it is to be evaluated.
        samples (Dataset): pairs of inputs and target, as for ``train``.
        metrics (dict): by name, as for ``train``.
        batch_size (int, from 1): samples per rank and forward pass.
        precision (str; default "fp32"): "fp32", "tf32" or "bf16", as for ``train``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): the ranks that evaluate; None: all.
        step (callable; default None): as for ``train``; None: outputs are what the model returns.
        collate (callable; default None): as for ``train``.

    Raises:
        ValueError: a setting is not allowed.
        TypeError: as for ``train``.
        CommunicationError: a rank is lost or hangs.
    """
    if not is_whole(batch_size, 1):
        raise ValueError(f"batch_size = {batch_size!r}: must be a whole number of at least 1. Correct it.")
    if precision not in PRECISIONS:
        raise ValueError(f'precision = {precision!r}: must be "fp32", "tf32" or "bf16". Correct it.')
    check_metrics(metrics)
    check_reading("samples", samples, loader_processes=loader_processes, collate=collate)
    device = device_of(model)
    with current(device), matrix_products(device, precision):
        communicator = Communicator(topology=None, timeout=timeout, device=device, among=group)
        try:
            with Loader(
                samples,
                device=device,
                processes=loader_processes,
                collate=collate,
                rank=communicator.rank,
                ranks=communicator.size,
            ) as loader:
                found = scores(
                    model,
                    samples,
                    loader,
                    forward=Forward(step=step),
                    metrics=metrics,
                    batch_size=batch_size,
                    precision=precision,
                    channel=communicator.service,
                )
            communicator.close(keep=True)
            return found
        finally:
            communicator.close()


# Not inference_mode: what a model keeps from a forward pass, a mask say, could not be trained with later.
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
) -> dict[str, float]:
    """As ``evaluate``, with the ranks of ``channel`` and the ``loader`` of ``samples``; a metric that is a
    ``MeanLoss`` is given the losses of the ``forward``'s step.

    Collective: as ``Scores.values``.
    """
    device = device_of(model)
    stream = stream_of(samples)
    # A rank without samples would have nothing to say: then each takes them all.
    shared = stream is not None or length_of(samples) >= channel.size
    computed = Scores(metrics, channel=channel, device=device)
    losses = [metric for metric in metrics.values() if isinstance(metric, MeanLoss)]
    needed = len(losses) < len(metrics)
    modes = modes_of(model)
    model.eval()
    try:
        with closing(_batches(samples, loader, batch_size=batch_size, channel=channel)) as batches:
            computing: tuple[object, object, int] | None = None
            for inputs, targets, count in batches:
                # Only now that this batch is on its way: what metrics take of the one before, the host waits for.
                if computing is not None:
                    computed.update(*computing)
                    computing = None
                with autocast(device, precision):
                    loss, outputs = forward.evaluated(model, inputs, targets, outputs=needed)
                # The user's step may have left it in training.
                if model.training:
                    model.eval()
                if not shared and channel.rank:
                    continue
                for mean in losses:
                    if loss is not None:
                        mean.add(loss, count)
                if needed:
                    computing = outputs, targets, count
            if computing is not None:
                computed.update(*computing)
    finally:
        restore_modes(model, modes)
    return computed.values(shared=shared)


def _batches(
    samples: Dataset[object], loader: Loader, *, batch_size: int, channel: Channel
) -> Generator[tuple[object, object, int]]:
    """Inputs, targets and number of samples of this rank's batches."""
    if stream_of(samples) is not None:
        yield from loader.to_the_end(batch_size)
        return
    count = length_of(samples)
    mine = share(count, rank=channel.rank, ranks=channel.size) if count >= channel.size else range(count)
    planned = in_order(mine, batch_size=batch_size)
    with closing(loader.batches(planned)) as batches:
        for batch, (inputs, targets) in zip(planned, batches, strict=True):
            yield inputs, targets, len(batch.indices)


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's parameters; ValueError if there are several or no parameters."""
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "none, as it has no parameters"
        raise ValueError(
            f"The model must be on one device, and is on {found}. Move it with model.to(device)."
        )
    return devices.pop()


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Inside, ``device`` is the current one if it is a GPU: what libraries allocate without naming a device would else
    lie on the first, which every rank of the node would have a context on.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield
