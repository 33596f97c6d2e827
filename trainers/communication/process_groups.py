"""Making of process groups by their members alone, and their destruction even if other members are stuck."""

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
"""First number in the names of groups; higher than any that torch gives to groups which all ranks make."""
_BARRIER = "TORCH_DIST_INIT_BARRIER"
_PER_NUMBER = 1000
"""Most groups with the same number, more than a run ever makes."""
_made = 0
"""Largest number that this process has agreed on with other ranks."""

# A gloo thread needs the interpreter lock to release a tensor of its last collective. Before version 2.13, torch keeps
# the lock while it waits for gloo's threads to end, so that both would wait for ever.
_HOLDS_INTERPRETER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""Whether torch keeps Python's interpreter lock while gloo's threads end."""
_SETTLE_S = 0.2
"""Seconds for gloo's threads to release their tensors beforehand."""
_PATIENCE_S = 5.0
"""Most seconds that an error is delayed by the destruction of groups."""


def next_number(largest: Callable[[int], int]) -> int:
    """Number that no rank of a collective call has used before; ``largest`` returns the maximum over these ranks."""
    global _made
    _made = largest(_made + 1)
    return _made


def group_apart(
    members: Sequence[int], number: int, *, index: int = 0, timeout: timedelta, backend: str | None = None
) -> dist.ProcessGroup:
    """Make a group of these ``members``, ranks of the world, by them alone, while others may do something else.

    ``number`` is the result of ``next_number`` for these ranks and possibly others, ``index`` (below 1000) the place
    among several groups with this number, ``backend`` None the world's.
    """
    # The group's name depends on number, index and the lowest member, so that neither an earlier group nor a group that
    # other ranks make at the same time has the same name.
    # torch's own way, ``use_local_synchronization``, names a group by its members and by the number of groups. A group
    # made after another was destroyed could get the name, and so the stored addresses, of the destroyed group: a rank
    # faster than the others would then get refused connections, or no answer.
    world, everyone = distributed_c10d._world, distributed_c10d._get_default_group()
    kept, device = world.group_count, everyone.bound_device_id
    barrier = os.environ.get(_BARRIER)
    names = number * _PER_NUMBER + index
    world.group_count = _FIRST + names * dist.get_world_size() + min(members)
    # If the world is bound to a device, torch splits NCCL's communicator, which needs all ranks of the world.
    everyone.bound_device_id = None
    # The barrier at the end of ``new_group`` would wait for all ranks of the world.
    os.environ[_BARRIER] = "0"
    try:
        made = dist.new_group(list(members), timeout=timeout, backend=backend)
    finally:
        # Ranks of the world must have the same count for the groups that they make together.
        world.group_count, everyone.bound_device_id = kept, device
        if barrier is None:
            del os.environ[_BARRIER]
        else:
            os.environ[_BARRIER] = barrier
    assert isinstance(made, dist.ProcessGroup)
    return made


def give_back(groups: list[dist.ProcessGroup | None]) -> None:
    """Destroy ``groups`` and empty the list; None stands for the world and all remaining groups.

    There must be no other references to the groups, as gloo waits where the last reference is released.
    """

    # Emptied at once: a further call, as in a ``finally``, must not destroy groups that this call's thread destroys.
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
    # While an exception is raised, the wait is limited: NCCL waits for operations under way, and so for ranks that wait
    # for this rank. The error would be reported only after NCCL's own time-out.
    thread = threading.Thread(target=destroy, name="give-back", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
