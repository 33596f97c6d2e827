"""Settings of messages between nodes, by the backend that sends them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Link:
    """Best way to send parameters between nodes."""

    bucket_bytes: int
    """Size of a message."""
    sharded: bool
    """Whether each rank of a node sends a share of the parameters, or a single rank sends them all."""


_LINKS = {
    # Each GPU of a node has a network card near it, and all cards are used. Smaller messages do not fill them.
    "nccl": Link(bucket_bytes=25 * 2**20, sharded=True),
}
# Ranks share the node's card. With small messages, a bucket is merged while the next bucket is sent.
_OTHERS = Link(bucket_bytes=2 * 2**20, sharded=False)


def link_over(backend: str) -> Link:
    """Link of the ``torch.distributed`` backend of this name, which is "" for a single rank."""
    return _LINKS.get(backend, _OTHERS)
