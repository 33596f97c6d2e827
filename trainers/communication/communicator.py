"""How ranks exchange tensors: topology, process groups, flat buckets; what each group sent and waited for.

Bytes are counted as a ring moves them, rank i sending to rank i + 1 of its group: gloo and NCCL do so for
large tensors, and on more than one node the figure agrees with the counters of the interface for ranks that
are numbered node by node.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

# Its functions have the default group as a default argument. Imported once there is one, as the first optimizer
# does through torch._dynamo, it keeps that group and gloo's threads alive, which may abort the process at its exit.
import torch.distributed.nn.functional
from torch import Tensor, nn

from trainers.communication.process_groups import give_back, group_apart, next_number
from trainers.communication.topology import Ranks, Topology

BUCKET_BYTES = 25 * 2**20
"""Size at which a bucket is closed: large against latencies, small enough to overlap with the backward."""

_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SENT = (*_REAL, torch.int8, torch.uint8, torch.int32, torch.int64)
_SUMMED = (*_SENT, torch.complex64, torch.complex128)
"""What both gloo and NCCL take as it is; other types are sent as bytes, where they need not be summed."""


class CommunicationError(RuntimeError):
    """A collective operation ended with an error or ran over its time: most likely another rank is gone."""


class Pending:
    """A collective under way; ``wait`` returns when its result is there. Each is waited for exactly once."""

    def __init__(self, channel: Channel, work: dist.Work | None, tensor: Tensor, what: str) -> None:
        self._channel = channel
        self._work = work
        self._what = what
        # The tensor has to live until the operation is over.
        self._tensor = tensor

    def wait(self) -> Tensor:
        """The tensor with its result. CommunicationError if a peer is lost or the time-out passes."""
        if self._work is not None:
            self._channel._wait(self._work, self._tensor, self._what)
            self._work = None
        return self._tensor


@dataclass(kw_only=True)
class Channel:
    """One process group with its counters. With one rank every operation is free and changes nothing."""

    name: str
    ranks: Ranks
    rank: int
    """Place of this process in ``ranks``."""
    group: dist.ProcessGroup | None
    timeout: timedelta
    next_is_near: bool
    """Whether the ring's next rank is on the same node."""
    bytes_inside: float = 0.0
    bytes_between: float = 0.0
    wait_s: float = 0.0
    operations: int = 0

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Start to sum ``tensor``, in place, over the ranks. TypeError for a type that cannot be summed."""
        if self.size > 1 and tensor.dtype not in _SUMMED:
            raise TypeError(
                f"{tensor.dtype} cannot be summed over ranks. Use another type, say torch.float32."
            )
        self._count(2 * tensor.nbytes * (self.size - 1) / self.size)
        return self._start(
            tensor, "all-reduce", lambda: dist.all_reduce(tensor, group=self.group, async_op=True)
        )

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> Pending:
        """Start to overwrite ``tensor`` with that of the ``source``-th of the ranks."""
        self._count(tensor.nbytes * (self.size - 1) / self.size)
        return self._start(
            tensor,
            "broadcast",
            lambda: dist.broadcast(_sendable(tensor), group=self.group, async_op=True, group_src=source),
        )

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape, in order of rank."""
        if self.size == 1:
            return [tensor]
        self._count(tensor.nbytes * (self.size - 1))
        parts = [torch.empty_like(tensor) for _ in self.ranks]
        into, sent = [_sendable(part) for part in parts], _sendable(tensor)
        gather = self._start(
            tensor, "all-gather", lambda: dist.all_gather(into, sent, group=self.group, async_op=True)
        )
        gather.wait()
        return parts

    def barrier(self, device: torch.device) -> None:
        """Return when all ranks have come here."""
        arrived = self.all_reduce(torch.ones(1, device=device)).wait()
        # On a GPU, waiting only orders streams; reading the value waits for the ranks.
        arrived.item()

    def _count(self, sent: float) -> None:
        if self.size > 1:
            self.operations += 1
            if self.next_is_near:
                self.bytes_inside += sent
            else:
                self.bytes_between += sent

    def _start(self, tensor: Tensor, what: str, start: Callable[[], dist.Work | None]) -> Pending:
        if self.size == 1:
            return Pending(self, None, tensor, what)
        try:
            return Pending(self, start(), tensor, what)
        except torch.OutOfMemoryError:
            # This rank's own trouble: those who judge runs by it must know it.
            raise
        except RuntimeError as error:
            raise self._lost(what, 0.0, error) from error

    def _wait(self, work: dist.Work, tensor: Tensor, what: str) -> None:
        begin = time.perf_counter()
        try:
            if tensor.device.type == "cpu":
                work.wait(self.timeout)
            else:
                # With a time-out NCCL's wait would hold up the host; its own watchdog ends a hung operation.
                work.wait()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise self._lost(what, time.perf_counter() - begin, error) from error
        finally:
            self.wait_s += time.perf_counter() - begin

    def _lost(self, what: str, waited_s: float, error: RuntimeError) -> CommunicationError:
        return CommunicationError(
            f"Rank {self.rank} of {self.size} on {socket.gethostname()}: {what} in {self.name!r} failed "
            f"after {waited_s:.1f} s. Most likely another rank ended with an error: see what the others "
            f"printed. ({error})"
        )


def _sendable(tensor: Tensor) -> Tensor:
    """``tensor``, contiguous, or its bytes where libraries do not know its type."""
    return tensor if tensor.dtype in _SENT else tensor.view(-1).view(torch.uint8)


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
        self.rank = dist.get_rank(among) if joined else 0
        self.size = dist.get_world_size(among) if joined else 1
        if self.rank < 0:
            raise ValueError(
                "This rank is not in the group that it was told to train in. Leave it out there."
            )
        self._apart = among is not None
        self._members = dist.get_process_group_ranks(among or dist.group.WORLD) if joined else [0]
        self.device = device
        self._timeout = timeout
        self._own_groups: list[dist.ProcessGroup | None] = []
        self._channels: dict[str, Channel] = {}
        everyone = tuple(range(self.size))
        finding = Channel(
            name="topology",
            ranks=everyone,
            rank=self.rank,
            group=among or (dist.group.WORLD if joined else None),
            timeout=timeout,
            next_is_near=True,
        )
        self._finding = finding
        if finding.group is not None and self.size > 1 and _has_gloo(finding.group, device):
            # gloo's threads stay in an operation whose peer hangs until its group's own time-out, in the caller's half
            # an hour by default, and no process can end before they do.
            finding.group = self._made([everyone])
        try:
            self.nodes = (topology or Topology()).nodes(_hosts(finding, device))
        except BaseException:
            self.close()
            raise
        self._node_of = {rank: index for index, ranks in enumerate(self.nodes) for rank in ranks}
        self.world = self._register("world", everyone, finding.group)
        self.service = self._register("service", everyone, finding.group)
        """All ranks again, with counters of its own: for what belongs to the loop and not to the method."""

    def group(self, name: str, partition: Iterable[Ranks]) -> Channel:
        """The channel of this rank's part of ``partition``, which holds every rank once. Made once a name."""
        if name in self._channels:
            return self._channels[name]
        parts = tuple(partition)
        if sorted(rank for ranks in parts for rank in ranks) != list(range(self.size)):
            raise ValueError(
                f"group {name!r}: {parts} must hold each of {self.size} ranks once. Correct the partition."
            )
        made = self._made(parts)
        mine = next(ranks for ranks in parts if self.rank in ranks)
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

    def close(self) -> None:
        """Give back the process groups made here; the one that the caller initialised stays."""
        for channel in (self._finding, *self._channels.values()):
            # A reference would keep the group, and its threads, alive after the caller has destroyed it.
            channel.group = None
        self._channels.clear()
        give_back(self._own_groups)

    def _made(self, parts: Sequence[Ranks]) -> dist.ProcessGroup | None:
        """A group of this rank's part of ``parts``, given back at the end; None if it is alone there."""
        number = next_number(self._largest) if self._apart and any(len(ranks) > 1 for ranks in parts) else 0
        mine: dist.ProcessGroup | None = None
        for ranks in parts:
            if len(ranks) == 1:
                continue
            members = [self._members[rank] for rank in ranks]
            if not self._apart:
                # torch wants every rank to take part in making every group, also of those it is not in.
                made = self._new_group(members)
            elif self.rank in ranks:
                made = self._new_group(members, number)
            if self.rank in ranks:
                mine = made
                self._own_groups.append(made)
        return mine

    def _new_group(self, members: Sequence[int], number: int | None = None) -> dist.ProcessGroup:
        """Made by all ranks of the world, or by its members alone where it has a ``number``."""
        try:
            if number is not None:
                return group_apart(members, number, timeout=self._timeout)
            return cast(dist.ProcessGroup, dist.new_group(list(members), timeout=self._timeout))
        except RuntimeError as error:
            raise CommunicationError(
                f"Rank {self.rank} of {self.size} on {socket.gethostname()}: no group of {len(members)} ranks could be "
                f"made within {self._timeout.total_seconds():g} s. Most likely another rank ended with an error, or "
                f"does something else: see what the others printed. ({error})"
            ) from error

    def _largest(self, number: int) -> int:
        mine = torch.tensor([number], dtype=torch.int64, device=self.device)
        return max(int(part.item()) for part in self._finding.all_gather(mine))

    def _register(self, name: str, ranks: Ranks, group: dist.ProcessGroup | None) -> Channel:
        place = ranks.index(self.rank)
        following = ranks[(place + 1) % len(ranks)]
        self._channels[name] = Channel(
            name=name,
            ranks=ranks,
            rank=place,
            group=group,
            timeout=self._timeout,
            next_is_near=self._node_of[self.rank] == self._node_of[following],
        )
        return self._channels[name]


def _has_gloo(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether ``group`` sends tensors on ``device`` by gloo. ValueError if nothing sends them."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    if device.type not in backends:
        raise ValueError(
            f"The process group has a backend for {' and '.join(backends)}, and the model is on {device.type}. Move "
            'the model there, or name a backend for each: init_process_group("cpu:gloo,cuda:nccl"), say.'
        )
    return backends[device.type] == "gloo"


def _hosts(channel: Channel, device: torch.device) -> list[int]:
    """A number a rank that is equal where the hosts are."""
    digest = hashlib.blake2b(socket.gethostname().encode(), digest_size=7).digest()
    mine = torch.tensor([int.from_bytes(digest, "big")], dtype=torch.int64, device=device)
    return [int(part.item()) for part in channel.all_gather(mine)]


@dataclass(eq=False)
class Bucket:
    """Tensors of one type that travel as one flat buffer of ``wire_dtype``."""

    tensors: list[Tensor]
    wire_dtype: torch.dtype
    flat: Tensor = field(init=False)
    views: list[Tensor] = field(init=False)
    """Parts of ``flat`` in the shapes of ``tensors``."""
    firsts: Tensor | None = field(init=False, default=None)
    """Where in ``flat`` the tensors begin, apart from empty ones; None until it is needed."""

    def __post_init__(self) -> None:
        sizes = [tensor.numel() for tensor in self.tensors]
        self.flat = torch.empty(sum(sizes), dtype=self.wire_dtype, device=self.tensors[0].device)
        self.views = [
            part.view(tensor.shape)
            for part, tensor in zip(torch.split(self.flat, sizes), self.tensors, strict=True)
        ]

    def pack(self, values: Sequence[Tensor]) -> Tensor:
        """Copy ``values``, shaped like the tensors, into the buffer and return it."""
        torch._foreach_copy_(self.views, list(values))
        return self.flat

    def unpack(self, into: Sequence[Tensor]) -> None:
        """Copy the buffer's content to ``into``, shaped like the tensors."""
        torch._foreach_copy_(list(into), self.views)


def buckets(
    tensors: Iterable[Tensor], *, wire_dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
) -> list[Bucket]:
    """Group ``tensors``, in order, into buckets of one dtype that close when they reach ``bucket_bytes``.

    ``wire_dtype`` replaces the dtype of floating-point tensors on the wire, where bytes are counted.
    """
    return list(_one_by_one(tensors, wire_dtype=wire_dtype, bucket_bytes=bucket_bytes))


def _one_by_one(
    tensors: Iterable[Tensor], *, wire_dtype: torch.dtype | None = None, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[Bucket]:
    """As ``buckets``, each made when it is asked for: large models need memory for just one of them."""
    groups: dict[torch.dtype, list[list[Tensor]]] = {}
    filled: dict[torch.dtype, int] = {}
    for tensor in tensors:
        dtype = tensor.dtype
        item_bytes = (wire_dtype if wire_dtype is not None and dtype.is_floating_point else dtype).itemsize
        if dtype not in groups or filled[dtype] >= bucket_bytes:
            groups.setdefault(dtype, []).append([])
            filled[dtype] = 0
        groups[dtype][-1].append(tensor)
        filled[dtype] += tensor.numel() * item_bytes
    for dtype, parts in groups.items():
        for group in parts:
            yield Bucket(group, wire_dtype if wire_dtype is not None and dtype.is_floating_point else dtype)


@torch.no_grad()
def broadcast_tensors(channel: Channel, tensors: Sequence[Tensor], *, source: int = 0) -> None:
    """Overwrite ``tensors`` with those of the ``source``-th rank of ``channel``, in flat buckets."""
    if channel.size == 1:
        return
    for bucket in _one_by_one(tensors):
        channel.broadcast(bucket.pack(bucket.tensors), source=source).wait()
        bucket.unpack(bucket.tensors)


@torch.no_grad()
def broadcast_everywhere(communicator: Communicator, tensors: Sequence[Tensor], *, source: int) -> None:
    """Overwrite ``tensors`` with those of rank ``source`` of all, which reach every other node just once."""
    nodes = communicator.nodes
    if len(nodes) == 1 or len({len(ranks) for ranks in nodes}) > 1:
        broadcast_tensors(communicator.world, tensors, source=source)
        return
    node = next(index for index, ranks in enumerate(nodes) if source in ranks)
    place = nodes[node].index(source)
    inside, across = communicator.node, communicator.across
    if inside.rank == place:
        broadcast_tensors(across, tensors, source=node)
    broadcast_tensors(inside, tensors, source=place)


@torch.no_grad()
def average_tensors(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """Overwrite floating-point ``tensors`` with their mean over the ranks of ``channel``, in flat buckets.

    What is the same on all ranks stays as it is to the last bit, infinities too, and large numbers do not
    overflow: the mean is that of the differences from the first rank's, which is sent for it.
    """
    if channel.size == 1:
        return
    for bucket in _one_by_one(tensors):
        if bucket.wire_dtype not in _REAL:
            raise TypeError(
                f"{bucket.wire_dtype} has no mean over ranks. Use another type, say torch.float32."
            )
        own = bucket.pack(bucket.tensors)
        first = channel.broadcast(own.clone()).wait()
        # Divided before it is summed, lest the sum overflow.
        apart = torch.where(own == first, torch.zeros_like(own), (own - first) / channel.size)
        mean = channel.all_reduce(apart).wait()
        # Zero added to a negative zero would change its sign.
        torch.where(mean == 0, first, first + mean, out=bucket.flat)
        bucket.unpack(bucket.tensors)


@torch.no_grad()
def average_summands(channel: Channel, tensors: Sequence[Tensor]) -> None:
    """As ``average_tensors``, for tensors that differ on all ranks anyway: sums, divided; two thirds of the bytes."""
    if channel.size == 1:
        return
    for bucket in _one_by_one(tensors):
        channel.all_reduce(bucket.pack(bucket.tensors)).wait()
        bucket.unpack(bucket.tensors)
        torch._foreach_div_(bucket.tensors, channel.size)


def reconcile_buffers(channel: Channel, model: nn.Module) -> None:
    """Make the model's buffers the same on all ranks: floating-point ones their mean, others rank 0's."""
    floating, others = buffers_of(model)
    average_tensors(channel, floating)
    broadcast_tensors(channel, others)


def buffers_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The buffers of ``model`` that have a mean, and the others."""
    own = list(model.buffers())
    # Types of eight bits and less are for storage; they have no arithmetic.
    return [b for b in own if b.dtype in _REAL], [b for b in own if b.dtype not in _REAL]


class GradientAverager:
    """Average gradients over a channel's ranks while the backward pass still runs.

    Buckets are filled in the reverse order of the parameters, about the order in which gradients become
    ready, and are sent strictly one after the other: ranks whose gradients come in different orders would
    else wait for one another. A parameter without a gradient counts as zero, and has one afterwards; with
    ``keep_none`` only where some rank had one, so that optimizers skip what no rank uses, as on one rank.

    A gradient that changes after it was sent, as reentrant checkpoints of a layer that is used several times
    make it, is a RuntimeError.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        channel: Channel,
        *,
        wire_dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        keep_none: bool = False,
    ) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._channel = channel
        self._buckets = buckets(reversed(trained), wire_dtype=wire_dtype, bucket_bytes=bucket_bytes)
        self._keep_none = keep_none
        # Of each bucket sent, where parameters without a gradient lie: their place in it, and in the buffer.
        self._lacking: list[list[tuple[int, int]]] = []
        # Of each bucket, the parameters that have no gradient yet.
        self._missing: list[set[int]] = []
        self._under_way: list[Pending] = []
        self._armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._ready_hook(index, id(parameter)))  # type: ignore[no-untyped-call]
            for index, bucket in enumerate(self._buckets)
            for parameter in bucket.tensors
        ]

    def arm(self) -> None:
        """The next backward pass completes the gradients: send each bucket as soon as it is full."""
        self._missing = [{id(parameter) for parameter in bucket.tensors} for bucket in self._buckets]
        self._under_way, self._lacking = [], []
        self._armed = True

    def send(self) -> None:
        """Send what is left. Before anything else on the channel: ranks that lack a gradient have more left."""
        self._armed = False
        while len(self._under_way) < len(self._buckets):
            self._send_next()

    def finish(self) -> None:
        """Send what is left, wait for all, and put the means into the parameters' ``grad``."""
        self.send()
        for bucket, pending, lacking in zip(self._buckets, self._under_way, self._lacking, strict=True):
            pending.wait()
            unused = _unmarked(bucket.flat, lacking)
            gradients = [gradient_of(parameter) for parameter in bucket.tensors]
            bucket.unpack(gradients)
            # Once the sum is back in the gradient's own precision: dividing on the wire would round again.
            torch._foreach_div_(gradients, self._channel.size)
            for place in unused:
                bucket.tensors[place].grad = None
        self._under_way, self._lacking = [], []

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def state(self) -> Mapping[str, object]:
        """Nothing goes on from one step to the next."""
        return {}

    def load(self, state: Mapping[str, object]) -> None:
        """Nothing is to be taken up."""

    def _ready_hook(self, index: int, parameter_id: int) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if not self._armed:
                return
            if index < len(self._under_way):
                raise RuntimeError(
                    "A gradient changed after it was sent to the other ranks: within one backward pass, that "
                    f"of a parameter of shape {tuple(parameter.shape)} came in several parts. Give "
                    "torch.utils.checkpoint use_reentrant=False."
                )
            self._missing[index].discard(parameter_id)
            while len(self._under_way) < len(self._buckets) and not self._missing[len(self._under_way)]:
                self._send_next()

        return ready

    def _send_next(self) -> None:
        bucket = self._buckets[len(self._under_way)]
        lacking = [place for place, parameter in enumerate(bucket.tensors) if parameter.grad is None]
        flat = bucket.pack([gradient_of(parameter) for parameter in bucket.tensors])
        self._lacking.append(_mark(bucket, lacking) if self._keep_none else [])
        self._under_way.append(self._channel.all_reduce(flat))


def _mark(bucket: Bucket, lacking: list[int]) -> list[tuple[int, int]]:
    """Have the buffer tell, at no bytes of its own, which tensors have no gradient: by a zero's sign.

    A sum is -0.0 only where all its summands are. So each gradient's first number is made anything else, and
    -0.0 where it is ``lacking``; the places of these, and where in the buffer they begin.
    """
    begins = [int(view.storage_offset()) for view in bucket.views]
    if bucket.firsts is None:
        filled = [begin for begin, view in zip(begins, bucket.views, strict=True) if view.numel()]
        bucket.firsts = torch.tensor(filled, dtype=torch.int64, device=bucket.flat.device)
    bucket.flat[bucket.firsts] += 0.0
    marked = [(place, begins[place]) for place in lacking if bucket.views[place].numel()]
    if marked:
        bucket.flat[[begin for _, begin in marked]] = -0.0
    return marked


def _unmarked(flat: Tensor, lacking: list[tuple[int, int]]) -> list[int]:
    """Of the tensors that ``lacking`` names, which the summed buffer shows no rank to have a gradient of."""
    if not lacking:
        return []
    sums = flat[[begin for _, begin in lacking]]
    # Of a complex number the real part has the sign.
    nowhere = ((sums == 0) & torch.signbit(sums.real)).tolist()
    return [place for (place, _), nobody in zip(lacking, nowhere, strict=True) if nobody]


def gradient_of(parameter: Tensor) -> Tensor:
    """The parameter's gradient, made of zeros where there is none. ValueError for a sparse one."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    refuse_sparse(parameter.grad)
    return parameter.grad


def refuse_sparse(gradient: Tensor | None) -> None:
    """ValueError if ``gradient`` is sparse."""
    if gradient is not None and gradient.is_sparse:
        raise ValueError(
            "A sparse gradient can be neither averaged nor clipped. Create the embedding with sparse=False."
        )
