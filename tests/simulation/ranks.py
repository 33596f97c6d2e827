"""A process of a simulated launch: its event loop takes a turn when a message, an evaluator or its clock wakes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from hpo.islands.event_loop import EventLoop
from hpo.islands.leader.elites import EliteExchange
from hpo.islands.leader.leader import Leader
from hpo.islands.storage import StorageWait
from simulation import MemoryJournal
from simulation.evaluators import SimulatedEvaluator
from simulation.world import EPOCH_S, SimulatedMachine, World

ABORT = b"\0"
"""A message that ends who receives it, as that of ``MpiTransport.abort``."""


class Network(Protocol):
    """What carries messages between ranks, and learns of those that end."""

    world: World

    def post(self, source: int, destination: int, data: bytes) -> None: ...
    def exited(self, rank: Rank) -> None: ...


class RankTransport:
    """One rank's end of a launch's network."""

    any_thread = True

    def __init__(self, network: Network, owner: Rank, size: int) -> None:
        self._network = network
        self._owner = owner
        self.rank = owner.number
        self.size = size
        self.inbox: list[tuple[int, bytes]] = []
        self.skew_s = EPOCH_S
        self._failed: frozenset[int] = frozenset()

    def send(self, destination: int, data: bytes) -> None:
        if destination == self.rank:
            self.inbox.append((self.rank, data))
            self._owner.wake(self._network.world.time)
        elif destination not in self._failed:
            self._network.post(self.rank, destination, data)

    def poll(self) -> list[tuple[int, bytes]]:
        arrived, self.inbox = self.inbox, []
        return [one for one in arrived if one[0] not in self._failed]

    def put_back(self, messages: Sequence[tuple[int, bytes]]) -> None:
        self.inbox[:0] = messages

    def failed(self) -> frozenset[int]:
        return self._failed

    def abandon(self, ranks: Iterable[int]) -> None:
        self._failed |= frozenset(ranks) - {self.rank}

    def now(self) -> float:
        return self._owner.time + self.skew_s

    def communicator(self, ranks: Sequence[int]) -> None:
        return None

    def flush(self, timeout_s: float) -> bool:
        return True

    def leave(self, timeout_s: float) -> bool:
        return True

    def abort(self, code: int) -> None:
        """End all ranks; they learn of it as of any message."""
        for rank in range(self.size):
            if rank != self.rank:
                self._network.post(self.rank, rank, ABORT)


class _Signals:
    """How often a rank was signalled."""

    count = 0


class Rank:
    """One process of a launch."""

    def __init__(self, network: Network, number: int, size: int) -> None:
        self._network = network
        self._world = network.world
        self.number = number
        self.transport = RankTransport(network, self, size)
        self.signals = _Signals()
        self.loop: EventLoop | None = None
        self.leader: Leader | None = None
        self.exchange: EliteExchange | None = None
        self.journal: MemoryJournal | None = None
        self.evaluators: list[SimulatedEvaluator] = []
        self.stopped = False
        """It got SIGSTOP, or waits for a disk that does not answer."""
        self.over = False
        """Its process has ended."""
        self.dead = False
        """It was killed."""
        self.pid = next(SimulatedMachine.numbers)
        self.stalled = -math.inf
        """Until when it is in a system call."""
        self._due = math.inf
        self._pause_s = 0.0

    @property
    def time(self) -> float:
        return max(self._world.time, self.stalled)

    def wake(self, when: float) -> None:
        """Take a turn at ``when``, unless one comes before."""
        if when < self._due:
            self._due = when
            self._world.at(when, lambda: self._turn_when_due(when))

    def wake_soon(self) -> None:
        """Something has come: it is seen with the next poll."""
        self.wake(self._world.time + self._world.rng.random() * self._pause_s)

    def _turn_when_due(self, when: float) -> None:
        if when != self._due:
            return
        self._due = math.inf
        if self.over or self.stopped or self.loop is None:
            return
        if self.stalled > self._world.time:
            self.wake(self.stalled)
            return
        if any(data == ABORT for _, data in self.transport.inbox):
            self.exit()
            return
        self._pause_s = self.loop.turn()
        if self.loop.end is not None:
            if self.loop.given_up and self.journal is not None:
                self.journal.discard()
            self._settle(StorageWait())
            return
        if self._pause_s == 0.0:
            self.wake(self.time)
        elif (due := self.loop.next_wake()) < math.inf:
            # Not at the same moment: a clock that is ahead rounds differently.
            self.wake(max(self.time + 1e-6, due - self.transport.skew_s))

    def _settle(self, wait: StorageWait) -> None:
        """As ``Assembly.settle``."""
        if self.over:
            return
        if self.stopped:
            self._world.at(self._world.time + 1.0, lambda: self._settle(wait))
            return
        if self.journal is not None:
            try:
                self.journal.commit()
            except OSError:
                wait.failed("journal", self._world.time)
                if self.number == 0 and not wait.over:
                    self._world.at(wait.retry_at, lambda: self._settle(wait))
                    return
                self.journal.discard()
        self.exit()

    def exit(self) -> None:
        """The process ends, and its evaluators with it."""
        if not self.over:
            self.over = True
            for evaluator in self.evaluators:
                evaluator.end("its rank has ended")
            self._network.exited(self)

    def signal(self) -> None:
        """SIGUSR1."""
        self.signals.count += 1
        self.wake_soon()

    def stall(self, seconds: float) -> None:
        """It is in a system call for so long."""
        self.stalled = self.time + seconds

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        if self.stopped:
            self.stopped = False
            self.wake(self._world.time)
