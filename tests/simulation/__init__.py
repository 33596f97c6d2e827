"""The island protocol in virtual time: the same coordinator and leaders, thousands of them, in one process
and in seconds.

Messages take time, messages of different pairs of ranks overtake one another, those of one pair do not;
evaluations last as long as the caller says and cost nothing. One seed decides everything, so that a run can
be repeated exactly."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpo.campaign.rank.coordinating import _unseen
from hpo.config.layout import Layout, WorkerPlacement, topology_matrix
from hpo.config.settings import Settings
from hpo.individual import COMPLETED, FAILED, INTERRUPTED, INVALID, PRUNED, Scalar
from hpo.islands.coordinator.commands import Commands, LeftByLaunch, point_assignment
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.launch import Backlog, DeadLeaderRecord, LaunchLog, LaunchRules
from hpo.islands.coordinator.sharing import Sharing
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.leader.island import LeaderSettings, OwnWorker
from hpo.islands.leader.leader import Leader
from hpo.islands.leader.migration import MigrationSettings
from hpo.islands.liveness import Liveness
from hpo.islands.messages import (
    KINDS,
    Alive,
    Assignment,
    End,
    Lost,
    Message,
    Records,
    Start,
    ToCoordinator,
    decode,
    encode,
)
from hpo.islands.resume.dead_leader import dead_leader_record
from hpo.islands.resume.fold import fold
from hpo.islands.resume.individuals import failures
from hpo.islands.resume.start import start_messages
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Record, Reopened
from hpo.prior_results.configurations import wanted
from hpo.search.phases import Phases, searched
from hpo.search.protocols import (
    GO,
    PAUSE,
    STOP,
    Breeder,
    Candidate,
    ReportHandler,
    SearchContext,
    TrialReport,
)
from hpo.search.stopping_rules import PruningSettings
from hpo.space.space import SearchSpace
from hpo.task.outcome import TaskOutcome
from simulation.ledger import SimulatedLedger

GRACE_S = 60.0


@dataclass(frozen=True)
class Curve:
    """How a simulated evaluation trains: ``values[k]`` is reported after k + 1 steps of ``step_s`` seconds each, the
    last is its result. ``saves``: it saves itself when it is asked to."""

    step_s: float
    values: Sequence[float]
    saves: bool = True


def losses(objectives: dict[str, float]) -> tuple[float, ...]:
    """Those of tasks that minimise."""
    return tuple(objectives.values())


class MessageCounter:
    """Messages and bytes by kind, for measuring what the protocol costs."""

    def __init__(self) -> None:
        self.messages = dict.fromkeys(KINDS, 0)
        self.bytes = dict.fromkeys(KINDS, 0)

    def add(self, kind: str, size: int) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += size


class MemoryJournal:
    """Keeps what was committed; what was only appended is lost with its writer, as on a disk.

    ``disturb``: called at each commit, which fails where it raises an OSError; ``reached(n)``: how many of n records
    are on the disk all the same after a commit that failed; ``unreadable``: called when rank 0 reads it, likewise."""

    def __init__(self) -> None:
        self._appended: list[Record] = []
        self.committed: list[Record] = []
        self.fenced = False
        """Its writer was given up: what it still writes is not read."""
        self.discarded = False
        """Whether anything was given up that may be on the disk all the same."""
        self.error: OSError | None = None
        self.disturb: Callable[[], object] = lambda: None
        self.reached: Callable[[int], int] = lambda number: 0
        self.unreadable: Callable[[], object] = lambda: None

    def append(self, record: Record) -> None:
        self._appended.append(record)

    def commit(self) -> None:
        try:
            self.disturb()
        except OSError as error:
            self.error = error
            if not self.fenced:
                self.committed += self._appended[: self.reached(len(self._appended))]
            raise
        self.error = None
        if not self.fenced:
            self.committed += self._appended
        self._appended.clear()

    def discard(self) -> None:
        self.discarded |= bool(self._appended)
        self.error = None
        self._appended.clear()


class _DiscardingJournal(MemoryJournal):
    """For measuring: nothing is kept."""

    def append(self, record: Record) -> None:
        pass

    def commit(self) -> None:
        pass


class SimulatedTransport:
    """One rank's end of the simulated network."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self._simulation = simulation
        self.rank = rank
        self.size = simulation.ranks
        # Bound here, for speed: it is called for most of what is simulated.
        self.send: Callable[[int, bytes], None] = partial(simulation.post, rank)

    def poll(self) -> list[tuple[int, bytes]]:
        return []  # the simulation delivers by itself

    def put_back(self, messages: Sequence[tuple[int, bytes]]) -> None:
        raise NotImplementedError("the simulation delivers by itself")

    def failed(self) -> frozenset[int]:
        return frozenset()  # the simulation tells by itself

    def abandon(self, ranks: Iterable[int]) -> None:
        raise NotImplementedError("the simulation delivers to the living by itself")

    def now(self) -> float:
        return max(self._simulation.time, self._simulation.stalled.get(self.rank, 0.0))


class _Nowhere:
    """A transport that delivers nothing."""

    rank = 0

    def send(self, destination: int, data: bytes) -> None:
        pass

    def now(self) -> float:
        return 0.0


def lonely_coordinator(registry: WorkerRegistry, log: LaunchLog | None = None) -> Coordinator:
    """A coordinator of two evaluations that reaches nobody."""
    leaders = list(registry.places)
    rules = LaunchRules(
        ranks=1 + max(rank for place in registry.places.values() for rank in place.ranks),
        evaluations=2,
        duplicates=False,
        grace_s=60.0,
        checkpoints=False,
    )
    return Coordinator(
        transport=_Nowhere(),  # type: ignore[arg-type]
        registry=registry,
        rules=rules,
        backlog=Backlog(units=2),
        log=log,
        health=Health(None, patience_s=300, leaders=dict.fromkeys(leaders, 1)),
    )


class SimulatedCrew:
    """Evaluates by letting virtual time pass."""

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self._simulation = simulation
        self._rank = rank
        self._candidate: Candidate | None = None
        self._over = math.inf
        self._killed: str | None = None
        self._curve: Curve | None = None
        self._step = 0
        self._begun = 0.0
        self._asked = False
        self._on_report: ReportHandler = lambda report: GO
        self.ready = True
        self.failed_starts = 0
        self.fit_for: float = math.inf
        """How many evaluations can be started here."""
        self.unwritable: Callable[[], str | None] = lambda: None
        """Why the individual's directory cannot be made; None where it can."""
        self._storage_error: str | None = None

    @property
    def busy(self) -> bool:
        return self._candidate is not None

    @property
    def prepared(self) -> bool:
        return self._candidate is not None and self._storage_error is None

    def start(self, candidate: Candidate) -> None:
        simulation = self._simulation
        self._candidate = candidate
        self._storage_error = self.unwritable()
        if self._storage_error is not None:
            self._over = simulation.time
            simulation.wake(self._rank, simulation.time)
            return
        if self.fit_for <= 0:
            self.failed_starts += 1
            self._over = simulation.time
            simulation.wake(self._rank, simulation.time)
            return
        self.fit_for -= 1
        self.failed_starts = 0
        seconds = simulation.duration(simulation.started)
        simulation.started += 1
        simulation.admitted_last = simulation.time
        simulation.evaluated.append(candidate.key)
        self._asked = False
        self._killed = None
        if simulation.curve is not None:
            self._curve = simulation.curve(candidate.params)
            self._step = simulation.saved.get(candidate.id, 0) if candidate.resumed else 0
            self._begun = simulation.time
            seconds = self._curve.step_s
        else:
            simulation.evaluations.append((simulation.time, seconds))
        self._over = simulation.time + seconds
        simulation.wake(self._rank, self._over)

    def poll(self) -> Sequence[TaskOutcome]:
        if self._candidate is None or self._simulation.time < self._over:
            return ()
        candidate = self._candidate
        if self._storage_error is not None:
            outcome = TaskOutcome(status=FAILED, error=self._storage_error, storage=True)
        elif self.failed_starts:
            outcome = TaskOutcome(status=FAILED, error="no evaluators to be had")
        elif self._killed is not None:
            outcome = TaskOutcome(status=self._killed, error="ended by the campaign")
        elif self._curve is None:
            outcome = self._simulation.evaluate(candidate)
        else:
            trained = self._train(candidate, self._curve)
            if trained is None:
                return ()
            outcome = trained
        if self._curve is not None:
            self._simulation.evaluations.append((self._begun, self._simulation.time - self._begun))
        self._candidate = None
        self._over = math.inf
        return (outcome,)

    def _train(self, candidate: Candidate, curve: Curve) -> TaskOutcome | None:
        """A step is over: the outcome, if that was the last."""
        simulation = self._simulation
        self._step += 1
        value = curve.values[self._step - 1]
        known = {"value": value} if math.isfinite(value) else None
        verdict = self._on_report(TrialReport(candidate.id, self._step, value, saves=curve.saves))
        if verdict == STOP:
            return TaskOutcome(status=PRUNED, objectives=known, metrics={"pruned_step": self._step})
        if self._step == len(curve.values):
            return TaskOutcome(status=COMPLETED if known else INVALID, objectives=known)
        if (self._asked or verdict == PAUSE) and curve.saves:
            simulation.saved[candidate.id] = self._step
            return TaskOutcome(status=INTERRUPTED)
        self._over = simulation.time + curve.step_s
        simulation.wake(self._rank, self._over)
        return None

    def listen(self, on_report: ReportHandler) -> None:
        self._on_report = on_report

    def receive(self, content: dict[str, object]) -> None:
        pass

    def request_checkpoint(self) -> None:
        self._asked = True

    def kill(self, status: str) -> None:
        self._over = self._simulation.time
        self._killed = status

    def disband(self) -> None:
        self._candidate = None
        self._over = math.inf

    @property
    def gone(self) -> bool:
        return self._candidate is None

    def deadline(self) -> float | None:
        return None


@dataclass
class Report:
    """What a simulated campaign did. ``busy`` is the share of worker time spent evaluating until the end,
    ``busy_admitting`` until the last individual was started."""

    seconds: float
    evaluations: int
    busy: float
    busy_admitting: float
    messages: float
    bytes: float


def leader_settings(
    *,
    seed: int,
    migration: MigrationSettings,
    durable_starts: bool,
    grace_s: float = GRACE_S,
    pruning: PruningSettings | None = None,
    steps: int | None = None,
) -> LeaderSettings:
    """For leaders of campaigns of one objective, ``value``, which is minimised."""
    return LeaderSettings(
        seed=seed,
        losses=losses,
        allows=lambda params: True,
        migration=migration,
        retries=1,
        duplicates=False,
        durable_starts=durable_starts,
        grace_s=grace_s,
        keep=3,
        pruning=pruning,
        steps=lambda params: steps,
        reported="value",
        sign=1.0,
        reference=None,
    )


class Simulation(LaunchLog):
    """A campaign of one-rank workers.

    ``ledger``: of the campaign, looked at when ``coordinator.step`` is called, None for a new one; ``evaluations`` is
    what the campaign file says, ``recorded`` what earlier launches left. ``duration(k)``: seconds of the k-th
    individual to be started; ``curve``: how one trains, instead of ``objective`` and ``duration``; ``hang_timeout``:
    seconds, None: no rank is given up; ``phased``: settings whose phases hold, and whose kind breeds; ``latency_s``:
    mean time of a message; ``jitter``: draw each message's time anew (else it is fixed for each pair of ranks, and much
    faster to simulate)."""

    def __init__(
        self,
        space: SearchSpace,
        objective: Callable[[dict[str, Scalar]], float],
        *,
        workers: int,
        islands: int,
        evaluations: int,
        duration: Callable[[int], float],
        breeder: Callable[[int], Breeder],
        migration: float = 0.0,
        copy: bool = False,
        topology: str | list[list[int]] = "ring",
        latency_s: float = 0.001,
        jitter: bool = False,
        keep_journals: bool = True,
        durable_starts: bool = False,
        earlier: ResumeState | None = None,
        curve: Callable[[dict[str, Scalar]], Curve] | None = None,
        pruning: PruningSettings | None = None,
        phased: Settings | None = None,
        steps: int | None = None,
        deadline: float | None = None,
        checkpoints: bool = False,
        must_end: float | None = None,
        first_failures: int | None = None,
        hang_timeout: float | None = None,
        ledger: SimulatedLedger | None = None,
        recorded: Sequence[Record] = (),
        seed: int = 0,
    ) -> None:
        self.curve = curve
        self.saved: dict[str, int] = {}
        self.ranks = workers
        self.islands = islands
        self.space = space
        self.time = 0.0
        self.stalled: dict[int, float] = {}
        """By rank, until when it does nothing."""
        self.dead: set[int] = set()
        self._cut: set[int] = set()
        """Ranks that MPI reports dead and that run on."""
        self._hung: dict[int, list[tuple[int, Message | None]]] = {}
        """By rank that hangs, what has come for it."""
        self._ignored: set[tuple[int, int]] = set()
        self._quiet_looks = 0
        self._orphaned = False
        self.unread: set[int] = set()
        """Dead ranks whose journals could not be read."""
        self.left: list[tuple[int, int, str]] = []
        self.pool_at_end: frozenset[str] = frozenset()
        """Individuals that others may evaluate by the ledger that was read last before the end."""
        """Island and worker of those that take no more part, and why."""
        self.started = 0
        self.evaluations: list[tuple[float, float]] = []
        self.admitted_last = 0.0
        self.evaluated: list[str] = []
        self.duration = duration
        self._objective = objective
        self._latency_s = latency_s
        self._jitter = jitter
        self._rng = random.Random(seed)
        self._last: dict[tuple[int, int], float] = {}
        self._events: list[tuple[float, int, int, int, Message | Callable[[], None] | None]] = []
        self._count = 0
        self._data: bytes = b""
        self._message: Message | None = None
        self._kind = ""
        self.counter = MessageCounter()
        earlier = earlier or ResumeState()
        layout = Layout.plan(ranks=workers, sizes=[1] * islands)
        if ledger is None:
            ledger = SimulatedLedger(evaluations, space, earlier)
        self.participation = participation = ledger.join(workers, self._written)
        layout = layout.numbered_from(participation.first_worker)
        self.numbers = [place.worker for place in layout.workers]
        matrix = topology_matrix(topology, islands)
        groups = [[place.leader for place in layout.of_island(island)] for island in range(islands)]
        self.journals: list[MemoryJournal] = []
        self.leaders: list[Leader] = []
        self.crews: list[SimulatedCrew] = []
        for place in layout.workers:
            journal = MemoryJournal() if keep_journals else _DiscardingJournal()
            self.journals.append(journal)
            crew = SimulatedCrew(self, place.leader)
            self.crews.append(crew)
            used, own = space, breeder(place.leader)
            if phased is not None:
                used, own = searched(space, phased, place.island, SearchContext())
            self.leaders.append(
                Leader(
                    worker=OwnWorker(place=place, crew=crew, jobs=_Same(), journal=journal),  # type: ignore[arg-type]
                    islands=groups,
                    transport=SimulatedTransport(self, place.leader),
                    space=used,
                    breeder=own,
                    settings=leader_settings(
                        seed=seed,
                        migration=MigrationSettings(
                            probability=migration,
                            copy=copy,
                            emigrants=matrix[place.island],
                            ring=topology == "ring",
                        ),
                        durable_starts=durable_starts,
                        pruning=pruning,
                        steps=steps,
                    ),
                )
            )
        only = [{} if phased is None else phased.search_of(island).only for island in range(islands)]
        self._registry = registry = WorkerRegistry(layout.workers, ended=self.dead.__contains__)
        self.coordinator = Coordinator(
            transport=SimulatedTransport(self, 0),
            registry=registry,
            rules=LaunchRules(
                ranks=workers,
                evaluations=participation.state.limits.evaluations,
                duplicates=False,
                checkpoints=checkpoints,
                grace_s=GRACE_S,
                deadline=deadline,
                must_end=None if must_end is None else partial(float, must_end),
                phases=Phases() if phased is None else Phases([one.until for one in phased.phase]),
                unseen=_unseen(space, lambda params: True, only),
            ),
            backlog=Backlog(known=earlier.keys, tally=earlier.tally),
            log=self,
            commands=Commands(
                participation=participation,
                sharing=Sharing(participation),
                unfinished={one.id: one for one in earlier.pending},
                began=0.0,
                assigned=lambda label, params: point_assignment(
                    wanted(label, params, space, lambda params: True), space.key
                ),
                left_by=lambda launch: LeftByLaunch({}, ()),
                failures=lambda: failures([*recorded, *self._committed()], space=space),
            ),
            health=Health(
                first_failures, patience_s=300, leaders={place.leader: 1 for place in layout.workers}
            ),
        )
        self.coordinator.look_at_commands()
        if deadline is not None:
            self.at(deadline, self.coordinator.step)
        if must_end is not None:
            self.at(must_end - GRACE_S, self.coordinator.step)
            self.at(must_end, self.coordinator.step)
        self._hang_timeout = hang_timeout
        self._liveness = Liveness(range(1, workers), timeout_s=hang_timeout or math.inf)
        if hang_timeout is not None:
            self.at(0.0, self._look_for_hung_ranks)
        self._starts: list[Start] = start_messages(layout, earlier, 1, [""] * workers)

    # --- the network ----------------------------------------------------------------------------------------

    def post(self, source: int, destination: int, data: bytes) -> None:
        """Deliver ``data`` later; what is sent to many is decoded once."""
        if data is not self._data:
            self._data, self._message = data, decode(data)
            self._kind = type(self._message).__name__
        self.counter.add(self._kind, len(data))
        begun = max(self.time, self.stalled.get(source, 0.0)) if self.stalled else self.time
        if source == destination:
            when = begun
        elif self._jitter:
            pair = (source, destination)
            when = max(self._last.get(pair, 0.0), begun + self._rng.expovariate(1.0 / self._latency_s))
            self._last[pair] = when
        else:
            # Fixed for the pair, different between pairs: 0.5 to 1.5 of the mean.
            spread = (source * 7919 + destination * 104729) % 1024 / 1024
            when = begun + self._latency_s * (0.5 + spread)
        self._count += 1
        heapq.heappush(self._events, (when, self._count, source, destination, self._message))

    def stall(self, rank: int, seconds: float) -> None:
        """``rank`` waits in a system call for so long: it sends and receives nothing until then."""
        self.stalled[rank] = max(self.time, self.stalled.get(rank, 0.0)) + seconds

    def wake(self, rank: int, when: float) -> None:
        """Have the leader of ``rank`` step at ``when``."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, rank, rank, None))

    def evaluate(self, candidate: Candidate) -> TaskOutcome:
        """The outcome of a simulated evaluation."""
        return TaskOutcome(status=COMPLETED, objectives={"value": self._objective(candidate.params)})

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something to the campaign at ``when``: send it a signal, say."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, 0, 0, action))

    # --- deaths ---------------------------------------------------------------------------------------------

    def kill(self, rank: int, *, told_after: float = 0.05) -> None:
        """``rank`` dies now; what it has not committed is lost, and so may be what it has sent. The others hear of it
        later."""
        self.dead.add(rank)
        self.crews[rank].disband()
        # To each rank some of the last messages are lost: what arrives, arrives in order.
        last = [self.time + self._rng.expovariate(1.0 / self._latency_s) for _ in range(self.ranks)]
        self._events = [
            event
            for event in self._events
            if event[2] != rank or event[2] == event[3] or callable(event[4]) or event[0] <= last[event[3]]
        ]
        heapq.heapify(self._events)
        self.at(self.time + told_after, self._tell_of_deaths)

    def cut(self, rank: int) -> None:
        """``rank`` is reported dead, as where its connections broke, and runs on by itself: it commits what it ends."""
        if rank == 0:
            raise ValueError("of the silence of rank 0 the launcher makes its death: kill(0)")
        if rank not in self.dead:
            self._cut.add(rank)
            self._ignored.update(pair for one in range(self.ranks) for pair in ((rank, one), (one, rank)))
            self._ignored.remove((rank, rank))
            self.at(self.time + 0.05, self._tell_of_deaths)

    def _step_when_due(self) -> None:
        """Have the coordinator step as long as it waits for journals that cannot be read."""
        if 0 not in self.dead and self.coordinator.end is None:
            self.coordinator.step()
            when = self.coordinator._deaths.next_look
            if when < math.inf:
                self.at(max(self.time, when), self._step_when_due)

    def hang(self, rank: int) -> None:
        """``rank`` stops, and what is sent to it waits; its evaluator runs on."""
        if rank == 0:
            raise ValueError("of the hang of rank 0 the launcher makes its death: kill(0)")
        if rank not in self.dead:
            self._hung.setdefault(rank, [])

    def resume(self, rank: int) -> None:
        """``rank`` goes on, with what has come for it meanwhile."""
        for source, message in self._hung.pop(rank, []):
            self._count += 1
            heapq.heappush(self._events, (self.time, self._count, source, rank, message))
        if self._orphaned and rank not in self.dead:
            self.leaders[rank].orphan()
            self.wake(rank, self.time)

    def _look_for_hung_ranks(self) -> None:
        """What the event loops do: each shows rank 0 that it lives, and rank 0 gives up those that do not."""
        if 0 in self.dead or self.coordinator.end is not None:
            return
        for rank in range(1, self.ranks):
            if rank not in self.dead and rank not in self._hung:
                self.post(rank, 0, encode(Alive()))
        silent = self._liveness.look(self.time)
        self._liveness.forget(silent)
        self.coordinator.handle_hung_ranks(silent)
        if silent:
            self._step_when_due()
        assert self._hang_timeout is not None
        nothing = all(isinstance(event[4], Alive) for event in self._events)
        self._quiet_looks = self._quiet_looks + 1 if nothing else 0
        if self._quiet_looks > 64:
            return  # a standstill, as nobody is left to be given up
        self.at(max(self._liveness.next_look, self.time + self._hang_timeout / 16), self._look_for_hung_ranks)

    def _tell_of_deaths(self) -> None:
        if 0 not in self.dead:
            self.coordinator.handle_rank_deaths(self.dead | self._cut)
            self._step_when_due()
            return
        self._orphaned = True
        for leader in self.leaders:
            if leader.place.leader not in self.dead | self._cut and leader.place.leader not in self._hung:
                leader.orphan()
                self.wake(leader.place.leader, self.time)

    def reopened(self, again: Sequence[Assignment], reason: str, entry: int = 0) -> None:
        for one in again:
            record = Reopened(id=one.id, number=one.reopened, reason=reason, time=self.time, entry=entry)
            self.journals[0].append(record)
        with suppress(OSError):  # the leader of rank 0, whose journal it is, tries again
            self.journals[0].commit()

    def launch_ended(self, end: End) -> None:
        self.pool_at_end = frozenset(self.participation.state.pool)

    def worker_left(self, place: WorkerPlacement, reason: str, *, may_run: bool) -> None:
        self.left.append((place.island, place.worker, reason))

    def dead_leader_record(self, place: WorkerPlacement, *, may_run: bool) -> DeadLeaderRecord:
        self.unread.add(place.leader)
        self.journals[place.leader].unreadable()
        self.unread.remove(place.leader)
        self.journals[place.leader].fenced |= may_run
        return dead_leader_record(
            self.journals[place.leader].committed, space=self.space, islands=self.islands, losses=losses
        )

    def _written(self) -> Iterator[tuple[int, list[Record]]]:
        return ((number, journal.committed) for number, journal in zip(self.numbers, self.journals))

    def _committed(self) -> Iterator[Record]:
        return (record for journal in self.journals for record in journal.committed)

    def journal_totals(self) -> ResumeState:
        return fold(self._committed(), space=self.space, islands=self.islands, losses=losses)

    # --- running --------------------------------------------------------------------------------------------

    def run(self, until: float = math.inf) -> Report | None:
        """Run to the end and report; None where the job is killed at ``until`` before it, or rank 0 died. What was
        not committed is lost then.

        Raises:
            RuntimeError: nothing can happen any more, and the end has not come.
        """
        for leader, start in zip(self.leaders, self._starts):
            leader.begin(start)
        leaders, coordinator, dead = self.leaders, self.coordinator, self.dead
        ended: set[int] = set()
        while self._events:
            events = self._events  # a death makes new ones
            if events[0][0] > until:
                return None
            self.time, _, source, destination, message = heapq.heappop(events)
            if dead and destination in dead and not callable(message):
                continue
            if destination in self._hung and not callable(message):
                self._hung[destination].append((source, message))
                continue
            if (source, destination) in self._ignored and not callable(message):
                continue
            if self.stalled and not callable(message) and self.stalled.get(destination, 0.0) > self.time:
                self._count += 1
                later = (self.stalled[destination], self._count, source, destination, message)
                heapq.heappush(self._events, later)
                continue
            if isinstance(message, Records):  # nearly all are
                if not leaders[destination].receive(source, message):
                    continue
                message = None
            if callable(message):
                message()
                continue
            leader = leaders[destination]
            if destination == 0 != source:
                self._liveness.heard(source)
            if isinstance(message, Alive):
                continue
            if isinstance(message, Lost):
                self._ignored.update(
                    (rank, destination) for rank in self._registry.hung.intersection(message.ranks)
                )
                if destination in message.ranks:  # given up, and awake
                    dead.add(destination)
                    self.crews[destination].disband()
                    continue
            if isinstance(message, ToCoordinator):
                coordinator.receive(source, message)
                continue
            if message is None or leader.receive(source, message):
                leader.step()
                wake = leader.next_wake()
                if wake < math.inf:
                    self.wake(destination, max(wake, self.time))
                if isinstance(message, End):
                    ended.add(destination)
        if self._orphaned:
            return None
        dead |= self._registry.hung | set(self._hung) | self._cut
        alive = {leader.place.leader for leader in leaders} - dead
        if not alive <= ended:
            raise RuntimeError(
                f"the simulated campaign came to a standstill at {self.time} s; {len(ended)} of {len(alive)} ended"
            )
        assert coordinator.end is not None
        self.participation.close(
            coordinator.end.reason, coordinator.end.exit_code, at_rest=coordinator.all_ended
        )
        return self._report()

    def _report(self) -> Report:
        finished = self.time
        done = max(1, self.started)
        total = sum(seconds for _, seconds in self.evaluations)
        last = self.admitted_last
        admitting = sum(min(begin + seconds, last) - begin for begin, seconds in self.evaluations)
        return Report(
            seconds=finished,
            evaluations=self.started,
            busy=total / (self.ranks * finished) if finished else 0.0,
            busy_admitting=admitting / (self.ranks * last) if last else 1.0,
            messages=sum(self.counter.messages.values()) / done,
            bytes=sum(self.counter.bytes.values()) / done,
        )


def ideal_queue(durations: Sequence[float], workers: int) -> float:
    """Seconds that ``workers`` need for ``durations``, each taking the next one the moment it is free."""
    free = [0.0] * workers
    for seconds in durations:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def pruning_settings(rule: str, **changes: Any) -> PruningSettings:
    """``rule`` with a first rung at one step, that every individual may fail at."""
    settings = {"min_steps": 1, "reduction": 3, "patience": 0, "startup": 1, "promote": True, **changes}
    return PruningSettings(rule=rule, **settings)


class _Same:
    """Simulated crews take candidates for jobs."""

    def __call__(self, candidate: Candidate) -> Candidate:
        return candidate

    def forget(self, identity: str) -> None:
        pass
