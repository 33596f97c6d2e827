"""Process groups of a run, kept for the next run of the same ranks.

NCCL takes up to seconds to connect ranks, and the processes of a campaign train one configuration after another. A run
that ends without an error leaves its groups in torch, with the description ``KEPT``; the next run takes over groups
that all of its ranks have, and makes the others.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from trainers.communication.channel import Channel
from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Ranks

KEPT = "kept for the next training"
"""Description of groups that no run uses. Code that destroys the groups that a task has left may spare these."""

_IN_USE = "of a training"
"""Description of groups that a run uses."""


@dataclass(frozen=True)
class _Made:
    """Groups of a partition, of which this rank has the group of its own part."""

    parts: tuple[Ranks, ...]
    """Partition of the run's ranks."""
    number: tuple[int, int]
    """Number and index in ``group_apart``."""
    # Weak, so that torch and channels alone keep the group: destroying torch's default group destroys this group too.
    held: weakref.ref[dist.ProcessGroup] | None
    """Group of this rank's part; None for a part of a single rank."""

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Group, if torch still has it."""
        group = None if self.held is None else self.held()
        return group if group in distributed_c10d._world.pg_map else None


_left: tuple[str, Mapping[str, _Made]] = ("", {})
"""Kind of the run that has left groups, and the groups by name."""


class RunGroups:
    """Process groups of a run, whose ranks all call ``agree`` once and then make the same groups in the same order.

    ``members`` are the world ranks of the run's ranks, ascending, ``rank`` is this process's rank in the run.
    """

    def __init__(self, members: Sequence[int], *, rank: int, timeout: timedelta, backend: str) -> None:
        self._members = list(members)
        self._rank = rank
        self._timeout = timeout
        self._backend = backend
        self._number = 0
        self._found: dict[str, _Made] = {}
        self._made: dict[str, _Made] = {}

    def agree(self, channel: Channel) -> None:
        """Take over the groups of the last run if all ranks of ``channel`` have the same, or destroy them.

        Collective.
        """
        self._found, whole = self._taken()
        # A rank whose last run ended with an error has no groups, or other groups.
        kept = [self._kind, *sorted((name, made.parts, made.number) for name, made in self._found.items())]
        own = int.from_bytes(hashlib.blake2b(repr(kept).encode(), digest_size=7).digest(), "big")
        if len(set(channel.number_of_each(own if whole else -1))) > 1 or not whole:
            # Only after the exchange: destroying a group waits for its ranks, which would wait here for this rank.
            give_back(_emptied(self._found))
        for made in self._found.values():
            _describe(made, _IN_USE)
        self._number = next_number(lambda number: max(channel.number_of_each(number)))

    def of(self, name: str, parts: Sequence[Ranks]) -> dist.ProcessGroup | None:
        """Group of this rank's part of the partition ``parts``; None for a single rank. Called once for a name."""
        found = self._found.pop(name, None)
        if found is not None and found.parts != tuple(parts):
            give_back(_emptied({name: found}))
            found = None
        self._made[name] = found or self._new(tuple(parts))
        return self._made[name].group

    def release(self) -> None:
        """Destroy groups of the last run that this run does not use, to free their memory for the training."""
        give_back(_emptied(self._found))

    def close(self, *, keep: bool) -> list[dist.ProcessGroup | None]:
        """End the run; returns the groups to destroy.

        With ``keep``, the run's groups are left for the next run, including those that it took over and did not use; no
        operation may be under way in them, and the caller must have no references to them.
        """
        global _left
        spent = []
        # Torch names some groups by the number of groups that a rank has, so all ranks must keep equally many: groups
        # of runs of the whole world are kept, of partitions without a part of a single rank.
        if keep and self._of_whole_world:
            # A nested run, such as an evaluation in a report of this run, may have left groups since.
            before, _ = self._taken()
            spent += _emptied(before)
            left = {}
            for made in (self._found, self._made):
                for name in [*made]:
                    if all(len(ranks) > 1 for ranks in made[name].parts):
                        left[name] = made.pop(name)
                        _describe(left[name], KEPT)
            _left = self._kind, left
        return spent + _emptied(self._found) + _emptied(self._made)

    def _new(self, parts: tuple[Ranks, ...]) -> _Made:
        number = self._number, len(self._made)
        mine = next(ranks for ranks in parts if self._rank in ranks)
        if len(mine) == 1:
            return _Made(parts, number, None)
        members = [self._members[rank] for rank in mine]
        group = group_apart(members, number[0], index=number[1], timeout=self._timeout, backend=self._backend)
        made = _Made(parts, number, weakref.ref(group))
        _describe(made, _IN_USE)
        return made

    @property
    def _of_whole_world(self) -> bool:
        return dist.is_initialized() and len(self._members) == dist.get_world_size()

    @property
    def _kind(self) -> str:
        return f"{self._members}, {self._backend}, {self._timeout}"

    def _taken(self) -> tuple[dict[str, _Made], bool]:
        """Groups that the last run of the whole world has left, and whether this run can use them."""
        global _left
        if not self._of_whole_world:
            return {}, True
        (kind, left), _left = _left, ("", {})
        return {**left}, not left or (kind == self._kind and None not in [m.group for m in left.values()])


def _emptied(made: dict[str, _Made]) -> list[dist.ProcessGroup | None]:
    """Groups of ``made`` that torch still has; empties the dictionary."""
    groups: list[dist.ProcessGroup | None] = [one.group for one in made.values() if one.group is not None]
    made.clear()
    return groups


def _describe(made: _Made, description: str) -> None:
    if made.group is not None:
        made.group._set_group_desc(description)
