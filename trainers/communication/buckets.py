"""Flat buckets of tensors, which are broadcast and averaged in few large messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from trainers.communication.channel import COMPLEX_TYPES, REAL_TYPES, Channel
from trainers.communication.communicator import Communicator
from trainers.names import format_of, running_statistics
from trainers.structures import local_parts

BUCKET_BYTES = 25 * 2**20
"""Size at which a bucket is closed: large compared to latencies, small enough to overlap with the backward pass."""


@dataclass(eq=False)
class Bucket:
    """Tensors of the same type that are sent as a flat buffer."""

    tensors: list[Tensor]
    wire_dtype: torch.dtype
    with_flags: bool = False
    """Whether a number for each tensor follows the tensors in the buffer, to be set before sending."""
    multiple_of: int = 1
    """Divisor of the buffer's length, which is filled up with zeros."""
    flat: Tensor = field(init=False)
    views: list[Tensor] = field(init=False)
    """Parts of ``flat`` in the shapes of ``tensors``, and in their memory formats, which are the same on all ranks."""
    flags: Tensor = field(init=False)
    """Part of ``flat`` after the tensors, with a number for each; empty without ``with_flags``."""

    def __post_init__(self) -> None:
        sizes = [tensor.numel() for tensor in self.tensors]
        flags = len(sizes) if self.with_flags else 0
        filling = -(sum(sizes) + flags) % self.multiple_of
        length = sum(sizes) + flags + filling
        self.flat = torch.empty(length, dtype=self.wire_dtype, device=self.tensors[0].device)
        *parts, self.flags, rest = torch.split(self.flat, [*sizes, flags, filling])
        rest.zero_()
        self.views = [
            part.view(tensor.shape)
            if format_of(tensor) is torch.contiguous_format
            # A copy between different memory formats takes several times as long as between equal formats.
            else part.as_strided(tensor.shape, tensor.stride())
            for part, tensor in zip(parts, self.tensors, strict=True)
        ]

    def pack(self, values: Sequence[Tensor]) -> Tensor:
        """Copy ``values``, shaped like the tensors, to the buffer and return it."""
        torch._foreach_copy_(self.views, list(values))
        return self.flat

    def unpack(self, into: Sequence[Tensor]) -> None:
        """Copy the buffer to ``into``, shaped like the tensors."""
        torch._foreach_copy_(list(into), self.views)


def each_bucket(
    tensors: Iterable[Tensor],
    *,
    wire_dtype: torch.dtype | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    with_flags: bool = False,
    multiple_of: int = 1,
) -> Iterator[Bucket]:
    """Group ``tensors``, in order, into buckets of a single type, each made when it is used.

    A bucket is closed at ``bucket_bytes``. Buffers of floating-point tensors are in ``wire_dtype``, None for the
    tensors' own type; ``with_flags`` and ``multiple_of`` are those of ``Bucket``.
    """
    # A large model needs memory for a single bucket, if the caller keeps none.
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for dtype, alike in by_dtype.items():
        wire = wire_dtype if wire_dtype is not None and dtype.is_floating_point else dtype
        group, filled = list[Tensor](), 0
        for tensor in alike:
            group.append(tensor)
            filled += tensor.numel() * wire.itemsize
            if filled >= bucket_bytes:
                yield Bucket(group, wire, with_flags, multiple_of)
                group, filled = [], 0
        if group:
            yield Bucket(group, wire, with_flags, multiple_of)


@torch.no_grad()
def broadcast_tensors(channel: Channel, tensors: Sequence[Tensor], *, source: int = 0) -> None:
    """Overwrite ``tensors`` with those of rank ``source`` of ``channel``, in flat buckets."""
    if channel.size == 1:
        return
    for bucket in each_bucket(tensors):
        channel.broadcast(bucket.pack(bucket.tensors), source=source).wait()
        bucket.unpack(bucket.tensors)


@torch.no_grad()
def broadcast_everywhere(communicator: Communicator, tensors: Sequence[Tensor], *, source: int) -> None:
    """Overwrite ``tensors`` with those of rank ``source`` of all ranks, sent to each other node a single time."""
    nodes = communicator.nodes
    if len(nodes) == 1 or len({len(ranks) for ranks in nodes}) > 1:
        broadcast_tensors(communicator.world, tensors, source=source)
        return
    node = next(index for index, ranks in enumerate(nodes) if source in ranks)
    place = nodes[node].index(source)
    inside, across = communicator.node, communicator.across
    # First between nodes, by the ranks at the source's place on each node, then inside each node.
    if inside.rank == place:
        broadcast_tensors(across, tensors, source=node)
    broadcast_tensors(inside, tensors, source=place)


@torch.no_grad()
def average_tensors(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """Overwrite real or complex ``tensors`` with their mean over the ranks of ``channel``, in flat buckets.

    Numbers that are equal on all ranks stay the same to the last bit, infinities included, and large numbers do not
    overflow: the first rank's numbers are sent, and the mean of the differences from them is added.
    """
    if channel.size == 1:
        return
    for bucket in each_bucket(tensors):
        if bucket.wire_dtype not in (*REAL_TYPES, *COMPLEX_TYPES):
            raise TypeError(
                f"{bucket.wire_dtype} has no mean over ranks. Use another type, say torch.float32."
            )
        own = bucket.pack(bucket.tensors)
        first = channel.broadcast(own.clone()).wait()
        # Differences are divided before they are summed, so that the sum does not overflow.
        apart = torch.where(own == first, torch.zeros_like(own), (own - first) / channel.size)
        mean = channel.all_reduce(apart).wait()
        # Zero added to a negative zero would change its sign.
        torch.where(mean == 0, first, first + mean, out=bucket.flat)
        bucket.unpack(bucket.tensors)


@torch.no_grad()
def average_summands(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """Same as ``average_tensors``, for tensors that differ between ranks: divided sums, which send a third less."""
    if channel.size == 1:
        return
    for bucket in each_bucket(tensors):
        channel.all_reduce(bucket.pack(bucket.tensors)).wait()
        bucket.unpack(bucket.tensors)
        torch._foreach_div_(bucket.tensors, channel.size)


def reconcile_buffers(
    channel: Channel,
    model: nn.Module,
    *,
    parameters: Sequence[Tensor] = (),
    copies: Channel | None = None,
) -> None:
    """Make the model's buffers equal on all ranks: running statistics, and these ``parameters``, become their mean,
    other buffers those of rank 0. Parts of sharded parameters become the mean over ``copies``.
    """
    statistics, others = buffers_of(model)
    if copies is not None:
        average_tensors(copies, local_parts(parameters))
        parameters = ()
    average_tensors(channel, [*parameters, *statistics])
    broadcast_tensors(channel, others)


@contextmanager
def averaged_over_ranks(
    channel: Channel, model: nn.Module, *, parameters: Sequence[Tensor], copies: Channel | None = None
) -> Iterator[None]:
    """Context in which buffers and ``parameters`` are as ``reconcile_buffers`` leaves them; afterwards, each rank has
    its own again.
    """
    touched = [*parameters, *model.buffers()] if channel.size > 1 else []
    kept = [tensor.detach().clone() for tensor in touched]
    reconcile_buffers(channel, model, parameters=parameters, copies=copies)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, own in zip(touched, kept, strict=True):
                tensor.copy_(own)


def buffers_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Running statistics among the buffers of ``model``, which can be averaged, and the other buffers."""
    statistics = {id(module._buffers[key]) for module, key in running_statistics(model).values()}
    own = list(model.buffers())
    # Types of eight bits and less are for storage and have no arithmetic.
    averaged = [b for b in own if id(b) in statistics and b.dtype in REAL_TYPES]
    return averaged, [b for b in own if id(b) not in statistics or b.dtype not in REAL_TYPES]
