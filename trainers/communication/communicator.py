"""Channels of a run: all ranks, the ranks of a node, ranks across nodes, and partitions that a method needs."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Functions of this module have the default group as a default argument. If torch._dynamo imports it with the first
# optimizer, when there is a default group, it keeps that group and gloo's threads alive, which may abort the process at
# its exit. Imported here, it finds no group.
import torch.distributed.nn.functional

from trainers.communication.channel import COUNTERS, Channel, CommunicationError
from trainers.communication.kept_groups import RunGroups
from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Ranks, Topology


class Communicator:
    """Ranks of a run and the channels between them; a single rank if torch.distributed is not initialised.

    Ranks are numbered from 0 within the run. ``group(name, partition)`` makes further channels; all ranks of the run
    must make the same channels in the same order. ValueError if this rank is not in ``among``, or the group cannot send
    tensors of ``device``; CommunicationError if a group could not be made.

    Args:
        topology (Topology): ranks that share a node; None: by host names.
        timeout (timedelta): longest time of a collective operation.
        device (device): device of the model on this rank.
        among (ProcessGroup): ranks of the run; None: all ranks.
    """

    def __init__(
        self,
        *,
        topology: Topology | None,
        timeout: timedelta,
        device: torch.device,
        among: dist.ProcessGroup | None = None,
    ) -> None:
        joined = dist.is_available() and dist.is_initialized()
        if joined and dist.get_rank(among) < 0:
            raise ValueError(
                "This rank is not in the group that it was given to train in. Leave it out there."
            )
        # Sorted, as torch numbers the ranks in the groups made here, whatever their order in the caller's group.
        members = sorted(dist.get_process_group_ranks(among or dist.group.WORLD)) if joined else [0]
        self.members = members
        """torch's numbers of the ranks."""
        self.size = len(members)
        self.rank = members.index(dist.get_rank()) if joined else 0
        self.device = device
        self.backend = ""
        """Name of torch.distributed's backend for ``device``, "gloo" or "nccl"; "" for a single rank."""
        self.timeout = timeout
        """Longest time of a collective operation."""
        self._own_groups: list[dist.ProcessGroup | None] = []
        self._channels: dict[str, Channel] = {}
        everyone = tuple(range(self.size))
        self._groups: RunGroups | None = None
        control = self._channel("control", everyone, None, near=True)
        caller = among or (dist.group.WORLD if joined else None)
        try:
            if caller is not None and self.size > 1:
                backends = dict(pair.split(":") for pair in dist.get_backend_config(caller).split(","))
                if device.type not in backends:
                    raise ValueError(
                        f"The process group has a backend for {' and '.join(backends)}, and the model is on "
                        f"{device.type}. Move the model there, or name a backend for each: "
                        'init_process_group("cpu:gloo,cuda:nccl"), say.'
                    )
                self.backend = backends[device.type]
                control.host_group = self._control(caller, members, backends, apart=among is not None)
                self._groups = RunGroups(members, rank=self.rank, timeout=timeout, backend=self.backend)
                self._groups.agree(control)
            host = hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest()
            self.nodes = (topology or Topology()).nodes(control.number_of_each(int.from_bytes(host, "big")))
            self._node_of = {rank: index for index, ranks in enumerate(self.nodes) for rank in ranks}
            self.world = self.group("world", [everyone])
            self.service = self._register("service", everyone, self.world.group, control.host_group)
            """Channel of all ranks for messages of the training loop, counted apart from those of the method.

            Tensors in the host's memory use a gloo group: a rank that hangs is an error after the time-out, and the
            GPUs need not have finished their work."""
            # A rank that finds a mistake afterwards ends at once. Without the barrier, others that still connect would
            # report a lost rank in place of the mistake.
            control.barrier(torch.device("cpu"))
        except BaseException:
            control.host_group = None
            self.close()
            raise

    def group(self, name: str, partition: Iterable[Ranks]) -> Channel:
        """Channel of this rank's part of ``partition``, which must have each rank exactly once; one for each name."""
        if name in self._channels:
            return self._channels[name]
        parts = tuple(partition)
        if sorted(rank for ranks in parts for rank in ranks) != list(range(self.size)):
            raise ValueError(
                f"group {name!r}: {parts} must hold each of {self.size} ranks once. Correct the partition."
            )
        mine = next(ranks for ranks in parts if self.rank in ranks)
        if self._groups is None:
            return self._register(name, mine, None)
        with self.lost_as_error(len(mine)):
            made = self._groups.of(name, parts)
        return self._register(name, mine, made)

    def adopt(self, name: str, group: dist.ProcessGroup) -> Channel:
        """Channel for counting what ``group``, of some of the run's ranks, sends; the group stays after the run."""
        of_world = dist.get_process_group_ranks(group)
        return self._register(name, tuple(self.members.index(rank) for rank in of_world), group)

    @property
    def node(self) -> Channel:
        """Channel of the ranks on this rank's node."""
        return self.group("node", self.nodes)

    @property
    def across(self) -> Channel:
        """Channel of the ranks with the same place on each node; ValueError if nodes differ in numbers of ranks."""
        if len({len(ranks) for ranks in self.nodes}) > 1:
            raise ValueError(
                f"The nodes have {', '.join(str(len(ranks)) for ranks in self.nodes)} ranks: groups across "
                "nodes need as many on each. Start as many ranks on every node."
            )
        return self.group("across", zip(*self.nodes, strict=True))

    @property
    def alone(self) -> Channel:
        """Channel of this rank alone."""
        return self.group("alone", ((rank,) for rank in range(self.size)))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels made so far."""
        return tuple(self._channels.values())

    def traffic(self) -> dict[str, float]:
        """Summands of this rank for the bytes that ranks send between and inside nodes, and the mean seconds that they
        wait, without the messages of the training loop.
        """
        channels = [channel for channel in self.channels if channel is not self.service]
        return {
            "bytes_between_nodes": sum(channel.bytes_between for channel in channels),
            "bytes_inside_nodes": sum(channel.bytes_inside for channel in channels),
            "wait_s": sum(channel.wait_s for channel in channels) / self.size,
        }

    def counters(self) -> dict[str, dict[str, float]]:
        """Counters of each channel on this rank, by name, for ``set_counters``."""
        return {
            name: {key: float(getattr(channel, key)) for key in COUNTERS}
            for name, channel in self._channels.items()
        }

    def set_counters(self, counters: dict[str, dict[str, float]]) -> None:
        """Continue counting from ``counters``; names without a channel are ignored."""
        for name in counters.keys() & self._channels.keys():
            for key in COUNTERS:
                setattr(self._channels[name], key, counters[name][key])

    @contextmanager
    def counted_as_service(self) -> Iterator[None]:
        """Context in which messages of all channels are counted as those of ``service``, as in evaluations."""
        before = self.counters()
        try:
            yield
        finally:
            # Channels that were made inside begin at 0.
            kept = {name: before.get(name, dict.fromkeys(COUNTERS, 0.0)) for name in self._channels}
            now = self.counters()
            own = kept["service"]
            kept["service"] = {
                key: own[key] + sum(now[name][key] - kept[name][key] for name in now) for key in COUNTERS
            }
            self.set_counters(kept)

    def release(self) -> None:
        """Destroy groups that were taken over from the last run and are not in use. Collective."""
        if self._groups is not None:
            self._groups.release()

    def close(self, *, keep: bool = False) -> None:
        """Destroy the process groups made here; the caller's group stays.

        ``keep``: whether the next run of these ranks may take over the groups, after a run without an error.
        """
        keep = keep and not any(channel.under_way for channel in self.channels)
        for channel in self.channels:
            # A reference would keep a group, and its threads, alive after the caller has destroyed it.
            channel.group = channel.host_group = None
        self._channels.clear()
        if self._groups is not None:
            self._own_groups += self._groups.close(keep=keep)
            self._groups = None
        give_back(self._own_groups)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # All ranks raise an error that says so after the same call, as where ``report`` ends a poor run.
        self.close(keep=error is None or getattr(error, "on_all_ranks", False) is True)

    def _control(
        self, caller: dist.ProcessGroup, members: list[int], backends: dict[str, str], *, apart: bool
    ) -> dist.ProcessGroup:
        """Group of the ranks of ``caller`` for tensors in the host's memory. ``apart``: whether other ranks of the
        world do something else at the same time.
        """
        # A group of its own, because a group keeps the time-out that it was made with, by default half an hour for the
        # caller's: gloo's threads would stay that long in an operation whose peer hangs.
        backend = backends.get("cpu", "gloo")
        with self.lost_as_error(self.size):
            if apart:
                device = torch.device("cpu") if "cpu" in backends else self.device
                channel = self._channel("caller", tuple(range(self.size)), caller, near=True)
                number = next_number(lambda own: max(channel.number_of_each(own, device)))
                made = group_apart(members, number, timeout=self.timeout, backend=backend)
            else:
                # All ranks of the world make this group, in the same order among the groups that they make.
                new_group: Any = dist.new_group
                made = new_group(members, timeout=self.timeout, backend=backend)
        self._own_groups.append(made)
        return made

    @contextmanager
    def lost_as_error(self, ranks: int) -> Iterator[None]:
        """Context for making a group of ``ranks`` ranks, which raises CommunicationError where that fails."""
        try:
            yield
        except CommunicationError:
            raise
        except RuntimeError as error:
            raise CommunicationError(
                f"Rank {self.rank} of {self.size} on {socket.gethostname()}: no group of {ranks} ranks could be "
                f"made within {self.timeout.total_seconds():g} s. Most likely another rank ended with an error, or "
                "does something else: see what the others printed. Where hosts do not reach one another at the "
                f"addresses of their names, set GLOO_SOCKET_IFNAME to the interface. ({error})"
            ) from error

    def _register(
        self,
        name: str,
        ranks: Ranks,
        group: dist.ProcessGroup | None,
        host_group: dist.ProcessGroup | None = None,
    ) -> Channel:
        # The group's ring is in ascending order.
        ascending = sorted(ranks)
        following = ascending[(ascending.index(self.rank) + 1) % len(ranks)]
        channel = self._channel(name, ranks, group, near=self._node_of[self.rank] == self._node_of[following])
        channel.host_group = host_group
        self._channels[name] = channel
        return channel

    def _channel(self, name: str, ranks: Ranks, group: dist.ProcessGroup | None, *, near: bool) -> Channel:
        return Channel(
            name=name,
            ranks=ranks,
            rank=ranks.index(self.rank),
            group=group,
            timeout=self.timeout,
            next_is_near=near,
        )
