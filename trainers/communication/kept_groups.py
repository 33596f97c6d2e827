"""The process groups by which the ranks of a run exchange tensors, kept for the next run of the same ranks.

NCCL takes up to seconds to connect ranks, and the processes of a campaign train one configuration after another. A run
that ends without an error leaves its groups to torch, under the description ``KEPT``; the next takes over those that
all of its ranks have, and makes the others.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainers.communication.channel import Channel
from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Ranks

KEPT = "kept for the next training"
"""The description of groups that no run uses now. Whoever destroys the groups that a task has left may spare these."""

_IN_USE = "of a training"


@dataclass(frozen=True)
class _Made:
    """One group for each of ``parts``, of which this rank has that of its own; None where it is alone in it."""

    parts: tuple[Ranks, ...]
    number: tuple[int, int]
    """As of ``group_apart``, with the index."""
    group: dist.ProcessGroup | None


@dataclass(frozen=True)
class _Left:
    """What a run has left: torch has the groups, and whoever destroys torch's default group destroys them, too."""

    parts: tuple[Ranks, ...]
    number: tuple[int, int]
    group: weakref.ref[dist.ProcessGroup]


_left: tuple[str, dict[str, _Left]] = ("", {})
"""For what kind of run, and by the name of the groups."""


class RunGroups:
    """Those of one run. All of its ranks call ``agree`` once, and then ask for the same groups in the same order."""

    def __init__(self, members: Sequence[int], *, rank: int, timeout: timedelta, backend: str) -> None:
        """
        Args:
            members (list of int): the world's number of each rank of the run, ascending.
            rank (int): this one's number in the run.
            timeout (timedelta): of the groups' operations.
            backend (str): as of ``torch.distributed.new_group``.
        """
        self._members = list(members)
        self._rank = rank
        self._timeout = timeout
        self._backend = backend
        self._number = 0
        self._found: dict[str, _Made] = {}
        self._made: dict[str, _Made] = {}

    def agree(self, channel: Channel) -> None:
        """Take over what the last run has left, if all ranks of ``channel`` have the same, or destroy it.
        Collective.
        """
        self._found, whole = self._taken()
        # A rank whose last run ended with an error has nothing, or something else.
        kept = [self._kind, *sorted((name, made.parts, made.number) for name, made in self._found.items())]
        own = int.from_bytes(hashlib.blake2b(repr(kept).encode(), digest_size=7).digest(), "big")
        if len(set(channel.number_of_each(own if whole else -1))) > 1 or not whole:
            # Not before all know: a rank would keep others waiting that it needs to destroy them.
            give_back(self._of_torch(self._found))
        for made in self._found.values():
            _describe(made.group, _IN_USE)
        self._number = next_number(lambda number: max(channel.number_of_each(number)))

    def of(self, name: str, parts: Sequence[Ranks]) -> dist.ProcessGroup | None:
        """This rank's group of those for ``parts``, ranks of the run; None if it is alone there. Once for a name."""
        found = self._found.pop(name, None)
        if found is not None and found.parts != tuple(parts):
            unfit, found = {name: found}, None
            give_back(self._of_torch(unfit))
        self._made[name] = found or self._new(tuple(parts))
        return self._made[name].group

    def release(self) -> None:
        """Destroy what the last run has left and this one has not asked for: its memory is wanted for the training."""
        give_back(self._of_torch(self._found))

    def close(self, *, keep: bool) -> list[dist.ProcessGroup | None]:
        """The run is over. With ``keep`` its groups are left to the next run, and those that it took over and did not
        use; no operation is under way in them, and the caller has no references to them any more. Returns the groups
        that are to be destroyed.

        Those of runs of the whole world alone are kept, and of partitions in which no rank is alone: all ranks have as
        many, by which torch names some of the groups that others make.
        """
        global _left
        spent = []
        if keep and self._of_whole_world:
            # A run inside this one, an evaluation in its report say, may have left some meanwhile.
            before, _ = self._taken()
            spent += self._of_torch(before)
            left = {}
            for made in (self._found, self._made):
                for name in [*made]:
                    if all(len(ranks) > 1 for ranks in made[name].parts):
                        left[name] = self._leave(made.pop(name))
            _left = self._kind, left
        return spent + self._of_torch(self._found) + self._of_torch(self._made)

    def _new(self, parts: tuple[Ranks, ...]) -> _Made:
        number = self._number, len(self._made)
        mine = next(ranks for ranks in parts if self._rank in ranks)
        if len(mine) == 1:
            return _Made(parts, number, None)
        members = [self._members[rank] for rank in mine]
        group = group_apart(members, number[0], index=number[1], timeout=self._timeout, backend=self._backend)
        _describe(group, _IN_USE)
        return _Made(parts, number, group)

    @property
    def _of_whole_world(self) -> bool:
        return dist.is_initialized() and len(self._members) == dist.get_world_size()

    @property
    def _kind(self) -> str:
        return f"{self._members}, {self._backend}, {self._timeout}"

    @staticmethod
    def _leave(made: _Made) -> _Left:
        assert made.group is not None
        _describe(made.group, KEPT)
        return _Left(made.parts, made.number, weakref.ref(made.group))

    def _taken(self) -> tuple[dict[str, _Made], bool]:
        """What the last run of the whole world has left, where this is another, and whether it fits."""
        global _left
        if not self._of_whole_world:
            return {}, True
        (kind, left), _left = _left, ("", {})
        made = {name: _Made(one.parts, one.number, one.group()) for name, one in left.items()}
        return made, not made or (kind == self._kind and all(_known(one.group) for one in made.values()))

    @staticmethod
    def _of_torch(made: dict[str, _Made]) -> list[dist.ProcessGroup | None]:
        """The groups that torch still has of these; the dictionary is emptied."""
        groups: list[dist.ProcessGroup | None] = [one.group for one in made.values() if _known(one.group)]
        made.clear()
        return groups


def _known(group: dist.ProcessGroup | None) -> bool:
    return group is not None and group in distributed_c10d._world.pg_map


def _describe(group: dist.ProcessGroup | None, description: str) -> None:
    if group is not None:
        group._set_group_desc(description)
