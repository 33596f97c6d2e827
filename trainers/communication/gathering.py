"""Gathering of structures of tensors from all ranks in the memory of the first rank.

They are sent as bytes, in pieces: a GPU, from which NCCL sends, holds a piece for each rank and never the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainers.communication.channel import Channel
from trainers.structures import like, parts_of

_PIECES_BYTES = 64 * 2**20
"""Size of all ranks' pieces together."""
_Described = list[object]


def gathered(value: object, channel: Channel, device: torch.device) -> list[object] | None:
    """Gather the ``value`` of each rank on the first rank, in order of rank; None on the other ranks. Collective.

    Args:
        value (structure): structure of tensors on the CPU, text, numbers, truth values and None, of the same kinds on
            all ranks. Containers of other ranks become the classes that the first rank has in their place. TypeError
            for an object of another class.
        channel (Channel): ranks to gather from.
        device (device): device in whose memory pieces are sent.
    """
    if channel.size == 1:
        return [value]
    described, mine = _as_bytes(value)
    # All ranks send as many pieces as the largest value has, as each gather needs all ranks.
    sizes = [
        (int(text), int(whole))
        for text, whole in torch.stack(
            channel.all_gather(torch.tensor([described, len(mine)], device="cpu"))
        ).tolist()
    ]
    largest = max(whole for _, whole in sizes)
    piece = max(1, min(largest, _PIECES_BYTES // channel.size))
    received = (
        [torch.empty(whole, dtype=torch.uint8, device="cpu") for _, whole in sizes]
        if channel.rank == 0
        else []
    )
    for begin in range(0, largest, piece):
        sent = torch.zeros(piece, dtype=torch.uint8, device="cpu")
        own = mine[begin : begin + piece]
        sent[: len(own)] = own
        for part, of_rank in zip(received, channel.gather(sent.to(device)) or (), strict=True):
            room = part[begin : begin + piece]
            room.copy_(of_rank[: len(room)])
    if channel.rank:
        return None
    others = [
        _restored(json.loads(bytes(part[:text].numpy())), _taker(part[text:]), like_this=value)
        for part, (text, _) in zip(received[1:], sizes[1:], strict=True)
    ]
    return [value, *others]


def sent_to_all(value: object, channel: Channel, *, source: int) -> object:
    """``value`` of the rank ``source``, a structure as in ``gathered``, in tuples, lists and dictionaries. Collective:
    two broadcasts.
    """
    described, mine = _as_bytes(value if channel.rank == source else None)
    sizes = torch.tensor([described, len(mine)], device="cpu")
    text, whole = channel.broadcast(sizes, source=source).wait().tolist()
    sent = mine if channel.rank == source else torch.empty(whole, dtype=torch.uint8, device="cpu")
    sent = channel.broadcast(sent, source=source).wait()
    return _restored(json.loads(bytes(sent[:text].numpy())), _taker(sent[text:]), like_this=None)


def _as_bytes(value: object) -> tuple[int, Tensor]:
    """Length of the description of ``value``, and its bytes: the description, then its tensors."""
    tensors: list[Tensor] = []
    described = bytearray(json.dumps(_described(value, tensors)).encode())
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
    return len(described), torch.cat([torch.frombuffer(described, dtype=torch.uint8), *parts])


def _described(value: object, tensors: list[Tensor]) -> _Described:
    """Description of ``value`` for JSON, with types and shapes of its tensors, which are appended to ``tensors``."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
    parts = parts_of(value)
    if parts is None:
        if value is None or isinstance(value, (str, bool, int, float)):
            return ["value", value]
        raise TypeError(
            f"{type(value).__name__}: metrics of several ranks are computed on the first, which is sent tensors, text, "
            "numbers, and containers of them. Return such, or use metrics with update() and compute()."
        )
    kind = _kind(value)
    for key, _ in parts:
        if not isinstance(key, (str, int)):
            raise TypeError(f"{key!r}: keys of outputs and targets must be text or whole numbers.")
    return [kind, [key for key, _ in parts], [_described(part, tensors) for _, part in parts]]


def _kind(container: object) -> str:
    return "list" if isinstance(container, list) else "tuple" if isinstance(container, tuple) else "dict"


def _taker(data: Tensor) -> Callable[[Tensor], Tensor]:
    """Function that fills tensors with ``data``, one after the other."""
    taken = 0

    def fill(tensor: Tensor) -> Tensor:
        nonlocal taken
        begin, taken = taken, taken + tensor.nbytes
        if tensor.numel():
            tensor.view(-1).view(torch.uint8).copy_(data[begin:taken])
        return tensor

    return fill


def _restored(described: Any, fill: Callable[[Tensor], Tensor], *, like_this: object) -> object:
    kind, *rest = described
    if kind == "tensor":
        dtype, shape = rest
        return fill(torch.empty(shape, dtype=getattr(torch, dtype), device="cpu"))
    if kind == "value":
        return rest[0]
    keys, descriptions = rest
    of_first = parts_of(like_this)
    examples: list[object] = [None] * len(keys)
    fits = False
    if of_first is not None and kind == _kind(like_this):
        fits = kind != "list" and [key for key, _ in of_first] == keys
        if fits:
            examples = [part for _, part in of_first]
        elif kind == "list" and of_first:
            # Lists may differ in length: all entries become like the first entry of the first rank.
            examples = [of_first[0][1]] * len(keys)
    parts = [
        _restored(one, fill, like_this=example) for one, example in zip(descriptions, examples, strict=True)
    ]
    if fits:
        return like(like_this, parts)
    if kind == "dict":
        return _Fields(zip(keys, parts, strict=True))
    return parts if kind == "list" else tuple(parts)


class _Fields(dict[Any, Any]):
    """Parts of another rank's mapping or dataclass without an example on this rank, as items and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None
