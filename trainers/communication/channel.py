"""A channel: the collective operations of one group of ranks, with time-outs, and counts of bytes and of waiting.

Bytes are counted as a ring moves them, rank i sending to rank i + 1 of its group: gloo and NCCL do so for large
tensors, and on more than one node the figure agrees with the counters of the interface for ranks that are numbered
node by node."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.communication.topology import Ranks

REAL_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX_TYPES = (torch.complex64, torch.complex128)


_SENT = (*REAL_TYPES, torch.int8, torch.uint8, torch.int32, torch.int64)


_SUMMED = (*_SENT, *COMPLEX_TYPES)
"""What both gloo and NCCL take as it is; other types are sent as bytes, where they need not be summed."""


_OWN_ERRORS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""Of this rank's own device, AcceleratorError from torch 2.8 on: raised unchanged, as callers decide by their type."""

_MANY_WAITS = 1000
_HOST = torch.device("cpu")


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
            self._channel.under_way -= 1
        return self._tensor


@dataclass(kw_only=True)
class Channel:
    """One process group with its counters. With one rank every operation is free and changes nothing."""

    name: str
    ranks: Ranks
    """In any order; torch numbers those of a group in ascending order."""
    rank: int
    """Place of this process in ``ranks``."""
    group: dist.ProcessGroup | None
    timeout: timedelta
    next_is_near: bool
    """Whether the ring's next rank is on the same node."""
    host_group: dist.ProcessGroup | None = None
    """The same ranks, for tensors in the host's memory; None: those that come are for ``group``."""
    bytes_inside: float = 0.0
    bytes_between: float = 0.0
    operations: int = 0
    _waited_s: float = 0.0
    under_way: int = 0
    """Operations that were started and not waited for."""
    _stream_waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    """Around each wait of a GPU's stream that is not in ``_waited_s`` yet."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def wait_s(self) -> float:
        """Seconds that computation has waited for this channel: the CPU, or the stream of a GPU. Reading it waits for
        the stream.
        """
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
        """Start to sum ``tensor``, in place, over the ranks. TypeError for a type that cannot be summed."""
        if self.size > 1 and tensor.dtype not in _SUMMED:
            raise TypeError(
                f"{tensor.dtype} cannot be summed over ranks. Use another type, say torch.float32."
            )
        self._count(2 * tensor.nbytes * (self.size - 1) / self.size)
        return self._start(
            tensor,
            "all-reduce",
            lambda: dist.all_reduce(tensor, group=self._group_for(tensor), async_op=True),
        )

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> Pending:
        """Start to overwrite ``tensor`` with that of the ``source``-th of the ranks."""
        self._count(tensor.nbytes * (self.size - 1) / self.size)
        return self._start(
            tensor,
            "broadcast",
            lambda: dist.broadcast(
                _sendable(tensor),
                group=self._group_for(tensor),
                async_op=True,
                group_src=self._numbers[source],
            ),
        )

    def all_gather_parts(self, tensor: Tensor) -> Pending:
        """Start to fill ``tensor``, which has an equal part a rank, one after the other, with each rank's own part. For
        ranks in ascending order.
        """
        self._count(tensor.nbytes * (self.size - 1) / self.size)
        whole = _sendable(tensor)
        own = whole.chunk(self.size)[self.rank]
        return self._start(
            tensor,
            "all-gather",
            lambda: dist.all_gather_into_tensor(whole, own, group=self._group_for(tensor), async_op=True),
        )

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape, in order of rank."""
        if self.size == 1:
            return [tensor]
        self._count(tensor.nbytes * (self.size - 1))
        parts = [torch.empty_like(tensor) for _ in self.ranks]
        into, sent = [_sendable(part) for part in parts], _sendable(tensor)
        gather = self._start(
            tensor,
            "all-gather",
            lambda: dist.all_gather(into, sent, group=self._group_for(tensor), async_op=True),
        )
        gather.wait()
        return [parts[number] for number in self._numbers]

    def number_of_each(self, number: int, device: torch.device = _HOST) -> list[int]:
        """The whole ``number`` of each rank, in order of rank; it is sent from ``device``."""
        mine = torch.tensor([number], dtype=torch.int64, device=device)
        return [int(part.item()) for part in self.all_gather(mine)]

    def gather(self, tensor: Tensor) -> list[Tensor] | None:
        """The tensors of all ranks, which have the same shape, in order of rank, on the first; None on the others."""
        if self.size == 1:
            return [tensor]
        self._count(tensor.nbytes if self.rank else 0)
        parts = None if self.rank else [torch.empty_like(tensor) for _ in self.ranks]
        into = parts and [_sendable(part) for part in parts]
        self._start(
            tensor,
            "gather",
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
        """Return when all ranks have come here."""
        arrived = self.all_reduce(torch.ones(1, device=device)).wait()
        # On a GPU, waiting only orders streams; reading the value waits for the ranks.
        arrived.item()

    def _group_for(self, tensor: Tensor) -> dist.ProcessGroup | None:
        return self.group if self.host_group is None or tensor.device.type != "cpu" else self.host_group

    @cached_property
    def _numbers(self) -> list[int]:
        """By place in ``ranks``, the number in the group."""
        numbers = {rank: number for number, rank in enumerate(sorted(self.ranks))}
        return [numbers[rank] for rank in self.ranks]

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
            work = start()
        except _OWN_ERRORS:
            raise
        except RuntimeError as error:
            raise self._lost(what, 0.0, error) from error
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
                # What waits is the stream, between these two events; the host too with gloo, at the same time.
                around = _timing_event(), _timing_event()
                around[0].record(torch.cuda.current_stream(tensor.device))
                # With a time-out NCCL's wait would hold up the host; its own watchdog ends a hung operation.
                work.wait()
                around[1].record(torch.cuda.current_stream(tensor.device))
                self._note(around)
        except _OWN_ERRORS:
            raise
        except RuntimeError as error:
            raise self._lost(what, time.perf_counter() - begin, error) from error

    def _note(self, around: tuple[torch.cuda.Event, torch.cuda.Event]) -> None:
        """Keep a wait of the stream; those that are over are summed up where there are many."""
        waits = self._stream_waits
        waits.append(around)
        if len(waits) >= _MANY_WAITS:
            done = next((index for index, (_, end) in enumerate(waits) if not end.query()), len(waits))  # type: ignore[no-untyped-call]
            self._waited_s += sum(begin.elapsed_time(end) for begin, end in waits[:done]) / 1000
            del waits[:done]

    def _lost(self, what: str, waited_s: float, error: RuntimeError) -> CommunicationError:
        return CommunicationError(
            f"Rank {self.rank} of {self.size} on {socket.gethostname()}: {what} in {self.name!r} failed "
            f"after {waited_s:.1f} s. Most likely another rank ended with an error: see what the others "
            f"printed. ({error})"
        )


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _sendable(tensor: Tensor) -> Tensor:
    """``tensor``, contiguous, or its bytes where libraries do not know its type."""
    return tensor if tensor.dtype in _SENT else tensor.view(-1).view(torch.uint8)
