"""Process groups: made by their members alone, while other ranks of the program train something else, and given back,
also where those that share them are stuck.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_FIRST = 10**9
"""Beyond the numbers that torch gives to groups which all ranks make."""

_BARRIER = "TORCH_DIST_INIT_BARRIER"

_PER_NUMBER = 1000
"""Groups that a number names apart from one another: more than a run ever makes."""

_made = 0
"""Times that this process took part in making groups apart."""

_HOLDS_INTERPRETER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""torch 2.6 keeps Python's interpreter lock while gloo's threads end, 2.13 does not. A thread that has a tensor of
its last collective to let go needs that lock: both wait for ever."""

_SETTLE_S = 0.2
"""How long gloo's threads get to do so before, where they could not later."""

_PATIENCE_S = 5.0
"""How long an error waits for groups to be given back, before it goes on its way."""


def next_number(largest: Callable[[int], int]) -> int:
    """A number that none of the ranks which ask together has had before; ``largest`` is of theirs. Collective."""
    global _made
    _made = largest(_made + 1)
    return _made


def group_apart(
    members: Sequence[int], number: int, *, index: int = 0, timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup:
    """The group of these ranks of the world, made by them alone; ``number`` by ``next_number``, with others maybe;
    ``index`` (below 1 000): of several groups with the same number; ``backend``: None for the world's.

    torch's own way, ``use_local_synchronization``, names a group by its members and by how many groups there are: a
    group in the place of one that was given back gets its name, and with it its addresses, which lead nowhere. What a
    rank that is faster than the others then meets is a refused connection, or silence. The name here comes of the
    number and the lowest member, so that neither an earlier group nor one that others make meanwhile has it.
    """
    world, everyone = distributed_c10d._world, distributed_c10d._get_default_group()
    kept, device = world.group_count, everyone.bound_device_id
    barrier = os.environ.get(_BARRIER)
    names = number * _PER_NUMBER + index
    world.group_count = _FIRST + names * dist.get_world_size() + min(members)
    # Of a world that was given its device torch splits NCCL's communicator off, in which all of its ranks take part.
    everyone.bound_device_id = None
    # In which torch would wait for all ranks of the world.
    os.environ[_BARRIER] = "0"
    try:
        made = dist.new_group(list(members), timeout=timeout, backend=backend)
    finally:
        # All ranks count alike what they make in common.
        world.group_count, everyone.bound_device_id = kept, device
        if barrier is None:
            del os.environ[_BARRIER]
        else:
            os.environ[_BARRIER] = barrier
    assert isinstance(made, dist.ProcessGroup)
    return made


def give_back(groups: list[dist.ProcessGroup | None]) -> None:
    """Destroy ``groups``, and empty the list; None is the world, and with it all that are left. There must be no other
    reference to them: gloo waits where the last one goes.

    While an error is on its way that has a few seconds only: NCCL waits there for what is under way, and so for ranks
    which wait for this one. They would not hear of the error, nor would anyone, before NCCL's own time-out.
    """

    # Emptied at once: another call, of a ``finally`` say, must not destroy what this one's thread still does.
    mine = groups[:]
    groups.clear()
    if not mine:
        return

    def destroy() -> None:
        destroyed = []
        while mine:
            dist.destroy_process_group(mine[0])
            destroyed.append(mine.pop(0))
        if destroyed and _HOLDS_INTERPRETER:
            time.sleep(_SETTLE_S)
        destroyed.clear()

    if sys.exc_info()[0] is None:
        destroy()
        return
    thread = threading.Thread(target=destroy, name="give-back", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
