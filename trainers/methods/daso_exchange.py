"""What DASO's nodes exchange, and who of a node sends it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainers.communication.buckets import Bucket, buckets
from trainers.communication.channel import Pending
from trainers.communication.communicator import Communicator
from trainers.communication.links import Link


class NodeExchange:
    """Sums over all nodes of the parameters' differences to the *base*, their last average over all nodes.

    One rank of each node, in turn, sends them to its counterparts on the other nodes, and its node gets the sums from
    it. Or, *sharded*, each rank sends a share, in each bucket its equal part, and gets those of its node's other ranks:
    as many bytes between nodes, on as many network cards as there are. A node's ranks have the same parameters, and
    all ranks the same base, to the last bit. The base of bfloat16 or float16 parameters is in float32: in their own
    precision an average could not hold what one node's small step adds to it.

    Args:
        parameters (sequence of Parameter): those that are trained.
        communicator (Communicator): the ranks; each node has as many.
        link (Link): how the messages go.
        wire_dtype (dtype): of floating-point numbers in messages; None: their own.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        communicator: Communicator,
        *,
        link: Link,
        wire_dtype: torch.dtype | None,
    ) -> None:
        self._node, self._across = communicator.node, communicator.across
        self._sharded = link.sharded and self._node.size > 1
        shares = self._node.size if self._sharded else 1
        self._wire = buckets(
            parameters, wire_dtype=wire_dtype, bucket_bytes=link.bucket_bytes, multiple_of=shares
        )
        self._own = [
            bucket.flat.chunk(shares)[self._node.rank if self._sharded else 0] for bucket in self._wire
        ]
        """Of each bucket what this rank sends, when it does."""
        self._base = [Bucket(bucket.tensors, _base_dtype(bucket.tensors[0].dtype)) for bucket in self._wire]
        self._pending: list[Pending] = []
        """One a bucket where this rank has sent and not received."""
        for base in self._base:
            base.pack(base.tensors)

    def __len__(self) -> int:
        """The number of buckets."""
        return len(self._wire)

    def send(self, turn: int) -> None:
        """Start the sum over all nodes of the differences to the base. ``turn`` counts the synchronisations."""
        if not self._sends(turn):
            return
        for bucket, base, own in zip(self._wire, self._base, self._own, strict=True):
            bucket.pack(torch._foreach_sub(bucket.tensors, base.views))
            self._pending.append(self._across.all_reduce(own))

    def receive(self) -> None:
        """Wait for the sums that this rank asked for."""
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def share_within_node(self, index: int, turn: int) -> Pending:
        """Start to give all ranks of the node the sums in this bucket, once this rank's are there. Buckets come in
        order, and ``receive`` after the last.
        """
        if self._pending:
            self._pending[index].wait()
        flat = self._wire[index].flat
        if self._sharded:
            return self._node.all_gather_parts(flat)
        return self._node.broadcast(flat, source=turn % self._node.size)

    def merge(self, index: int, inside: Pending, weight: float) -> None:
        """Wait for the sums in this bucket, make the base the average over all nodes as it was when it was sent, and
        move the parameters by ``weight`` of the way to it.
        """
        bucket, base = self._wire[index], self._base[index]
        inside.wait()
        sums = bucket.flat[: len(base.flat)]
        # Cast as a whole: adding another type to it takes twice as long on the CPU.
        base.flat.add_(sums.to(base.flat.dtype), alpha=1 / self._across.size)
        if base.wire_dtype is bucket.tensors[0].dtype:
            torch._foreach_lerp_(bucket.tensors, base.views, weight)
            return
        # In the base's precision, and rounded once.
        precise = [tensor.to(base.wire_dtype) for tensor in bucket.tensors]
        torch._foreach_lerp_(precise, base.views, weight)
        torch._foreach_copy_(bucket.tensors, precise)

    def base(self) -> list[Tensor]:
        """The base itself, flat, in any number of parts; the next merge changes it."""
        return [base.flat for base in self._base]

    def load_base(self, parts: Sequence[Tensor]) -> bool:
        """Take up what ``base`` gave; whether that is of the same parameters."""
        # In earlier versions it had the parameters' own precision. They may lie on any device.
        parts = [part.to("cpu", _base_dtype(part.dtype)) for part in parts]
        types = {base.wire_dtype for base in self._base} | {part.dtype for part in parts}
        for dtype in types:
            own = [base.flat for base in self._base if base.wire_dtype is dtype]
            # Parameters of a type come in order, in messages of whatever size.
            saved = torch.cat(
                [torch.empty(0, dtype=dtype, device="cpu"), *(p for p in parts if p.dtype is dtype)]
            )
            if sum(map(len, own)) != len(saved):
                return False
            for flat, values in zip(own, torch.split(saved, [len(flat) for flat in own]), strict=True):
                flat.copy_(values)
        return True

    def sums(self, turn: int) -> list[Tensor]:
        """A copy of the sums that this rank asked for in this ``turn``, once they are there."""
        self.receive()
        return [own.clone() for own in self._own] if self._sends(turn) else []

    def load_sums(self, turn: int, sums: Sequence[Tensor]) -> bool:
        """Take up what ``sums`` gave; whether that is of as many messages of the same sizes."""
        own = self._own if self._sends(turn) else []
        if [flat.shape for flat in own] != [flat.shape for flat in sums]:
            return False
        for flat, values in zip(own, sums, strict=True):
            flat.copy_(values)
        return True

    def _sends(self, turn: int) -> bool:
        return self._sharded or turn % self._node.size == self._node.rank


def _base_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of the base of parameters of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)
