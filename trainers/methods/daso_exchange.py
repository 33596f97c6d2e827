"""Exchange of parameters between nodes in DASO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trainers.communication.channel import Channel, Pending
from trainers.communication.communicator import Communicator
from trainers.methods.common_base import CommonBase, MakeOuter

SHARDING_BACKENDS = frozenset({"nccl"})
"""Backends of torch.distributed with which each rank of a node sends a share of the parameters."""
# NCCL: each GPU of a node has a network card near it, which smaller messages do not fill. Other backends: the ranks
# share the card of their node, and with small messages, a bucket is merged while the next bucket is sent.
_SHARD_BYTES, _BUCKET_BYTES = 25 * 2**20, 2 * 2**20
"""Default sizes of messages, with and without shares."""


class NodeExchange:
    """Sums over all nodes of the parameters' differences to their ``CommonBase``.

    One rank of each node, in turn, exchanges the differences with its counterparts on the other nodes, and sends the
    sums to its node. Or, *sharded*, each rank exchanges an equal part of each bucket, and gets the parts of its node's
    other ranks: the same bytes between nodes, on all network cards. The ranks of a node have the same parameters.

    ``node`` are the ranks with the same parameters, None those of the node. ``bucket_bytes`` is the size of a message,
    None a default for the backend; ``wire_dtype`` the type of floating-point numbers in messages, None their own;
    ``outer_optimizer`` that of the base.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        communicator: Communicator,
        *,
        node: Channel | None = None,
        bucket_bytes: int | None,
        wire_dtype: torch.dtype | None,
        outer_optimizer: MakeOuter | None = None,
    ) -> None:
        self._node, self._across = node or communicator.node, communicator.across
        sharding = communicator.backend in SHARDING_BACKENDS
        self._sharded = sharding and self._node.size > 1
        shares = self._node.size if self._sharded else 1
        self._base = CommonBase(
            parameters,
            bucket_bytes=bucket_bytes or (_SHARD_BYTES if sharding else _BUCKET_BYTES),
            wire_dtype=wire_dtype,
            multiple_of=shares,
            outer_optimizer=outer_optimizer,
        )
        self._own = [
            bucket.flat.chunk(shares)[self._node.rank if self._sharded else 0] for bucket in self._base.wire
        ]
        """Part of each bucket that this rank sends."""
        self._pending: list[Pending] = []
        """Messages of all buckets that this rank has sent and not waited for."""

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._own)

    def send(self, turn: int) -> None:
        """Start the sum over all nodes of the differences to the base. ``turn``: number of the synchronisation."""
        if not self._sends(turn):
            return
        for index, own in enumerate(self._own):
            self._base.pack(index)
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
        flat = self._base.wire[index].flat
        if self._sharded:
            return self._node.all_gather_parts(flat)
        return self._node.broadcast(flat, source=turn % self._node.size)

    def merge(self, index: int, inside: Pending, weight: float, *, steps_outer: bool = False) -> None:
        """Wait for the sums in a bucket, and move its parameters by the fraction ``weight`` towards the new base."""
        inside.wait()
        self._base.merge(index, self._across.size, weight=weight, steps_outer=steps_outer)

    def state(self) -> dict[str, Any]:
        """State of the base, which is the same on all ranks with the same parameters."""
        return self._base.state()

    def load(self, state: Mapping[str, Any]) -> bool:
        """Restore a saved ``state``; returns whether it fits the parameters."""
        return self._base.load(state)

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
