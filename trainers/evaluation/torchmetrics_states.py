"""torchmetrics' metrics over the ranks of a run. They join their states themselves in ``compute``, of all ranks that
torch knows of and for as long as it takes, where nothing else is said; here it is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainers.communication.channel import Channel

_TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_DIMENSIONS = 8


@contextmanager
def joined_over(metric: object, channel: Channel) -> Iterator[None]:
    """Inside, ``metric.compute()`` is of what the ranks of ``channel`` were given, and so are those of metrics in it.
    What has a ``process_group`` or a ``dist_sync_fn`` from its user is left as it is. Other objects than torchmetrics'
    are, too.
    """
    parts: list[Any] = [
        part
        for part in (metric.modules() if isinstance(metric, nn.Module) else ())
        if hasattr(part, "sync_on_compute")
        and getattr(part, "process_group", None) is None
        and getattr(part, "dist_sync_fn", None) is None
    ]
    before = [part.distributed_available_fn for part in parts]
    for part in parts:
        part.dist_sync_fn = partial(_of_all_ranks, channel)
        part.distributed_available_fn = lambda: channel.size > 1
    try:
        yield
    finally:
        for part, available in zip(parts, before, strict=True):
            part.dist_sync_fn, part.distributed_available_fn = None, available


def _of_all_ranks(channel: Channel, tensor: Tensor, group: object = None) -> list[Tensor]:
    """The tensors of all ranks, whose shapes may differ, in order of rank, where ``tensor`` is. Of a rank that was
    given nothing torchmetrics has an empty one of any type: it becomes one that can be joined with the others.
    """
    described = torch.zeros(2 + _DIMENSIONS, dtype=torch.int64, device="cpu")
    described[:2] = torch.tensor([_TYPES.index(tensor.dtype), tensor.dim()])
    described[2 : 2 + tensor.dim()] = torch.tensor(tensor.shape, dtype=torch.int64)
    kinds: list[tuple[torch.dtype, list[int]]] = []
    for number, dimensions, *shape in (one.tolist() for one in channel.all_gather(described)):
        kinds.append((_TYPES[number], shape[:dimensions]))
    sizes = [kind.itemsize * math.prod(shape) for kind, shape in kinds]
    sent = torch.zeros(max(1, *sizes), dtype=torch.uint8, device=tensor.device)
    own = tensor.detach().contiguous().view(-1).view(torch.uint8)
    sent[: len(own)] = own
    parts = channel.all_gather(sent)
    filled, like = next((one for one, size in zip(kinds, sizes, strict=True) if size), kinds[0])
    return [
        part[:size].view(kind).view(shape) if size else part.new_empty([0, *like[1:]], dtype=filled)
        for part, size, (kind, shape) in zip(parts, sizes, kinds, strict=True)
    ]
