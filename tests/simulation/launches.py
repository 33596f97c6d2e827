"""Whole launches in virtual time: the event loops of all ranks, workers of several ranks with their crews and evaluator
hosts, ranks that hang, rank 0 too, clocks that differ, and launches that overlap.

Here a rank is what it is under MPI. Only network, clocks, evaluators and journals are simulated.
``simulation.Simulation`` is faster, for campaigns of thousands of workers, and has neither event loops nor crews."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hpo.campaign.rank.evaluators import Jobs
from hpo.config.layout import Layout, WorkerPlacement, topology_matrix
from hpo.config.settings import EvaluationSettings
from hpo.evaluation.conversation import pack
from hpo.evaluation.crew import ProcessCrew
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.islands.coordinator.budget import Suits
from hpo.islands.coordinator.commands import Commands, LeftByLaunch, point_assignment
from hpo.islands.coordinator.coordinator import Coordinator
from hpo.islands.coordinator.health import Health
from hpo.islands.coordinator.launch import Backlog, DeadLeaderRecord, EndRules, LaunchLog, LaunchRules
from hpo.islands.coordinator.sharing import Sharing
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.event_loop import EventLoop, RankRoles
from hpo.islands.leader.elites import EliteExchange
from hpo.islands.leader.island import OwnWorker
from hpo.islands.leader.leader import Leader
from hpo.islands.leader.migration import MigrationSettings
from hpo.islands.messages import Assignment, Start, WorkerMessage, encode
from hpo.islands.resume.dead_leader import dead_leader_record
from hpo.islands.resume.fold import fold
from hpo.islands.resume.start import start_messages
from hpo.islands.resume.state import ResumeState
from hpo.journal.records import Header, Launched, Left, Record, Reopened
from hpo.ledger.alive import REFRESH_S, OtherLaunches, SignOfLife
from hpo.ledger.reservations import Reservations
from hpo.search.campaign_end import BestOverTime
from hpo.search.kinds.evolution import EvolutionBreeder
from hpo.search.population import Population
from hpo.space.space import SearchSpace, listable
from hpo.task.task import listed
from simulation import MemoryJournal, leader_settings, losses
from simulation.evaluators import Fates, NoGuard, SimulatedEvaluator, Worker
from simulation.ledger import SimulatedLedger
from simulation.ranks import Rank
from simulation.world import EPOCH_S, SimulatedMachine, World


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """``seconds``: how long the next evaluation takes; ``skews``: by rank, seconds that its host's clock is ahead;
    ``hosts``: by rank, its host; ``tolerant``: the others survive the death of a rank; ``migration``, ``copy``: as of
    ``MigrationSettings``."""

    layout: Layout
    evaluations: int
    evaluation: EvaluationSettings
    seconds: Callable[[], float]
    skews: Sequence[float]
    hosts: Sequence[str]
    fates: Fates
    latency_s: float
    tolerant: bool
    migration: float
    copy: bool
    suits: Suits = lambda island, assignment: True
    restarts: bool = False


class SimulatedLaunch(LaunchLog):
    """One MPI job that works on a campaign in ``directory``. ``ledger``: of the campaign; ``earlier``: what former
    launches left, by the number of islands; ``machine``: of rank 0."""

    def __init__(
        self,
        world: World,
        space: SearchSpace,
        objective: Callable[[Mapping[str, Any]], float],
        settings: LaunchSettings,
        *,
        ledger: SimulatedLedger,
        earlier: Callable[[int], ResumeState],
        directory: Path,
        machine: SimulatedMachine,
        beside: Collection[int] = (),
    ) -> None:
        self.world = world
        self._space = space
        self._objective = objective
        self._settings = settings
        self._ledger = ledger
        self._directory = directory
        self._participation = ledger.join(
            len(settings.layout.workers),
            self._written,
            lambda: machine.unreachable(),
            beside=beside,
            machines=dict(zip(settings.hosts, settings.hosts)),
        )
        self.number = self._participation.number
        ledger.ranks[self.number] = len(settings.layout.workers[0].ranks)
        self._sign = SignOfLife(directory, self.number, machine=machine)
        self._others = OtherLaunches(directory, self._sign, machine)
        self.sharing = Sharing(self._participation, self._others)
        self._layout = layout = settings.layout.numbered_from(self._participation.first_worker)
        self._groups = [[one.leader for one in layout.of_island(island)] for island in range(layout.islands)]
        self._registry = WorkerRegistry(layout.workers, ended=self._is_seen_to_have_ended)
        self._tolerant = settings.tolerant
        self._last: dict[tuple[int, int], float] = {}
        self._cut: dict[tuple[int, int], float] = {}
        self.size = sum(len(place.ranks) for place in layout.workers)
        self.ranks = [Rank(self, rank, self.size) for rank in range(self.size)]
        self.unwritable: dict[int, Callable[[], str | None]] = {}
        """By rank, why no directory can be made from there."""
        self.unread = False
        """Whether a journal could not be read when it was needed."""
        self._seen_closed = False
        """Whether another launch had closed this launch at the last beat."""
        for rank, skew in zip(self.ranks, settings.skews):
            rank.transport.skew_s = EPOCH_S + skew
        self._earlier = earlier
        state = earlier(layout.islands)
        starts = start_messages(layout, state, self.number, settings.hosts)
        own = RankRoles(members=(), leader=None, non_leader=None, filenos=list)
        for place in layout.workers:
            self.ranks[place.leader].journal = MemoryJournal()
            evaluators = self._evaluators(place)
            for worker_rank, rank in enumerate(place.ranks):
                if rank == 0:
                    own = self._roles(place, worker_rank, evaluators, starts[rank])
                else:
                    # Rank 0 serves first; the others get their Start a little later.
                    begin = partial(self._begin, place, worker_rank, evaluators, starts[rank])
                    world.at(world.time + world.rng.expovariate(5.0), begin)
        self.coordinator = self._make_coordinator(state)
        self.coordinator.look_at_commands()
        self._record_start()
        self._make_loop(self.ranks[0], own, self.coordinator)
        self._beat()

    # --- the parts of a rank ----------------------------------------------------------------------------------

    def _evaluators(self, place: WorkerPlacement) -> Worker:
        def unwritable(worker_rank: int) -> str | None:
            return self.unwritable.get(place.ranks[worker_rank], lambda: None)()

        return Worker(
            self.world,
            len(place.ranks),
            seconds=self._settings.seconds,
            objective=lambda job: self._objective(job.params),
            unwritable=unwritable,
            fates=self._settings.fates,
            directories=self.world.directories,
        )

    def _begin(self, place: WorkerPlacement, worker_rank: int, evaluators: Worker, start: Start) -> None:
        """A rank that is not rank 0 has got its Start."""
        rank = self.ranks[place.ranks[worker_rank]]
        if not rank.over:
            self._make_loop(rank, self._roles(place, worker_rank, evaluators, start), None)

    def _make_loop(self, rank: Rank, roles: RankRoles, coordinator: Coordinator | None) -> None:
        rank.loop = EventLoop(
            transport=rank.transport,
            roles=roles,
            coordinator=coordinator,
            signals=rank.signals,
            hang_timeout_s=self._settings.evaluation.hang_timeout_s,
            housekeeping=lambda now: None if rank.exchange is None else rank.exchange(now),
            on_bad_message=_refuse,
        )
        rank.wake(self.world.time)

    def _roles(self, place: WorkerPlacement, worker_rank: int, evaluators: Worker, start: Start) -> RankRoles:
        rank = self.ranks[place.ranks[worker_rank]]
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
                    place.leader, encode(WorkerMessage(pack(epoch, worker_rank, answer)))
                ),
                clock=transport.now,
                guard=NoGuard(),
            )
            return RankRoles(members=place.ranks, leader=None, non_leader=host, filenos=host.filenos)
        crew = ProcessCrew(
            size=len(place.ranks),
            child_factory=child,
            send=lambda one, content: transport.send(place.ranks[one], encode(WorkerMessage(content))),
            settings=self._settings.evaluation,
            clock=transport.now,
            guard=NoGuard(),
        )
        crew.prepare()
        rank.leader = self._leader(place, rank, crew)
        rank.leader.begin(start)
        rank.exchange = EliteExchange(
            rank.leader,
            self._directory,
            launch=self.number,
            island=place.island,
            others=lambda: self._ledger.state.open.keys() - {self.number},
        )
        return RankRoles(members=place.ranks, leader=rank.leader, non_leader=None, filenos=crew.filenos)

    def _leader(self, place: WorkerPlacement, rank: Rank, crew: ProcessCrew) -> Leader:
        assert rank.journal is not None
        matrix = topology_matrix("ring", self._layout.islands)
        return Leader(
            worker=OwnWorker(
                place=place,
                crew=crew,
                jobs=Jobs(self.world.copies, seed=self.number),
                journal=rank.journal,
                signalled=lambda: rank.signals.count > 0,
            ),
            islands=self._groups,
            transport=rank.transport,
            space=self._space,
            breeder=EvolutionBreeder(self._space),
            settings=leader_settings(
                seed=self.number,
                migration=MigrationSettings(
                    probability=self._settings.migration,
                    copy=self._settings.copy,
                    emigrants=matrix[place.island],
                ),
                grace_s=self._settings.evaluation.grace_s,
                durable_starts=True,
            ),
        )

    def _make_coordinator(self, earlier: ResumeState) -> Coordinator:
        settings = self._settings.evaluation
        return Coordinator(
            transport=self.ranks[0].transport,
            registry=self._registry,
            rules=LaunchRules(
                ranks=self.size,
                evaluations=self._settings.evaluations,
                duplicates=False,
                grace_s=settings.grace_s,
                checkpoints=False,
                timed=True,
                unseen=[UnseenConfigurations(partial(listed, self._space, lambda params: True))]
                * self._layout.islands
                if listable(self._space)
                else (),
                reservations=Reservations(self._directory, self.number, self._participation.read_closed),
                suits=self._settings.suits,
                restarts=self._settings.restarts,
            ),
            backlog=Backlog(known=earlier.keys, tally=earlier.tally),
            log=self,
            commands=Commands(
                participation=self._participation,
                sharing=self.sharing,
                unfinished={one.id: one for one in earlier.pending},
                began=0.0,
                assigned=lambda label, params: point_assignment(
                    self._space.validate(params), self._space.key
                ),
                left_by=self._left_by,
                failures=list,
                rules=EndRules(objectives={"value": "minimize"}, on_record=self._evaluated),
            ),
            health=Health(
                settings.first_failures,
                patience_s=settings.start_timeout_s,
                leaders={place.leader: len(place.ranks) for place in self._layout.workers},
            ),
        )

    def _evaluated(self) -> tuple[BestOverTime, Iterable[Population]]:
        totals = self._earlier(self._layout.islands)
        return totals.tally.history, totals.populations.values()

    def _left_by(self, launch: int) -> LeftByLaunch:
        records = [
            Header(version=1, launch=launch, island=0, worker=0, time=0.0),
            *self._ledger.counted(launch),
        ]
        left = fold(records, space=self._space, islands=self._layout.islands, losses=losses)
        return LeftByLaunch({one.id: one for one in left.pending}, left.ended, left.keys)

    def _record_start(self) -> None:
        launched = Launched(
            evaluations=self._settings.evaluations,
            deadline_s=None,
            islands=self._layout.islands,
            workers=len(self._layout.workers),
            time=self.ranks[0].transport.now(),
        )
        self._put(launched)

    def _put(self, *records: Record) -> None:
        journal = self.ranks[0].journal
        assert journal is not None
        for record in records:
            journal.append(record)
        with suppress(OSError):
            journal.commit()

    def reopened(self, again: Sequence[Assignment], reason: str, entry: int = 0) -> None:
        now = self.ranks[0].transport.now()
        self._put(*(Reopened(id=one.id, number=one.reopened, reason=reason, time=now) for one in again))

    def worker_left(self, place: WorkerPlacement, reason: str, *, may_run: bool) -> None:
        now = self.ranks[0].transport.now()
        self._put(Left(island=place.island, worker=place.worker, reason=reason, time=now, may_run=may_run))

    def dead_leader_record(self, place: WorkerPlacement, *, may_run: bool) -> DeadLeaderRecord:
        journal = self.ranks[place.leader].journal
        assert journal is not None
        unread, self.unread = self.unread, True
        journal.unreadable()
        self.unread = unread
        journal.fenced |= may_run
        return dead_leader_record(
            journal.committed, space=self._space, islands=self._layout.islands, losses=losses
        )

    def journal_totals(self) -> ResumeState:
        return fold(self.records(), space=self._space, islands=self._layout.islands, losses=losses)

    @property
    def journals(self) -> list[MemoryJournal]:
        return [rank.journal for rank in self.ranks if rank.journal is not None]

    def records(self) -> list[Record]:
        """What is on disk."""
        return [record for journal in self.journals for record in journal.committed]

    def _written(self) -> list[tuple[int, list[Record]]]:
        """Records on disk, by the number of the worker that wrote them."""
        leaders = ((place.worker, self.ranks[place.leader].journal) for place in self._layout.workers)
        return [(worker, journal.committed) for worker, journal in leaders if journal is not None]

    @property
    def closed_by_another(self) -> bool:
        closed = self._ledger.state.closed.get(self.number)
        return closed is not None and closed.by != self.number

    def _beat(self) -> None:
        """The heartbeat of rank 0."""
        if not self.ranks[0].over:
            if not self.ranks[0].stopped and self.ranks[0].stalled <= self.world.time:
                ends = self.coordinator.stopping is not None or self.coordinator.end is not None
                # It has looked at the ledger since the last beat, if its storage let it.
                hindered = self.coordinator.waited_for_storage(self.world.time)
                assert ends or not self._seen_closed or hindered, "it goes on although closed"
                self._seen_closed = self.closed_by_another
                with suppress(OSError):
                    self._sign.refresh()
                self._others.look()
            self.world.at(self.world.time + REFRESH_S, self._beat)

    # --- network and deaths -------------------------------------------------------------------------------------

    def post(self, source: int, destination: int, data: bytes) -> None:
        """Deliver ``data`` later, in order between the two."""
        pair = source, destination
        delay_s = self.world.rng.expovariate(1.0 / self._settings.latency_s)
        when = max(self._last.get(pair, 0.0), self.ranks[source].time + delay_s)
        self._last[pair] = when
        self.world.at(when, partial(self._deliver, pair, data))

    def _deliver(self, pair: tuple[int, int], data: bytes) -> None:
        source, destination = pair
        rank = self.ranks[destination]
        if not rank.over and self.world.time <= self._cut.get(pair, math.inf):
            rank.transport.inbox.append((source, data))
            rank.wake_soon()

    def kill(self, victim: int, *, told_after: float = 0.05) -> None:
        """Rank ``victim`` is killed; what it has not committed is lost, and so may be what it has sent."""
        rank = self.ranks[victim]
        if rank.over:
            return
        rank.dead = True
        now, rng = self.world.time, self.world.rng
        for other in range(self.size):
            self._cut[victim, other] = now + rng.expovariate(1.0 / self._settings.latency_s)
        rank.exit()
        for one in self.ranks:
            if not self._tolerant:
                self.world.at(now + told_after, partial(self.kill, one.number))
            elif not one.over:
                heard = partial(self._hear_of_death, one, victim)
                self.world.at(now + told_after * rng.uniform(1.0, 3.0), heard)

    def cut(self, victim: int, *, told_after: float = 0.05) -> None:
        """Rank ``victim`` loses its network and is reported dead to the others. It runs on until it misses rank 0."""
        if victim == 0 or not self._tolerant or self.ranks[victim].over:
            self.kill(victim, told_after=told_after)
            return
        self._isolate({victim})
        for one in self.ranks:
            if one.number != victim and not one.over:
                heard = partial(self._hear_of_death, one, victim)
                self.world.at(self.world.time + told_after * self.world.rng.uniform(1.0, 3.0), heard)

    def _isolate(self, ranks: Collection[int]) -> None:
        """Nothing goes between ``ranks`` and the others any more, whom they miss after a while: also those that rank 0
        has not said anything to yet, which MPI or mpirun's daemons end."""
        now, others = self.world.time, set(range(self.size)).difference(ranks)

        def miss(rank: Rank) -> None:
            rank.transport.abandon(others)
            rank.wake_soon()

        for one in ranks:
            for other in others:
                self._cut[one, other] = self._cut[other, one] = now
            self.world.at(now + self._settings.evaluation.hang_timeout_s, partial(miss, self.ranks[one]))

    @staticmethod
    def _hear_of_death(rank: Rank, victim: int) -> None:
        rank.transport.abandon([victim])
        rank.wake_soon()

    def kill_all(self) -> None:
        """mpirun and all ranks are killed."""
        self.end_of_mpirun(())

    def end_of_mpirun(self, silent: Collection[str]) -> None:
        """mpirun and all ranks are killed, but for those on ``silent`` hosts: nothing reaches these any more, and they
        run on until they miss rank 0."""
        self._tolerant = True
        left = [one.number for one in self.ranks if self._settings.hosts[one.number] in silent]
        self._isolate(left)
        for rank in set(range(self.size)).difference(left):
            self.kill(rank)

    def exited(self, rank: Rank) -> None:
        """The process of ``rank`` has ended."""
        if rank.number == 0 and not rank.dead:
            end = self.coordinator.end
            if end is not None:
                with suppress(OSError):
                    self._participation.close(end.reason, end.exit_code, at_rest=self.coordinator.all_ended)

    def _is_seen_to_have_ended(self, rank: int) -> bool:
        hosts = self._settings.hosts
        return hosts[rank] == hosts[0] and self.ranks[rank].over

    @property
    def settled(self) -> bool:
        """Whether none of its processes does anything any more."""
        return all(rank.over or rank.stopped for rank in self.ranks)


def _refuse(source: int, text: str) -> None:
    raise AssertionError(f"rank {source} sent nonsense: {text}")
