"""Device meshes of sharded models.

A trained model goes on using the groups of its mesh, and torch takes two meshes of the same ranks for the same, also in
what it remembers of operations on their tensors. So the groups live as long as torch's default group: there is one for
each list of ranks, which all runs of these ranks use in turn.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainers.communication.communicator import Communicator
from trainers.communication.kept_groups import KEPT
from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Ranks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_made: dict[tuple[tuple[Ranks, ...], str], weakref.ref[dist.ProcessGroup]] = {}
"""This rank's group of each partition of world ranks, by backend; weak, so that torch alone keeps the groups."""


def mesh_of(communicator: Communicator, sizes: Mapping[str, int]) -> DeviceMesh:
    """Mesh of the run's ranks in order, the last dimension the fastest, with ``sizes`` by name. Collective.

    CommunicationError if a group could not be made.
    """
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.tensor(communicator.members, device="cpu").view(*sizes.values())
    groups = []
    for axis, size in enumerate(sizes.values()):
        parts = ranks.movedim(axis, -1).reshape(-1, size).tolist()
        groups.append(kept_group(communicator, tuple(map(tuple, parts)), communicator.backend))
    # Its constructor otherwise makes the groups again, of all ranks of the world.
    return DeviceMesh.from_group(groups, communicator.device.type, ranks, mesh_dim_names=tuple(sizes))


def mesh_of_node(communicator: Communicator) -> DeviceMesh:
    """Mesh of the ranks of this rank's node, with one dimension, "shard". Collective.

    CommunicationError if a group could not be made.
    """
    from torch.distributed.device_mesh import DeviceMesh

    nodes = tuple(tuple(communicator.members[rank] for rank in ranks) for ranks in communicator.nodes)
    group = kept_group(communicator, nodes, communicator.backend)
    return DeviceMesh.from_group(group, communicator.device.type, mesh_dim_names=("shard",))


def kept_group(communicator: Communicator, parts: tuple[Ranks, ...], backend: str) -> dist.ProcessGroup:
    """Group of this rank's part of the world ranks in ``parts``, with the run's time-out. Collective."""
    key = parts, backend
    held = _made.get(key)
    found = None if held is None else held()
    if found not in distributed_c10d._world.pg_map:
        found = None
    # A rank that was started again since has none.
    numbers = communicator.service.number_of_each(-1 if found is None else 0)
    if found is None or min(numbers) < 0:
        give_back([] if found is None else [found])
        _forget_operations()
        number = next_number(lambda own: max(communicator.service.number_of_each(own)))
        mine = next(part for part in parts if dist.get_rank() in part)
        with communicator.lost_as_error(len(mine)):
            found = group_apart(mine, number, timeout=communicator.timeout, backend=backend)
        found._set_group_desc(KEPT)
        _made[key] = weakref.ref(found)
    distributed_c10d._set_pg_timeout(communicator.timeout, found)
    return found


def _forget_operations() -> None:
    """Clear what torch remembers of operations on meshes of the same ranks, whose groups may be gone."""
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()
