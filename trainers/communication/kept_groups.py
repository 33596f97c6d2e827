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

import torch
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

    made_for: str
    parts: tuple[Ranks, ...]
    number: tuple[int, int]
    group: weakref.ref[dist.ProcessGroup] | None


_left: dict[Ranks, dict[str, _Left]] = {}
"""By the world's ranks that ran together, and by the name of the groups."""


class RunGroups:
    """Those of one run. All of its ranks call ``agree`` once, and then ask for the same groups in the same order."""

    def __init__(self, members: Sequence[int], *, rank: int, timeout: timedelta, backend: str) -> None:
        """
        Args:
            members (list of int): the world's number of each rank of the run.
            rank (int): this one's number in the run.
            timeout (timedelta): of the groups' operations.
            backend (str): as of ``torch.distributed.new_group``.
        """
        self._members = tuple(members)
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
        self._found = self._taken()
        # A rank whose last run ended with an error has nothing, or something else.
        kept = sorted((name, made.parts, made.number) for name, made in self._found.items())
        own = int.from_bytes(hashlib.blake2b(repr(kept).encode(), digest_size=7).digest(), "big")
        if len(set(_of_all(own, channel))) > 1:
            give_back(self._of_torch(self._found))
        for made in self._found.values():
            _describe(made.group, _IN_USE)
        self._number = next_number(lambda number: max(_of_all(number, channel)))

    def of(self, name: str, parts: Sequence[Ranks]) -> dist.ProcessGroup | None:
        """This rank's group of those for ``parts``, ranks of the run; None if it is alone there. Once for a name."""
        found = self._found.pop(name, None)
        if found is not None and found.parts != tuple(parts):
            unfit, found = {name: found}, None
            give_back(self._of_torch(unfit))
        self._made[name] = found or self._new(tuple(parts))
        return self._made[name].group

    def close(self, *, keep: bool) -> list[dist.ProcessGroup | None]:
        """The run is over: with ``keep`` leave the groups that it used to the next run; those to destroy. The caller
        has no other references to them any more. With ``keep`` no operation is under way.
        """
        spent = self._of_torch(self._found)
        if keep:
            # A run inside this one, an evaluation in its report say, may have left some meanwhile.
            spent += self._of_torch(self._taken())
            _left[self._members] = {name: self._leave(made) for name, made in self._made.items()}
            self._made.clear()
        return spent + self._of_torch(self._made)

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
    def _made_for(self) -> str:
        return f"{self._backend}, {self._timeout}"

    def _leave(self, made: _Made) -> _Left:
        _describe(made.group, KEPT)
        group = None if made.group is None else weakref.ref(made.group)
        return _Left(self._made_for, made.parts, made.number, group)

    def _taken(self) -> dict[str, _Made]:
        """What the last run of these ranks has left; nothing if it had other settings or some of it is gone."""
        left = _left.pop(self._members, {})
        made = {
            name: _Made(one.parts, one.number, None if one.group is None else one.group())
            for name, one in left.items()
        }
        whole = all(
            one.made_for == self._made_for and (one.group is None or _known(made[name].group))
            for name, one in left.items()
        )
        if not whole:
            give_back(self._of_torch(made))
        return made

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


def _of_all(number: int, channel: Channel) -> list[int]:
    mine = torch.tensor([number], dtype=torch.int64, device="cpu")
    return [int(part.item()) for part in channel.all_gather(mine)]
