"""Mean of the ranks' models: for an evaluation within an epoch, which does not change the training, and for weights
that each rank has averaged over its own steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainers.communication.buckets import average_tensors, broadcast_tensors, buffers_of
from trainers.communication.channel import Channel


@contextmanager
def averaged_over_ranks(
    channel: Channel, model: nn.Module, *, parameters: Sequence[Tensor]
) -> Iterator[None]:
    """Context in which all ranks have the mean of their models; afterwards, each rank has its own model again.

    Collective. Running statistics are averaged, other buffers are those of the first rank.

    Args:
        channel (Channel): ranks to average over.
        model (Module): model of this rank.
        parameters (sequence of tensors): parameters of the model that differ between ranks.
    """
    if channel.size == 1:
        yield
        return
    averaged, others = _tensors(model, parameters)
    kept = [tensor.detach().clone() for tensor in (*averaged, *others)]
    average_over_ranks(channel, model, parameters=parameters)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, own in zip((*averaged, *others), kept, strict=True):
                tensor.copy_(own)


def average_over_ranks(channel: Channel, model: nn.Module, *, parameters: Sequence[Tensor]) -> None:
    """Replace this rank's model by the mean of the ranks' models, as in ``averaged_over_ranks``. Collective."""
    averaged, others = _tensors(model, parameters)
    average_tensors(channel, averaged)
    broadcast_tensors(channel, others)


def _tensors(model: nn.Module, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors to average, and tensors to take from the first rank."""
    statistics, others = buffers_of(model)
    return [*parameters, *statistics], others
