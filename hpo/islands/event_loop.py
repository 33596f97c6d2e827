"""The event loop of a rank: messages, evaluators and clock, served by one thread at a time that never waits long.

A rank waits in ``poll(2)`` on its evaluator's socket, so that a result wakes it at once. MPI has nothing to wait on, so
it is polled after a hundredth of the time for which nothing has happened, between 0.1 and 50 ms: a message costs at
most a hundredth of the evaluation that it ends or begins, and an idle rank next to nothing."""

from __future__ import annotations

import logging
import math
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

from hpo.errors import EXIT_RESUMABLE
from hpo.islands import messages
from hpo.islands.background import BackgroundTurns, InlineEvaluator
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.end_reasons import LOST, STOPPED
from hpo.islands.leader.leader import Leader
from hpo.islands.liveness import Liveness
from hpo.islands.messages import COORDINATOR_RANK, End, Lost, Message, encode
from hpo.islands.transport import Transport
from hpo.text import excerpt

_log = logging.getLogger("hpo.islands")

_FASTEST_S = 0.0001
_SLOWEST_S = 0.05
_SHARE = 0.01


class StopRequests(Protocol):
    """Counts requests to stop by signals (see ``hpo.cluster.signals``)."""

    @property
    def count(self) -> int: ...


class NonLeader(Protocol):
    """Part of a rank that does not lead its worker (see ``hpo.evaluation.evaluator_host``)."""

    def receive(self, content: dict[str, object]) -> None: ...
    def poll(self) -> object: ...
    def disband(self) -> None: ...
    def deadline(self) -> float | None: ...
    @property
    def gone(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class RankRoles:
    """Roles of a rank in its worker."""

    members: Sequence[int]
    """Ranks of the worker, the leader first."""
    leader: Leader | None
    non_leader: NonLeader | None
    filenos: Callable[[], Sequence[int]]
    """File descriptors to wait on."""
    inline: InlineEvaluator | None = None
    """Evaluator in the thread that runs the loop, if evaluators are no processes."""


class EventLoop:
    """The loop of one rank. ``housekeeping``: called first in each turn with the time, for duties outside the protocol
    (display). ``hang_timeout_s``: see ``hpo.islands.liveness``. ``failed``: called with an exception that ends
    the rank while the main thread is inside an evaluation.

    Rank 0 learns of deaths from MPI and sends them to the others, so that all act on the same news in the same order.
    The others learn of the death of rank 0 from MPI, and end: the leaders first, then the other ranks of their
    workers, which watch them from then on."""

    def __init__(
        self,
        *,
        transport: Transport,
        roles: RankRoles,
        coordinator: Coordinator | None,
        signals: StopRequests,
        hang_timeout_s: float = math.inf,
        housekeeping: Callable[[float], None] = lambda now: None,
        on_bad_message: Callable[[int, str], None] = lambda source, text: None,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._transport = transport
        self._members = tuple(roles.members)
        self._leader = roles.leader
        self._non_leader = roles.non_leader
        self._filenos = roles.filenos
        self._inline = roles.inline
        self._lock = roles.inline.lock if roles.inline is not None else threading.Lock()
        self._failed = failed
        self._active_at = transport.now()
        self._disbanding = False
        self._coordinator = coordinator
        self._watched = COORDINATOR_RANK
        """Rank whose end or silence ends this rank."""
        self._watchers: Sequence[int] = (COORDINATOR_RANK,) if coordinator is None else range(transport.size)
        self._signals = signals
        self.given_up = False
        """Whether this rank hung, and others do its work."""
        self._heard = 0
        # Rank 0 may take its time before it serves, so the others watch it from its first message on.
        others = set() if coordinator is None else set(range(transport.size)) - {transport.rank}
        self._liveness = Liveness(others, timeout_s=hang_timeout_s, now=transport.now())
        self._housekeeping = housekeeping
        self._on_bad_message = on_bad_message
        self.end: End | None = None

    def run(self) -> End:
        """Serve until the coordinator says that the launch is over."""
        inline = self._inline
        beside = None
        if inline is not None and self._transport.any_thread:
            beside = BackgroundTurns(lock=self._lock, turn=self.turn, wait=self._wait, failed=self._failed)
        with beside or nullcontext():
            while True:
                with self._lock:
                    pause_s = self.turn()
                if self.end is not None:
                    return self.end
                if inline is not None and inline.pending:
                    # Only now: the task must not find a turn half done.
                    if beside is not None:
                        beside.evaluate(inline.evaluate)
                    else:
                        inline.evaluate()
                elif pause_s:
                    self._wait(pause_s)

    def turn(self) -> float:
        """Serve messages and clock without waiting; seconds to wait before the next turn."""
        active = self._serve()
        if self._leader is not None and self._leader.can_work:
            return 0.0
        now = self._transport.now()
        if active:
            self._active_at = now
        pause_s = min(max(_FASTEST_S, _SHARE * (now - self._active_at)), _SLOWEST_S)
        return max(0.0, min(pause_s, self.next_wake() - now))

    def _serve(self) -> bool:
        active = False
        self._housekeeping(self._transport.now())
        for source, data in self._transport.poll():
            active = True
            if source != self._transport.rank and (self._coordinator or source == self._watched):
                self._liveness.heard(source)
            try:
                message = messages.decode(data)
                if _log.isEnabledFor(logging.DEBUG):
                    _log.debug("rank %d sends %s", source, excerpt(message))
                self._deliver(source, message)
            except messages.MessageError as error:
                self._on_bad_message(source, str(error))
            if self.given_up:  # others do its work: nothing of it is to be touched here
                return True
        self._look_for_deaths()
        if self._signals.count > self._heard:
            self._heard = self._signals.count
            request = messages.StopRequest(STOPPED, self._heard > 1)
            self._transport.send(COORDINATOR_RANK, encode(request))
        if self._leader is not None:
            active |= self._leader.step()
        if self._non_leader is not None:
            active |= bool(self._non_leader.poll())
            if self._disbanding and self._non_leader.gone:
                self._disbanding = False
                self._transport.send(COORDINATOR_RANK, encode(messages.Disbanded([])))
        if self._coordinator is not None:
            self._coordinator.step()
        now = self._transport.now()
        if now >= self._liveness.next_look:
            self._look_for_hung_ranks(now)
        return active

    def _look_for_hung_ranks(self, now: float) -> None:
        if self._liveness.sign_due(now):
            sign = encode(messages.Alive())
            for rank in self._watchers:
                if rank != self._transport.rank:
                    self._transport.send(rank, sign)
        hung = self._liveness.look(now)
        if not hung:
            return
        self._liveness.forget(hung)
        if self._coordinator is not None:
            self._coordinator.handle_hung_ranks(hung)
        self._transport.abandon(hung)

    def _deliver(self, source: int, message: Message) -> None:
        if isinstance(message, messages.ToCoordinator):
            if self._coordinator is not None:
                self._coordinator.receive(source, message)
        elif isinstance(message, messages.ToEventLoop):
            pass  # a sign of life, which was counted when it came
        elif not isinstance(message, messages.ToWorker):
            self._on_bad_message(source, f"{type(message).__name__} comes after the start")
        elif self._leader is not None:
            self._leader.receive(source, message)
        elif self._non_leader is not None and isinstance(message, messages.WorkerMessage):
            self._non_leader.receive(message.content)
        elif self._non_leader is not None and isinstance(message, Lost):
            self._handle_rank_deaths(frozenset(message.ranks))
        if isinstance(message, End):
            self.end = message
        elif isinstance(message, Lost):
            self._transport.abandon(message.ranks)
            if self._transport.rank in message.ranks:  # given up while it hung: others do its work
                self.given_up = True
                self._transport.abandon(range(self._transport.size))
                self.end = End(LOST, EXIT_RESUMABLE, None)

    def _handle_rank_deaths(self, dead: frozenset[int]) -> None:
        if self._non_leader is not None and not dead.isdisjoint(self._members):
            self._non_leader.disband()
            self._disbanding = True

    def _look_for_deaths(self) -> None:
        failed = self._transport.failed()
        if not failed:
            return
        if self._coordinator is not None:
            self._coordinator.handle_rank_deaths(failed)
        elif COORDINATOR_RANK in failed:
            self._end_as_orphan(failed)

    def _end_as_orphan(self, failed: frozenset[int]) -> None:
        """End without the coordinator, after running evaluations have saved themselves."""
        end = End(LOST, EXIT_RESUMABLE, None)
        if self._watched != self._members[0]:
            self._watched, self._watchers = self._members[0], self._members[1:]
            if self._leader is None:
                self._liveness.heard(self._watched)
        if self._leader is not None:
            self._leader.orphan()
            if not failed.isdisjoint(self._members):
                self._leader.receive(COORDINATOR_RANK, Lost(sorted(failed), sorted(failed)))
            if self._leader.at_rest and self.end is None:
                for member in self._members[1:]:
                    self._transport.send(member, encode(end))
                self.end = end
        elif self._members[0] in failed:
            self.end = end

    def next_wake(self) -> float:
        """Latest time of the next turn, in Unix seconds."""
        wake = self._liveness.next_look
        if self._leader is not None:
            wake = min(wake, self._leader.next_wake())
        if self._coordinator is not None:
            wake = min(wake, self._coordinator.next_wake())
        due = None if self._non_leader is None else self._non_leader.deadline()
        return wake if due is None else min(wake, due)

    def _wait(self, seconds: float) -> None:
        poller = select.poll()
        for fileno in self._filenos():
            poller.register(fileno, select.POLLIN)
        # poll(2) counts whole milliseconds; select's finer clock is for the short pauses.
        filenos = list(self._filenos())
        if seconds >= 0.002 or max(filenos, default=0) >= 1024:  # select knows no higher descriptors
            poller.poll(seconds * 1000)
        else:
            select.select(filenos, [], [], seconds)
