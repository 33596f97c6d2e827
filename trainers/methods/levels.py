"""Levels of the averages of local SGD: single ranks, households, nodes, neighbourhoods and all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from trainers.communication.channel import Channel
from trainers.communication.communicator import Communicator
from trainers.communication.topology import Ranks

Partition = tuple[Ranks, ...]


@dataclass(kw_only=True)
class AveragingLevel:
    """Partition of the ranks into parts that average parameters, after the parts of the level below have done so."""

    ranks: Partition
    """Ranks of each part."""
    leaders: Channel
    """Channel of the first ranks of the lower level's parts in this rank's part; other ranks have one by themselves."""
    share: float
    """Fraction of this part's ranks that belong to this rank's part of the level below."""


def refines(inner: Partition, outer: Partition) -> bool:
    """Whether each part of ``inner`` is inside of a part of ``outer``."""
    return all(any(set(small) <= set(large) for large in outer) for small in inner)


def levels_of(
    communicator: Communicator, households: Partition, neighbourhoods: Partition | None, *, sharded: bool
) -> list[AveragingLevel]:
    """Levels of single ranks, households, neighbourhoods and all ranks, and of nodes if these fit between two levels,
    without repetitions. With ``sharded`` nodes, each rank averages its part with those of the same place.
    """
    everyone = communicator.world.ranks
    singles: Partition = tuple((rank,) for rank in everyone)
    if sharded:
        alone, nodes = communicator.alone, communicator.nodes
        levels = [AveragingLevel(ranks=ranks, leaders=alone, share=1.0) for ranks in (singles, nodes)]
        if len(nodes) > 1:
            levels.append(
                AveragingLevel(ranks=(everyone,), leaders=communicator.across, share=1 / len(nodes))
            )
        return levels
    named: list[tuple[str, Partition]] = [
        ("ranks", singles),
        ("households", households),
        ("neighbourhoods", neighbourhoods or households),
        ("everyone", (everyone,)),
    ]
    for place, ((_, below), (_, above)) in enumerate(pairwise(named), start=1):
        if refines(below, communicator.nodes) and refines(communicator.nodes, above):
            named.insert(place, ("nodes", communicator.nodes))
            break
    levels = [AveragingLevel(ranks=singles, leaders=communicator.alone, share=1.0)]
    for name, ranks in named[1:]:
        below = levels[-1].ranks
        if set(ranks) == set(below):
            continue
        leading = {part[0] for part in below}
        led = tuple(tuple(rank for rank in part if rank in leading) for part in ranks)
        others = tuple((rank,) for rank in everyone if rank not in leading)
        mine, mine_below = (
            next(part for part in parts if communicator.rank in part) for parts in (ranks, below)
        )
        levels.append(
            AveragingLevel(
                ranks=ranks,
                leaders=channel_of(communicator, f"leaders of {name}" if others else name, led + others),
                share=len(mine_below) / len(mine),
            )
        )
    return levels


def channel_of(communicator: Communicator, name: str, parts: Partition) -> Channel:
    """Channel of this rank's part; the communicator's own channels for all ranks and for nodes."""
    if set(parts) == {communicator.world.ranks}:
        return communicator.world
    if set(parts) == set(communicator.nodes):
        return communicator.node
    return communicator.group(name, parts)
