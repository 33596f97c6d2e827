"""The mean of the ranks' models: for an evaluation within an epoch, which changes nothing for the training, and for
weights that are each rank's own average over steps.
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
    """Average running statistics of ``model`` and its ``parameters``, those in which ranks differ, over ``channel``'s
    ranks, and take other buffers from the first rank; afterwards each rank has its own again. Collective.
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
    """Same as ``averaged_over_ranks``, for good."""
    averaged, others = _tensors(model, parameters)
    average_tensors(channel, averaged)
    broadcast_tensors(channel, others)


def _tensors(model: nn.Module, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors to average, and tensors to take from the first rank."""
    statistics, others = buffers_of(model)
    return [*parameters, *statistics], others
