"""Exchange of parameters between nodes in DASO."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.communication.buckets import Bucket, each_bucket
from trainers.communication.channel import Channel, Pending
from trainers.communication.communicator import Communicator

SHARDING_BACKENDS = frozenset({"nccl"})
"""Backends of torch.distributed with which each rank of a node sends a share of the parameters."""
# NCCL: each GPU of a node has a network card near it, which smaller messages do not fill. Other backends: the ranks
# share the card of their node, and with small messages, a bucket is merged while the next bucket is sent.
_SHARD_BYTES, _BUCKET_BYTES = 25 * 2**20, 2 * 2**20
"""Default sizes of messages, with and without shares."""


class NodeExchange:
    """Sums over all nodes of the parameters' differences to the *base*, their last average over all nodes.

    One rank of each node, in turn, exchanges the differences with its counterparts on the other nodes, and sends the
    sums to its node. Or, *sharded*, each rank exchanges an equal part of each bucket, and gets the parts of its node's
    other ranks: the same bytes between nodes, on all network cards. The ranks of a node have the same parameters, and
    all ranks have the same base, to the last bit. The base of bfloat16 or float16 parameters is in float32, as in their
    own precision an average would lose small steps of a single node.

    ``node`` are the ranks with the same parameters, None those of the node. ``bucket_bytes`` is the size of a message,
    None a default for the backend; ``wire_dtype`` the type of floating-point numbers in messages, None their own.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        communicator: Communicator,
        *,
        node: Channel | None = None,
        bucket_bytes: int | None,
        wire_dtype: torch.dtype | None,
    ) -> None:
        self._node, self._across = node or communicator.node, communicator.across
        sharding = communicator.backend in SHARDING_BACKENDS
        self._sharded = sharding and self._node.size > 1
        shares = self._node.size if self._sharded else 1
        default = _SHARD_BYTES if sharding else _BUCKET_BYTES
        self._wire = list(
            each_bucket(
                parameters, wire_dtype=wire_dtype, bucket_bytes=bucket_bytes or default, multiple_of=shares
            )
        )
        self._own = [
            bucket.flat.chunk(shares)[self._node.rank if self._sharded else 0] for bucket in self._wire
        ]
        """Part of each bucket that this rank sends."""
        self._base = [Bucket(bucket.tensors, _base_dtype(bucket.tensors[0].dtype)) for bucket in self._wire]
        self._pending: list[Pending] = []
        """Messages of all buckets that this rank has sent and not waited for."""
        for base in self._base:
            base.pack(base.tensors)

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._wire)

    def send(self, turn: int) -> None:
        """Start the sum over all nodes of the differences to the base. ``turn``: number of the synchronisation."""
        if not self._sends(turn):
            return
        for bucket, base, own in zip(self._wire, self._base, self._own, strict=True):
            bucket.pack(torch._foreach_sub(bucket.tensors, base.views))
            self._pending.append(self._across.all_reduce(own))

    def receive(self) -> None:
        """Wait for the sums that this rank has started."""
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def share_within_node(self, index: int, turn: int) -> Pending:
        """Wait for this rank's sums in a bucket, and start to send them to all ranks of the node.

        Called for the buckets in order; ``receive`` must follow after the last.
        """
        if self._pending:
            self._pending[index].wait()
        flat = self._wire[index].flat
        if self._sharded:
            return self._node.all_gather_parts(flat)
        return self._node.broadcast(flat, source=turn % self._node.size)

    def merge(self, index: int, inside: Pending, weight: float) -> None:
        """Wait for the sums in a bucket, and move its parameters by the fraction ``weight`` towards the average.

        The base becomes the average over all nodes of the parameters that were sent.
        """
        bucket, base = self._wire[index], self._base[index]
        inside.wait()
        sums = bucket.flat[: len(base.flat)]
        # Converted as a whole, because adding a tensor of another type takes twice as long on the CPU.
        base.flat.add_(sums.to(base.flat.dtype), alpha=1 / self._across.size)
        if base.wire_dtype is bucket.tensors[0].dtype:
            torch._foreach_lerp_(bucket.tensors, base.views, weight)
            return
        # Computed in the base's precision, and rounded only once.
        precise = [tensor.to(base.wire_dtype) for tensor in bucket.tensors]
        torch._foreach_lerp_(precise, base.views, weight)
        torch._foreach_copy_(bucket.tensors, precise)

    def base(self) -> list[Tensor]:
        """Base, flat, in any number of parts, which the next merge changes."""
        return [base.flat for base in self._base]

    def load_base(self, parts: Sequence[Tensor]) -> bool:
        """Restore a saved ``base``; returns whether it fits the parameters."""
        parts = [part.cpu() for part in parts]
        types = {base.wire_dtype for base in self._base} | {part.dtype for part in parts}
        for dtype in types:
            own = [base.flat for base in self._base if base.wire_dtype is dtype]
            # Parameters of a type are in the same order, whatever the size of messages was.
            empty = torch.empty(0, dtype=dtype, device="cpu")
            saved = torch.cat([empty, *(part for part in parts if part.dtype is dtype)])
            if sum(map(len, own)) != len(saved):
                return False
            for flat, values in zip(own, torch.split(saved, [len(flat) for flat in own]), strict=True):
                flat.copy_(values)
        return True

    def sums(self, turn: int) -> list[Tensor]:
        """Copies of the sums that this rank has started in this ``turn``, after waiting for them."""
        self.receive()
        return [own.clone() for own in self._own] if self._sends(turn) else []

    def load_sums(self, turn: int, sums: Sequence[Tensor]) -> bool:
        """Restore saved ``sums``; returns whether they have the same number of messages with the same sizes."""
        own = self._own if self._sends(turn) else []
        if [flat.shape for flat in own] != [flat.shape for flat in sums]:
            return False
        for flat, values in zip(own, sums, strict=True):
            flat.copy_(values)
        return True

    def _sends(self, turn: int) -> bool:
        return self._sharded or turn % self._node.size == self._node.rank


def _base_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of the base of parameters of type ``dtype``."""
    return torch.promote_types(dtype, torch.float32)
