"""torchmetrics' metrics over the ranks of a run. By default their ``compute`` joins states over all ranks that torch
has, and waits without our time-out; here, over the channel's ranks, within it.
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
"""The most that torch has."""
_OF_MASKS = "_gather_tuple_list"
"""The method by which MeanAveragePrecision joins masks, which are no tensors, over all ranks that torch has."""
_ABSENT = -1
"""In the place of a type: there is no tensor."""


class _Absent(Tensor):
    """In the list of a rank that has fewer tensors than others."""


@contextmanager
def joined_over(metric: object, channel: Channel) -> Iterator[None]:
    """Inside, ``metric.compute()`` is of what the ranks of ``channel`` were given, and so are those of metrics in it.
    What has a ``process_group`` or a ``dist_sync_fn`` from its user is left as it is. Other objects than torchmetrics'
    are, too. Collective.
    """
    parts = [
        part
        for part in _parts(metric)
        if getattr(part, "process_group", None) is None and getattr(part, "dist_sync_fn", None) is None
    ]
    before = [(part, part.distributed_available_fn, _made_equally_long(part, channel)) for part in parts]
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
            vars(part).pop(_OF_MASKS, None)
            for name, own in lists.items():
                setattr(part, name, own)


@contextmanager
def alone(metric: object) -> Iterator[None]:
    """Inside, ``metric.compute()`` is of what this rank was given, whatever its user has set, and so are those of
    metrics in it: no other rank calls it. Other objects than torchmetrics' are left as they are.
    """
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
    """Of torchmetrics' ``metric`` itself and the metrics in it; of another object none."""
    modules = metric.modules() if isinstance(metric, nn.Module) else ()
    return [part for part in modules if hasattr(part, "sync_on_compute")]


def _made_equally_long(part: Any, channel: Channel) -> dict[str, list[Tensor]]:
    """Bring the lists of tensors that ``part`` does not concatenate before it sends them, of a tensor a batch or a
    sample, to the length of the longest of all ranks. Returns by name the lists as they were.
    """
    kept = {}
    for name, joins in getattr(part, "_reductions", {}).items():
        own = getattr(part, name)
        if channel.size == 1 or not isinstance(own, list) or getattr(joins, "__name__", "") == "dim_zero_cat":
            continue
        # Masks, say; a rank without samples does not know.
        if any(channel.number_of_each(int(not all(isinstance(entry, Tensor) for entry in own)))):
            continue
        kept[name] = own
        lacking = max(channel.number_of_each(len(own))) - len(own)
        setattr(part, name, own + [torch.zeros(0).as_subclass(_Absent) for _ in range(lacking)])
    return kept


def _tuples_of_all_ranks(channel: Channel, own: list[Any], group: object = None) -> list[Any]:
    """The entries of the ranks' lists, tuples of numbers, text and bytes, in the order in which torchmetrics has those
    of other states: of each rank the first, of each the second, and so on.
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
    """The tensors of the ranks that have one, whose shapes may differ, in order of rank, where ``tensor`` is. Of a rank
    that was given nothing torchmetrics has an empty one of any type: it becomes one that can be joined with the others.
    They are sent from the host's memory: where they are may differ between ranks.
    """
    own = tensor.detach().to("cpu").contiguous()
    described = torch.zeros(2 + _DIMENSIONS, dtype=torch.int64, device="cpu")
    number = _ABSENT if isinstance(tensor, _Absent) else _TYPES.index(own.dtype)
    described[:2] = torch.tensor([number, own.dim()])
    described[2 : 2 + own.dim()] = torch.tensor(own.shape, dtype=torch.int64)
    kinds: list[tuple[torch.dtype, list[int], bool]] = []
    for kind, dimensions, *shape in (one.tolist() for one in channel.all_gather(described)):
        kinds.append((_TYPES[max(0, kind)], shape[:dimensions], kind != _ABSENT))
    sizes = [kind.itemsize * math.prod(shape) for kind, shape, _ in kinds]
    sent = torch.zeros(max(1, *sizes), dtype=torch.uint8, device="cpu")
    mine = own.as_subclass(Tensor).view(-1).view(torch.uint8)
    sent[: len(mine)] = mine
    parts = channel.all_gather(sent)
    filled, like, _ = next((one for one, size in zip(kinds, sizes, strict=True) if size), kinds[0])
    found = [
        part[:size].view(kind).view(shape) if size else part.new_empty([0, *like[1:]], dtype=filled)
        for part, size, (kind, shape, there) in zip(parts, sizes, kinds, strict=True)
        if there
    ]
    return [part.to(tensor.device) for part in found]
