"""The one place that counts: permits of the global budget, configurations already taken, the end of the
campaign.

Rank 0 answers claims. A leader may evaluate an individual only when its claim was granted; so no
configuration is evaluated twice, and exactly as many individuals are admitted as the budget holds. Claims
travel while earlier individuals train, and an answer takes about a millisecond, so that nobody waits for one
that matters. Near the end of the budget individuals granted ahead are recalled from busy workers for idle
ones: no worker idles while another has a queue."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Any, Protocol

from hpo.config.layout import WorkerPlacement
from hpo.errors import EXIT_RESUMABLE
from hpo.individual import COMPLETED, INTERRUPTED, PRUNED, Scalar
from hpo.islands.coordinator.assignment import Assignment, Tally
from hpo.islands.coordinator.futility import Futility
from hpo.islands.coordinator.worker_registry import Broken, WorkerRegistry
from hpo.islands.messages import (
    MOST_REMARKS,
    Claim,
    Disbanded,
    End,
    Finished,
    Form,
    Grant,
    Joined,
    Lost,
    Message,
    Migrant,
    Recall,
    Records,
    Remark,
    Returned,
    Stop,
    StopRequest,
    Unfit,
    encode,
    report_fields,
)
from hpo.islands.transport import Transport
from hpo.search.population import Population

UNLIMITED = 1 << 62
DONE, EXHAUSTED, DEADLINE, STOPPED, INCOMPLETE = "done", "exhausted", "deadline", "stopped", "incomplete"
UNFIT = "unfit"
FUTILE = "futile"
"""The first evaluations of the launch all failed (see ``hpo.islands.coordinator.futility``)."""
IN_VAIN = "in vain"
"""It ended as it was to, and in no launch an individual completed or was pruned: all failed."""
LOST = "lost"
"""No worker is left, or rank 0 is gone: ranks died."""

_FORCED_END_S = 60.0
_KNOWN = 5
"""So many evaluations must have completed before others are held back for how long they took."""
_MOST_BARREN = 20_000
_PIECE = 20_000


class DeadLeaderRecord(Protocol):
    """What a dead leader's journal says (see ``hpo.islands.resume``)."""

    finished: list[tuple[str, str, str, list[float] | None, float]]
    begun: list[Assignment]
    populations: dict[int, Population]


class JournalTotals(Protocol):
    """What all journals say together (see ``hpo.islands.resume``)."""

    populations: dict[int, Population]

    @property
    def reports(self) -> Mapping[int, Iterable[tuple[str, int, float]]]: ...
    def sequence(self, island: int, worker: int) -> int: ...


class Coordinator:
    """Grants claims until the budget, the deadline or a signal ends the campaign.

    ``deadline``: Unix seconds. ``known``: keys of all admitted configurations. ``assignments``: to be given
    out before anything bred. ``dead_leader_record``: what the dead leader of a worker left; ``journal_totals``: what
    all journals say. ``configurations``: all of a finite space that the constraints allow, or None.
    ``stop_begun``: called once with the reason, when nothing more is admitted.
    ``ended``: called once, before anyone is told, to put the end on record.
    ``checkpoints``: whether the task saves when it is asked to; ``must_end``: Unix seconds at which all must be on
    disk, asked again and again, as a signal may change it. ``futility``: watches for a launch in which all fails."""

    def __init__(
        self,
        *,
        transport: Transport,
        workforce: WorkerRegistry,
        everyone: Iterable[int],
        dead_leader_record: Callable[[WorkerPlacement], DeadLeaderRecord],
        journal_totals: Callable[[], JournalTotals],
        evaluations: int | None,
        deadline: float | None = None,
        known: set[str] | None = None,
        assignments: Iterable[Assignment] = (),
        tally: Tally | None = None,
        duplicates: bool = False,
        configurations: Callable[[], Iterator[tuple[dict[str, Scalar], str]]] | None = None,
        grace_s: float = 60.0,
        stop_requested: Callable[[], bool] = lambda: False,
        stop_begun: Callable[[str], None] = lambda reason: None,
        ended: Callable[[End], None] = lambda end: None,
        checkpoints: bool = False,
        must_end: Callable[[], float] | None = None,
        futility: Futility | None = None,
    ) -> None:
        self._transport = transport
        self._everyone = tuple(everyone)
        self._evaluations = evaluations
        self._deadline = deadline
        self._keys = known if known is not None else set()
        self.tally = tally if tally is not None else Tally()
        self._duplicates = duplicates
        self._configurations = configurations
        # Of the list of all configurations: what was read and nobody had taken, the rest, and whether that may hold
        # anything.
        self._unseen: Iterator[tuple[dict[str, Scalar], str]] = iter(())
        self._listing: Iterator[tuple[dict[str, Scalar], str]] | None = None
        self._may_be_left = False
        self._grace_s = grace_s
        self._stop_requested = stop_requested
        self._stop_begun = stop_begun
        self._ended = ended
        self._checkpoints = checkpoints
        self._must_end = must_end
        self._futility = futility or Futility(None)
        self._begun = transport.now()
        self._next_look = 0.0
        self._workforce = workforce
        self._outstanding: dict[int, dict[int, Assignment | str]] = {
            leader: {} for leader in workforce.places
        }
        self._dead_leader_record = dead_leader_record
        self._journal_totals = journal_totals
        # How many results each leader has told: of a dead one those after them are in its journal only.
        self._told: dict[int, int] = dict.fromkeys(self._outstanding, 0)
        self._formed = 0
        self.running = 0
        self._holders: set[int] = set()
        self._recalled: set[int] = set()
        # Claims that found the budget used up, of leaders that idle and of leaders that still evaluate
        # something.
        self._idle: deque[tuple[int, int, str]] = deque()
        self._later: dict[int, list[tuple[int, str]]] = {}
        self._exhausted = False
        self._barren = 0
        self.unfit: dict[int, str] = {}
        """What stands in the way of evaluators, by leader of a worker that cannot start any."""
        self.remarks: deque[str] = deque()
        """Sentences for the user; who shows them takes them off."""
        self._remarked: set[str] = set()
        self.stopping: str | None = None
        self._stop_time = 0.0
        self._urgent = False
        self.end: End | None = None

        budget = UNLIMITED if evaluations is None else max(0, evaluations - self.tally.final)
        self._assignments: deque[Assignment] = deque()
        taken = frozenset(self._keys) if duplicates else self._keys
        for assignment in assignments:
            if not assignment.admitted:
                if assignment.key in taken:
                    continue
                self._keys.add(assignment.key)
            # A budget made smaller than what is already admitted cuts the unfinished ones off.
            if budget > 0:
                budget -= 1
                self._assignments.append(assignment)
        self.remaining = budget

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, source: int, message: Message) -> None:
        """Handle one message that is meant for the coordinator."""
        if source in self._workforce.dead:  # its journal has told all
            return
        if isinstance(message, Finished):
            self._take_results(source, message)
        elif isinstance(message, Remark):
            self._take_remark(message)
        elif isinstance(message, Claim):
            self._answer(source, message)
        elif isinstance(message, Returned):
            self._take_back(source, message.tokens)
        elif isinstance(message, Unfit):
            self._dismiss(source, message)
        elif isinstance(message, Disbanded):
            self._disband(source, message)
        elif isinstance(message, StopRequest):
            self.stop(message.reason, urgent=message.urgent)

    def _answer(self, leader: int, claim: Claim) -> None:
        if self.stopping or self.end is not None:
            return
        accepted: list[int] = []
        refused: list[int] = []
        takes: list[list[object]] = []
        for token, key, *paused in claim.wants:
            if paused:  # it has its permit, and only its leader can ask for it
                self.tally.reopen()
                rests = Assignment(params={}, key=key, operator="", id=paused[0], admitted=True, rests=True)
                self._admit(leader, token, rests)
                accepted.append(token)
            elif (self._assignments or self._open) and (self._futility.holds or self._too_late(leader)):
                self._defer(leader, token, key)
            elif self._assignments:
                takes.append(self._assign(leader, token, self._assignments.popleft()))
            elif not self._open:
                self._defer(leader, token, key)
            elif not key or (not self._duplicates and key in self._keys):
                unseen = self._next_unseen() if claim.stuck else None
                if unseen is not None:
                    self.remaining -= 1
                    takes.append(self._assign(leader, token, unseen))
                elif self._exhausted:
                    self._defer(leader, token, key)
                else:
                    refused.append(token)
            else:
                self.remaining -= 1
                self._barren = 0
                self._keys.add(key)
                self._admit(leader, token, key)
                accepted.append(token)
        if accepted or refused or takes:
            self._send(leader, Grant(accepted, refused, takes))
        self._recall()
        self._maybe_end()

    @property
    def _open(self) -> bool:
        """Whether something bred can be admitted."""
        return self.remaining > 0 and not self._exhausted

    def _too_late(self, leader: int | None = None) -> bool:
        """Whether what is granted now will most likely not be over in time, and so be lost, as the task does not save.

        It takes as long as the median of the last completed ones, and so does each that ``leader`` has before it.
        Nothing is held back while few are known, nor where not even a whole launch is long enough: the next one would
        be no better."""
        limit = math.inf if self._deadline is None else self._deadline
        if self._must_end is not None:
            limit = min(limit, self._must_end() - self._grace_s)
        recent_s = self.tally.recent_s
        if limit == math.inf or self._checkpoints or len(recent_s) < _KNOWN:
            return False
        expected_s = median(recent_s)
        turns = 1 if leader is None else 1 + len(self._outstanding[leader])
        return self._transport.now() + turns * expected_s > limit >= self._begun + expected_s

    def _defer(self, leader: int, token: int, key: str) -> None:
        """The claim waits for what may yet come back."""
        if self._outstanding[leader]:
            self._later.setdefault(leader, []).append((token, key))
        else:
            self._idle.append((leader, token, key))

    def _take_results(self, leader: int, message: Finished) -> None:
        mine = self._outstanding[leader]
        self._told[leader] += len(message.results)
        self._recalled.discard(leader)
        for token, identity, status, losses, seconds, reported, fault in message.results:
            item = mine.pop(token, None)
            if item is None:
                continue
            self.running -= 1
            self.tally.add(identity, status, losses, seconds)
            self._futility.ended(_key(item), identity, status, reported=reported, fault=fault)
        self._left(leader)

    def _take_remark(self, remark: Remark) -> None:
        if remark.name not in self._remarked and len(self._remarked) < MOST_REMARKS:
            self._remarked.add(remark.name)
            self.remarks.append(remark.sentence)

    def _take_back(self, leader: int, tokens: list[int]) -> None:
        if tokens:  # one that had nothing to spare is asked again when it has finished something
            self._recalled.discard(leader)
        mine = self._outstanding[leader]
        for token in tokens:
            item = mine.pop(token, None)
            if item is None:
                continue
            self._give_back(item)
        self._left(leader)

    def _give_back(self, item: Assignment | str) -> None:
        """What was granted and not begun is free again."""
        self.running -= 1
        self._futility.released(_key(item))
        if isinstance(item, Assignment) and item.rests:
            self.tally.reopen(-1)
        elif isinstance(item, Assignment):
            self._assignments.appendleft(item)
        else:
            self.remaining += 1
            self._keys.discard(item)
            self._exhausted, self._may_be_left = False, True

    def _dismiss(self, leader: int, message: Unfit) -> None:
        """A worker that cannot start evaluators is out; what it had begun goes to others, while there are
        any."""
        self._assignments += self._taken_off(leader, message.unfinished)
        self._workforce.dismiss(leader)
        self.unfit[leader] = message.error
        self._check_workers()
        self._left(leader)

    def _taken_off(self, leader: int, unfinished: list[list[Any]]) -> list[Assignment]:
        """What ``leader`` had begun; what was granted to it beside that is free again, and it gets nothing
        more."""
        mine = self._outstanding[leader]
        begun = []
        for token, fields in unfinished:
            if mine.pop(token, None) is not None:
                self.running -= 1
                begun.append(Assignment.from_wire(fields))
                self._futility.released(begun[-1].key)
        self._forget_leader(leader)
        return begun

    def _forget_leader(self, leader: int) -> None:
        mine = self._outstanding[leader]
        for item in mine.values():
            self._give_back(item)
        mine.clear()
        self._holders.discard(leader)
        self._recalled.discard(leader)
        self._idle = deque(entry for entry in self._idle if entry[0] != leader)
        self._later.pop(leader, None)

    def _check_workers(self) -> None:
        """End when no worker is left, nor any to come."""
        if self.stopping is None and not self._workforce.places and not self._workforce.settling:
            self.stop(LOST if self._workforce.dead else UNFIT)

    # --- deaths ---------------------------------------------------------------------------------------------

    def handle_rank_deaths(self, ranks: Iterable[int]) -> None:
        """These ranks are dead: tell the others, end their workers, and give what those had to others."""
        workforce = self._workforce
        dead = frozenset(ranks) - workforce.dead
        if not dead or self.end is not None:
            return
        self._everyone = tuple(rank for rank in self._everyone if rank not in dead)
        inhabited = {place.island for place in workforce.places.values()}
        hit = workforce.handle_rank_deaths(dead)
        news = encode(Lost(sorted(dead), [place.leader for place in hit]))
        for rank in self._everyone:
            self._transport.send(rank, news)
        for broken in workforce.unaccounted:
            self._open_journal(broken)
        for island in sorted(inhabited):
            if not workforce.leaders(island):
                self._evacuate(island)
        self._regroup()

    def _open_journal(self, broken: Broken) -> None:
        """Count what a dead leader finished and had not told, and hold what it had begun."""
        leader = broken.place.leader
        found = self._dead_leader_record(broken.place)
        mine = self._outstanding[leader]
        tokens: dict[str, list[int]] = {}
        for token, item in mine.items():
            tokens.setdefault(_key(item), []).append(token)
        for key, identity, status, losses, seconds in found.finished[self._told[leader] :]:
            if tokens.get(key):
                # The oldest: one that paused may have asked to go on already, under the same key.
                del mine[tokens[key].pop(0)]
                self.running -= 1
                self.tally.add(identity, status, losses, seconds)
                # Whether a failure was its own nobody can say any more.
                self._futility.ended(key, identity, status, reported=False, fault=None)
        for assignment in found.begun:
            if tokens.get(assignment.key):
                del mine[tokens[assignment.key].pop()]
                self.running -= 1
                self._futility.released(assignment.key)
                broken.held.append(assignment)
        broken.open = False
        self._forget_leader(leader)
        # Tell the living what it may not have told all of them: whom it evaluated, and whom it sent to other
        # islands. One leader of its island owns the former from now on, so that they can emigrate.
        for island, population in found.populations.items():
            heirs = self._workforce.leaders(island)
            if heirs:
                self._settle(population, heirs, owned=island == broken.place.island)

    def _evacuate(self, island: int) -> None:
        """Nobody is left on ``island``: the next one that has somebody takes in all who lived there."""
        heirs = self._workforce.next_with_leaders(island)
        population = self._journal_totals().populations.get(island) if heirs else None
        if population is not None:
            self._settle(population, heirs, owned=True)

    def _settle(self, population: Population, heirs: list[int], *, owned: bool) -> None:
        news = encode(Records(_wire(population), [], []))
        for heir in heirs:
            self._transport.send(heir, news)
        if owned:
            for member in population.best:
                self._send(heirs[0], Migrant(member.to_wire()))

    def _disband(self, rank: int, message: Disbanded) -> None:
        """A survivor of a broken worker has ended what ran there."""
        broken = self._workforce.broken_of(rank)
        if broken is None:
            return
        if rank == broken.place.leader:
            broken.held += self._taken_off(rank, message.unfinished)
            broken.open = False
        self._workforce.settle(rank)
        self._regroup()

    def _regroup(self) -> None:
        """Give out what broken workers held, and make new workers of the ranks that they left."""
        self._assignments += self._workforce.released()
        while self.stopping is None and self._idle_or_open and (place := self._workforce.form()) is not None:
            self._formed += 1
            self._outstanding[place.leader] = {}
            self._told[place.leader] = 0
            journal_totals = self._journal_totals()
            population = journal_totals.populations.get(place.island)
            form = Form(
                self._formed,
                place.island,
                place.worker,
                list(place.ranks),
                [self._workforce.leaders(island) for island in range(self._workforce.islands)],
                journal_totals.sequence(place.island, place.worker),
                [] if population is None else _wire(population),
                [],
                report_fields(journal_totals.reports.get(place.island, ())),
            )
            for rank in place.ranks:
                self._send(rank, form)
            for leader in self._workforce.places:
                if leader != place.leader:
                    self._send(leader, Joined(place.island, place.leader))
        self._check_workers()
        self._serve()
        self._recall()
        self._maybe_end()

    @property
    def _idle_or_open(self) -> bool:
        """Whether there is anything for a new worker to do."""
        return bool(self._assignments) or self._open or self._workforce.holds

    def _left(self, leader: int) -> None:
        """Something has left the outstanding individuals of ``leader``."""
        count = len(self._outstanding[leader])
        if count < 2:
            self._holders.discard(leader)
        if not count and leader in self._later:
            self._idle.extend((leader, token, key) for token, key in self._later.pop(leader))
        self._serve()
        self._recall()
        self._maybe_end()

    # --- permits --------------------------------------------------------------------------------------------

    def _admit(self, leader: int, token: int, item: Assignment | str) -> None:
        mine = self._outstanding[leader]
        mine[token] = item
        self.running += 1
        if len(mine) > 1:
            self._holders.add(leader)

    def _assign(self, leader: int, token: int, assignment: Assignment) -> list[object]:
        self._admit(leader, token, assignment)
        return [token, *assignment.to_wire()]

    def _serve(self) -> None:
        """Give what has come back to those who wait for it, the idle ones first."""
        if self.stopping or self._futility.holds:
            return
        # Looked at anew each time: what is too late is put back.
        while self._idle and (self._assignments or self._open) and not self._too_late():
            leader, token, key = self._idle.popleft()
            self._answer(leader, Claim([[token, key]], False))
        while self._later and (self._assignments or self._open):
            leader = next(iter(self._later))
            if self._too_late(leader):  # the others have as much before them
                break
            waiting = self._later.pop(leader)
            self._answer(leader, Claim([[token, key] for token, key in waiting], False))

    def _recall(self) -> None:
        if not self._holders or self.stopping or self._exhausted:
            return
        wanted = len(self._idle) - len(self._recalled)
        if self._futility.holds:  # what they hold ahead is not to be begun either
            wanted = UNLIMITED
        elif not self._idle or self._too_late():
            return
        for leader in sorted(self._holders - self._recalled, key=lambda rank: -len(self._outstanding[rank])):
            if wanted <= 0:
                break
            spare = min(wanted, len(self._outstanding[leader]) - 1)
            wanted -= spare
            self._recalled.add(leader)
            self._send(leader, Recall(spare))

    def _next_unseen(self) -> Assignment | None:
        """A configuration of a finite space that nobody has taken; None when there is none or the space is
        infinite."""
        if self._configurations is None:
            # Each stuck claim is one more draw in vain.
            self._barren += 1
            self._exhausted = self._barren >= _MOST_BARREN
            return None
        while True:
            for params, key in self._unseen:
                if key not in self._keys:
                    self._keys.add(key)
                    return Assignment(params=params, key=key, operator="last")
            # Listed a piece at a time, one for each claim in vain: a million at once would take seconds.
            if self._listing is None:
                self._listing, self._may_be_left = self._configurations(), False
            piece = list(islice(self._listing, _PIECE))
            rest = [entry for entry in piece if entry[1] not in self._keys]
            self._may_be_left |= bool(rest)
            if len(piece) < _PIECE:
                self._listing = None
                self._exhausted = not self._may_be_left
            if not rest:
                return None
            # In an order that favours no corner of the space.
            random.Random(len(rest)).shuffle(rest)
            self._unseen = iter(rest)

    # --- the end --------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at the clock and for a stop request; to be called often, does its work once a second."""
        now = self._transport.now()
        if now < self._next_look or self.end is not None:
            return
        self._next_look = now + 1.0
        if self._deadline is not None:
            self._next_look = min(self._next_look, max(now, self._deadline))
        if self.stopping is None:
            if self._deadline is not None and now >= self._deadline:
                self.stop(DEADLINE)
            elif self._stop_requested() or (
                # Slurm's warning may be set too late, or not at all.
                self._must_end is not None and now >= self._must_end() - self._grace_s
            ):
                self.stop(STOPPED)
        elif now > self._stop_time + self._grace_s + _FORCED_END_S:
            self._finish(self.stopping)
        elif self._must_end is not None and now >= self._must_end():
            self.stop(self.stopping, urgent=True)
        if self._futility.lost_patience(now):
            self._serve()
        self._maybe_end()

    def next_wake(self) -> float:
        """When ``step`` must be called at the latest."""
        return self._next_look

    def grace_left(self, now: float) -> float:
        """Seconds for which what runs may still save itself, once the campaign is stopping."""
        return 0.0 if self._urgent else max(0.0, self._stop_time + self._grace_s - now)

    def stop(self, reason: str, *, urgent: bool = False) -> None:
        """Admit nothing more and ask the leaders to finish; a second, urgent call does not wait for what
        runs."""
        if self.stopping is None:
            self.stopping = reason
            self._stop_time = self._transport.now()
            self._stop_begun(reason)
        elif not urgent or self._urgent:
            return
        self._urgent = urgent
        self._idle.clear()
        self._later.clear()
        for leader in self._outstanding:
            if leader not in self._workforce.dead:
                self._send(leader, Stop(reason, urgent))
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self.stopping is None and self._futility.futile(self._at_work):
            self.stop(FUTILE)
        if self.end is not None or self.running:
            return
        if not self.stopping and self._workforce.holds:
            return
        if self.stopping:
            self._finish(self.stopping)
        elif not self._open and not self._assignments:
            self._finish(EXHAUSTED if self._exhausted else DONE)
        elif self._idle and self._too_late():
            own = self._deadline is not None and (
                self._must_end is None or self._deadline <= self._must_end()
            )
            self.stop(DEADLINE if own else STOPPED)

    def _finish(self, reason: str) -> None:
        complete = self._evaluations is not None and self.tally.final >= self._evaluations
        if complete:
            reason = DONE
        elif reason == DONE or (reason == EXHAUSTED and self.tally.counts.get(INTERRUPTED)):
            # Somebody raised Interrupted unasked: that individual is still to be finished.
            reason = INCOMPLETE
        finished = complete or reason == EXHAUSTED or (reason == DEADLINE and self._evaluations is None)
        counts = self.tally.counts
        # Those that a deadline cut off did not fail: where most were, it came too soon, and nothing else is wrong.
        judged = complete or self.tally.final > counts.get(INTERRUPTED, 0)
        if finished and judged and self.tally.final and not any(map(counts.get, (COMPLETED, PRUNED))):
            finished, reason = False, IN_VAIN
        elif reason == FUTILE and self._futility.alive:
            # Something worked after all while it was told to stop.
            reason = STOPPED
        error = None
        if reason == UNFIT:
            error = next(iter(self.unfit.values()), None)
        elif reason == FUTILE:
            error = self._futility.sentence()
        code = 0 if finished else 1 if reason in (UNFIT, FUTILE, IN_VAIN) else EXIT_RESUMABLE
        self.end = End(reason, code, error)
        self._ended(self.end)
        for rank in self._everyone:
            self._send(rank, self.end)

    def _send(self, destination: int, message: Message) -> None:
        self._transport.send(destination, encode(message))

    @property
    def dead(self) -> frozenset[int]:
        """Ranks whose death has been dealt with."""
        return self._workforce.dead

    def _at_work(self) -> list[str]:
        """For each leader that has something to evaluate the key of what it was granted first.

        That is what it evaluates now, or ends after that: it takes one after the other. What waits behind it is not
        of interest, and may be much where evaluations take milliseconds."""
        return [_key(next(iter(mine.values()))) for mine in self._outstanding.values() if mine]

    @property
    def busy(self) -> int:
        """Leaders that have something to evaluate."""
        return sum(1 for mine in self._outstanding.values() if mine)

    @property
    def counts(self) -> Mapping[str, int]:
        return self.tally.counts


def _key(item: Assignment | str) -> str:
    """Of which configuration something granted is."""
    return item if isinstance(item, str) else item.key


def _wire(population: Population) -> list[list[object]]:
    """All members, worst first: what comes last counts as most recent."""
    members = (*population.failures, *population.pruned, *reversed(list(population)))
    return [one.to_wire() for one in members]
