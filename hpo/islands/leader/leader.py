"""The leader of one worker: breed, claim, evaluate, record, publish, migrate.

The islands have no master. Every leader breeds from all that it knows of its island, sends each result to its peers as
soon as the result is on disk, and now and then sends an individual to another island. It asks the coordinator only for
permits. The same code runs over MPI and, in virtual time, in simulations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from hpo.individual import COMPLETED, INTERRUPTED, PRUNED
from hpo.islands import messages
from hpo.islands.end_reasons import LOST, STORAGE, UNFIT
from hpo.islands.leader.claims import Claims, unfinished_of
from hpo.islands.leader.evaluations import Evaluations
from hpo.islands.leader.island import IslandSearch, LeaderSettings, OwnWorker
from hpo.islands.leader.migration import Migration
from hpo.islands.leader.publishing import Publisher
from hpo.islands.leader.retention import RetentionPolicy
from hpo.islands.messages import Assignment, End, Lost, Message, RungReport, Start, StopWorker
from hpo.islands.transport import Transport
from hpo.search.early_stopping import Pruner
from hpo.search.population import Member, Population
from hpo.search.proposals import Proposals
from hpo.search.protocols import Breeder, Candidate, Codec
from hpo.search.stopping_rules import Report


class Leader:
    """Leader of a worker. It takes messages by ``receive``; call ``step`` whenever something may have happened.

    ``islands[i]``: leaders of island i."""

    def __init__(
        self,
        *,
        worker: OwnWorker,
        islands: Sequence[Sequence[int]],
        transport: Transport,
        space: Codec,
        breeder: Breeder,
        settings: LeaderSettings,
    ) -> None:
        self.place = worker.place
        self._transport = transport
        self._breeder = breeder
        self._crew = worker.crew
        self._grace_s = settings.grace_s
        island = self._make_island(worker, islands, space, settings)
        self.population = island.population
        self._migration = island.migration
        self._early_stopping = island.early_stopping
        self._publisher = Publisher(
            peers=[rank for rank in islands[self.place.island] if rank != transport.rank],
            transport=transport,
            worker=worker,
            island=island,
        )
        self._claims = Claims(place=self.place, send=self.ask, now=self.now, island=island)
        self._evaluations = Evaluations(
            leader=self,
            worker=worker,
            island=island,
            settings=settings,
            retention=RetentionPolicy(
                settings.keep,
                latest=breeder.checkpoints_for_others,
                order=lambda own: breeder.best_first(own, island.population),
            ),
            claims=self._claims,
            publisher=self._publisher,
        )
        self._stop: StopWorker | None = None
        self._grace_end = math.inf
        self._broken = False
        self._waits = messages.Waiting(None, False)
        self._left = False
        # Leader to which migrants are passed once this worker gets nothing more.
        self._heir: int | None = None
        self._disbanding: list[tuple[int, Assignment]] | None = None
        self.started = False
        self.end: End | None = None
        self._handlers: dict[type[Message], Callable[[Any], object]] = {
            messages.Records: self._observe,
            messages.Grant: self._claims.take,
            messages.WorkerMessage: lambda message: self._crew.receive(message.content),
            messages.Migrant: self._immigrate,
            messages.Recall: self._give_back,
            StopWorker: self._halt,
            Lost: self._handle_rank_deaths,
            messages.Retired: self._handle_retired,
            End: self._finish,
        }
        messages.check_handlers(messages.ToWorker, self._handlers)

    def _make_island(
        self, worker: OwnWorker, islands: Sequence[Sequence[int]], space: Codec, settings: LeaderSettings
    ) -> IslandSearch:
        return IslandSearch(
            space=space,
            breeder=self._breeder,
            proposals=Proposals(
                space,
                self._breeder,
                seed=settings.seed,
                allows=settings.allows,
                duplicates=settings.duplicates,
            ),
            population=Population(reference=settings.reference),
            early_stopping=Pruner(
                settings.pruning, sign=settings.sign, steps=settings.steps, forget=self._forget_when_published
            ),
            migration=Migration(
                settings.migration,
                seed=settings.seed,
                here=self.place.island,
                islands=islands,
                journal=worker.journal,
                clock=self.now,
            ),
        )

    def _forget_when_published(self, identity: str) -> None:
        self._publisher.pending.forgotten.append(identity)

    # --- life -----------------------------------------------------------------------------------------------

    def begin(self, start: Start) -> None:
        """Learn the results of earlier launches and ask for the first individual."""
        self._claims.begin(start.earlier)
        owned = set(start.owned)
        self._early_stopping.observe(messages.reports(start.reports))
        for known in start.population:
            # A copy: rank 0's message has not travelled, and other leaders are sent the same members.
            member = replace(known)
            self._learn(member, earlier=True)
            if member.id in owned and member.status == PRUNED:
                paused = self._claims.paused_before(member, *start.resting.get(member.id, (0, "")))
                self._early_stopping.rest(paused, member.progress[0] if member.progress else 0)
            elif member.id in owned:
                if self._breeder.checkpoints_for_others:
                    self._breeder.learn(member)
                self._migration.own(member)
        self.started = True
        self._claims.request(running=False)

    def receive(self, source: int, message: Message) -> bool:
        """Handle a message; whether ``step`` should follow."""
        return self._handlers[type(message)](message) is not False

    def step(self) -> bool:
        """Do all that can be done now without waiting; whether anything was done."""
        active = self._evaluations.poll()
        if self._stop is None:
            if self.can_work:
                self._evaluations.start(self._claims.queue.popleft())
                active = True
                self._evaluations.poll()  # an evaluation that could not begin is over already
        elif self._crew.busy and self._transport.now() >= self._grace_end:
            self._grace_end = math.inf
            self._crew.kill(INTERRUPTED)
            self._evaluations.poll()
        if not self._left:
            self._publisher.publish_when_due(
                at_once=self._stop is not None, before_results=self._promote_if_idle
            )
            self._look_at_storage()
        # Results of this worker count: none is evaluated elsewhere while it may still be put on record.
        if self._disbanding is not None and self._crew.gone and not self._publisher.pending.results:
            self.ask(messages.Disbanded(self._disbanding))
            self._disbanding = None
        if self.started and self._stop is None and self.end is None:
            self._claims.request(running=self._evaluations.running is not None)
        return active

    def next_wake(self) -> float:
        """Latest time of the next ``step``, in Unix seconds."""
        wake = self._grace_end if self._crew.busy else math.inf
        limit = self._crew.deadline()
        if limit is not None:
            wake = min(wake, limit)
        if self.can_work:  # its journal has just come back
            return self._transport.now()
        # Evaluators that are starting wake this rank themselves.
        if self._waits_for_directory and self._crew.ready and self._publisher.wait.error is None:
            wake = min(wake, self._evaluations.wait.retry_at)
        return min(wake, self._publisher.next_wake())

    @property
    def _idle(self) -> bool:
        nothing = self._evaluations.running is None and not self._claims.queue
        return nothing and self.started and self._stop is None

    @property
    def can_work(self) -> bool:
        """Whether ``step`` would evaluate something at once."""
        free = self._stop is None and self._evaluations.running is None
        if not (free and self._claims.queue and self._crew.ready) or self._publisher.wait.error is not None:
            return False
        return not self._waits_for_directory or self._transport.now() >= self._evaluations.wait.retry_at

    @property
    def _waits_for_directory(self) -> bool:
        free = self._stop is None and self._evaluations.running is None
        return free and self._evaluations.wait.error is not None

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs here and nothing is left to be put on record."""
        return (
            self._evaluations.running is None and not self._crew.busy and not self._publisher.pending.results
        )

    def _promote_if_idle(self) -> None:
        # Before the coordinator learns that nothing runs here: the campaign may wait for that alone, and end.
        if self._idle:
            self._claims.promote()

    # --- messages -------------------------------------------------------------------------------------------

    def _observe(self, news: messages.Records) -> bool:
        for member in news.evaluated:
            self._learn(member)
        for identity in news.emigrated:  # after the news: an individual may have left in the same message
            self.population.discard(identity)
        if not news.reports:
            return False
        self._early_stopping.observe(messages.reports(news.reports))
        return self._idle and self._early_stopping.can_promote

    def meet(self, members: list[Member], reports: Sequence[RungReport]) -> None:
        """Let the island know individuals and intermediate results of another launch."""
        for member in members:
            self._learn(member)
        self._early_stopping.observe(messages.reports(reports))
        self._publisher.introduce(members, reports)

    def reports(self, most: int) -> list[Report]:
        """At most that many intermediate results at rungs that the island knows."""
        return self._early_stopping.known(most)

    @property
    def is_first_of_island(self) -> bool:
        """Whether no leader of a lower rank leads a worker of its island."""
        return all(self._transport.rank < peer for peer in self._publisher.peers)

    def _learn(self, member: Member, *, earlier: bool = False) -> None:
        # Individuals of other islands, with other parts of the space, may take other numbers of steps.
        if member.progress is not None and member.status == COMPLETED and not member.history:
            self._early_stopping.learn_end(member.progress[0])
        (self.population.enter if earlier else self.population.add)(member)

    def _immigrate(self, message: messages.Migrant) -> None:
        member = message.evaluated
        self._learn(member)
        if self._heir is None:
            self._migration.own(member)
        else:
            self._publisher.pass_on([member], self._heir)
        self._publisher.introduce([member])

    def _give_back(self, recall: messages.Recall) -> None:
        self.ask(self._claims.spare(recall.number))

    def _finish(self, end: End) -> None:
        self.end = end

    def now(self) -> float:
        return self._transport.now()

    def ask(self, message: Message) -> None:
        """Send to the coordinator."""
        self._transport.send(messages.COORDINATOR_RANK, messages.encode(message))

    def is_stopping(self) -> bool:
        """Whether this leader knows that the launch ends."""
        return self._stop is not None

    # --- deaths ---------------------------------------------------------------------------------------------

    def _handle_rank_deaths(self, lost: Lost) -> None:
        """Send nothing more to leaders whose workers lost a rank; disband if this worker did."""
        self._publisher.lose(frozenset(lost.leaders))
        if not self._broken and not set(self.place.ranks).isdisjoint(lost.ranks):
            self._broken = True
            self._disband()

    def _handle_retired(self, retired: messages.Retired) -> None:
        """Send no individuals to an island that evaluates nothing more: none would leave it."""
        self._migration.lose(frozenset(retired.leaders))  # its leaders pass on what was sent there lately
        if self.place.leader in retired.leaders and retired.heir is not None and self._migration.active:
            self._heir = retired.heir
            self._publisher.pass_on(self._migration.disown(), self._heir)

    def _disband(self) -> None:
        """End all evaluations here, for others to begin them again."""
        begun = self._claims.take_begun()
        if self._evaluations.running is not None:
            begun.append(self._evaluations.running)
            self._evaluations.running = None
        self._claims.give_up()
        self._stop = StopWorker(LOST, True)
        self._publisher.publish()
        self._crew.disband()
        self._disbanding = [unfinished_of(one, retries=one.retries + 1) for one in begun]

    def orphan(self) -> None:
        """Stop, as the coordinator is dead and nothing more can be counted; running evaluations may save themselves."""
        if self._stop is None:
            self._halt(StopWorker(LOST, False))

    # --- stopping -------------------------------------------------------------------------------------------

    def _halt(self, stop: StopWorker) -> None:
        self._stop = stop
        unfinished = [unfinished_of(one, resumed=one.resumed) for one in self._claims.take_begun()]
        tokens = self._claims.give_up()
        if tokens or unfinished:
            self.ask(messages.Returned(tokens, unfinished=unfinished))
        if stop.urgent:
            self._grace_end = self._transport.now()
        else:
            self._grace_end = self._transport.now() + self._grace_s
            self._crew.request_checkpoint()

    # --- storage that fails ---------------------------------------------------------------------------------

    def _look_at_storage(self) -> None:
        """Tell the coordinator what this worker waits for, or that it leaves for want of its journal."""
        journal, directory = self._publisher.wait, self._evaluations.wait
        if journal.over and self._disbanding is not None:
            self._disbanding += map(unfinished_of, self._publisher.give_up())
        elif journal.over:
            self._leave(journal.error or "")
        waits = messages.Waiting(journal.error or directory.error, directory.over)
        if waits != self._waits:
            self._waits = waits
            self.ask(waits)

    def _leave(self, error: str) -> None:
        """Give all individuals to others, as nothing can be put on record here."""
        self._left = True
        begun, running = self._claims.take_begun(), self._evaluations.running
        self._evaluations.running = None
        self._crew.kill(INTERRUPTED)
        if running is not None:
            begun.append(running)
        unsynced = self._publisher.give_up()
        self._migration.forget({one.id for one in unsynced})
        begun += unsynced
        self._halt(StopWorker(STORAGE, False))
        self.ask(messages.Unfit(error, [*map(unfinished_of, begun)], storage=True))

    def withdraw(self, candidate: Candidate, error: str) -> None:
        """Give ``candidate`` to others, as no evaluator can be started here for ``error``."""
        self._publisher.publish()
        self._halt(StopWorker(UNFIT, False))
        self.ask(messages.Unfit(error, [unfinished_of(candidate, resumed=candidate.resumed)]))
