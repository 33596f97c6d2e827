"""A worker's evaluations, one at a time: from the start of a granted candidate to the record of how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpo.errors import describe_os_error
from hpo.individual import COMPLETED, CRASHED, FAILED, FAILURES, INTERRUPTED, PRUNED, TIMEOUT, Attempt
from hpo.islands.leader.claims import Claims, assignment_of, unfinished_of
from hpo.islands.leader.island import IslandSearch, LeaderSettings, OwnWorker
from hpo.islands.leader.publishing import Publisher
from hpo.islands.leader.retention import RetentionPolicy
from hpo.islands.messages import MOST_REMARKS, EvaluationEnd, Remark, Returned
from hpo.islands.storage import StorageWait
from hpo.journal.records import Finished, Note, Reported, Started
from hpo.search.population import Member
from hpo.search.protocols import Candidate, TrialReport, Verdict
from hpo.task.outcome import TaskOutcome, brief_outcome, pruned_outcome

if TYPE_CHECKING:
    from hpo.islands.leader.leader import Leader

_START_ATTEMPTS = 3
# An individual whose ranks have died so often, beside its retries, is to blame: it would take all workers with it.
_MOST_DEATHS = 3

# A name of remarks that no metric has.
_LENGTHS = "[steps]"


class Evaluations:
    """``running``: the candidate that is evaluated."""

    def __init__(
        self,
        *,
        leader: Leader,
        worker: OwnWorker,
        island: IslandSearch,
        settings: LeaderSettings,
        retention: RetentionPolicy,
        claims: Claims,
        publisher: Publisher,
    ) -> None:
        self._leader = leader
        self._worker = worker
        self._crew = worker.crew
        self._journal = worker.journal
        self._island = island
        self._early_stopping = island.early_stopping
        self._settings = settings
        self._retention = retention
        self._claims = claims
        self._publisher = publisher
        self._remarked: set[str] = set()
        # The least losses that were reported with parameters.
        self._best: tuple[float, ...] | None = None
        self.running: Candidate | None = None
        self.wait = StorageWait()
        """State of the directories of individuals."""
        worker.crew.listen(self._judge)

    def start(self, candidate: Candidate) -> None:
        candidate.started = self._leader.now()
        self.running = candidate
        # A copy of its directory, where it needs one, comes before the record of its start: a reader of that takes the
        # directory that is there for its own.
        try:
            job = self._worker.jobs(candidate)
        except OSError as failure:
            self.running = None
            self.wait.failed(describe_os_error(failure, "the individual's directory"), self._leader.now())
            self._claims.queue.appendleft(candidate)
            return
        if self._settings.durable_starts:
            start = Started(
                configuration=candidate.configuration, attempt=candidate.attempt, time=candidate.started
            )
            self._journal.append(start)
            if not self._publisher.publish():
                self.running = None
                self._claims.queue.appendleft(candidate)
                return
        if candidate.retries >= self._settings.retries + _MOST_DEATHS:
            error = f"its processes or ranks died {candidate.retries} times while it was evaluated; not tried again"
            # Not by way of ``finish``, which might try it again.
            self.running = None
            self._record(candidate, TaskOutcome(status=CRASHED, error=error), rests=False)
            return
        self._early_stopping.start(candidate)
        self._crew.start(job)
        self._island.breeder.evaluation_started(candidate.parents)

    def poll(self) -> bool:
        """Take the outcomes of the crew; whether there were any."""
        outcomes = self._crew.poll()
        for outcome in outcomes:
            self.finish(outcome)
        if self.wait.error is not None and self.running is not None and self._crew.prepared:
            self.wait.worked()
        return bool(outcomes)

    def _judge(self, report: TrialReport) -> Verdict:
        """Whether the evaluation that has just reported may go on."""
        verdict, found = self._early_stopping.report(report)
        if found is not None:
            loss = found[2] if math.isfinite(found[2]) else None
            self._journal.append(
                Reported(
                    id=report.id,
                    island=self._worker.place.island,
                    step=found[1],
                    loss=loss,
                    time=self._leader.now(),
                )
            )
        return verdict

    def finish(self, outcome: TaskOutcome) -> None:
        """The running evaluation has ended with ``outcome``."""
        candidate, self.running = self.running, None
        if candidate is None:
            return
        if outcome.storage:
            self.wait.failed(outcome.error or "the storage failed", self._leader.now())
            self._again(candidate)
            return
        self._remark(outcome.remarks)
        if self._crew.failed_starts and outcome.status in (CRASHED, FAILED):
            self._retry_or_withdraw(candidate, outcome)
            return
        self.wait.worked()
        final = outcome.status == FAILED or (
            outcome.status == CRASHED and candidate.retries >= self._settings.retries
        )
        if final and (self._leader.is_stopping() or self._worker.signalled()):
            # The end of a Slurm job signals all processes, also those that a task has started, which may be
            # why it failed: the next launch will show.
            outcome = TaskOutcome(status=INTERRUPTED, error=outcome.error)
        # An individual that was killed after its grace, or failed, has not saved itself: the next launch goes
        # on with it.
        rests = outcome.status == INTERRUPTED and outcome.error is None and self._early_stopping.condemned
        if rests or (outcome.status == PRUNED and self._early_stopping.condemned):
            # Its report at the rung counts, wherever it was when it ended.
            outcome = pruned_outcome(self._early_stopping.last, self._settings.reported, outcome.metrics)
        elif outcome.status == COMPLETED:
            self._early_stopping.completed()
            self._look_at_lengths()
        if outcome.status == CRASHED and candidate.retries < self._settings.retries:
            self._retry(candidate, outcome)
        else:
            self._record(candidate, outcome, rests=rests)

    def _look_at_lengths(self) -> None:
        if (lengths := self._early_stopping.unsaid_lengths) is not None:
            sentence = (
                f"runs complete after {lengths[0]} to {lengths[1]} steps, and the pruner may stop a shorter one at its "
                "last step: where parameters decide how long a run is, give Task(steps=…) a function of them"
            )
            self._remark({_LENGTHS: sentence})

    def _remark(self, remarks: Mapping[str, str]) -> None:
        for name, sentence in remarks.items():
            if name not in self._remarked and len(self._remarked) < MOST_REMARKS:
                self._remarked.add(name)
                self._leader.ask(Remark(name, sentence))

    def _retry_or_withdraw(self, candidate: Candidate, outcome: TaskOutcome) -> None:
        # Evaluators that cannot be started are not the individual's fault, and must not use up the budget.
        if self._crew.failed_starts < _START_ATTEMPTS and not self._leader.is_stopping():
            self._claims.queue.appendleft(candidate)
        else:
            self._leader.withdraw(candidate, outcome.error or "no evaluator could be started")

    def _retry(self, candidate: Candidate, outcome: TaskOutcome) -> None:
        self._journal.append(
            Note(id=candidate.id, status=CRASHED, error=outcome.error, time=self._leader.now())
        )
        attempt = candidate.attempt
        candidate.attempt = replace(attempt, retries=attempt.retries + 1, resumed=True)
        candidate.promoted, candidate.retried = False, True
        self._again(candidate)

    def _again(self, candidate: Candidate) -> None:
        if self._leader.is_stopping():  # a later launch evaluates it: its start is on record, its end is not
            self._leader.ask(Returned([], unfinished=[unfinished_of(candidate, resumed=candidate.resumed)]))
        else:
            self._claims.queue.appendleft(candidate)

    def _record(self, candidate: Candidate, outcome: TaskOutcome, *, rests: bool) -> None:
        """Put the end on record, and let the island breed from it. ``rests``: it was pruned, and may go on."""
        now, last = self._leader.now(), self._early_stopping.last
        outcome = replace(
            outcome,
            seconds=now - candidate.started,
            steps=last[0] if outcome.status == COMPLETED and last is not None else None,
        )
        self._journal.append(
            Finished(
                configuration=candidate.configuration,
                attempt=candidate.attempt,
                outcome=outcome,
                started=candidate.started,
                finished=now,
                resting=rests,
            )
        )
        self._claims.evaluated(outcome.seconds)
        losses: tuple[float, ...] | None = None
        excess: tuple[float, ...] | None = None
        if outcome.status == COMPLETED and outcome.objectives is not None:
            losses = tuple(self._settings.losses(outcome.objectives))
            excess = self._settings.limits.excess(outcome.objectives, outcome.metrics)
        keeps = excess is not None and max(excess, default=0.0) <= 0.0
        pending = self._publisher.pending
        pending.candidates.append(candidate)
        pending.results.append(self._end_of(candidate, outcome, losses if keeps else None))
        if outcome.status == INTERRUPTED:
            return
        member = Member(
            candidate.id,
            candidate.genome,
            losses,
            outcome.status,
            progress=self._early_stopping.progress() if outcome.status in (PRUNED, COMPLETED) else None,
            operator=candidate.operator,
            excess=excess or (),
        )
        self._island.population.add(member)
        self._island.breeder.learn(member)
        # A copy: migration adds to the history of the members that it sends away.
        pending.records.append(replace(member))
        if losses is not None:
            self._island.migration.own(member)
            pending.own.append(member)
        if rests:
            self._early_stopping.rest(candidate, member.progress[0] if member.progress else 0)
        else:
            pending.forgotten += self._retention.add(candidate.id, losses, keeps=keeps)

    def _end_of(
        self, candidate: Candidate, outcome: TaskOutcome, losses: tuple[float, ...] | None
    ) -> EvaluationEnd:
        best = losses is not None and (self._best is None or losses < self._best)
        if best:
            self._best = losses
        brief = brief_outcome(outcome, objectives=best)
        attempt = candidate.attempt
        resumed = attempt.resumed and not candidate.retried
        from_the_start = Attempt(reopened=attempt.reopened + 1)
        return EvaluationEnd(
            token=candidate.token,
            id=candidate.id,
            outcome=brief,
            losses=losses,
            reported=self._early_stopping.reported(candidate.id) and not outcome.no_value,
            fault=fault(outcome.status, resumed=resumed, error=brief.error or ""),
            again=assignment_of(candidate, from_the_start) if outcome.status in FAILURES else None,
            started=candidate.started,
            params=candidate.params if best else None,
        )


def fault(status: str, *, resumed: bool, error: str) -> str | None:
    """``error`` where the individual failed by itself, else None."""
    return error if status in (FAILED, TIMEOUT, CRASHED) and not resumed else None
