"""The protocol of one worker's leader: breed, claim, evaluate, record, tell, migrate.

The islands have no master. Every leader breeds from all that its island has told it, tells its peers of each
result as soon as the result is on disk, and now and then sends an individual to another island. It asks the
coordinator only for permits. The same code runs over MPI and, with virtual time, in the simulator: all that
touches the world is passed in."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpo.individual import COMPLETED, CRASHED, FAILED, INTERRUPTED, PRUNED, Metric, Scalar, make_id
from hpo.islands.coordinator.coordinator import LOST, UNFIT
from hpo.islands.coordinator.futility import fault
from hpo.islands.leader.clockwork import EvaluationTimes
from hpo.islands.leader.migration import Migration, MigrationSettings
from hpo.islands.leader.retention import RetentionPolicy
from hpo.islands.messages import (
    MOST_REMARKS,
    Claim,
    Disbanded,
    End,
    Evaluated,
    Finished,
    Grant,
    Joined,
    Lost,
    Message,
    Migrant,
    Recall,
    Records,
    Remark,
    Returned,
    Start,
    Stop,
    Unfit,
    Worker,
    encode,
    evaluated,
    report_fields,
    reports,
)
from hpo.islands.transport import Transport
from hpo.search.early_stopping import EarlyStopping, PruningSettings
from hpo.search.population import Member, Population
from hpo.search.proposals import STUCK, Proposals
from hpo.search.protocols import (
    Breeder,
    Candidate,
    Codec,
    Crew,
    Journal,
    Outcome,
    TrialReport,
    Verdict,
)
from hpo.task.outcome import summary_line

if TYPE_CHECKING:
    from hpo.config.layout import WorkerPlacement

COMMIT_INTERVAL_S = 0.02
"""Records of evaluations faster than this share one sync of the journal; slower ones are synced at once."""
_START_ATTEMPTS = 3
_MOST_DEATHS = 3
"""An individual whose ranks have died so often, beside its retries, is to blame: it would take all workers with it."""


@dataclass(frozen=True, kw_only=True)
class LeaderSettings:
    """``losses``: objectives by name to numbers to be minimised. ``durable_starts``: put starts on disk too,
    so that an interrupted evaluation goes on under its id (not worth it for functions of microseconds).
    ``steps``: that a whole run reports, if the task says it.
    ``reported``: the only objective, whose value a report is of; None where there are several. ``sign``: -1 where
    larger reports are better. ``reference``: losses beyond which nothing is wanted, where there are several
    objectives."""

    seed: int
    losses: Callable[[dict[str, float]], tuple[float, ...]]
    allows: Callable[[dict[str, Scalar]], bool]
    migration: MigrationSettings = field(default_factory=MigrationSettings)
    retries: int = 1
    duplicates: bool = False
    durable_starts: bool = True
    grace_s: float = 60.0
    keep: int = 3
    pruning: PruningSettings | None = None
    steps: int | None = None
    reported: str | None = None
    sign: float = 1.0
    reference: tuple[float, ...] | None = None


@dataclass(frozen=True)
class _Given:
    """The outcome of what is not evaluated."""

    status: str
    error: str | None
    objectives: dict[str, float] | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)


@dataclass
class _Unpublished:
    """``records`` and what follows are told once ``results`` are on disk."""

    results: list[list[object]] = field(default_factory=list)
    records: list[list[object]] = field(default_factory=list)
    emigrated: list[str] = field(default_factory=list)
    own: list[Member] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)


class Leader:
    """One worker's leader. Feed it messages with ``receive`` and call ``step`` whenever something may have
    happened.

    ``peers``: leaders of the same island; ``islands[i]``: leaders of island i; ``forget``: called with the id
    of an individual whose checkpoints nobody needs any more."""

    def __init__(
        self,
        *,
        place: WorkerPlacement,
        peers: Sequence[int],
        islands: Sequence[Sequence[int]],
        coordinator: int,
        transport: Transport,
        space: Codec,
        breeder: Breeder,
        crew: Crew,
        journal: Journal,
        settings: LeaderSettings,
        forget: Callable[[str], None] = lambda identity: None,
    ) -> None:
        self.place = place
        self._peers = tuple(rank for rank in peers if rank != transport.rank)
        self._coordinator = coordinator
        self._transport = transport
        self._space = space
        self._breeder = breeder
        self._crew = crew
        self._journal = journal
        self._settings = settings
        self._forget = forget
        self.population = Population(reference=settings.reference)
        self._migration = Migration(
            settings.migration,
            seed=settings.seed,
            here=place.island,
            islands=islands,
            journal=journal,
            clock=transport.now,
        )
        self._kept = RetentionPolicy(
            settings.keep,
            latest=breeder.checkpoints_for_others,
            order=lambda own: self._breeder.best_first(own, self.population),
        )
        self._stopping = EarlyStopping(
            settings.pruning,
            sign=settings.sign,
            steps=settings.steps,
            forget=lambda identity: self._unpublished.forgotten.append(identity),
        )
        self._promotion: int | None = None
        self._last_told = 0.0
        crew.listen(self._judge)
        self._proposals = Proposals(
            space,
            breeder,
            seed=settings.seed,
            allows=settings.allows,
            duplicates=settings.duplicates,
        )
        self._sequence = 0
        self._token = 0
        self._claimed: dict[int, Candidate] = {}
        self._claim_times: dict[int, float] = {}
        self._queue: deque[Candidate] = deque()
        self._running: Candidate | None = None
        self._unpublished = _Unpublished()
        self._last_commit = 0.0
        self.clockwork = EvaluationTimes()
        self._breeding_s = 0.0
        self._remarked: set[str] = set()
        self._stop: Stop | None = None
        self._grace_end = math.inf
        self._broken = False
        self._disbanding: list[list[object]] | None = None
        self.started = False
        self.end: End | None = None
        self.told_to_stop: Callable[[], bool] = lambda: False
        """Whether a signal has come, which the coordinator may not have answered yet."""

    # --- life -----------------------------------------------------------------------------------------------

    def begin(self, start: Start) -> None:
        """Take over what earlier launches left and ask for the first individual."""
        self._sequence = start.sequence
        owned = set(start.owned)
        self._stopping.observe(reports(start.reports))
        for fields in start.population:
            member = self._learn(evaluated(fields), earlier=True)
            if member.id in owned and member.status == PRUNED:
                self._stopping.rest(self._paused_before(member), member.progress[0] if member.progress else 0)
            elif member.id in owned and self._breeder.checkpoints_for_others:
                self._breeder.learn(member)
            elif member.id in owned:
                self._migration.own(member)
        self.started = True
        self._request()

    def receive(self, source: int, message: Message) -> bool:
        """Handle one message; True when ``step`` should follow."""
        if isinstance(message, Records):
            for fields in message.evaluated:
                self._learn(evaluated(fields))
            for identity in message.emigrated:  # after the news: one may have left in the same message
                self.population.discard(identity)
            if message.reports:
                self._stopping.observe(reports(message.reports))
            return bool(message.reports) and self._idle and self._stopping.hopes
        if isinstance(message, Grant):
            self._take(message)
        elif isinstance(message, Worker):
            self._crew.receive(int(message.content.get("worker_rank", 0)), message.content)
        elif isinstance(message, Migrant):
            self._immigrate(evaluated(message.evaluated))
        elif isinstance(message, Recall):
            # What was begun (it crashed, and waits for new evaluators) stays.
            spare = [one for one in reversed(self._queue) if not one.started and not one.promoted]
            del spare[message.number :]
            for candidate in spare:
                self._queue.remove(candidate)
            self._send(self._coordinator, Returned([one.token for one in spare]))
        elif isinstance(message, Stop):
            self._halt(message)
        elif isinstance(message, Lost):
            self._handle_rank_deaths(frozenset(message.ranks), frozenset(message.leaders))
        elif isinstance(message, Joined):
            self._welcome(message)
        elif isinstance(message, End):
            self.end = message
        return True

    def step(self) -> bool:
        """Do all that can be done now without waiting; True when anything was done."""
        active = False
        for outcome in self._crew.poll():
            self._finish(outcome)
            active = True
        if self._stop is None:
            if self._queue and self._running is None and self._crew.ready:
                self._launch(self._queue.popleft())
                active = True
                for outcome in self._crew.poll():  # an inline evaluation is over already
                    self._finish(outcome)
        elif self._crew.busy and self._transport.now() >= self._grace_end:
            self._grace_end = math.inf
            self._crew.kill(INTERRUPTED)
            for outcome in self._crew.poll():
                self._finish(outcome)
        self._publish_when_due()
        if self._disbanding is not None and self._crew.gone:
            self._send(self._coordinator, Disbanded(self._disbanding))
            self._disbanding = None
        if self.started and self._stop is None and self.end is None:
            self._request()
        return active

    def next_wake(self) -> float:
        """Unix seconds at which ``step`` must be called even if nothing arrives."""
        wake = self._grace_end if self._crew.busy else math.inf
        limit = self._crew.deadline()
        if limit is not None:
            wake = min(wake, limit)
        if self._unpublished.results:
            wake = min(wake, self._last_commit + COMMIT_INTERVAL_S)
        if self._stopping.news:
            wake = min(wake, self._last_told + COMMIT_INTERVAL_S)
        return wake

    @property
    def _idle(self) -> bool:
        return self._running is None and not self._queue and self.started and self._stop is None

    @property
    def can_work(self) -> bool:
        """Whether ``step`` would evaluate something at once."""
        return self._stop is None and self._running is None and bool(self._queue) and self._crew.ready

    # --- breeding and claiming ------------------------------------------------------------------------------

    def _request(self) -> None:
        """Breed and claim as many as are needed to never run dry."""
        ahead = self.clockwork.ahead if self._breeder.may_breed_ahead else 0
        lacking = ahead + (self._running is None) - len(self._queue) - len(self._claimed)
        if lacking > 0 or self._idle:  # a claim may wait for good where the budget is used up
            lacking -= self._promote()
        if lacking <= 0:
            return
        begun = self._transport.now()
        candidates = [self._new_candidate() for _ in range(lacking)]
        now = self._transport.now()
        self._breeding_s = (now - begun) / lacking
        self._claim(candidates, now)

    def _promote(self) -> bool:
        """Ask to go on with a paused individual, if one has come to be worth it; it comes before new ones.

        One at a time: what is promoted next depends on what is known then."""
        candidate = self._stopping.promoted() if self._promotion is None else None
        if candidate is None:
            return False
        candidate.token = self._promotion = self._token
        self._token += 1
        candidate.started, candidate.retries, candidate.resumed = 0.0, 0, True
        self._claimed[candidate.token] = candidate
        self._claim_times[candidate.token] = self._transport.now()
        self._send(self._coordinator, Claim([[candidate.token, candidate.key, candidate.id]], False))
        return True

    def _paused_before(self, member: Member) -> Candidate:
        """One that paused in an earlier launch; its parents are on record there."""
        island, worker, sequence = (int(part) for part in member.id.split("-"))
        params = self._space.decode(member.genome)
        return Candidate(
            token=-1,
            id=member.id,
            sequence=sequence,
            genome=member.genome,
            params=params,
            key=self._space.key(params),
            operator=member.operator,
            home=(island, worker),
        )

    def _claim(self, candidates: list[Candidate], now: float) -> None:
        for candidate in candidates:
            self._claimed[candidate.token] = candidate
            self._claim_times[candidate.token] = now
        stuck = any(candidate.attempts >= STUCK for candidate in candidates)
        self._send(self._coordinator, Claim([[one.token, one.key] for one in candidates], stuck))

    def _new_candidate(self) -> Candidate:
        sequence, token = self._sequence, self._token
        self._sequence += 1
        self._token += 1
        candidate = Candidate(
            token=token,
            id=make_id(self.place.island, self.place.worker, sequence),
            sequence=sequence,
            genome=(),
            params={},
            key="",
            operator="",
            home=(self.place.island, self.place.worker),
        )
        self._proposals.fill(candidate, self.population)
        return candidate

    def _take(self, grant: Grant) -> None:
        now = self._transport.now()
        for token in grant.accepted:
            candidate = self._claimed.pop(token, None)
            if candidate is not None:
                self.clockwork.answered(now - self._claim_times.pop(token))
                self._proposals.known.add(candidate.key)
                if token == self._promotion:
                    self._promotion = None
                    self._queue.appendleft(candidate)
                else:
                    self._queue.append(candidate)
        again: list[Candidate] = []
        for token in grant.duplicates:
            candidate = self._claimed.pop(token, None)
            if candidate is not None:
                self._claim_times.pop(token, None)
                self._proposals.known.add(candidate.key)
                self._proposals.fill(candidate, self.population)
                again.append(candidate)
        if again:
            self._claim(again, now)
        for token, identity, params, key, operator, parents, *more in grant.takes:
            candidate = self._claimed.pop(token, None)
            if candidate is None:  # this worker has given up meanwhile, and the coordinator takes it back
                continue
            self._claim_times.pop(token, None)
            if identity is not None:
                island, worker, sequence = (int(part) for part in identity.split("-"))
                candidate.id, candidate.home, candidate.sequence = identity, (island, worker), sequence
            candidate.params, candidate.key = params, key
            candidate.genome = self._space.encode(params)
            candidate.operator, candidate.parents = operator, tuple(parents)
            candidate.retries, candidate.resumed, candidate.promoted, candidate.inherits = more
            self._proposals.known.add(key)
            # What was begun before, and what the user asked for, comes before what is bred.
            self._queue.appendleft(candidate)

    # --- evaluating -----------------------------------------------------------------------------------------

    def _launch(self, candidate: Candidate) -> None:
        candidate.started = self._transport.now()
        self._running = candidate
        if self._settings.durable_starts:
            self._journal.append(
                {
                    "type": "started",
                    **self._identity(candidate),
                    "time": candidate.started,
                }
            )
            self._publish()
        if candidate.retries >= self._settings.retries + _MOST_DEATHS:
            error = f"its processes or ranks died {candidate.retries} times while it was evaluated; not tried again"
            self._finish(_Given(CRASHED, error))
            return
        self._stopping.start(candidate)
        self._crew.start(candidate)
        self._breeder.evaluation_started(candidate.parents)

    def _judge(self, report: TrialReport) -> Verdict:
        """Whether the evaluation that has just reported may go on."""
        verdict, found = self._stopping.report(report)
        if found is not None:
            loss = found[2] if math.isfinite(found[2]) else None
            place = {"id": report.id, "island": self.place.island}
            now = self._transport.now()
            self._journal.append({"type": "reported", **place, "step": found[1], "loss": loss, "time": now})
        return verdict

    def _pruned(self, outcome: Outcome) -> _Given:
        """The outcome of one that failed at a rung: its report there counts, wherever it ended."""
        step, value = self._stopping.last or (0, math.nan)
        name = self._settings.reported
        metrics = {**outcome.metrics, "pruned_step": step}
        if not math.isfinite(value):
            return _Given(PRUNED, None, None, metrics)
        if name is None:
            return _Given(PRUNED, None, None, {**metrics, "pruned_value": value})
        return _Given(PRUNED, None, {name: value}, metrics)

    def _identity(self, candidate: Candidate) -> dict[str, object]:
        fields: dict[str, object] = {
            "id": candidate.id,
            "island": candidate.home[0],
            "worker": candidate.home[1],
            "sequence": candidate.sequence,
            "params": candidate.params,
            "operator": candidate.operator,
            "parents": list(candidate.parents),
            "retries": candidate.retries,
        }
        if candidate.promoted:
            fields["promoted"] = candidate.promoted
        if candidate.inherits:
            fields["inherits"] = candidate.inherits
        return fields

    def _finish(self, outcome: Outcome) -> None:
        candidate, self._running = self._running, None
        if candidate is None:
            return
        for name, sentence in outcome.remarks.items():
            if name not in self._remarked and len(self._remarked) < MOST_REMARKS:
                self._remarked.add(name)
                self._send(self._coordinator, Remark(name, sentence))
        if self._crew.failed_starts and outcome.status in (CRASHED, FAILED):
            self._retry_or_withdraw(candidate, outcome)
            return
        final = outcome.status == FAILED or (
            outcome.status == CRASHED and candidate.retries >= self._settings.retries
        )
        if final and (self._stop is not None or self.told_to_stop()):
            # Who ends a job signals all of its processes, those that a task has started too: the next launch will
            # tell whether it was that.
            outcome = _Given(INTERRUPTED, outcome.error)
        now = self._transport.now()
        # What was killed after its grace, or failed, has not saved itself: the next launch goes on with it.
        rests = outcome.status == INTERRUPTED and outcome.error is None and self._stopping.condemned
        if rests or (outcome.status == PRUNED and self._stopping.condemned):
            outcome = self._pruned(outcome)
        elif outcome.status == COMPLETED:
            self._stopping.completed()
        if outcome.status == CRASHED and candidate.retries < self._settings.retries:
            self._journal.append(
                {"type": "note", "id": candidate.id, "status": CRASHED, "error": outcome.error, "time": now}
            )
            candidate.retries += 1
            candidate.resumed = True
            if self._stop is None:
                self._queue.appendleft(candidate)
            else:  # a later launch evaluates it again: its start is on record, its end is not
                self._send(self._coordinator, Returned([candidate.token]))
            return
        steps = self._stopping.last[0] if self._stopping.last is not None else None
        self._journal.append(
            {
                "type": "finished",
                **self._identity(candidate),
                "started": candidate.started,
                "finished": now,
                "status": outcome.status,
                "objectives": outcome.objectives,
                "metrics": outcome.metrics,
                "error": outcome.error,
                **({"resting": True} if rests else {}),
                **({"steps": steps} if outcome.status == COMPLETED and steps is not None else {}),
            }
        )
        self.clockwork.evaluated(now - candidate.started + self._breeding_s)
        losses: list[float] | None = None
        if outcome.status == COMPLETED and outcome.objectives is not None:
            losses = list(self._settings.losses(outcome.objectives))
        self._unpublished.results.append(
            [
                candidate.token,
                candidate.id,
                outcome.status,
                losses,
                now - candidate.started,
                self._stopping.reported(candidate.id),
                fault(outcome.status, resumed=candidate.resumed, error=summary_line(outcome.error or "")),
            ]
        )
        if outcome.status != INTERRUPTED:
            member = Member(
                candidate.id,
                candidate.genome,
                None if losses is None else tuple(losses),
                outcome.status,
                progress=self._stopping.progress() if outcome.status in (PRUNED, COMPLETED) else None,
                operator=candidate.operator,
            )
            self.population.add(member)
            self._breeder.learn(member)
            self._unpublished.records.append(member.to_wire())
            if losses is not None:
                self._migration.own(member)
                self._unpublished.own.append(member)
            if rests:
                self._stopping.rest(candidate, member.progress[0] if member.progress else 0)
            else:
                self._unpublished.forgotten += self._kept.add(candidate.id, losses)

    def _retry_or_withdraw(self, candidate: Candidate, outcome: Outcome) -> None:
        """Evaluators could not be started: that is not the individual's fault, and must not use up the
        budget.

        After a few tries this worker gives up and hands on what it has begun; the others go on.
        """
        if self._crew.failed_starts < _START_ATTEMPTS and self._stop is None:
            self._queue.appendleft(candidate)
            return
        self._publish()
        self._halt(Stop(UNFIT, False))
        error = outcome.error or "no evaluator could be started"
        self._send(self._coordinator, Unfit(error, [_begun(candidate, candidate.retries, candidate.resumed)]))

    # --- telling --------------------------------------------------------------------------------------------

    def _publish_when_due(self) -> None:
        if self._unpublished.results and (
            self._stop is not None or self._transport.now() >= self._last_commit + COMMIT_INTERVAL_S
        ):
            self._publish()
        if self._stopping.news and self._transport.now() >= self._last_told + COMMIT_INTERVAL_S:
            self._tell(_Unpublished())

    def _tell(self, news: _Unpublished) -> None:
        """Tell the island of results that are on disk, and of reports, which need not be."""
        found, self._stopping.news = self._stopping.news, []
        self._last_told = self._transport.now()
        if (news.records or news.emigrated or found) and self._peers:
            data = encode(Records(news.records, news.emigrated, report_fields(found)))
            for peer in self._peers:
                self._transport.send(peer, data)

    def _publish(self) -> None:
        """Sync the journal; only then does a result count, and is told to the coordinator and the island."""
        # Migration is journalled with the results that caused it, in the same sync.
        news, self._unpublished = self._unpublished, _Unpublished()
        departures = [one for member in news.own for one in self._migration.departures(member)]
        for departure in departures:
            if departure.left:
                self.population.discard(departure.traveller.id)
                news.emigrated.append(departure.traveller.id)
        self._journal.commit()
        self._last_commit = self._transport.now()
        if news.results and self._idle:
            # Before the coordinator hears that nothing runs here: it may be all that the campaign waits for.
            self._promote()
        if news.results:
            self._send(self._coordinator, Finished(news.results))
        self._tell(news)
        for departure in departures:
            self._send(departure.gateway, Migrant(departure.traveller.to_wire()))
        for identity in news.forgotten:
            self._forget(identity)

    def _learn(self, record: Evaluated, *, earlier: bool = False) -> Member:
        member = Member(
            record.id,
            tuple(record.genome),
            None if record.losses is None else tuple(record.losses),
            record.status,
            tuple(record.history),
            operator=record.operator,
        )
        if record.progress is not None:
            step, loss = record.progress
            member.progress = (step, math.inf if loss is None else loss)
            # What other islands use of the space may take other numbers of steps.
            if member.status == COMPLETED and not member.history:
                self._stopping.learn_end(step)
        (self.population.enter if earlier else self.population.add)(member)
        return member

    # --- migrating ------------------------------------------------------------------------------------------

    def _immigrate(self, record: Evaluated) -> None:
        member = self._learn(record)
        self._migration.own(member)
        data = encode(Records([member.to_wire()], [], []))
        for peer in self._peers:
            self._transport.send(peer, data)

    # --- deaths ---------------------------------------------------------------------------------------------

    def _handle_rank_deaths(self, dead: frozenset[int], leaders: frozenset[int]) -> None:
        """Tell nothing more to ``leaders``, whose workers lost ``dead`` ranks; if this worker did, it is over."""
        self._peers = tuple(rank for rank in self._peers if rank not in leaders)
        for departure in self._migration.lose(leaders):
            # The gateway may have died before it told its island: that learns it twice rather than never.
            self._send(departure.gateway, Migrant(departure.traveller.to_wire()))
        if dead & set(self.place.ranks) and not self._broken:
            self._broken = True
            self._disband()

    def _welcome(self, news: Joined) -> None:
        self._migration.join(news.island, news.leader)
        if news.island == self.place.island and news.leader not in (*self._peers, self._transport.rank):
            self._peers += (news.leader,)

    def _disband(self) -> None:
        """End what runs here, for others to begin it again."""
        begun = [candidate for candidate in self._queue if candidate.started]
        if self._running is not None:
            begun.append(self._running)
            self._running = None
        self._queue.clear()
        self._claimed.clear()
        self._claim_times.clear()
        self._stop = Stop(LOST, True)
        self._publish()
        self._crew.disband()
        self._disbanding = [_begun(candidate, candidate.retries + 1, True) for candidate in begun]

    def orphan(self) -> None:
        """The coordinator is dead: nothing more can be counted here. What runs may save, as for any stop."""
        if self._stop is None:
            self._halt(Stop(LOST, False))

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs here and nothing is left to be put on record."""
        return self._running is None and not self._crew.busy and not self._unpublished.results

    # --- stopping -------------------------------------------------------------------------------------------

    def _halt(self, stop: Stop) -> None:
        self._stop = stop
        tokens = [candidate.token for candidate in self._queue] + list(self._claimed)
        self._queue.clear()
        self._claimed.clear()
        self._claim_times.clear()
        if tokens:
            self._send(self._coordinator, Returned(tokens))
        if stop.urgent:
            self._grace_end = self._transport.now()
        else:
            self._grace_end = self._transport.now() + self._settings.grace_s
            self._crew.request_checkpoint()

    def _send(self, destination: int, message: Message) -> None:
        self._transport.send(destination, encode(message))


def _begun(candidate: Candidate, retries: int, resumed: bool) -> list[object]:
    """For a message: the token, and what ``Assignment.from_wire`` reads."""
    return [
        candidate.token,
        [
            candidate.id,
            candidate.params,
            candidate.key,
            candidate.operator,
            list(candidate.parents),
            retries,
            resumed,
            candidate.promoted,
            candidate.inherits,
        ],
    ]
