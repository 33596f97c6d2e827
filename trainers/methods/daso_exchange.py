"""Exchange of parameters between nodes in DASO."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainers.communication.channel import Channel, Pending
from trainers.communication.communicator import Communicator
from trainers.methods.common_base import CommonBase, MakeOuter, WireType
from trainers.methods.fragments import Tensors

_log = logging.getLogger("trainers.methods")

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

    With a ``BlockCodec``, ranks exchange quantised parts, and then the sums of these. All ranks of the node get both,
    and compute the same residuals.

    ``node`` are the ranks with the same parameters, None those of the node. ``bucket_bytes`` is the size of a message,
    None a default for the backend; ``wire_dtype`` the form of floating-point numbers in messages, None their own type;
    ``outer_optimizer`` that of the base.
    """

    def __init__(
        self,
        parameters: Tensors,
        communicator: Communicator,
        *,
        node: Channel | None = None,
        bucket_bytes: int | None,
        wire_dtype: WireType,
        outer_optimizer: MakeOuter | None = None,
    ) -> None:
        self._node, self._across = node or communicator.node, communicator.across
        sharding = communicator.backend in SHARDING_BACKENDS
        self._sharded = sharding and self._node.size > 1
        shares = self._node.size if self._sharded else 1
        self._base = CommonBase(
            parameters,
            bucket_bytes=bucket_bytes or (_SHARD_BYTES if sharding else _BUCKET_BYTES),
            senders=self._across.size,
            place=self._across.rank,
            shares=shares,
            wire_dtype=wire_dtype,
            outer_optimizer=outer_optimizer,
        )
        self._quantised = self._base.quantised
        share = self._node.rank if self._sharded else 0
        self._sums = [each.message for each in self._quantised] or [each.flat for each in self._base.wire]
        """Message of each bucket that all ranks of the node get in the end."""
        self._own = [sums.chunk(shares)[share] for sums in self._sums]
        """Part of each bucket that this rank sends."""
        self._parts = [each.received.chunk(shares)[share] for each in self._quantised]
        """Quantised parts of each bucket that this rank gets from all nodes."""
        self._pending: list[Pending] = []
        """Messages of all buckets that this rank has sent and not waited for."""
        self.added_up = False
        """Whether the second messages of the last synchronisation have been sent; they are only with a codec."""

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._own)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self._across.size

    def send(self, turn: int) -> None:
        """Start the sum over all nodes of the differences to the base. ``turn``: number of the synchronisation."""
        self.added_up = False
        sends = self._sends(turn)
        for index, own in enumerate(self._own):
            if sends or self._quantised:
                self._base.pack(index)
            if self._quantised:
                self._quantised[index].encode()
            if sends:
                self._pending.append(
                    self._across.all_to_all_parts(self._parts[index], own)
                    if self._quantised
                    else self._across.all_reduce(own)
                )

    def add_up(self, turn: int) -> None:
        """Wait for the quantised parts of all nodes, and start to send their sums, unless that has been done."""
        if self.added_up or not self._quantised:
            return
        inside = [self._share(index, each.received, turn) for index, each in enumerate(self._quantised)]
        self._pending = []
        for pending, each, own in zip(inside, self._quantised, self._own, strict=True):
            pending.wait()
            each.add_up()
            if self._sends(turn):
                self._pending.append(self._across.all_gather_parts(own))
        self.added_up = True

    def receive(self) -> None:
        """Wait for the messages that this rank has started."""
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def share_within_node(self, index: int, turn: int) -> Pending:
        """Wait for this rank's sums in a bucket, and start to send them to all ranks of the node.

        Called for the buckets in order, after ``add_up``; ``receive`` must follow after the last.
        """
        return self._share(index, self._sums[index], turn)

    def merge(self, index: int, inside: Pending, weight: float, *, steps_outer: bool = False) -> None:
        """Wait for the sums in a bucket, and move its parameters by the fraction ``weight`` towards the new base."""
        inside.wait()
        if self._quantised:
            self._quantised[index].decode()
        self._base.merge(index, self.nodes, weight=weight, steps_outer=steps_outer)

    def state(self) -> dict[str, Any]:
        """State of the base, which is the same on all ranks with the same parameters."""
        return self._base.state()

    def load(self, state: Mapping[str, Any]) -> bool:
        """Restore a saved ``state``; returns whether it fits the parameters."""
        return self._base.load(state)

    def sums(self, turn: int) -> list[Tensor]:
        """Copies of the messages that this rank receives in this ``turn``, after waiting for them."""
        self.receive()
        return [own.clone() for own in self._under_way(turn)]

    def load_sums(self, turn: int, sums: Sequence[Tensor]) -> bool:
        """Restore saved ``sums``; returns whether they have the same number of messages with the same sizes."""
        own = self._under_way(turn)
        if [part.shape for part in own] != [part.shape for part in sums]:
            return False
        for part, values in zip(own, sums, strict=True):
            part.copy_(values)
        return True

    def _under_way(self, turn: int) -> list[Tensor]:
        """Messages of other nodes that this rank receives next."""
        if not self._sends(turn):
            return []
        return self._parts if self._quantised and not self.added_up else self._own

    def _share(self, index: int, tensor: Tensor, turn: int) -> Pending:
        """Wait for what this rank has started of a bucket, and start to send it to all ranks of the node."""
        if self._pending:
            self._pending[index].wait()
        if self._sharded:
            return self._node.all_gather_parts(tensor)
        return self._node.broadcast(tensor, source=turn % self._node.size)

    def _sends(self, turn: int) -> bool:
        return self._sharded or turn % self._node.size == self._node.rank


@dataclass(kw_only=True)
class Synchronisation:
    """Last synchronisation of all parameters, or of a fragment of them."""

    exchange: NodeExchange
    agreed: bool = True
    """Whether the parameters are the same on all ranks."""
    under_way: bool = False
    """Whether it is not merged yet."""
    turn: int = 0
    """Its number, which determines the rank of each node that sends."""
    steps: int = 0
    """Optimizer steps since its sending."""
    steps_outer: bool = False
    """Whether it is a step of the outer optimizer."""

    @torch.no_grad()
    def send(self, turn: int, *, steps_outer: bool) -> None:
        """Start the sum over all nodes of the differences to the base."""
        self.under_way, self.turn, self.steps, self.steps_outer = True, turn, 0, steps_outer
        self.exchange.send(turn)

    def go_on(self, delay: int) -> None:
        """Merge the parameters ``delay`` steps after their sending; halfway, send the sums of quantised parts, so that
        both of their messages have as many steps.
        """
        if self.under_way and self.steps >= delay:
            self.merge()
        elif self.under_way and self.steps >= (delay + 1) // 2:
            self.exchange.add_up(self.turn)

    @torch.no_grad()
    def merge(self) -> None:
        """Merge the parameters that were sent by Eq. 3.2.

        All ranks then have the same base, and the ranks of a node the same parameters.
        """
        steps, nodes, exchange = self.steps, self.exchange.nodes, self.exchange
        _log.debug("synchronisation %d is merged %d steps after its sending", self.turn, steps)
        # Σ_p w_p,sent = P_g · base: with weight 1 (S = 0) the parameters become the base, bit for bit.
        weight = nodes / (2 * steps + nodes)
        exchange.add_up(self.turn)
        inside: Pending | None = None
        for index in range(len(exchange)):
            following = exchange.share_within_node(index, self.turn)
            # Merges the bucket before, while this bucket is sent inside the node and the next between nodes.
            if inside is not None:
                exchange.merge(index - 1, inside, weight, steps_outer=self.steps_outer)
            inside = following
        if inside is not None:
            exchange.merge(len(exchange) - 1, inside, weight, steps_outer=self.steps_outer)
        exchange.receive()
        self.agreed, self.under_way = steps == 0, False

    def state(self) -> dict[str, Any]:
        """State of base and synchronisation, with ``own_state``."""
        sent = {"member": self.turn, "steps": self.steps, "added_up": self.exchange.added_up}
        return {
            **self.exchange.state(),
            "agreed": self.agreed,
            "steps_outer": self.steps_outer,
            "sent": sent if self.under_way else None,
            **self.own_state(),
        }

    def own_state(self) -> dict[str, Any]:
        """Sums that this rank has started and that are not merged yet, after waiting for them."""
        return {"sums": self.exchange.sums(self.turn) if self.under_way else []}

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> bool:
        """Restore a saved ``state``; returns whether it fits the parameters."""
        # Checkpoints of earlier versions, without an outer optimizer and codec, have none of their entries.
        self.agreed, self.steps_outer = state["agreed"], state.get("steps_outer", False)
        sent = state["sent"]
        self.under_way = sent is not None
        if not self.exchange.load(state):
            return False
        if sent is None:
            return True
        self.turn, self.steps = sent["member"], sent["steps"]
        self.exchange.added_up = sent.get("added_up", False)
        return self.exchange.load_sums(self.turn, state["sums"])
