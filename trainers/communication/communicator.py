"""The process groups of a run: all ranks, those of a node, those across nodes, and the parts that a method asks for."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

# Its functions have the default group as a default argument. Imported once there is one, as the first optimizer
# does through torch._dynamo, it keeps that group and gloo's threads alive, which may abort the process at its exit.
import torch.distributed.nn.functional

from trainers.communication.channel import Channel, CommunicationError
from trainers.communication.kept_groups import RunGroups
from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Ranks, Topology


class Communicator:
    """The ranks of a run, one if torch.distributed has not been initialised, and the channels between them.

    They are those of ``among``, of all ranks if None, and are numbered from 0 in it. ``group(name, partition)``
    makes further channels; all ranks of the run ask for the same ones in the same order.
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
        # In the order that they have in groups made here, whatever it is in the caller's.
        members = sorted(dist.get_process_group_ranks(among or dist.group.WORLD)) if joined else [0]
        self.size = len(members)
        self.rank = members.index(dist.get_rank()) if joined else 0
        self.device = device
        self.backend = ""
        """The name of torch.distributed's, "gloo" or "nccl"; empty for one rank."""
        self._timeout = timeout
        self._own_groups: list[dist.ProcessGroup | None] = []
        self._channels: dict[str, Channel] = {}
        everyone = tuple(range(self.size))
        self._groups: RunGroups | None = None
        control = self._channel("control", everyone, None, near=True)
        caller = among or (dist.group.WORLD if joined else None)
        try:
            if caller is not None and self.size > 1:
                backends = _backends(caller)
                self.backend = _backend_for(device, backends)
                control.host_group = self._control(caller, members, backends, apart=among is not None)
                self._groups = RunGroups(members, rank=self.rank, timeout=timeout, backend=self.backend)
                self._groups.agree(control)
            self.nodes = (topology or Topology()).nodes(_hosts(control))
            self._node_of = {rank: index for index, ranks in enumerate(self.nodes) for rank in ranks}
            self.world = self.group("world", [everyone])
            self.service = self._register("service", everyone, self.world.group, control.host_group)
            """All ranks again, with counters of its own: for what belongs to the loop and not to the method. What is in
            the host's memory has a group of its own there: over gloo a rank that hangs is an error after the time-out,
            and no GPU need have ended its work."""
            # Who finds a mistake ends at once, and with that would break off what others still connect: these would
            # report a lost rank in place of the mistake.
            control.barrier(torch.device("cpu"))
        except BaseException:
            control.host_group = None
            self.close()
            raise

    def group(self, name: str, partition: Iterable[Ranks]) -> Channel:
        """The channel of this rank's part of ``partition``, which holds every rank once. Made once a name."""
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
        with self._lost_as_error(len(mine)):
            made = self._groups.of(name, parts)
        return self._register(name, mine, made)

    @property
    def node(self) -> Channel:
        """The ranks on this rank's node."""
        return self.group("node", self.nodes)

    @property
    def across(self) -> Channel:
        """The ranks with the same place on every node. ValueError if not all nodes have as many ranks."""
        if len({len(ranks) for ranks in self.nodes}) > 1:
            raise ValueError(
                f"The nodes have {', '.join(str(len(ranks)) for ranks in self.nodes)} ranks: groups across "
                "nodes need as many on each. Start as many ranks on every node."
            )
        return self.group("across", zip(*self.nodes, strict=True))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels made so far."""
        return tuple(self._channels.values())

    def traffic(self) -> dict[str, float]:
        """What this rank adds to the sums over all ranks of bytes sent between and inside nodes, and to the mean of the
        seconds that ranks waited; without what the loop itself exchanges.
        """
        channels = [channel for channel in self.channels if channel is not self.service]
        return {
            "bytes_between_nodes": sum(channel.bytes_between for channel in channels),
            "bytes_inside_nodes": sum(channel.bytes_inside for channel in channels),
            "wait_s": sum(channel.wait_s for channel in channels) / self.size,
        }

    def counters(self) -> dict[str, dict[str, float]]:
        """What each channel counted on this rank so far, by name; ``set_counters`` takes it back."""
        return {
            name: {
                "bytes_inside": channel.bytes_inside,
                "bytes_between": channel.bytes_between,
                "wait_s": channel.wait_s,
                "operations": float(channel.operations),
            }
            for name, channel in self._channels.items()
        }

    def set_counters(self, counters: dict[str, dict[str, float]]) -> None:
        """Go on counting from ``counters``; channels that are not there yet are left out."""
        for name in counters.keys() & self._channels.keys():
            channel, values = self._channels[name], counters[name]
            channel.bytes_inside, channel.bytes_between = values["bytes_inside"], values["bytes_between"]
            channel.wait_s, channel.operations = values["wait_s"], int(values["operations"])

    @contextmanager
    def counted_as_service(self) -> Iterator[None]:
        """Inside, what any channel sends and waits for counts as that of ``service``: an evaluation's."""
        before = self.counters()
        try:
            yield
        finally:
            own = before.pop("service")
            nothing = dict.fromkeys(own, 0.0)
            after = self.counters()
            now = after.pop("service")
            kept = {name: before.get(name, nothing) for name in after}
            moved = {key: sum(after[name][key] - kept[name][key] for name in after) for key in own}
            self.set_counters({**kept, "service": {key: now[key] + moved[key] for key in own}})

    def release(self) -> None:
        """Destroy groups that were taken over from the last run and not asked for so far. Every rank calls it."""
        if self._groups is not None:
            self._groups.release()

    def close(self, *, keep: bool = False) -> None:
        """Give back the process groups made here; the one that the caller initialised stays. ``keep``: after a run that
        has ended without an error, the next run of these ranks may take over those of its channels.
        """
        keep = keep and not any(channel.under_way for channel in self.channels)
        for channel in self.channels:
            # A reference would keep the group, and its threads, alive after the caller has destroyed it.
            channel.group = channel.host_group = None
        self._channels.clear()
        if self._groups is not None:
            self._own_groups += self._groups.close(keep=keep)
            self._groups = None
        give_back(self._own_groups)

    def _control(
        self, caller: dist.ProcessGroup, members: list[int], backends: dict[str, str], *, apart: bool
    ) -> dist.ProcessGroup:
        """The ranks of ``caller`` again, for tensors in the host's memory, given back at the end; ``apart``: others of
        the world do something else meanwhile.

        A group has the time-out that it was made with, the caller's half an hour by default: so long would gloo's
        threads stay in an operation whose peer hangs.
        """
        backend = backends.get("cpu", "gloo")
        with self._lost_as_error(self.size):
            if apart:
                device = torch.device("cpu") if "cpu" in backends else self.device
                channel = self._channel("caller", tuple(range(self.size)), caller, near=True)
                number = next_number(lambda own: max(channel.number_of_each(own, device)))
                made = group_apart(members, number, timeout=self._timeout, backend=backend)
            else:
                # Made by all ranks of the world, in the order in which all make groups.
                made = cast(
                    dist.ProcessGroup, dist.new_group(members, timeout=self._timeout, backend=backend)
                )
        self._own_groups.append(made)
        return made

    @contextmanager
    def _lost_as_error(self, ranks: int) -> Iterator[None]:
        """Inside, a group of as many ``ranks`` is made."""
        try:
            yield
        except CommunicationError:
            raise
        except RuntimeError as error:
            raise CommunicationError(
                f"Rank {self.rank} of {self.size} on {socket.gethostname()}: no group of {ranks} ranks could be "
                f"made within {self._timeout.total_seconds():g} s. Most likely another rank ended with an error, or "
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
        # In the order of the group's ring.
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
            timeout=self._timeout,
            next_is_near=near,
        )


def _backends(group: dist.ProcessGroup) -> dict[str, str]:
    """By the kind of device, the name of that which sends its tensors."""
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


def _backend_for(device: torch.device, backends: dict[str, str]) -> str:
    """The name of that which sends tensors on ``device``. ValueError if there is none."""
    if device.type not in backends:
        raise ValueError(
            f"The process group has a backend for {' and '.join(backends)}, and the model is on {device.type}. Move "
            'the model there, or name a backend for each: init_process_group("cpu:gloo,cuda:nccl"), say.'
        )
    return backends[device.type]


def _hosts(channel: Channel) -> list[int]:
    """A number a rank that is equal where the hosts are."""
    digest = hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest()
    return channel.number_of_each(int.from_bytes(digest, "big"))
