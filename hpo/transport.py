"""How a rank's messages travel: the seam under the island protocol, and its implementation by MPI.

The protocol uses point-to-point sends that never block, and a poll that never waits. Nothing else of MPI is
on the campaign's path, so that no rank ever waits for a slow or dead one."""

from __future__ import annotations

import itertools
import time
from array import array
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
_DAY = time.time() - time.monotonic()


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
        # The time of day as of the start, carried on by a clock that nobody sets: a corrected clock of the machine must
        # not time an evaluation out.
        return _DAY + time.monotonic()


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
        # How many were sent to each rank, and how many came: by these the ranks know when nothing is under way.
        self._sent = array("q", bytes(8 * self.size))
        self._received = 0
        self._expected = array("q", [0])

    def send(self, destination: int, data: bytes) -> None:
        if destination == self.rank:
            self._inbox.append((self.rank, data))
            return
        self._sent[destination] += 1
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
                    self._received += 1
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

        For a rank that ends alone. Before MPI is finalised: freeing a buffer under a pending send would corrupt
        the message.
        """
        deadline = time.monotonic() + timeout_s
        while self._sending and time.monotonic() < deadline:
            request, data = self._sending.popleft()
            if not request.Test():
                self._sending.append((request, data))
                time.sleep(0.0005)
        return not self._sending

    def leave(self, timeout_s: float) -> bool:
        """Receive and drop what is still under way, once no rank sends any more; collective over all ranks.

        Under MPICH a message that nobody has received makes MPI_Finalize fail, and the launcher then kills the other
        ranks; a large one keeps its sender waiting under any MPI. False when not all is done within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        kind = self._mpi.INT64_T
        counted = self._comm.Ireduce_scatter_block([self._sent, kind], [self._expected, kind])
        known = False
        while time.monotonic() < deadline:
            self.poll()
            known = known or counted.Test()
            if known and not self._sending and self._received == self._expected[0]:
                return True
            time.sleep(0.0005)
        return False
