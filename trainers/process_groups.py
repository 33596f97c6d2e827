"""Process groups that their members make among themselves, while other ranks of the program train something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

_FIRST = 10**9
"""Beyond the numbers that torch gives to groups which all ranks make."""

_made = 0
"""Times that this process took part in making groups apart."""


def next_number(largest: Callable[[int], int]) -> int:
    """A number that none of the ranks which ask together has had before; ``largest`` is of theirs. Collective."""
    global _made
    _made = largest(_made + 1)
    return _made


def group_apart(members: Sequence[int], number: int, *, timeout: timedelta) -> dist.ProcessGroup:
    """The group of these ranks of the world, made by them alone; ``number`` by ``next_number``, with others maybe.

    torch's own way, ``use_local_synchronization``, names a group by its members and by how many groups there are: a
    group in the place of one that was given back gets its name, and with it its addresses, which lead nowhere. What a
    rank that is faster than the others then meets is a refused connection, or silence. The name here comes of the
    number and the lowest member, so that neither an earlier group nor one that others make meanwhile has it.
    """
    world = distributed_c10d._world
    kept = world.group_count
    world.group_count = _FIRST + number * dist.get_world_size() + min(members)
    try:
        made = dist.new_group(list(members), timeout=timeout)
    finally:
        # All ranks count alike what they make in common.
        world.group_count = kept
    assert isinstance(made, dist.ProcessGroup)
    return made
