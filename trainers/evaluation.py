"""Scores of a model on a whole data set, its samples shared by the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.data.batches import in_order, length_of, share
from trainers.data.loader import Loader
from trainers.precision import PRECISIONS, autocast, matrix_products

Metric = Callable[[Tensor, Tensor], Tensor | float]
"""(outputs, targets) of all samples, in the order of the set, to one number."""


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
) -> dict[str, float]:
    """Metrics of ``model`` on ``samples``, by name; the same on every rank of the initialised group, or alone.

    The ranks' models must be the same. The model is left in training or evaluation mode as it was.

    Args:
        model (Module): on the device where it is to be evaluated.
        samples (Dataset): pairs of inputs and target, as for ``train``.
        metrics (dict of callables): by name, ``metric(outputs, targets)`` of all samples at once.
        batch_size (int, from 1): samples per rank and forward pass.
        precision (str; default "fp32"): "fp32", "tf32" or "bf16", as for ``train``.
        loader_processes (int, from 0; default 0): processes per rank that read ahead.
        timeout (timedelta; default timedelta(minutes=10)): how long ranks wait for one another.
        group (ProcessGroup; default None): the ranks that evaluate; None: all.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size = {batch_size!r}: must be a whole number of at least 1. Correct it.")
    if precision not in PRECISIONS:
        raise ValueError(f'precision = {precision!r}: must be "fp32", "tf32" or "bf16". Correct it.')
    device = device_of(model)
    communicator = Communicator(topology=None, timeout=timeout, device=device, among=group)
    try:
        with (
            current(device),
            matrix_products(device, precision),
            Loader(samples, device=device, processes=loader_processes) as loader,
        ):
            return scores(
                model,
                samples,
                loader,
                metrics=metrics,
                batch_size=batch_size,
                precision=precision,
                channel=communicator.service,
            )
    finally:
        communicator.close()


# Not inference_mode: what a model keeps from a forward pass, a mask say, could not be trained with later.
@torch.no_grad()
def scores(
    model: nn.Module,
    samples: Dataset[object],
    loader: Loader,
    *,
    metrics: Mapping[str, Metric],
    batch_size: int,
    precision: str,
    channel: Channel,
) -> dict[str, float]:
    """As ``evaluate``, with the ranks of ``channel`` and the ``loader`` of ``samples``.

    Collective: a gather each of numbers of rows, outputs and targets, and a broadcast.
    """
    device, count = device_of(model), length_of(samples)
    # A rank without samples would not know the outputs' shape: then each takes them all.
    shared = count >= channel.size
    mine = share(count, rank=channel.rank, ranks=channel.size) if shared else range(count)
    was_training = model.training
    model.eval()
    try:
        parts = []
        with closing(loader.batches(in_order(mine, batch_size=batch_size))) as batches:
            for inputs, targets in batches:
                with autocast(device, precision):
                    outputs = outputs_of(model, inputs)
                if not outputs.dim():
                    raise TypeError(
                        "The model returned a tensor without dimensions for a batch, and those of all batches are to "
                        "be joined for the metrics. Return its outputs, and let the loss make one number of them."
                    )
                if outputs.dtype is torch.bfloat16:
                    outputs = outputs.float()
                elif outputs.is_cuda:
                    # A captured forward pass writes into the same memory each time.
                    outputs = outputs.clone()
                parts.append((outputs, targets))
    finally:
        model.train(was_training)
    all_outputs, all_targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if shared and channel.size > 1:
        # Not by the shares: a sample may have several rows, as each token of a text has.
        rows = channel.all_gather(torch.tensor([len(all_outputs), len(all_targets)], device=device))
        of_outputs, of_targets = torch.stack(rows, 1).tolist()
        all_outputs, all_targets = (
            _gathered(all_outputs, of_outputs, channel),
            _gathered(all_targets, of_targets, channel),
        )
    values = [_number(name, metric(all_outputs, all_targets)) for name, metric in metrics.items()]
    # Ranks decide by these numbers, so all must have the same ones to the last bit: rank 0's.
    agreed = channel.broadcast(torch.tensor(values, dtype=torch.float64, device=device)).wait().tolist()
    return dict(zip(metrics, agreed, strict=True))


def _number(name: str, value: object) -> float:
    """``value``, which the metric ``name`` returned. TypeError if it is not one number."""
    shape = ""
    if isinstance(value, Tensor):
        if value.numel() == 1 and not value.is_complex():
            # An error here is a GPU's, of whatever it was about just before.
            return float(value.item())
        shape = f" of shape {tuple(value.shape)} and {value.dtype}"
    else:
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
    whose = "loss" if name == "validation_loss" else f"metrics: {name!r}"
    raise TypeError(
        f"{whose} returned {type(value).__name__}{shape} for all outputs and targets, and must return one number. "
        "Correct it."
    )


def outputs_of(model: nn.Module, inputs: object) -> Tensor:
    """The model's output; a list, a tuple or a dictionary of inputs becomes its arguments. TypeError if it is not one
    tensor.
    """
    if isinstance(inputs, dict):
        outputs = model(**inputs)
    elif isinstance(inputs, (list, tuple)):
        outputs = model(*inputs)
    else:
        outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"The model returned {type(outputs).__name__}; losses and metrics take a tensor. Wrap it."
        )
    return outputs


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


def _gathered(mine: Tensor, rows: list[int], channel: Channel) -> Tensor:
    """The ranks' tensors, of ``rows`` rows each, one after the other."""
    # Collectives want one shape: what shorter parts are filled up with is cut off again.
    missing = max(rows) - len(mine)
    padded = torch.cat([mine, mine.new_zeros(missing, *mine.shape[1:])]) if missing else mine
    parts = channel.all_gather(padded.contiguous())
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])
