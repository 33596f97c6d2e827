"""Metrics of torchmetrics over the ranks of a channel, within its time-out.

By default, their ``compute`` combines states over all ranks of torch, without the run's time-out.
"""

from __future__ import annotations

import json
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
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_DIMENSIONS = 64
"""Most dimensions of a tensor in torch."""
_OF_MASKS = "_gather_tuple_list"
"""Method by which MeanAveragePrecision combines masks, which are no tensors, over all ranks of torch."""
_ABSENT = -1
"""Number in place of a type where there is no tensor."""


class _Absent(Tensor):
    """Stand-in in the list of a rank that has fewer tensors than others."""


@contextmanager
def joined_over(metric: object, channel: Channel) -> Iterator[None]:
    """Context in which ``metric.compute()``, also of metrics in it, combines the states of the ranks of ``channel``.

    Metrics with a ``process_group`` or a ``dist_sync_fn`` of the user's, and others than torchmetrics', are left alone.
    """
    parts = [
        part
        for part in _parts(metric)
        if getattr(part, "process_group", None) is None and getattr(part, "dist_sync_fn", None) is None
    ]
    before = [(part, part.distributed_available_fn, _lengthen_lists(part, channel)) for part in parts]
    for part in parts:
        part.dist_sync_fn = partial(_of_all_ranks, channel)
        part.distributed_available_fn = lambda: channel.size > 1
        if hasattr(part, _OF_MASKS):
            setattr(part, _OF_MASKS, partial(_tuples_of_all_ranks, channel))
    try:
        yield
    finally:
        for part, available, lists in before:
            part.dist_sync_fn, part.distributed_available_fn = None, available
            # The class's own method is found again without the instance's attribute.
            vars(part).pop(_OF_MASKS, None)
            for name, own in lists.items():
                setattr(part, name, own)


@contextmanager
def alone(metric: object) -> Iterator[None]:
    """Context in which ``metric.compute()``, also of metrics in it, uses the state of this rank only."""
    parts = _parts(metric)
    before = [(part, part.distributed_available_fn) for part in parts]
    for part in parts:
        part.distributed_available_fn = lambda: False
    try:
        yield
    finally:
        for part, available in before:
            part.distributed_available_fn = available


def _parts(metric: object) -> list[Any]:
    """A metric of torchmetrics and all metrics inside of it; () for another object."""
    modules = metric.modules() if isinstance(metric, nn.Module) else ()
    return [part for part in modules if hasattr(part, "sync_on_compute")]


def _lengthen_lists(part: Any, channel: Channel) -> dict[str, list[Tensor]]:
    """Make each list of tensors in the state of ``part`` as long as the longest of all ranks; returns the lists before.

    Lists that the metric concatenates before it sends them are left out. Collective.
    """
    kept = {}
    for name, joins in getattr(part, "_reductions", {}).items():
        own = getattr(part, name)
        if channel.size == 1 or not isinstance(own, list) or getattr(joins, "__name__", "") == "dim_zero_cat":
            continue
        # Entries may be no tensors, such as masks, which a rank without samples cannot know.
        if any(channel.number_of_each(int(not all(isinstance(entry, Tensor) for entry in own)))):
            continue
        kept[name] = own
        lacking = max(channel.number_of_each(len(own))) - len(own)
        setattr(part, name, own + [torch.zeros(0).as_subclass(_Absent) for _ in range(lacking)])
    return kept


def _tuples_of_all_ranks(channel: Channel, own: list[Any], group: object = None) -> list[Any]:
    """Entries of the ranks' lists, tuples of numbers, text and bytes, in torchmetrics' order of other states.

    That order has the first entries of all ranks, then the second entries of all ranks, and so on.
    """
    sent = torch.frombuffer(bytearray(json.dumps(own, default=_as_text).encode()), dtype=torch.uint8)
    lists = [json.loads(bytes(part.numpy()), object_hook=_as_bytes) for part in _of_all_ranks(channel, sent)]
    longest = max(map(len, lists))
    return [_tuples(of_rank[at]) for at in range(longest) for of_rank in lists if at < len(of_rank)]


def _as_text(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    raise TypeError(
        f"metrics: {type(value).__name__} in the state of a metric of torchmetrics cannot be sent."
    )


def _as_bytes(found: dict[str, str]) -> bytes:
    return found["bytes"].encode("latin-1")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _of_all_ranks(channel: Channel, tensor: Tensor, group: object = None) -> list[Tensor]:
    """Tensors of all ranks that have one, of any shapes, in order of rank, on the device of ``tensor``.

    Empty tensors, which torchmetrics has with any type on ranks without samples, become tensors that can be
    concatenated with the others.
    """
    # Sent from the host's memory, because the devices may differ between ranks.
    own = tensor.detach().to("cpu").contiguous()
    described = torch.zeros(2 + _DIMENSIONS, dtype=torch.int64, device="cpu")
    number = _ABSENT if isinstance(tensor, _Absent) else _TYPES.index(own.dtype)
    described[:2] = torch.tensor([number, own.dim()])
    described[2 : 2 + own.dim()] = torch.tensor(own.shape, dtype=torch.int64)
    kinds: list[tuple[torch.dtype, list[int], bool]] = []
    for kind, dimensions, *shape in (of_rank.tolist() for of_rank in channel.all_gather(described)):
        kinds.append((_TYPES[max(0, kind)], shape[:dimensions], kind != _ABSENT))
    sizes = [kind.itemsize * math.prod(shape) for kind, shape, _ in kinds]
    sent = torch.zeros(max(1, *sizes), dtype=torch.uint8, device="cpu")
    mine = own.as_subclass(Tensor).view(-1).view(torch.uint8)
    sent[: len(mine)] = mine
    parts = channel.all_gather(sent)
    filled, like, _ = next((kind for kind, size in zip(kinds, sizes, strict=True) if size), kinds[0])
    found = [
        part[:size].view(kind).view(shape) if size else part.new_empty([0, *like[1:]], dtype=filled)
        for part, size, (kind, shape, present) in zip(parts, sizes, kinds, strict=True)
        if present
    ]
    return [part.to(tensor.device) for part in found]
