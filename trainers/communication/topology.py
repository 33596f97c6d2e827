"""Topology: ranks that share a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainers.arguments import check_argument, is_integer, make_plain

Ranks = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Assignment of ranks to nodes.

    Args:
        ranks_per_node (int; default None): number of consecutive ranks that share a node; None: ranks with the same
            host name share a node.
    """

    ranks_per_node: int | None = None

    def __post_init__(self) -> None:
        make_plain(self)
        allowed = self.ranks_per_node is None or is_integer(self.ranks_per_node)
        check_argument(
            "ranks_per_node", self.ranks_per_node, allowed, "a whole number, or None to go by the hosts"
        )

    def nodes(self, hosts: Sequence[object]) -> tuple[Ranks, ...]:
        """Ranks of each node, from the host of each rank; ValueError if ``ranks_per_node`` does not divide them."""
        size, per_node = len(hosts), self.ranks_per_node
        if per_node is None:
            members: dict[object, list[int]] = {}
            for rank, host in enumerate(hosts):
                members.setdefault(host, []).append(rank)
            return tuple(tuple(ranks) for ranks in members.values())
        if per_node < 1 or size % per_node:
            raise ValueError(
                f"Topology(ranks_per_node={per_node}): {size} ranks are no multiple of it. "
                f"Name a divisor of {size}, or leave it out to go by the hosts."
            )
        return tuple(tuple(range(first, first + per_node)) for first in range(0, size, per_node))
