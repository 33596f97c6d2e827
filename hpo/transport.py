"""How a rank's messages travel: the seam under the island protocol, and its implementation by MPI.

The protocol uses point-to-point sends that never block, and a poll that never waits. Nothing else of MPI is
on the campaign's path, so that no rank ever waits for a slow or dead one."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI

_FIRST_TAG = 7391
_TAGS = 1000
"""Our tags are far from those that a task's own MPI code on the same communicator is likely to use. Each transport of
a process takes the next: all ranks run their campaigns in the same order, and a late message of one must not reach
the next."""


_made = itertools.count()


class Transport(Protocol):
    """Reliable, ordered between each pair of ranks, unordered across pairs."""

    rank: int
    size: int

    def send(self, destination: int, data: bytes) -> None:
        """Queue ``data`` for ``destination`` and return at once. Sending to oneself is allowed."""

    def poll(self) -> list[tuple[int, bytes]]:
        """All messages that have arrived, as (source, data); never waits."""

    def put_back(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Have the next ``poll`` begin with ``messages``, which an earlier one returned."""

    def failed(self) -> frozenset[int]:
        """Ranks known to be dead; empty where the transport cannot tell."""

    def now(self) -> float:
        """Unix seconds, virtual in a simulation."""


class LocalTransport:
    """One process alone: messages to itself, in order."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._inbox: deque[tuple[int, bytes]] = deque()

    def send(self, destination: int, data: bytes) -> None:
        if destination != self.rank:
            raise ValueError(f"rank {destination} does not exist: this transport has one rank")
        self._inbox.append((self.rank, data))

    def poll(self) -> list[tuple[int, bytes]]:
        arrived = list(self._inbox)
        self._inbox.clear()
        return arrived

    def put_back(self, messages: Sequence[tuple[int, bytes]]) -> None:
        self._inbox.extendleft(reversed(messages))

    def failed(self) -> frozenset[int]:
        return frozenset()

    def now(self) -> float:
        return time.time()


class MpiTransport(LocalTransport):
    """Point-to-point messages over an MPI communicator (mpi4py), with non-blocking sends and matched
    probes."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        from mpi4py import MPI

        super().__init__()
        self._mpi = MPI
        self._tag = _FIRST_TAG + next(_made) % _TAGS
        self._comm = communicator
        self.rank = communicator.Get_rank()
        self.size = communicator.Get_size()
        # A send's buffer must live until its request completes: both are kept here, oldest first.
        self._sending: deque[tuple[MPI.Request, bytes]] = deque()
        self._receiving: list[tuple[MPI.Request, int, bytearray]] = []

    def send(self, destination: int, data: bytes) -> None:
        if destination == self.rank:
            self._inbox.append((self.rank, data))
            return
        request = self._comm.Isend([data, self._mpi.BYTE], dest=destination, tag=self._tag)
        if not request.Test():
            self._sending.append((request, data))

    def poll(self) -> list[tuple[int, bytes]]:
        arrived = super().poll()
        status = self._mpi.Status()
        while True:
            message = self._mpi.Message.Iprobe(self._comm, self._mpi.ANY_SOURCE, self._tag, status)
            if message is None:
                break
            buffer = bytearray(status.Get_count(self._mpi.BYTE))
            # Not Recv: a message above the eager limit completes only when its sender makes progress, and the
            # sender may be inside an inline evaluation for minutes.
            self._receiving.append((message.Irecv([buffer, self._mpi.BYTE]), status.Get_source(), buffer))
        if self._receiving:
            unfinished: list[tuple[MPI.Request, int, bytearray]] = []
            blocked: set[int] = set()
            for request, source, buffer in self._receiving:
                # What follows an incomplete message of the same sender waits for it: order between a pair is
                # kept.
                if source in blocked or not request.Test():
                    blocked.add(source)
                    unfinished.append((request, source, buffer))
                else:
                    arrived.append((source, bytes(buffer)))
            self._receiving = unfinished
        # Completion need not be in order, but one stuck send must not make every poll walk a long queue.
        for _ in range(min(len(self._sending), 64)):
            request, data = self._sending.popleft()
            if not request.Test():
                self._sending.append((request, data))
        return arrived

    def communicator(self, ranks: Sequence[int]) -> MPI.Intracomm:
        """A communicator of ``ranks`` alone, for tasks that bring MPI code; collective over these ranks."""
        group = self._comm.Get_group().Incl(list(ranks))
        return self._comm.Create_group(group, self._tag)

    def abort(self, code: int) -> None:
        """End all ranks at once; does not return."""
        self._comm.Abort(code)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all sends have completed, at most ``timeout_s``; False when some have not.

        Called once, before MPI is finalised: freeing a buffer under a pending send would corrupt the message.
        """
        deadline = time.monotonic() + timeout_s
        while self._sending and time.monotonic() < deadline:
            request, data = self._sending.popleft()
            if not request.Test():
                self._sending.append((request, data))
                time.sleep(0.0005)
        return not self._sending
