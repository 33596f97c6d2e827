"""Whole launches in virtual time: the event loops of all ranks, workers of several ranks with their crews and evaluator
hosts, ranks that hang, rank 0 too, clocks that differ, and launches that overlap.

Here a rank is what it is under MPI: an event loop that takes turns when a message, an evaluator or its own clock
wakes it. Only network, clocks, evaluators and journals are simulated. ``simulation.Simulation`` is ten times faster,
for campaigns of thousands of workers, and has no event loops."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hpo.config.layout import Layout, WorkerPlacement, topology_matrix
from hpo.config.settings import EvaluationSettings
from hpo.errors import LockLost
from hpo.evaluation.conversation import pack_answer
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.event_loop import EventLoop, RankRoles
from hpo.islands.leader.leader import Leader, LeaderSettings
from hpo.islands.leader.migration import MigrationSettings
from hpo.islands.leader.storage import StorageWait
from hpo.islands.messages import WorkerMessage, encode
from hpo.islands.resume import DeadLeaderRecord, ResumeState, dead_leader_record, fold, start_messages
from hpo.journal.lock import REFRESH_S, Lock
from hpo.journal.machine import Machine
from hpo.journal.records import Record, Reopened
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.protocols import Candidate
from hpo.space.space import SearchSpace
from hpo.task.trial import Job
from simulation import MemoryJournal
from simulation.evaluators import Directories, Fates, NoGuard, SimulatedEvaluator, Worker

GRACE_S = 5.0
EPOCH_S = 1.7e9
_ABORT = (-1, b"")
"""In an inbox: the sender has given up, and so does who reads this."""
_MOST_TURNS = 60_000


class World:
    """Virtual time, and what outlives a launch: the directories of individuals."""

    def __init__(self, seed: object) -> None:
        self.rng = random.Random(f"world/{seed}")
        self.time = 0.0
        self.directories = Directories()
        self.attempts: dict[str, int] = {}
        """By id, how often its directory was copied."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do ``action`` when it is ``when``."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))

    def run(self, done: Callable[[], bool], until: float = math.inf) -> None:
        """Let time pass until ``done``, at most ``until``."""
        for _ in range(_MOST_TURNS):
            if done():
                return
            if not self._events or self._events[0][0] > until:
                self.time = max(self.time, until)
                if until == math.inf:
                    raise RuntimeError(f"a standstill at {self.time} s")
                return
            self.time, _, action = heapq.heappop(self._events)
            action()
        raise RuntimeError(f"no end in sight at {self.time} s")

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.run(lambda: False, self.time + seconds)


class SimulatedMachine(Machine):
    """A host whose clock is ``skew_s`` ahead, with a directory on a file server whose clock is ``server_skew_s`` ahead.
    ``unreachable``: called before each use of the server's files, which fails where it raises an OSError."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        world: World,
        name: str,
        *,
        skew_s: float,
        server_skew_s: float,
        runs: Callable[[int], bool],
    ) -> None:
        self._world = world
        self._name = name
        self._skew_s = skew_s
        self._server_skew_s = server_skew_s
        self._runs = runs
        self._pid = next(self._numbers)
        self.unreachable: Callable[[], object] = lambda: None

    @property
    def host(self) -> str:
        return self._name

    @property
    def identity(self) -> str:
        return self._name

    @property
    def pid(self) -> int:
        return self._pid

    def process_started(self, pid: int) -> int | None:
        return pid if self._runs(pid) else None

    def time(self) -> float:
        return EPOCH_S + self._world.time + self._skew_s

    def monotonic(self) -> float:
        return self._world.time + 7 * self._skew_s

    def sleep(self, seconds: float) -> None:
        self._world.sleep(seconds)

    def create(self, path: Path, data: bytes) -> bool:
        self.unreachable()
        if not super().create(path, data):
            return False
        self.touch(path)
        return True

    def touch(self, path: Path) -> None:
        self.unreachable()
        now = EPOCH_S + self._world.time + self._server_skew_s
        os.utime(path, (now, now))

    def file_time(self, directory: Path) -> float:
        return EPOCH_S + self._world.time + self._server_skew_s


class RankTransport:
    """One rank's end of a launch's network."""

    any_thread = True

    def __init__(self, launch: SimulatedLaunch, rank: int) -> None:
        self._launch = launch
        self.rank = rank
        self.size = launch.layout_ranks
        self.inbox: list[tuple[int, bytes]] = []
        self.skew_s = EPOCH_S
        self._failed: frozenset[int] = frozenset()

    def send(self, destination: int, data: bytes) -> None:
        if destination == self.rank:
            self.inbox.append((self.rank, data))
            self._launch.ranks[self.rank].wake(self._launch.world.time)
        elif destination not in self._failed:
            self._launch.post(self.rank, destination, data)

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
        return self._launch.ranks[self.rank].time + self.skew_s

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
                self._launch.post(self.rank, rank, None)


class _Signals:
    """How often this rank was signalled."""

    count = 0


class Rank:
    """One process of a launch."""

    def __init__(self, launch: SimulatedLaunch, number: int) -> None:
        self._launch = launch
        self._world = launch.world
        self.number = number
        self.transport = RankTransport(launch, number)
        self.signals = _Signals()
        self.loop: EventLoop | None = None
        self.leader: Leader | None = None
        self.journal: MemoryJournal | None = None
        self.evaluators: list[SimulatedEvaluator] = []
        self.housekeeping: Callable[[float], None] = lambda now: None
        self.stopped = False
        """It got SIGSTOP, or waits for a disk that does not answer."""
        self.over = False
        """Its process has ended."""
        self.dead = False
        """It was killed."""
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
        if _ABORT in self.transport.inbox:
            self.exit()
            return
        try:
            self._pause_s = self.loop.turn()
        except LockLost:
            self._launch.lock_lost = True
            self.transport.abort(75)
            self.exit()
            return
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
            self._launch.left(self)

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        if self.stopped:
            self.stopped = False
            self.wake(self._world.time)


class SimulatedLaunch:
    """One MPI job that works on a campaign. ``number``: of the launch; ``earlier``: what former ones left; ``lock``: of
    the directory, which rank 0 holds; ``skews``: by rank, seconds that its host's clock is ahead; ``tolerant``: the
    others survive the death of a rank."""

    def __init__(
        self,
        world: World,
        space: SearchSpace,
        objective: Callable[[dict[str, object]], float],
        *,
        number: int,
        workers: int,
        islands: int,
        ranks_per_worker: int,
        evaluations: int,
        seconds: Callable[[], float],
        earlier: ResumeState,
        skews: Sequence[float],
        fates: Fates,
        latency_s: float,
        hang_timeout_s: float,
        tolerant: bool,
        migration: float,
        copy: bool,
        first_failures: int | None,
        isolation: str,
        seed: int,
        lock: Lock,
        timeout_s: float,
    ) -> None:
        self.world = world
        self.space = space
        self.number = number
        self.islands = islands
        self.layout = layout = Layout.plan(
            ranks=workers * ranks_per_worker, islands=islands, ranks_per_worker=ranks_per_worker
        )
        self.layout_ranks = workers * ranks_per_worker
        self.tolerant = tolerant
        self._latency_s = latency_s
        self.lock = lock
        self._last: dict[tuple[int, int], float] = {}
        self._cut: dict[tuple[int, int], float] = {}
        self.ranks = [Rank(self, rank) for rank in range(self.layout_ranks)]
        self.unwritable: dict[int, Callable[[], str | None]] = {}
        """By rank, why no directory can be made from there."""
        self.left_workers: list[tuple[WorkerPlacement, str]] = []
        self.lock_lost = False
        """Whether rank 0 gave up because another launch may have taken its lock."""
        self.unread = False
        """Whether a journal could not be read when it was needed."""
        self._registry = WorkerRegistry(layout.workers)
        settings = EvaluationSettings(
            isolation=isolation,
            timeout=timeout_s,
            start_timeout=15.0,
            hang_timeout=hang_timeout_s,
            grace=GRACE_S,
        )
        groups = [[place.leader for place in layout.of_island(island)] for island in range(islands)]
        matrix = topology_matrix("ring", islands)
        hosts = [f"n{rank}" for rank in range(self.layout_ranks)]
        starts = start_messages(layout, earlier, number, hosts)
        for rank, skew in zip(self.ranks, skews):
            rank.transport.skew_s = EPOCH_S + skew
        for place in layout.workers:
            evaluators = Worker(
                world,
                ranks_per_worker,
                seconds=seconds,
                objective=lambda job: objective(job.params),
                unwritable=lambda one, place=place: self.unwritable.get(place.ranks[one], lambda: None)(),
                fates=fates,
                directories=world.directories,
            )
            for worker_rank, number_ in enumerate(place.ranks):
                rank = self.ranks[number_]
                if worker_rank == 0:
                    rank.journal = MemoryJournal()
                # Rank 0 serves first; the others get their Start a little later.
                delay = 0.0 if number_ == 0 else world.rng.expovariate(5.0)
                if number_:
                    world.at(
                        world.time + delay,
                        lambda place=place, one=worker_rank, evaluators=evaluators: self._begin(
                            place, one, evaluators, groups, settings, matrix, starts, migration, copy, seed
                        ),
                    )
                else:
                    self._begin(place, 0, evaluators, groups, settings, matrix, starts, migration, copy, seed)
        self.coordinator = self._make_coordinator(evaluations, earlier, first_failures)
        self._make_loop(self.ranks[0], self._roles[0], self.coordinator, hang_timeout_s)
        self.ranks[0].housekeeping = lambda now: lock.check()
        self._refresh_lock()

    # --- the parts of a rank ----------------------------------------------------------------------------------

    _roles: dict[int, RankRoles]

    def _begin(
        self,
        place: WorkerPlacement,
        worker_rank: int,
        evaluators: Worker,
        groups: list[list[int]],
        settings: EvaluationSettings,
        matrix: Sequence[Sequence[int]],
        starts: Sequence[object],
        migration: float,
        copy: bool,
        seed: int,
    ) -> None:
        rank = self.ranks[place.ranks[worker_rank]]
        if rank.over:
            return
        transport = rank.transport

        def child() -> SimulatedEvaluator:
            made = SimulatedEvaluator(evaluators, worker_rank, rank.wake_soon)
            rank.evaluators.append(made)
            return made

        if worker_rank:
            host = EvaluatorHost(
                worker_rank=worker_rank,
                child_factory=child,
                send=lambda epoch, answer: transport.send(
                    place.leader, encode(WorkerMessage(pack_answer(epoch, worker_rank, answer)))
                ),
                clock=transport.now,
                guard=NoGuard(),
            )
            roles = RankRoles(members=place.ranks, leader=None, non_leader=host, filenos=host.filenos)
        else:
            crew = ProcessCrew(
                size=len(place.ranks),
                child_factory=child,
                send=lambda one, content: transport.send(place.ranks[one], encode(WorkerMessage(content))),
                objectives=("value",),
                settings=settings,
                clock=transport.now,
                guard=NoGuard(),
            )
            crew.prepare()
            assert rank.journal is not None
            rank.leader = Leader(
                place=place,
                peers=groups[place.island],
                islands=groups,
                coordinator=0,
                transport=transport,
                space=self.space,
                breeder=EvolutionBreeder(self.space),
                crew=crew,
                job_of=self._job,
                journal=rank.journal,
                settings=LeaderSettings(
                    seed=seed,
                    losses=lambda objectives: tuple(objectives.values()),
                    allows=lambda params: True,
                    migration=MigrationSettings(
                        probability=migration, copy=copy, emigrants=matrix[place.island]
                    ),
                    retries=1,
                    duplicates=False,
                    durable_starts=True,
                    grace_s=GRACE_S,
                    keep=3,
                    pruning=None,
                    steps=None,
                    reported="value",
                    sign=1.0,
                    reference=None,
                ),
                signalled=lambda: rank.signals.count > 0,
            )
            rank.leader.begin(starts[rank.number])
            roles = RankRoles(members=place.ranks, leader=rank.leader, non_leader=None, filenos=crew.filenos)
        if rank.number:
            self._make_loop(rank, roles, None, settings.hang_timeout_s)
        else:
            self._roles = {0: roles}

    def _make_loop(
        self, rank: Rank, roles: RankRoles, coordinator: Coordinator | None, hang_timeout_s: float
    ) -> None:
        rank.loop = EventLoop(
            transport=rank.transport,
            roles=roles,
            coordinator_rank=0,
            coordinator=coordinator,
            signals=rank.signals,
            hang_timeout_s=hang_timeout_s,
            housekeeping=lambda now: rank.housekeeping(now),
            on_bad_message=_refuse,
        )
        rank.wake(self.world.time)

    def _job(self, candidate: Candidate) -> Job:
        """As ``hpo.campaign.evaluators.Jobs``."""
        attempts = self.world.attempts
        if candidate.contested:
            candidate.contested = False
            attempts[candidate.id] = attempts.get(candidate.id, 1) + 1
        directory = f"{candidate.id}.attempt-{attempts.get(candidate.id, 1)}"
        return Job(
            id=candidate.id, params=candidate.params, seed=0, directory=directory, resumed=candidate.resumed
        )

    def _make_coordinator(
        self, evaluations: int, earlier: ResumeState, first_failures: int | None
    ) -> Coordinator:
        journal = self.ranks[0].journal
        assert journal is not None
        transport = self.ranks[0].transport

        def reopened(again: list[Assignment], reason: str) -> None:
            for one in again:
                journal.append(Reopened(id=one.id, number=one.reopened, reason=reason, time=transport.now()))
            with suppress(OSError):
                journal.commit()

        return Coordinator(
            transport=transport,
            registry=self._registry,
            everyone=range(self.layout_ranks),
            dead_leader_record=self._dead_leader_record,
            journal_totals=self._journal_totals,
            evaluations=evaluations,
            known=earlier.keys,
            assignments=earlier.pending,
            tally=earlier.tally,
            duplicates=False,
            grace_s=GRACE_S,
            checkpoints=False,
            health=Health(
                first_failures, patience_s=15.0, leaders=[place.leader for place in self.layout.workers]
            ),
            timed=True,
            reopened=reopened,
            worker_left=lambda place, reason: self.left_workers.append((place, reason)),
        )

    def _dead_leader_record(self, place: WorkerPlacement) -> DeadLeaderRecord:
        journal = self.ranks[place.leader].journal
        assert journal is not None
        unread, self.unread = self.unread, True
        journal.unreadable()
        self.unread = unread
        journal.fenced |= place.leader in self._registry.hung
        return dead_leader_record(journal.committed, space=self.space, islands=self.islands, losses=_losses)

    def _journal_totals(self) -> ResumeState:
        return fold(self.records(), space=self.space, islands=self.islands, losses=_losses)

    @property
    def journals(self) -> list[MemoryJournal]:
        return [rank.journal for rank in self.ranks if rank.journal is not None]

    def records(self) -> list[Record]:
        """What is on disk."""
        return [record for journal in self.journals for record in journal.committed]

    def _refresh_lock(self) -> None:
        """The heartbeat of rank 0."""
        if not self.ranks[0].over:
            if not self.ranks[0].stopped:
                self.lock.refresh()
            self.world.at(self.world.time + REFRESH_S, self._refresh_lock)

    # --- network and deaths -------------------------------------------------------------------------------------

    def post(self, source: int, destination: int, data: bytes | None) -> None:
        """Deliver ``data`` later, in order between the two; None ends the receiver."""
        pair = source, destination
        sent = self.ranks[source].time
        when = max(self._last.get(pair, 0.0), sent + self.world.rng.expovariate(1.0 / self._latency_s))
        self._last[pair] = when
        self.world.at(when, lambda: self._deliver(pair, data))

    def _deliver(self, pair: tuple[int, int], data: bytes | None) -> None:
        source, destination = pair
        if self.world.time > self._cut.get(pair, math.inf):
            return
        rank = self.ranks[destination]
        if not rank.over:
            rank.transport.inbox.append(_ABORT if data is None else (source, data))
            rank.wake_soon()

    def kill(self, victim: int, *, told_after: float = 0.05) -> None:
        """Rank ``victim`` is killed; what it has not committed is lost, and so may be what it has sent."""
        rank = self.ranks[victim]
        if rank.over:
            return
        rank.dead = True
        now, rng = self.world.time, self.world.rng
        for other in range(self.layout_ranks):
            self._cut[victim, other] = now + rng.expovariate(1.0 / self._latency_s)
        rank.exit()
        if not self.tolerant:
            for one in self.ranks:
                self.world.at(now + told_after, lambda one=one: self.kill(one.number))
            return
        for one in self.ranks:
            if not one.over:
                when = now + told_after * rng.uniform(1.0, 3.0)
                self.world.at(when, lambda one=one: (one.transport.abandon([victim]), one.wake_soon()))

    def kill_all(self) -> None:
        """mpirun and all ranks are killed."""
        self.tolerant = True
        for rank in self.ranks:
            self.kill(rank.number)

    def left(self, rank: Rank) -> None:
        """The process of ``rank`` has ended."""
        if rank.number == 0 and not rank.dead:
            self.lock.release()

    @property
    def over(self) -> bool:
        """Whether no process of it is left."""
        return all(rank.over for rank in self.ranks)

    @property
    def settled(self) -> bool:
        """Whether none of its processes does anything any more."""
        return all(rank.over or rank.stopped for rank in self.ranks)


def _refuse(source: int, text: str) -> None:
    raise AssertionError(f"rank {source} sent nonsense: {text}")


def _losses(objectives: dict[str, float]) -> tuple[float, ...]:
    return tuple(objectives.values())
