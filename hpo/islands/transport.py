"""The transport of messages between ranks, within one process and over MPI.

The protocol uses point-to-point sends that never block, and a poll that never waits, and nothing else of MPI: no rank
ever waits for a slow or dead rank."""

from __future__ import annotations

import itertools
import os
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpo.config.process import tolerates_deaths

if TYPE_CHECKING:
    from mpi4py import MPI

# Far from the tags that a task's own MPI code on the same communicator is likely to use. Each transport of a
# process takes the next tag: all ranks run their campaigns in the same order, and a late message must not
# reach the next campaign.
_FIRST_TAG = 7391
_TAGS = 1000
# Added to a transport's tag where a communicator is made: Open MPI does that by messages with the tag it is
# given, which a rank that still listens would take for its own.
_MAKING = _TAGS

_ABORT = b"\0"
"""Beginning of a message that ends the receiving rank at once, with the code that follows."""

# Pause between questions to MPI for deaths: an answer takes a microsecond, and evaluations may be as short.
_LOOK_S = 0.1

_made = itertools.count()
_DAY = time.time() - time.monotonic()


class Transport:
    """Messages between ranks, in order between each pair; as it is, those of a process alone to itself.
    ``MpiTransport`` and simulations override all methods."""

    rank = 0
    size = 1
    any_thread = True
    """Whether a thread may call this while another thread is inside MPI; never two at a time."""

    def __init__(self) -> None:
        self._inbox: deque[tuple[int, bytes]] = deque()

    def send(self, destination: int, data: bytes) -> None:
        """Queue ``data`` for ``destination``, which may be this rank, and return at once."""
        if destination != self.rank:
            raise ValueError(f"rank {destination} does not exist: this transport has one rank")
        self._inbox.append((self.rank, data))

    def poll(self) -> list[tuple[int, bytes]]:
        """All messages that have arrived, as (source, data); never waits."""
        arrived = list(self._inbox)
        self._inbox.clear()
        return arrived

    def put_back(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Have the next ``poll`` begin with ``messages``, which an earlier call returned."""
        self._inbox.extendleft(reversed(messages))

    def failed(self) -> frozenset[int]:
        """Ranks known to be dead; empty where the transport cannot know."""
        return frozenset()

    def abandon(self, ranks: Iterable[int]) -> None:
        """Treat ``ranks`` as dead: nothing is sent to them any more, and nothing of them arrives."""

    def now(self) -> float:
        """Unix seconds, virtual in a simulation."""
        # Carried on from the start by a monotonic clock: a corrected clock of the machine must not time an
        # evaluation out.
        return _DAY + time.monotonic()

    def communicator(self, ranks: Sequence[int]) -> MPI.Intracomm | None:
        """An MPI communicator of ``ranks``, for tasks that bring MPI code; None without MPI. Collective over them."""
        return None

    def flush(self, timeout_s: float) -> bool:
        """Wait until all sends have completed; whether they have within this time. For a rank that ends alone."""
        return True

    def leave(self, timeout_s: float) -> bool:
        """Receive and drop what is still under way, once no rank sends any more; collective over all ranks. False when
        not all is done within this time, or a rank is dead: then what is still to come is unknown."""
        return True

    def abort(self, code: int) -> None:
        """End all ranks at once; does not return."""
        _end_process(code)


def _end_process(code: int) -> None:
    # As MPI_Abort would: no finalising, which would wait for the rank that is gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class MpiTransport(Transport):
    """Messages over an MPI communicator (mpi4py), with non-blocking sends and matched probes."""

    def __init__(self, communicator: MPI.Intracomm) -> None:
        from mpi4py import MPI

        super().__init__()
        self._mpi = MPI
        # A program may have initialised MPI otherwise.
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._tag = _FIRST_TAG + next(_made) % _TAGS
        self._comm = communicator
        self.rank = communicator.Get_rank()
        self.size = communicator.Get_size()
        # A send's buffer must live until its request completes: both are kept here, oldest first.
        self._sending: deque[tuple[MPI.Request, bytes, int]] = deque()
        self._receiving: list[tuple[MPI.Request, int, bytearray]] = []
        # Numbers of messages sent to each rank, and received: by these the ranks know when nothing is under way.
        self._sent = array("q", bytes(8 * self.size))
        self._received = 0
        self._expected = array("q", [0])
        self._failed: frozenset[int] = frozenset()
        self._abandoned: list[object] = []
        self._deaths = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING)
        self._next_look = 0.0
        self._can_tell = True

    def failed(self) -> frozenset[int]:
        # Known where MPI has fault tolerance (ULFM) and was started with it; without, MPI ends the job when a
        # rank dies.
        now = time.monotonic()
        if self._can_tell and now >= self._next_look:
            self._next_look = now + _LOOK_S
            self._look_for_failures()
        return self._failed

    def _look_for_failures(self) -> None:
        try:
            group = self._comm.Get_failed()
        except (self._mpi.Exception, NotImplementedError):
            self._can_tell = False
            return
        if group.Get_size():
            # Without this every probe from any source would report the same deaths again.
            self._comm.Ack_failed()
            dead = group.Translate_ranks(list(range(group.Get_size())), self._comm.Get_group())
            self.abandon(dead)
        group.Free()

    def abandon(self, ranks: Iterable[int]) -> None:
        self._failed |= frozenset(ranks) - {self.rank}
        # Messages to and from the dead never complete, but MPI may look at their buffers yet.
        self._abandoned += [one for one in self._sending if one[2] in self._failed]
        self._abandoned += [one for one in self._receiving if one[1] in self._failed]
        self._sending = deque(one for one in self._sending if one[2] not in self._failed)
        self._receiving = [one for one in self._receiving if one[1] not in self._failed]

    def send(self, destination: int, data: bytes) -> None:
        if destination == self.rank:
            self._inbox.append((self.rank, data))
            return
        if destination in self._failed:
            return
        self._sent[destination] += 1
        try:
            request = self._comm.Isend([data, self._mpi.BYTE], dest=destination, tag=self._tag)
        except self._mpi.Exception as error:
            if error.Get_error_class() not in self._deaths:
                raise
            self._failed |= {destination}
            return
        if not self._is_done(request, destination):
            self._sending.append((request, data, destination))

    def poll(self) -> list[tuple[int, bytes]]:
        arrived = super().poll()
        status = self._mpi.Status()
        while (message := self._probe(status)) is not None:
            buffer = bytearray(status.Get_count(self._mpi.BYTE))
            # Not Recv: a message above the eager limit completes only when its sender makes progress, and the
            # sender may be inside an inline evaluation for minutes.
            self._receiving.append((message.Irecv([buffer, self._mpi.BYTE]), status.Get_source(), buffer))
        if self._receiving:
            unfinished: list[tuple[MPI.Request, int, bytearray]] = []
            blocked: set[int] = set()
            for request, source, buffer in self._receiving:
                # A message waits for an incomplete message of the same sender, to keep the order between a pair.
                if source in blocked or not self._is_done(request, source):
                    blocked.add(source)
                    unfinished.append((request, source, buffer))
                elif buffer.startswith(_ABORT) and buffer[1:].isdigit():  # a dead one's may be all zeros
                    _end_process(int(buffer[len(_ABORT) :]))
                elif source not in self._failed:
                    arrived.append((source, bytes(buffer)))
                    self._received += 1
            self._receiving = unfinished
        self._send_on(64)
        return arrived

    def _probe(self, status: MPI.Status) -> MPI.Message | None:
        try:
            return self._mpi.Message.Iprobe(self._comm, self._mpi.ANY_SOURCE, self._tag, status)
        except self._mpi.Exception as error:
            if error.Get_error_class() not in self._deaths:
                raise
            # A rank died, and a probe from any source waits for it too; it goes on once the death is acknowledged.
            self._look_for_failures()
            return None

    def _is_done(self, request: MPI.Request, partner: int) -> bool:
        """Whether an operation with ``partner`` is over; all are with a dead partner."""
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            if error.Get_error_class() not in self._deaths:
                raise
            self._failed |= {partner}
            return True

    def _send_on(self, most: int) -> None:
        # Completion need not be in order, but a stuck send must not make every poll walk a long queue.
        for _ in range(min(len(self._sending), most)):
            request, data, destination = self._sending.popleft()
            if not self._is_done(request, destination):
                self._sending.append((request, data, destination))

    def communicator(self, ranks: Sequence[int]) -> MPI.Intracomm:
        group = self._comm.Get_group().Incl(list(ranks))
        return self._comm.Create_group(group, self._tag + _MAKING)

    def abort(self, code: int) -> None:
        # MPI_Abort does not end the other ranks where Open MPI 5.0.11 was started with fault tolerance, and its mpirun
        # sometimes never ends. So a message ends them when they next poll.
        try:
            for rank in range(self.size):
                if rank != self.rank:
                    self.send(rank, _ABORT + b"%d" % code)
            self.flush(2.0)
        finally:  # whatever MPI or the user's Ctrl-C say to that
            if tolerates_deaths():
                _end_process(code)
            self._comm.Abort(code)

    def flush(self, timeout_s: float) -> bool:
        # Before MPI is finalised: freeing a buffer under a pending send would corrupt the message.
        deadline = time.monotonic() + timeout_s
        while self._sending and time.monotonic() < deadline:
            self._send_on(1)
            if self._sending:
                time.sleep(0.0005)
        return not self._sending

    def leave(self, timeout_s: float) -> bool:
        # Under MPICH a message that was not received makes MPI_Finalize fail, and the launcher then kills the other
        # ranks; a large message keeps its sender waiting under any MPI.
        deadline = time.monotonic() + timeout_s
        if self.failed():
            self.flush(min(timeout_s, 1.0))
            return False
        kind = self._mpi.INT64_T
        counted = self._comm.Ireduce_scatter_block([self._sent, kind], [self._expected, kind])
        known = False
        while time.monotonic() < deadline:
            self.poll()
            try:
                known = known or counted.Test()
            except self._mpi.Exception:  # a rank died on its way out
                return False
            if self.failed():
                return False
            if known and not self._sending and self._received == self._expected[0]:
                return True
            time.sleep(0.0005)
        return False
