"""The coordinator on rank 0: grants claims from the campaign's budget, and decides when the launch is over.

A leader may evaluate an individual only when its claim was granted; so no configuration is evaluated twice, and
exactly as many individuals are admitted as the budget holds. Claims travel while earlier individuals train, and an
answer takes about a millisecond, so that no worker waits noticeably. Near the end of the budget individuals granted
ahead are recalled from busy workers for idle workers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from hpo.config.layout import WorkerPlacement
from hpo.errors import CampaignError, LaunchClosed
from hpo.individual import Attempt
from hpo.islands import end_reasons, messages
from hpo.islands.coordinator import worker_registry
from hpo.islands.coordinator.commands import Commands
from hpo.islands.coordinator.deaths import RankDeaths, hung_remark
from hpo.islands.coordinator.ending import Ending, Overdue, refused_sentence, verdict
from hpo.islands.coordinator.granting import Granting
from hpo.islands.coordinator.health import Health, ReopenableFailure
from hpo.islands.coordinator.launch import Backlog, LaunchLog, LaunchRules
from hpo.islands.coordinator.view import CoordinatorView
from hpo.islands.coordinator.worker_registry import WorkerRegistry
from hpo.islands.messages import Assignment, EvaluationEnd, Message
from hpo.islands.storage import storage_sentence
from hpo.islands.transport import Transport


class Coordinator(CoordinatorView):
    """Grants claims until the budget, the deadline or a signal ends the launch.

    ``log``: records of the launch; ``health``: watches for failures that are not the configurations' doing;
    ``commands``: applies what people ask for meanwhile."""

    _unusable_ledger: str | None = None
    """Sentence on the ledger, where it cannot be used any more."""

    def __init__(
        self,
        *,
        transport: Transport,
        registry: WorkerRegistry,
        rules: LaunchRules,
        backlog: Backlog,
        health: Health,
        log: LaunchLog | None = None,
        commands: Commands | None = None,
    ) -> None:
        self._transport = transport
        self._everyone = tuple(range(rules.ranks))
        self.evaluations = rules.evaluations
        self._commands = commands
        self._log = log or LaunchLog()
        self._waiting = {}
        self._storage_failed: str | None = None
        """Error of storage that was waited for in vain."""
        self._registry = registry
        self._health = health
        self._overdue = Overdue(timed=rules.timed)
        self.remarks: deque[str] = deque()
        """Sentences for the user; who shows them takes them off."""
        self._remarked: set[str] = set()
        self._ending = Ending(
            began=transport.now(),
            deadline=rules.deadline,
            must_end=rules.must_end,
            grace_s=rules.grace_s,
            checkpoints=rules.checkpoints,
        )
        self.tally, self.rank_s = backlog.tally, 0.0
        self._granting = Granting(
            transport=transport,
            registry=registry,
            rules=rules,
            backlog=backlog,
            health=health,
            ending=self._ending,
            remarks=self.remarks,
        )
        self._grants, self.budget = self._granting.grants, self._granting.budget
        self._deaths = RankDeaths(
            transport=transport,
            registry=registry,
            grants=self._grants,
            log=self._log,
            count=self._count_of_dead,
            forget=self._forget_leader,
            waiting=self._note_waiting,
            stopping=lambda: self.stopping is not None,
        )
        self.unfit: dict[int, str] = {}
        """Error by leader of a worker that cannot start evaluators."""
        self.reopened_ids: dict[str, int] = {}
        """How often an individual was reopened that is evaluated again in this launch, by id."""
        self.futile_ends: Mapping[str, int] = {}
        """Number of failures for which the launch ends, by status; they count as not evaluated."""
        self.end = None
        self._handlers: dict[type[Message], Callable[[int, Any], None]] = {
            messages.Claim: self._answer,
            messages.Results: self._take_results,
            messages.Remark: self._take_remark,
            messages.Returned: self._take_back,
            messages.Unfit: self._dismiss,
            messages.Waiting: self._note_waiting,
            messages.Disbanded: self._disband,
            messages.StopRequest: lambda source, request: self.stop(request.reason, urgent=request.urgent),
        }
        messages.check_handlers(messages.ToCoordinator, self._handlers)

    @property
    def paused(self) -> bool:
        """Whether nothing new is begun, by ``hpo pause``."""
        return self._granting.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self._granting.paused = value

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, source: int, message: Message) -> None:
        """Handle a message to the coordinator."""
        if source not in self._registry.dead:  # a dead leader's journal was read, and says the same
            self._handlers[type(message)](source, message)

    def _answer(self, leader: int, claim: messages.Claim) -> None:
        if self.end is None:
            self._granting.answer(leader, claim)
            self._maybe_end()

    def _take_results(self, leader: int, message: messages.Results) -> None:
        self._deaths.results_arrived(leader, len(message.results))
        self._grants.answered_recall(leader)
        for one in message.results:
            item = self._grants.take(leader, one.token)
            if item is not None:
                self._count(leader, one)
                self._judge(leader, one)
        if self._commands is not None and self._commands.ends_now(self):
            self.look_at_commands()
        self._left(leader)

    def _count(self, leader: int, end: EvaluationEnd) -> None:
        self.tally.add(end)
        self.rank_s += end.outcome.seconds * self._granting.sizes[leader]

    def _count_of_dead(self, leader: int, end: EvaluationEnd) -> None:
        self._count(leader, end)
        self._health.left(leader)
        self._judge(leader, end)

    def _judge(self, leader: int, end: EvaluationEnd) -> None:
        """Act on the consequences of an end for its worker."""
        found = self._health.ended(leader, end)
        if self.stopping is not None:
            return
        if found.test is not None:
            self._reopen([found.test], "test of a worker", first=True)
            self._recall_from(leader)
        if found.bench and found.leader in self._registry.places:
            place = self._registry.places[found.leader]
            self._registry.bench(found.leader)
            self._grants.held.pop(found.leader, None)
            self._note_left(place, worker_registry.FAILING)
            self._granting.close(found.leader)
            self._reopen(found.reopen, "failing worker")
            self.remarks.append(
                f"worker {place.island}-{place.worker} gets nothing more in this launch: {len(found.reopen) + 1} "
                "evaluations in a row failed there, and one of them worked elsewhere. The others are evaluated again. "
                f"The last error there: {found.error}"
            )

    def _reopen(
        self, failures: list[ReopenableFailure], reason: str, *, entry: int = 0, first: bool = False
    ) -> None:
        """Evaluate the individuals of failures that do not count again, ``first`` before all else. ``entry``: number of
        the ledger's entry that asks for it."""
        if failures:
            self._log.reopened([one.again for one in failures], reason, entry)
        for one in failures:
            self.tally.reopen(one.status, identity=one.again.id)
            self.reopened_ids[one.again.id] = one.again.reopened
        self.budget.readmit((one.again for one in failures), first=first)

    def _take_remark(self, leader: int, remark: messages.Remark) -> None:
        if remark.name not in self._remarked and len(self._remarked) < messages.MOST_REMARKS:
            self._remarked.add(remark.name)
            self.remarks.append(remark.sentence)

    def _take_back(self, leader: int, message: messages.Returned) -> None:
        if message.unfinished:  # their starts are on record, so that they keep their units
            self.tally.exact = False
            self.budget.readmit(self._taken(leader, message.unfinished))
        if message.tokens:  # a leader that had nothing to spare is asked again when it has finished something
            self._grants.answered_recall(leader)
        points = {one.key: one for one in message.points}
        for token in message.tokens:
            item = self._grants.take(leader, token)
            if item is not None:
                self._granting.release(points.get(item, item) if isinstance(item, str) else item)
        self._left(leader)

    def _dismiss(self, leader: int, message: messages.Unfit) -> None:
        """A worker cannot start evaluators, or write its journal: others evaluate what it had begun."""
        self.tally.exact = False
        self.budget.readmit(self._taken_off(leader, message.unfinished))
        if leader in self._registry.places:
            left = worker_registry.NO_JOURNAL if message.storage else worker_registry.NO_EVALUATORS
            self._note_left(self._registry.places[leader], left)
        self._registry.dismiss(leader)
        self._granting.close(leader)
        if message.storage:
            self._storage_failed = message.error
        else:
            self.unfit[leader] = message.error
        if (
            message.storage and leader == self._transport.rank
        ):  # its journal has the coordinator's records, too
            self.stop(end_reasons.STORAGE)
        self._check_workers()
        self._left(leader)

    def _note_waiting(self, leader: int, message: messages.Waiting) -> None:
        before = self.storage_error
        since, _ = self._waiting.pop(leader, (self._transport.now(), ""))
        if message.error is not None:
            self.tally.exact = False
            self._waiting[leader] = since, message.error
        if (self.storage_error is None) != (before is None):
            self._log.storage_changed(self.storage_error)
        if message.over:
            self._storage_failed = message.error
            self.stop(end_reasons.STORAGE)

    def _disband(self, rank: int, message: messages.Disbanded) -> None:
        """A survivor of a broken worker has ended what ran there."""
        broken = self._registry.broken_of(rank)
        if broken is None:
            return
        if rank == broken.place.leader:
            broken.held += self._taken_off(rank, message.unfinished)
            broken.open = False
        broken.waiting.discard(rank)
        self._regroup()

    # --- workers that leave ---------------------------------------------------------------------------------

    def handle_rank_deaths(self, ranks: Iterable[int]) -> None:
        """Tell the other ranks of deaths, and give the individuals of broken workers to others."""
        dead = frozenset(ranks) - self._registry.dead
        if not dead or self.end is not None:
            return
        self._everyone = tuple(rank for rank in self._everyone if rank not in dead)
        self.tally.exact = False
        # Ranks that hang learn it, too: they may wake up.
        for place in self._deaths.handle(dead, (*self._everyone, *sorted(dead & self._registry.hung))):
            hangs = not self._registry.hung.isdisjoint(place.ranks)
            self._note_left(place, worker_registry.HANGS if hangs else worker_registry.RANK_DIED)
            # At once, although its journal may not be readable for now.
            self._health.left(place.leader)
            self._granting.close(place.leader, died=True)
        self._regroup()
        if self._granting.makes_room:
            self.stop(end_reasons.LOST)

    def handle_hung_ranks(self, ranks: Iterable[int]) -> None:
        """Give up silent ranks as if they were dead, and with them the other ranks of their workers, which may wait for
        them for ever."""
        hung = frozenset(ranks) - self._registry.dead
        if hung and self.end is None:
            self.remarks.append(hung_remark(sorted(hung)))
            workers = [place.ranks for place in self._registry.places.values()]
            given_up = hung.union(*(ranks for ranks in workers if not hung.isdisjoint(ranks)))
            given_up -= {self._transport.rank}
            self._registry.hung |= given_up
            self.handle_rank_deaths(given_up)

    def _regroup(self) -> None:
        self.budget.readmit(self._registry.released())
        self._check_workers()
        self._something_changed()

    def _taken_off(self, leader: int, unfinished: list[tuple[int, Assignment]]) -> list[Assignment]:
        """Individuals that ``leader`` had begun; all else that it held is free again, and it gets nothing more."""
        begun = self._taken(leader, unfinished)
        self._forget_leader(leader)
        return begun

    def _taken(self, leader: int, unfinished: list[tuple[int, Assignment]]) -> list[Assignment]:
        """Individuals that ``leader`` had begun, and that it holds no more."""
        return [one for token, one in unfinished if self._grants.take(leader, token) is not None]

    def _forget_leader(self, leader: int) -> None:
        self._note_waiting(leader, messages.Waiting(None, False))
        self._health.left(leader)
        for item in self._grants.forget(leader):
            self._granting.release(item)

    def _check_workers(self) -> None:
        if self.stopping is not None or self._registry.at_work:
            return
        if self._storage_failed:
            self.stop(end_reasons.STORAGE)
        else:
            self.stop(end_reasons.LOST if self._registry.dead else end_reasons.UNFIT)

    def _left(self, leader: int) -> None:
        """Note that ``leader`` holds fewer individuals."""
        self._grants.left(leader)
        self._something_changed()

    def _something_changed(self) -> None:
        if self.end is None:
            self._granting.serve()
        self._maybe_end()

    def _note_left(self, place: WorkerPlacement, reason: str) -> None:
        self._log.worker_left(place, reason, may_run=self._registry.may_run(place.ranks))

    # --- the end --------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at the clock and for commands. To be called often: it does its work once a second."""
        now = self._transport.now()
        if self.end is None and now >= self._deaths.next_look and self._deaths.account():
            self._regroup()
        if self.end is not None or not self._ending.due(now):
            return
        if self.stopping is None:
            reason = self._ending.reason_to_stop(now)
            if reason is not None:
                self.stop(reason)
        elif self._ending.overdue(now):
            self._finish(self.stopping)
        elif self._ending.must_hurry(now):
            self.stop(self.stopping, urgent=True)
        granting = self._granting
        found = self._overdue.look(
            now, self._grants.first, lambda leader: granting.recent_s(granting.sizes[leader])
        )
        for leader, seconds, median_s in found:
            place = self._registry.places.get(leader)
            if place is not None:
                self.remarks.append(
                    f"an evaluation of worker {place.island}-{place.worker} has been running for {seconds / 60:.0f} "
                    f"minutes, {seconds / max(median_s, 0.001):.0f} times the median, and nothing ends it: set "
                    "[evaluation] timeout"
                )
        if self._health.lost_patience(now, lambda: self._grants.busy_leaders):
            self._something_changed()
        self.look_at_commands()

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """Admit nothing more and ask the leaders to finish; a second, urgent call does not wait for evaluations."""
        first = self.stopping is None
        if not self._ending.stop(reason, urgent=urgent, now=self._transport.now()):
            return
        if first:
            self._log.stop_begun(reason)
        self._grants.drop_claims()
        for leader in self._grants.leaders:
            if leader not in self._registry.dead:
                self._send(leader, messages.StopWorker(reason, urgent))
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self.end is not None or self._grants.running:
            return
        if self.stopping is None and self._health.holds_all:
            failures = self._health.end_launch()
            self.futile_ends = Counter(one.status for one in failures)
            self._reopen(failures, end_reasons.FUTILE)
            self.stop(end_reasons.FUTILE)
            return
        if self.stopping:
            self._finish(self.stopping)
        elif self._awaits_more:
            return
        elif not self.budget.available:
            if self._finds_more() or self._grants.running or self.budget.available:
                return
            sharing = None if self._commands is None else self._commands.sharing
            if self.budget.exhausted and not (self.budget.may_be_freed and sharing and sharing.lingers):
                self._finish(end_reasons.REFUSED if self.budget.refused else end_reasons.EXHAUSTED)
            elif sharing is None or self._granting.all_drained or not (sharing.lingers or sharing.hands_over):
                self._finish(end_reasons.DONE)
            elif sharing.hands_over:
                self._finish(end_reasons.HANDED_OVER)
        elif self._granting.idle_are_too_late:
            self.stop(self._ending.reason_of_lateness)
        elif not self._granting.anybody_can_get_more:
            # Only islands without workers may evaluate the rest.
            drained = self._granting.drained and not self._granting.lost_a_size
            self.stop(end_reasons.STOPPED if drained else end_reasons.LOST)

    def _finds_more(self) -> bool:
        """Whether a command that has come since the last look keeps the launch going."""
        if self._commands is None:
            return False
        self._look_at_commands()
        if self.end is None:
            self._granting.serve()
        return self.end is not None or self._commands.awaits_units

    @property
    def _awaits_more(self) -> bool:
        """Whether the launch goes on although nothing can be granted."""
        units = self._commands is not None and self._commands.awaits_units
        return units or self._registry.holds or (self.paused and self._grants.holds_promotion)

    def _finish(self, reason: str) -> None:
        self.end = verdict(
            reason,
            complete=self.is_complete and not self._unusable_ledger,
            limited=self.evaluations is not None,
            early=None if self.ended_early is None else self.ended_early.name,
            alone=self.alone,
            tally=self.tally,
            works=self._health.works,
            unfit=next(iter(self.unfit.values()), None),
            futile=self._health.sentence() if reason == end_reasons.FUTILE else None,
            storage=self._unusable_ledger or storage_sentence(self._storage_failed or ""),
            refused=refused_sentence(self.budget.refused),
        )
        self._log.launch_ended(self.end)
        for rank in self._everyone:
            self._send(rank, self.end)

    def _send(self, destination: int, message: Message) -> None:
        self._transport.send(destination, messages.encode(message))

    def _recall_from(self, leader: int) -> None:
        """Ask for all that ``leader`` has not begun."""
        if self._grants.holds_ahead(leader):
            self._send(leader, messages.Recall(self._grants.count(leader)))

    # --- what people ask for ------------------------------------------------------------------------------------

    def look_at_commands(self) -> None:
        """Apply new commands, and draw units of the budget that are free."""
        self._look_at_commands()
        # At each look, as also a look that applies no new entry may free something: individuals of a retry that it had
        # to wait for, or of a closed launch whose journals could not be read before.
        self._something_changed()

    def _look_at_commands(self) -> None:
        """See ``Commands.look``."""
        if self._commands is None or self.end is not None:
            return
        try:
            self._commands.look(self, self._transport.now())
        except CampaignError as error:
            self._unusable_ledger = str(error)
            self.stop(end_reasons.STORAGE, urgent=isinstance(error, LaunchClosed))

    def drain(self, leader: int) -> None:
        """Grant that worker nothing more, and let it give back what it has not begun."""
        if leader in self._granting.drained:
            return
        self._granting.drained.add(leader)
        self._health.drained(leader)
        self._note_left(self._registry.places[leader], worker_registry.DRAINED)
        self._granting.close(leader)
        self._grants.drop_claims_of(leader)
        self._recall_from(leader)

    def retry(self, failures: Iterable[ReopenableFailure], entry: int) -> set[str]:
        """Evaluate ``failures`` again, for which the ledger's ``entry`` asks. Returns the ids of the individuals that
        are evaluated again; those whose end is on record and not yet known here may be tried once more."""
        chosen, again_already = [], []
        for one in failures:
            reopened = self.reopened_ids.get(one.again.id, 0)
            if one.again.reopened <= reopened:  # this may not be on record yet
                again_already.append(replace(one.again, attempt=Attempt(reopened=reopened)))
            elif one.again.key not in self._grants.keys:
                chosen.append(one)
        if again_already:
            self._log.reopened(again_already, "hpo retry", entry)
        self._health.forget({one.again.id for one in chosen})
        self._reopen(chosen, "hpo retry", entry=entry)
        return {one.again.id for one in chosen}.union(one.id for one in again_already)

    def share(self, idle: int) -> None:
        """Grant nothing ahead, and recall what was, where ``idle`` workers of other launches lack a unit."""
        self._granting.count_elsewhere(self.final + self.running)
        self._granting.idle_elsewhere = idle

    def set_deadline(self, deadline: float) -> None:
        """``deadline``: Unix seconds."""
        self._ending.deadline = deadline
