"""What suits the backend that carries messages between nodes: stated here, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Link:
    """How parameters best go between nodes.

    Attributes:
        bucket_bytes (int, bytes on the wire): of a message.
        sharded (bool): whether each rank of a node sends a share of them, or one rank sends them all.
    """

    bucket_bytes: int
    sharded: bool


_LINKS = {
    # Each GPU of a node has a network card near it, and all of them work. Smaller messages do not fill these.
    "nccl": Link(bucket_bytes=25 * 2**20, sharded=True),
}
# Ranks share the node's card, and a bucket is merged while the next one is on its way.
_OTHERS = Link(bucket_bytes=2 * 2**20, sharded=False)


def link_over(backend: str) -> Link:
    """The link by ``torch.distributed``'s backend of this name; "" where a rank is alone."""
    return _LINKS.get(backend, _OTHERS)
