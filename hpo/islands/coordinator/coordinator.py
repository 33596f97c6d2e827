"""The coordinator on rank 0: grants claims from the campaign's budget, and decides when the launch is over.

A leader may evaluate an individual only when its claim was granted; so no configuration is evaluated twice, and
exactly as many individuals are admitted as the budget holds. Claims travel while earlier individuals train, and an
answer takes about a millisecond, so that no worker waits for one that matters. Near the end of the budget individuals
granted ahead are recalled from busy workers for idle ones: no worker idles while another has a queue."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpo.config.layout import WorkerPlacement
from hpo.errors import describe_os_error
from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.budget import UNLIMITED, Admitted, Budget
from hpo.islands.coordinator.commands import Commands
from hpo.islands.coordinator.deaths import DeadLeaderRecord, JournalTotals, RankDeaths, hung_remark
from hpo.islands.coordinator.ending import Ending, refused_sentence, verdict
from hpo.islands.coordinator.grants import Grants
from hpo.islands.coordinator.health import Failure, Health
from hpo.islands.coordinator.overdue import Overdue
from hpo.islands.coordinator.tally import Tally
from hpo.islands.coordinator.unseen import UnseenConfigurations
from hpo.islands.coordinator.worker_registry import (
    DRAINED,
    FAILING,
    HANGS,
    NO_EVALUATORS,
    NO_JOURNAL,
    RANK_DIED,
    WorkerRegistry,
)
from hpo.islands.end_reasons import DONE, EXHAUSTED, FUTILE, LOST, REFUSED, STOPPED, STORAGE, UNFIT
from hpo.islands.messages import (
    MOST_REMARKS,
    Claim,
    Disbanded,
    End,
    EvaluationEnd,
    Grant,
    Message,
    Recall,
    Remark,
    Results,
    Retired,
    Returned,
    Stop,
    StopRequest,
    ToCoordinator,
    Unfit,
    Waiting,
    check_handlers,
    encode,
)
from hpo.islands.storage import storage_sentence
from hpo.islands.transport import Transport
from hpo.search.phases import Phases


class Coordinator:
    """Grants claims until the budget, the deadline or a signal ends the launch.

    ``assignments``: to be given out before anything bred; ``known``: keys of all admitted configurations; ``phases``:
    open parts of the space in turn; ``unseen``: see ``Budget``, by default a space for all islands that cannot be
    listed; ``deadline``, ``grace_s``, ``checkpoints`` and ``must_end``: see ``Ending``; ``commands``: what people ask
    for meanwhile; ``dead_leader_record``, ``journal_totals``: see ``RankDeaths``. ``storage_changed``: called with what
    workers wait for (path and reason), and with None once none does. ``stop_begun``: called once with the reason, when
    nothing more is admitted. ``ended``: called once, to put the end on record before the other ranks learn of it.
    ``timed``: evaluations have a time-out. ``health``: watches for failures that are not the configurations' doing;
    ``reopened``: puts on record that these failures do not count, with the reason; ``worker_left``: that a worker takes
    no more part."""

    def __init__(
        self,
        *,
        transport: Transport,
        registry: WorkerRegistry,
        everyone: Iterable[int],
        dead_leader_record: Callable[[WorkerPlacement], DeadLeaderRecord],
        journal_totals: Callable[[], JournalTotals],
        evaluations: int | None,
        deadline: float | None = None,
        known: set[str] | None = None,
        assignments: Iterable[Assignment] = (),
        tally: Tally | None = None,
        duplicates: bool,
        phases: Phases | None = None,
        unseen: Sequence[UnseenConfigurations] | None = None,
        grace_s: float,
        commands: Commands | None = None,
        stop_begun: Callable[[str], None] = lambda reason: None,
        storage_changed: Callable[[str | None], None] = lambda error: None,
        ended: Callable[[End], None] = lambda end: None,
        checkpoints: bool,
        must_end: Callable[[], float] | None = None,
        health: Health,
        timed: bool = False,
        reopened: Callable[[list[Assignment], str], None] = lambda again, reason: None,
        worker_left: Callable[[WorkerPlacement, str], None] = lambda place, reason: None,
    ) -> None:
        self._transport = transport
        self._everyone = tuple(everyone)
        self.evaluations = evaluations
        """The budget; None where only a deadline ends the campaign."""
        self.paused = False
        """Whether nothing new is begun, by ``hpo pause``."""
        self._drained: set[int] = set()
        self._commands = commands
        self._stop_begun = stop_begun
        self._storage_changed = storage_changed
        # By leader, since when and for what it waits; what it could not be waited for any longer.
        self._waiting: dict[int, tuple[float, str]] = {}
        self._storage_failed: str | None = None
        self._ended = ended
        self._registry = registry
        self._islands = {leader: place.island for leader, place in registry.places.items()}
        # Leaders whose workers get nothing more; how many others each island has.
        self._closed: set[int] = set()
        self._open = Counter(self._islands.values())
        self._used_up: set[int] = set()
        self._health = health
        self._overdue = Overdue(timed=timed)
        self._reopened = reopened
        self._worker_left = worker_left
        self.tally = tally if tally is not None else Tally()
        self._budget = Budget(
            evaluations,
            final=self.tally.final,
            keys=known if known is not None else set(),
            assignments=assignments,
            duplicates=duplicates,
            unseen=unseen or [UnseenConfigurations()] * registry.islands,
        )
        self._phases = phases or Phases()
        self._phase = self._phases.at(self._budget.granted)
        self._grants = Grants(registry.places)
        self._ending = Ending(
            began=transport.now(),
            deadline=deadline,
            must_end=must_end,
            grace_s=grace_s,
            checkpoints=checkpoints,
        )
        self._deaths = RankDeaths(
            transport=transport,
            registry=registry,
            grants=self._grants,
            count=self._count_of_dead,
            dead_leader_record=dead_leader_record,
            journal_totals=journal_totals,
            forget=self._forget_leader,
            waiting=self._note_waiting,
            stopping=lambda: self.stopping is not None,
        )
        self.unfit: dict[int, str] = {}
        """What stands in the way of evaluators, by leader of a worker that cannot start any."""
        self.remarks: deque[str] = deque()
        """Sentences for the user; who shows them takes them off."""
        self._remarked: set[str] = set()
        self.reopened_ids: dict[str, int] = {}
        """By id of a failure that does not count, and is evaluated again in this launch, how often it was reopened."""
        self.futile_ends: Mapping[str, int] = {}
        """Number of failures for which the launch ends, by status; they count as not evaluated."""
        self.end: End | None = None
        self._handlers: dict[type[Message], Callable[[int, Any], None]] = {
            Claim: self._answer,
            Results: self._take_results,
            Remark: self._take_remark,
            Returned: self._take_back,
            Unfit: self._dismiss,
            Waiting: self._note_waiting,
            Disbanded: self._disband,
            StopRequest: lambda source, request: self.stop(request.reason, urgent=request.urgent),
        }
        check_handlers(ToCoordinator, self._handlers)

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, source: int, message: Message) -> None:
        """Handle one message that is meant for the coordinator."""
        if source not in self._registry.dead:  # of a dead leader, its journal was read
            self._handlers[type(message)](source, message)

    def _answer(self, leader: int, claim: Claim) -> None:
        if self.stopping or self.end is not None:
            return
        budget, island = self._budget, self._islands[leader]
        accepted: list[int] = []
        refused: list[int] = []
        assigned: list[tuple[int, Assignment]] = []
        for want in claim.wants:
            item: Admitted | None = None
            if self.paused or leader in self._drained or self._health.holds(leader):
                self._grants.held.setdefault(leader, []).append(want)
                continue
            if want.paused is not None:  # it has its permit, and only its leader can ask for it
                self.tally.reopen()
                paused = Assignment(
                    params={}, key=want.key, operator="", id=want.paused, admitted=True, rests=True
                )
                self._grants.grant(leader, want.token, paused)
                accepted.append(want.token)
                continue
            if not budget.available_to(island) or self._too_late(leader):
                self._grants.defer(leader, want)
                continue
            phase = self._current_phase(island)
            if budget.assignments:
                item = budget.assignments.popleft()
            elif want.phase != phase:
                refused.append(want.token)
                continue
            elif budget.admit(want.key, island):
                item = want.key
            elif claim.stuck and not self._skip_phase(phase, island):
                item = budget.admit_unseen(island, leader, refused=want.refused, drawn_s=want.drawn_s)
            if item is None:
                if budget.exhausted_for(island):
                    self._look_for_used_up_islands()
                    self._grants.defer(leader, want)
                else:
                    refused.append(want.token)
                continue
            self._grants.grant(leader, want.token, item)
            if isinstance(item, Assignment):
                assigned.append((want.token, item))
            else:
                accepted.append(want.token)
        if accepted or refused or assigned:
            self._send(leader, Grant(accepted, refused, assigned, self._current_phase(island)))
        self._recall()
        self._maybe_end()

    def _current_phase(self, island: int) -> int:
        granted = self._budget.granted
        phase = self._phases.at(granted)
        if phase > self._phase:
            self.remarks.append(f"{self._phases.name(phase)} is open after {granted} individuals")
        self._phase = phase
        return self._phases.at(granted, island)

    def _skip_phase(self, phase: int, island: int) -> bool:
        """Nothing new was found for ``island`` in ``phase``: it goes on with the next; False where there is none."""
        if not self._phases.skip(phase, island):
            return False
        self.remarks.append(
            f"island {island} finds nothing new in {self._phases.name(phase)}: {self._phases.name(phase + 1)} is open "
            f"to it after {self._budget.granted} individuals"
        )
        return True

    def _look_for_used_up_islands(self) -> None:
        """Islands that keep to the same part of the space have used it up together."""
        if self._budget.exhausted:
            return
        for island in range(self._registry.islands):
            if island in self._used_up or not self._budget.exhausted_for(island):
                continue
            self._used_up.add(island)
            refused = self._budget.refused_for(island)
            self.remarks.append(
                f"island {island} has evaluated all that it may ([search] or [[island]] only, and the constraints): "
                "its workers idle while the others go on"
                if not refused
                else f"island {island} gives up, and its workers idle while the others go on: the constraints refused "
                f"{refused} proposals in a row"
            )
            for leader, own in self._islands.items():
                if own == island:
                    self._close(leader)

    def _close(self, leader: int) -> None:
        """The worker of ``leader`` gets nothing more. Where that was the last of its island, what migrated there would
        be lost to the search."""
        if leader in self._closed:
            return
        self._closed.add(leader)
        island, islands = self._islands[leader], self._registry.islands
        self._open[island] -= 1
        if self._open[island] or islands < 2 or self.stopping is not None:
            return
        going_on = (
            one
            for one in self._registry.at_work
            if one not in self._closed and not self._budget.exhausted_for(self._islands[one])
        )
        heir = min(going_on, key=lambda one: ((self._islands[one] - island) % islands, one), default=None)
        retired = [
            one for one, own in self._islands.items() if own == island and one not in self._registry.dead
        ]
        for one in self._grants.leaders if retired else ():
            if one not in self._registry.dead:
                self._send(one, Retired(retired, heir))

    def _take_results(self, leader: int, message: Results) -> None:
        self._deaths.results_arrived(leader, len(message.results))
        self._grants.answered_recall(leader)
        for one in message.results:
            item = self._grants.take(leader, one.token)
            if item is not None:
                self.tally.add(one)
                self._judge(leader, one)
        self._left(leader)

    def _count_of_dead(self, leader: int, end: EvaluationEnd) -> None:
        """Its leader is dead, and could not report it."""
        self.tally.add(end)
        self._health.left(leader)
        self._judge(leader, end)

    def _judge(self, leader: int, end: EvaluationEnd) -> None:
        """Act on what the end of an evaluation says of its worker."""
        found = self._health.ended(leader, end)
        if self.stopping is not None:
            return
        if found.test is not None:
            self._reopen([found.test], "test of a worker", first=True)
            if self._grants.holds_ahead(leader):
                self._send(leader, Recall(self._grants.count(leader)))
        if found.bench and found.leader in self._registry.places:
            place = self._registry.places[found.leader]
            self._registry.bench(found.leader)
            self._grants.held.pop(found.leader, None)
            self._worker_left(place, FAILING)
            self._close(found.leader)
            self._reopen(found.reopen, "failing worker")
            self.remarks.append(
                f"worker {place.island}-{place.worker} gets nothing more in this launch: {len(found.reopen) + 1} "
                "evaluations in a row failed there, and one of them worked elsewhere. The others are evaluated again. "
                f"The last error there: {found.error}"
            )

    def _reopen(self, failures: list[Failure], reason: str, *, first: bool = False) -> None:
        """These failures do not count: their individuals are evaluated again, ``first`` before all else."""
        if failures:
            self._reopened([one.again for one in failures], reason)
        for one in failures:
            self.tally.reopen(one.status, identity=one.again.id)
            self.reopened_ids[one.again.id or ""] = one.again.reopened
        self._budget.readmit((one.again for one in failures), first=first)

    def _take_remark(self, leader: int, remark: Remark) -> None:
        if remark.name not in self._remarked and len(self._remarked) < MOST_REMARKS:
            self._remarked.add(remark.name)
            self.remarks.append(remark.sentence)

    def _take_back(self, leader: int, message: Returned) -> None:
        self.tally.exact &= not message.begun
        if message.tokens:  # one that had nothing to spare is asked again when it has finished something
            self._grants.answered_recall(leader)
        for token in message.tokens:
            item = self._grants.take(leader, token)
            if item is not None:
                self._release(item)
        self._left(leader)

    def _dismiss(self, leader: int, message: Unfit) -> None:
        """A worker that cannot start evaluators, or write its journal, is out; what it had begun goes to others, while
        there are any."""
        self.tally.exact = False
        self._budget.readmit(self._taken_off(leader, message.unfinished))
        if leader in self._registry.places:
            reason = NO_JOURNAL if message.storage else NO_EVALUATORS
            self._worker_left(self._registry.places[leader], reason)
        self._registry.dismiss(leader)
        self._close(leader)
        if message.storage:
            self._storage_failed = message.error
        else:
            self.unfit[leader] = message.error
        if message.storage and leader == self._transport.rank:  # it has the coordinator's records, too
            self.stop(STORAGE)
        self._check_workers()
        self._left(leader)

    def _note_waiting(self, leader: int, message: Waiting) -> None:
        before = self.storage_error
        since, _ = self._waiting.pop(leader, (self._transport.now(), ""))
        if message.error is not None:
            self.tally.exact = False
            self._waiting[leader] = since, message.error
        if (self.storage_error is None) != (before is None):
            self._storage_changed(self.storage_error)
        if message.over:
            self._storage_failed = message.error
            self.stop(STORAGE)

    def _disband(self, rank: int, message: Disbanded) -> None:
        """A survivor of a broken worker has ended what ran there."""
        broken = self._registry.broken_of(rank)
        if broken is None:
            return
        if rank == broken.place.leader:
            broken.held += self._taken_off(rank, message.unfinished)
            broken.open = False
        self._registry.settle(rank)
        self._regroup()

    # --- workers that leave ---------------------------------------------------------------------------------

    def handle_rank_deaths(self, ranks: Iterable[int]) -> None:
        """These ranks are dead: the others learn it, and what their workers had goes to others."""
        dead = frozenset(ranks) - self._registry.dead
        if not dead or self.end is not None:
            return
        self._everyone = tuple(rank for rank in self._everyone if rank not in dead)
        self.tally.exact = False
        # Those that hang learn it, too: they may wake up.
        for place in self._deaths.handle(dead, (*self._everyone, *sorted(dead & self._registry.hung))):
            hangs = not self._registry.hung.isdisjoint(place.ranks)
            self._worker_left(place, HANGS if hangs else RANK_DIED)
            # At once: what it had may be found out later, where its journal cannot be read for now.
            self._health.left(place.leader)
            self._close(place.leader)
        self._regroup()

    def handle_hung_ranks(self, ranks: Iterable[int]) -> None:
        """These ranks say nothing any more: they are given up as if they were dead, and with them the other ranks of
        their workers, which may wait for them for ever."""
        hung = frozenset(ranks) - self._registry.dead
        if hung and self.end is None:
            self.remarks.append(hung_remark(sorted(hung)))
            given_up = hung.union(*self._registry.workers_of(hung)) - {self._transport.rank}
            self._registry.hung |= given_up
            self.handle_rank_deaths(given_up)

    def _regroup(self) -> None:
        """Give out what broken workers held."""
        self._budget.readmit(self._registry.released())
        self._check_workers()
        self._something_changed()

    def _taken_off(self, leader: int, unfinished: list[tuple[int, Assignment]]) -> list[Assignment]:
        """What ``leader`` had begun; what was granted to it beside that is free again, and it gets nothing
        more."""
        begun = []
        for token, assignment in unfinished:
            if self._grants.take(leader, token) is not None:
                begun.append(assignment)
        self._forget_leader(leader)
        return begun

    def _forget_leader(self, leader: int) -> None:
        self._note_waiting(leader, Waiting(None, False))
        self._health.left(leader)
        for item in self._grants.forget(leader):
            self._release(item)

    def _release(self, item: Admitted) -> None:
        """What was granted and not begun is free again."""
        if isinstance(item, Assignment) and item.rests:
            self.tally.reopen(number=-1)
        else:
            self._budget.give_back(item)

    def _check_workers(self) -> None:
        """End when no worker is left."""
        if self.stopping is None and not self._registry.at_work:
            self.stop(STORAGE if self._storage_failed else LOST if self._registry.dead else UNFIT)

    # --- granting -------------------------------------------------------------------------------------------

    def _left(self, leader: int) -> None:
        """Something has left the outstanding individuals of ``leader``."""
        self._grants.left(leader)
        self._something_changed()

    def _something_changed(self) -> None:
        self._serve_held()
        self._serve()
        self._recall()
        self._maybe_end()

    def _too_late(self, leader: int | None = None) -> bool:
        """Whether what ``leader``, or one that idles, would be granted now would most likely not be over in time."""
        before = 0 if leader is None else self._grants.count(leader)
        return self._ending.too_late(self._transport.now(), self.tally.recent_s, before)

    def _serve_held(self) -> None:
        """Answer the claims of leaders that get something again."""
        if self.paused or self._health.holds_all:
            return
        ready = [one for one in self._grants.held if one not in self._drained]
        for leader in [one for one in ready if not self._health.holds(one)]:
            self._answer(leader, Claim(self._grants.held.pop(leader), False))

    def _can_get_more(self, leader: int) -> bool:
        """Whether anything is left that ``leader`` may evaluate."""
        return self._budget.available_to(self._islands[leader])

    def _is_used_up(self, leader: int) -> bool:
        """Whether nothing that is given back could be for ``leader``."""
        return self._budget.exhausted_for(self._islands[leader])

    def _serve(self) -> None:
        """Give what has come back to the claims that wait, those of idle leaders first."""
        if self.stopping or self.paused or self._health.holds_all:
            return
        grants = self._grants
        # Looked at anew each time: what is too late is put back.
        while grants.idle and self._budget.available and not self._too_late():
            claim = grants.next_idle(self._can_get_more)
            if claim is None:
                break
            self._answer(claim[0], Claim([claim[1]], False))
        while grants.later and self._budget.available:
            leader = next(filter(self._can_get_more, grants.later), None)
            if leader is None or self._too_late(leader):  # the others have as much before them
                break
            self._answer(leader, Claim(grants.later.pop(leader), False))

    def _recall(self) -> None:
        """Ask leaders that hold more than they evaluate to give it back for those that idle."""
        if not self._grants.held_ahead or self.stopping:
            return
        wanted = 0
        if self.paused or self._health.holds_all or self._budget.remaining < 0:
            wanted = UNLIMITED  # what they hold ahead is not to be begun either
        elif self._grants.idle and not self._too_late():
            wanted = self._grants.lacking(self._is_used_up if self._budget.partly_exhausted else None)
        for leader, number in self._grants.recall(wanted) if wanted > 0 else ():
            self._send(leader, Recall(number))

    # --- the end --------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at the clock and for a stop request; to be called often, does its work once a second."""
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
        for leader, seconds, median_s in self._overdue.look(now, self._grants.first, self.tally.recent_s):
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
        self._maybe_end()

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """Admit nothing more and ask the leaders to finish; a second, urgent call does not wait for what
        runs."""
        first = self.stopping is None
        if not self._ending.stop(reason, urgent=urgent, now=self._transport.now()):
            return
        if first:
            self._stop_begun(reason)
        self._grants.drop_claims()
        for leader in self._grants.leaders:
            if leader not in self._registry.dead:
                self._send(leader, Stop(reason, urgent))
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self.end is not None or self._grants.running:
            return
        if self.stopping is None and self._health.holds_all:
            failures = self._health.end_launch()
            self.futile_ends = Counter(one.status for one in failures)
            self._reopen(failures, FUTILE)
            self.stop(FUTILE)
            return
        if self.stopping:
            self._finish(self.stopping)
        elif self._registry.holds or (self.paused and self._grants.holds_promotion):
            return
        elif not self._budget.available:
            refused = REFUSED if self._budget.refused else EXHAUSTED
            self._finish(refused if self._budget.exhausted else DONE)
        elif self._grants.idle and self._too_late():
            self.stop(self._ending.reason_of_lateness)
        elif not any(self._can_get_more(one) for one in self._registry.at_work if one not in self._drained):
            # What is left belongs to islands without workers.
            self.stop(STOPPED if self._drained else LOST)

    def _finish(self, reason: str) -> None:
        self.end = verdict(
            reason,
            evaluations=self.evaluations,
            tally=self.tally,
            works=self._health.works,
            unfit=next(iter(self.unfit.values()), None),
            futile=self._health.sentence() if reason == FUTILE else None,
            storage=storage_sentence(self._storage_failed or ""),
            refused=refused_sentence(self._budget.refused),
        )
        self._ended(self.end)
        for rank in self._everyone:
            self._send(rank, self.end)

    def _send(self, destination: int, message: Message) -> None:
        self._transport.send(destination, encode(message))

    # --- what people ask for ------------------------------------------------------------------------------------

    def look_at_commands(self) -> None:
        """Apply the commands that have come."""
        if self._commands is not None and self._commands.look(self):
            self._something_changed()

    @property
    def workers(self) -> dict[str, int]:
        """Leaders of the workers at work, by island and number of the worker."""
        places = self._registry.places.items()
        return {f"{place.island}-{place.worker}": leader for leader, place in places}

    def drain(self, leader: int) -> None:
        """Grant that worker nothing more, and let it give back what it has not begun."""
        if leader in self._drained:
            return
        self._drained.add(leader)
        self._health.drained(leader)
        self._worker_left(self._registry.places[leader], DRAINED)
        self._close(leader)
        self._grants.drop_claims_of(leader)
        if self._grants.holds_ahead(leader):
            self._send(leader, Recall(self._grants.count(leader)))

    def retry(self, failures: Iterable[tuple[str, Assignment]], reason: str) -> int:
        """Evaluate individuals that ended with these statuses again; how many. But for those whose end is on record and
        not yet known here, and those that were reopened here, which may not be on record yet."""
        granted, reopened = self._grants.keys, self.reopened_ids
        chosen = [
            Failure(status, again, "")
            for status, again in failures
            if again.key not in granted and again.reopened > reopened.get(again.id or "", 0)
        ]
        self._health.forget({one.again.id for one in chosen})
        self._reopen(chosen, reason)
        return len(chosen)

    def enqueue(self, assignments: Iterable[Assignment]) -> int:
        """Evaluate these before anything that is bred; how many of them are new."""
        return self._budget.enqueue(assignments)

    def resize(self, evaluations: int) -> None:
        """Another budget."""
        self.evaluations = evaluations
        self._budget.resize(evaluations)

    def set_deadline(self, deadline: float) -> None:
        """Another deadline, in Unix seconds."""
        self._ending.deadline = deadline

    # --- what is shown --------------------------------------------------------------------------------------

    @property
    def stopping(self) -> str | None:
        """Why nothing more is admitted; None until then."""
        return self._ending.stopping

    @property
    def deadline(self) -> float | None:
        """When the campaign ends at the latest, in Unix seconds."""
        return self._ending.deadline

    def grace_left(self, now: float) -> float:
        """Seconds for which what runs may still save itself, once the launch is stopping."""
        return self._ending.grace_left(now)

    @property
    def grace_until(self) -> float | None:
        """Until when running evaluations may save themselves, in Unix seconds; None where they may not."""
        return self._ending.grace_until

    def next_wake(self) -> float:
        """When ``step`` must be called at the latest."""
        return min(self._ending.next_look, self._deaths.next_look)

    @property
    def storage_error(self) -> str | None:
        """What a worker waits for that could not be written, path and reason; None where none waits."""
        return min(self._waiting.values(), default=(0.0, None))[1]

    @property
    def waiting(self) -> int:
        """How many workers wait for their storage."""
        return len(self._waiting)

    def waited_for_storage(self, now: float) -> tuple[str, float] | None:
        """What could not be read or written, path and reason, and for how many seconds; None where all could."""
        if self._waiting:
            since, error = min(self._waiting.values())
            return error, now - since
        error_ = None if self._commands is None else self._commands.error
        return None if error_ is None else (describe_os_error(error_, "the commands"), 0.0)

    @property
    def running(self) -> int:
        """Individuals that are granted and have not ended."""
        return self._grants.running

    @property
    def remaining(self) -> int:
        """How many individuals may still be admitted."""
        return self._budget.remaining

    @property
    def busy(self) -> int:
        """Leaders that have something to evaluate."""
        return len(self._grants.busy_leaders)

    @property
    def dead(self) -> frozenset[int]:
        """Ranks whose death has been dealt with."""
        return self._registry.dead

    @property
    def all_ended(self) -> bool:
        """Whether the launch is over and no rank can be at work for it any more."""
        return self.end is not None and not self.running and not self._registry.may_run(self.dead)

    @property
    def counts(self) -> Mapping[str, int]:
        return self.tally.counts

    @property
    def standing(self) -> dict[str, int]:
        """How many individuals have each status, without those that run."""
        return self.tally.standing(self._grants.assigned)

    @property
    def exact(self) -> bool:
        """Whether ``standing`` is what the journals say, once the launch has ended."""
        return self.tally.exact and not self._grants.running
