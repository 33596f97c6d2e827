"""Channel: the collective operations of a group of ranks, with time-outs and counts of bytes and waiting times.

Bytes are counted as for a ring, in which rank i sends to rank i + 1 of its group: gloo and NCCL do so for large
tensors. On several nodes, the count agrees with the counters of the network interface if ranks are numbered node by
node."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.communication.topology import Ranks
from trainers.gpu import module_of

REAL_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX_TYPES = (torch.complex64, torch.complex128)

_SENT = (*REAL_TYPES, torch.int8, torch.uint8, torch.int32, torch.int64)
"""Types that both gloo and NCCL can send; other types are sent as bytes."""

_SUMMED = (*_SENT, *COMPLEX_TYPES)
"""Types that both gloo and NCCL can sum."""

# AcceleratorError exists from torch 2.8 on.
_OWN_ERRORS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""Errors of this rank's own device, raised unchanged because callers decide by their type."""

COUNTERS = ("bytes_inside", "bytes_between", "wait_s", "operations")
"""Counters of a channel, which a checkpoint keeps."""

_MANY_WAITS = 1000
"""Waits of a stream at which those that have ended are summed up."""
_HOST = torch.device("cpu")

# Named so from torch 2.13 on.
all_gather_single: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class CommunicationError(RuntimeError):
    """A collective operation failed or exceeded its time-out: most likely another rank has died."""


class Pending:
    """A started collective operation, which must be waited for exactly once."""

    def __init__(self, channel: Channel, work: dist.Work | None, tensor: Tensor, what: str) -> None:
        self._channel, self._work, self._what = channel, work, what
        # Referenced here so that its memory is not reused before the operation has ended.
        self._tensor = tensor

    def wait(self) -> Tensor:
        """Wait for the operation and return its tensor; CommunicationError if a peer is lost or the time-out ends."""
        if self._work is not None:
            self._channel._wait(self._work, self._tensor, self._what)
            self._work = None
            self._channel.under_way -= 1
        return self._tensor


@dataclass(kw_only=True)
class Channel:
    """A process group with its counters; with a single rank, operations do nothing."""

    name: str
    ranks: Ranks
    """Ranks of the run in any order; torch numbers the ranks of a group in ascending order."""
    rank: int
    """Place of this process in ``ranks``."""
    group: dist.ProcessGroup | None
    """Group of torch.distributed; None with a single rank."""
    timeout: timedelta
    """Longest time of an operation."""
    next_is_near: bool
    """Whether the ring's next rank is on the same node."""
    host_group: dist.ProcessGroup | None = None
    """Group of the same ranks for tensors in the host's memory; None: ``group`` sends these too."""
    bytes_inside: float = 0.0
    """Bytes that this rank has sent inside its node, as ``bytes_between`` to other nodes."""
    bytes_between: float = 0.0
    operations: float = 0
    under_way: int = 0
    """Operations that were started and not waited for."""
    _waited_s: float = 0.0
    _stream_waits: list[tuple[torch.Event, torch.Event]] = field(default_factory=list)
    """Events before and after each wait of a GPU's stream that is not in ``_waited_s`` yet."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def wait_s(self) -> float:
        """Seconds that computation, on the CPU or in the stream of a GPU, has waited for this channel."""
        # Reading the time of an event is possible only after the stream has reached it.
        for begin, end in self._stream_waits:
            end.synchronize()
            self._waited_s += begin.elapsed_time(end) / 1000
        self._stream_waits.clear()
        return self._waited_s

    @wait_s.setter
    def wait_s(self, seconds: float) -> None:
        self._stream_waits.clear()
        self._waited_s = seconds

    def all_reduce(self, tensor: Tensor) -> Pending:
        """Start to sum ``tensor``, in place, over the ranks; TypeError for a type that cannot be summed."""
        if self.size > 1 and tensor.dtype not in _SUMMED:
            raise TypeError(
                f"{tensor.dtype} cannot be summed over ranks. Use another type, say torch.float32."
            )
        return self._start(
            tensor,
            "all-reduce",
            2 * tensor.nbytes * (self.size - 1) / self.size,
            lambda: dist.all_reduce(tensor, group=self._group_for(tensor), async_op=True),
        )

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> Pending:
        """Start to overwrite ``tensor`` with that of the rank at place ``source`` of ``ranks``."""
        return self._start(
            tensor,
            "broadcast",
            tensor.nbytes * (self.size - 1) / self.size,
            lambda: dist.broadcast(
                _sendable(tensor),
                group=self._group_for(tensor),
                async_op=True,
                group_src=self._numbers[source],
            ),
        )

    def all_gather_parts(self, tensor: Tensor) -> Pending:
        """Start to fill ``tensor``, which has a part of equal size for each rank, in the order of ``ranks``, with the
        parts of all ranks.
        """
        parts = _sendable(tensor).chunk(self.size)
        own, group = parts[self.rank], self._group_for(tensor)
        return self._start(
            tensor,
            "all-gather",
            tensor.nbytes * (self.size - 1) / self.size,
            lambda: (
                all_gather_single(_sendable(tensor), own, group=group, async_op=True)
                if self._ascending == sorted(self._ascending)
                else dist.all_gather(
                    [parts[place] for place in self._ascending], own, group=group, async_op=True
                )
            ),
        )

    def all_to_all_parts(self, received: Tensor, sent: Tensor) -> Pending:
        """Start to fill ``received`` with the parts that all ranks send to this rank, in ascending order of ranks.

        ``sent`` has a part of equal size for each rank, in the order of ``ranks``.
        """
        parts = (
            sent
            if self._ascending == sorted(self._ascending)
            else torch.cat([sent.chunk(self.size)[place] for place in self._ascending])
        )
        return self._start(
            received,
            "all-to-all",
            sent.nbytes * (self.size - 1) / self.size,
            lambda: dist.all_to_all_single(received, parts, group=self._group_for(sent), async_op=True),
        )

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Tensors of all ranks, which must have the same shape, in order of rank."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in self.ranks]
        into, sent = [_sendable(part) for part in parts], _sendable(tensor)
        self._start(
            tensor,
            "all-gather",
            tensor.nbytes * (self.size - 1),
            lambda: dist.all_gather(into, sent, group=self._group_for(tensor), async_op=True),
        ).wait()
        return [parts[number] for number in self._numbers]

    def number_of_each(self, number: int, device: torch.device = _HOST) -> list[int]:
        """Integer ``number`` of each rank, in order of rank, sent from the memory of ``device``."""
        mine = torch.tensor([number], dtype=torch.int64, device=device)
        return [int(part.item()) for part in self.all_gather(mine)]

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """Tensors of all ranks, which must have the same shape, in order of rank, on the first rank; None on others."""
        if self.size == 1:
            return [tensor]
        parts = None if self.rank else [torch.empty_like(tensor) for _ in self.ranks]
        into = parts and [_sendable(part) for part in parts]
        self._start(
            tensor,
            "gather",
            tensor.nbytes if self.rank else 0,
            lambda: dist.gather(
                _sendable(tensor),
                into,
                group=self._group_for(tensor),
                group_dst=self._numbers[0],
                async_op=True,
            ),
        ).wait()
        return parts and [parts[number] for number in self._numbers]

    def barrier(self, device: torch.device) -> None:
        """Return when all ranks have called this."""
        arrived = self.all_reduce(torch.ones(1, device=device)).wait()
        # For a GPU, the wait only orders streams; reading the value waits for the other ranks.
        arrived.item()

    def count(self, sent: float) -> None:
        """Count an operation in which this rank sends ``sent`` bytes."""
        self.operations += 1
        if self.next_is_near:
            self.bytes_inside += sent
        else:
            self.bytes_between += sent

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self.group if self.host_group is None or tensor.device.type != "cpu" else self.host_group

    @cached_property
    def _numbers(self) -> list[int]:
        """Number in the group of each rank, in the order of ``ranks``."""
        numbers = {rank: number for number, rank in enumerate(sorted(self.ranks))}
        return [numbers[rank] for rank in self.ranks]

    @cached_property
    def _ascending(self) -> list[int]:
        """Places in ``ranks`` in the order of the group."""
        return sorted(range(self.size), key=self.ranks.__getitem__)

    def _start(
        self, tensor: Tensor, what: str, sent: float, start: Callable[[], dist.Work | None]
    ) -> Pending:
        """Start the operation ``what``, in which this rank sends ``sent`` bytes."""
        if self.size == 1:
            return Pending(self, None, tensor, what)
        self.count(sent)
        try:
            work = start()
        except _OWN_ERRORS:
            raise
        except RuntimeError as error:
            raise self.lost(what, error) from error
        self.under_way += work is not None
        return Pending(self, work, tensor, what)

    def _wait(self, work: dist.Work, tensor: Tensor, what: str) -> None:
        begin = time.perf_counter()
        try:
            if tensor.device.type == "cpu":
                try:
                    work.wait(self.timeout)
                finally:
                    self._waited_s += time.perf_counter() - begin
            else:
                # The stream waits between these two events; with gloo the host does too, at the same time.
                gpus = module_of(tensor.device)
                before, after = gpus.Event(enable_timing=True), gpus.Event(enable_timing=True)
                before.record(gpus.current_stream(tensor.device))
                # Without a time-out, because NCCL's wait would then block the host; its watchdog ends a hung operation.
                work.wait()
                after.record(gpus.current_stream(tensor.device))
                self._stream_waits.append((before, after))
                if len(self._stream_waits) >= _MANY_WAITS:
                    self._sum_up_ended_waits()
        except _OWN_ERRORS:
            raise
        except RuntimeError as error:
            raise self.lost(what, error, time.perf_counter() - begin) from error

    def _sum_up_ended_waits(self) -> None:
        waits = self._stream_waits
        done = next((index for index, (_, end) in enumerate(waits) if not end.query()), len(waits))
        self._waited_s += sum(begin.elapsed_time(end) for begin, end in waits[:done]) / 1000
        del waits[:done]

    def lost(self, what: str, error: RuntimeError, waited_s: float = 0.0) -> CommunicationError:
        """Error of the operation ``what``, which torch has ended with ``error``."""
        return CommunicationError(
            f"Rank {self.rank} of {self.size} on {socket.gethostname()}: {what} in {self.name!r} failed "
            f"after {waited_s:.1f} s. Most likely another rank ended with an error: see what the others "
            f"printed. ({error})"
        )


def _sendable(tensor: Tensor) -> Tensor:
    """``tensor``, which must be contiguous, or its bytes if the backends cannot send its type."""
    return tensor if tensor.dtype in _SENT else tensor.view(-1).view(torch.uint8)
