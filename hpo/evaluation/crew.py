"""Evaluations as a worker's leader sees them: evaluators are started, fed, timed out, killed and replaced.

The leader of a worker runs a crew, its other ranks an EvaluatorHost each; every rank has one evaluator process. The
messages are those of ``hpo.evaluation.conversation``, which the caller carries between ranks. Nothing here waits: the
caller calls ``poll`` when one of ``filenos`` is readable, or at ``deadline``.

    crew ── orders ──► EvaluatorHost of each rank (its own too) ──► evaluator
    crew ◄── answers ── EvaluatorHost ◄── evaluator

``Spawn`` opens a new *epoch*. All messages carry theirs, so that a late answer of an earlier evaluator is recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from hpo.evaluation import conversation as messages
from hpo.evaluation.devices import choose_backend
from hpo.evaluation.evaluator_host import EvaluatorHost
from hpo.evaluation.evaluator_process import EvaluatorGuard, EvaluatorProcess
from hpo.evaluation.process.energy import with_joules
from hpo.evaluation.process.waiting_ranks import WaitingRanks
from hpo.individual import CRASHED, FAILED, TIMEOUT
from hpo.search.protocols import GO, ReportHandler, TrialReport, Verdict
from hpo.task.outcome import TaskOutcome

if TYPE_CHECKING:
    from hpo.config.settings import EvaluationSettings
    from hpo.task.trial import Job


class ProcessCrew:
    """Evaluates one individual at a time on all ranks of a worker; lives on the worker's leader.

    ``send(worker_rank, content)`` reaches the EvaluatorHost of another rank, and ``receive`` takes its answers.
    ``on_warning`` gets sentences for the user."""

    failure_grace_s = 5.0
    """Time for the other ranks once one has failed."""
    straggler_s = 60.0
    """Time for the other ranks once rank 0 has ended."""

    def __init__(
        self,
        *,
        size: int,
        child_factory: Callable[[], EvaluatorProcess],
        send: Callable[[int, dict[str, Any]], None],
        settings: EvaluationSettings,
        on_warning: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float],
        guard: EvaluatorGuard | None = None,
    ) -> None:
        self._size = size
        self._send_other = send
        self._settings = settings
        self._on_report: ReportHandler = lambda report: GO
        self._on_warning = on_warning
        self._clock = clock
        self._own = EvaluatorHost(
            worker_rank=0,
            child_factory=child_factory,
            send=lambda epoch, answer: self._take(epoch, 0, answer),
            clock=clock,
            guard=guard,
        )
        self._phase: Literal["down", "starting", "idle", "running"] = "down"
        self._since = clock()
        self._epoch = 0
        self._generation = 0
        self._turn = 0
        self._job: Job | None = None
        self._checkpoint = False
        self._ready: dict[int, messages.Ready] = {}
        self._joined: set[int] = set()
        self._finished: dict[int, messages.EvaluationOver] = {}
        self._waiting = WaitingRanks(size, clock)
        self._failure: TaskOutcome | None = None
        self._outlived: set[int] = set()
        """Ranks that were alive and at work once a failure was known: their death did not cause it."""
        self._limit: float | None = None
        self._outcomes: list[TaskOutcome] = []
        self._storage_failed = False
        """Whether the last evaluation could not begin for want of its directory."""
        self._prepared: set[int] = set()
        self._unusable = 0
        """How often in a row evaluators started well, and then found that they cannot work."""
        self.failed_starts = 0
        """How often in a row evaluators did not start, or could not work: the fault of the task or the host, and of no
        individual."""

    @property
    def busy(self) -> bool:
        """Whether an individual is being evaluated, or waits for evaluators to start."""
        return self._job is not None

    @property
    def ready(self) -> bool:
        """Whether ``start`` may be called, and waits for nothing unless evaluators failed to start."""
        return self._job is None and self._phase in ("idle", "down")

    @property
    def prepared(self) -> bool:
        """Whether, after an evaluation that could not begin for want of its directory, all ranks have one now."""
        return self._phase == "running" and len(self._prepared) == self._size

    @property
    def pid(self) -> int | None:
        """The process id of the leader's own evaluator."""
        return self._own.pid

    @property
    def gone(self) -> bool:
        """Whether the leader's own evaluator has ended."""
        return self._own.gone

    def prepare(self) -> None:
        """Start evaluators where there are none."""
        if self._phase == "down":
            self._spawn()

    def start(self, job: Job) -> None:
        """Evaluate an individual, as soon as there are evaluators."""
        if self._job is not None:
            raise RuntimeError(f"{job.id} cannot start while {self._job.id} is being evaluated")
        self._job = job
        self._checkpoint = False
        self.prepare()
        self._dispatch()

    def listen(self, on_report: ReportHandler) -> None:
        """Let ``on_report`` decide on reports from now on."""
        self._on_report = on_report

    def receive(self, content: dict[str, Any]) -> None:
        """Take the answer of another rank's EvaluatorHost."""
        self._take(*messages.unpack(content))

    def poll(self) -> list[TaskOutcome]:
        """Serve the own evaluator and all time-outs; the outcome of an evaluation that is over, if one is."""
        self._own.poll()
        now = self._clock()
        timeout_s = self._timeout_s
        if timeout_s is not None and now >= self._since + timeout_s:
            self._time_out(timeout_s)
        elif self._limit is not None and now >= self._limit:
            self._conclude_without_stragglers()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def request_checkpoint(self) -> None:
        """Make ``trial.should_checkpoint()`` true for the individual under evaluation."""
        self._checkpoint = True
        if self._phase == "running":
            self._send(0, messages.SaveState(self._turn))

    def kill(self, status: str) -> None:
        """End the evaluation, if there is one, at once and with this status; its evaluators are killed."""
        if self._job is None:
            return
        seconds = self._clock() - self._since if self._phase == "running" else 0.0
        self._kill_evaluators()
        self._deliver(TaskOutcome(status=status, error="ended by the campaign", seconds=seconds))

    def disband(self) -> None:
        """End the evaluation, if there is one, without an outcome, and all evaluators: the worker is no more."""
        self._job = None
        self._outcomes.clear()
        self._kill_evaluators()

    def filenos(self) -> list[int]:
        """Descriptors to wait on."""
        return self._own.filenos()

    def deadline(self) -> float | None:
        """When ``poll`` must be called at the latest, by the clock; None when nothing is due."""
        due = [self._own.deadline(), self._limit]
        if self._outcomes:
            due.append(self._clock())
        if self._timeout_s is not None:
            due.append(self._since + self._timeout_s)
        return min((when for when in due if when is not None), default=None)

    def close(self, timeout_s: float = 5.0) -> None:
        """End all evaluators; waits for the own one, by force after ``timeout_s``."""
        for worker_rank in range(1, self._size):
            self._send(worker_rank, messages.Exit())
        self._enter("down")
        self._own.close(timeout_s)

    # --- answers ---------------------------------------------------------------------------------------------

    def _take(self, epoch: int, worker_rank: int, answer: messages.Answer) -> None:
        if epoch != self._epoch:
            return
        match answer:
            case messages.Ready():
                self._ready[worker_rank] = answer
                if len(self._ready) == self._size:
                    self._join()
            case messages.GroupFormed():
                if answer.generation == self._generation:
                    self._joined.add(worker_rank)
                    self._dispatch_when_joined()
            case messages.Prepared():
                if self._runs(answer.turn):
                    self._prepared.add(worker_rank)
            case messages.ReportMade():
                self._send(0, messages.ReportVerdict(answer.number, self._decide(answer)))
            case messages.EvaluationOver():
                if self._runs(answer.turn):
                    self._end_on(worker_rank, answer)
            case messages.Waits():
                self._end_vain_wait(worker_rank, answer)
            case messages.EvaluatorAlive():
                if self._runs(answer.turn):
                    self._outlived.add(worker_rank)
                    self._free_the_others()
            case messages.EvaluatorBroken():
                # While ranks start, all say the same, and the first suffices. While they run, it is a device that the
                # task was the first to ask for.
                if self._phase in ("starting", "running"):
                    self._unusable += self._phase == "running"
                    self._fail_start(FAILED, answer.error)
            case messages.Died():
                self._on_death(worker_rank, answer.error)
            case messages.Warned():
                self._on_warning(answer.text)
            case _:
                raise TypeError(f"no handler for {answer!r}")

    def _decide(self, report: messages.ReportMade) -> Verdict:
        if self._job is None or not self._runs(report.turn):
            return GO
        return self._on_report(
            TrialReport(self._job.id, report.step, report.value, report.last_step, report.saves)
        )

    def _end_vain_wait(self, worker_rank: int, answer: messages.Waits) -> None:
        """End the evaluation where the rank waits for a rank that will not come."""
        if not self._runs(answer.turn) or worker_rank in self._finished or self._failure is not None:
            return
        self._waiting.waits(worker_rank, answer)
        if self._waiting.in_vain:
            outcome = self._finished[0].outcome if 0 in self._finished else TaskOutcome(status=FAILED)
            error = "\n".join(filter(None, (outcome.error, self._waiting.sentence)))
            seconds = outcome.seconds or self._clock() - self._since
            self._conclude(replace(outcome, error=error, seconds=seconds))

    def _runs(self, turn: int) -> bool:
        return self._phase == "running" and turn == self._turn

    # --- starting --------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        self._epoch += 1
        self._ready.clear()
        self._enter("starting")
        self._broadcast(messages.Spawn(self._settings.start_timeout_s))

    def _join(self) -> None:
        """Let all ranks form a new group; a worker of one rank has none."""
        self._generation += 1
        self._joined.clear()
        self._enter("starting")
        if self._size == 1:
            self._joined.add(0)
            self._dispatch_when_joined()
            return
        places = [(self._ready[rank].host, self._ready[rank].gpu) for rank in range(self._size)]
        self._broadcast(
            messages.FormGroup(
                generation=self._generation,
                address=self._ready[0].address,
                backend=choose_backend(places),
                start_timeout_s=self._settings.start_timeout_s,
                timeout_s=self._settings.timeout_s,
            )
        )

    def _dispatch_when_joined(self) -> None:
        if self._phase == "starting" and len(self._joined) == self._size:
            self.failed_starts = 0
            self._enter("idle")
            self._dispatch()

    def _fail_start(self, status: str, error: str) -> None:
        self.failed_starts = max(self.failed_starts + 1, self._unusable)
        self._kill_evaluators()
        if self._job is not None:
            self._deliver(TaskOutcome(status=status, error=error))

    # --- evaluating ------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._job is None or self._phase != "idle":
            return
        self._turn += 1
        self._finished.clear()
        self._waiting.clear()
        self._failure = None
        self._outlived.clear()
        self._prepared.clear()
        self._enter("running")
        self._broadcast(
            messages.Evaluate(self._turn, self._job, self._settings.timeout_s, confirm=self._storage_failed)
        )
        if self._checkpoint:
            self.request_checkpoint()

    def _end_on(self, worker_rank: int, answer: messages.EvaluationOver) -> None:
        """The evaluation has ended on this rank."""
        self._finished[worker_rank] = answer
        self._waiting.ended(worker_rank)
        first = answer.outcome.status == FAILED and self._failure is None
        if first:
            self._failure = answer.outcome
            self._limit = self._clock() + self.failure_grace_s
        elif worker_rank == 0 and self._failure is None:
            self._limit = self._clock() + self.straggler_s
        if len(self._finished) == self._size:
            self._conclude_whole()
        elif first:
            # Errors follow from deaths, and deaths from errors: NCCL ends ranks whose peer has left. As long as the
            # failed rank holds its group, a rank that still lives has not died of this failure, nor caused it.
            for other in set(range(self._size)) - set(self._finished):
                self._send(other, messages.Probe(self._turn))
        elif self._failure is not None:
            self._free_the_others()

    def _free_the_others(self) -> None:
        """Ranks that wait in a collective for a rank that has ended get an error when that leaves the group.

        Only now may it leave, so that the first failure is known before those that follow from it."""
        if len(self._outlived | set(self._finished)) == self._size:
            for ended in self._finished:
                self._send(ended, messages.LeaveGroup())

    def _conclude_whole(self) -> None:
        """All ranks have ended by themselves."""
        outcome = self._judged()
        self._unusable = 0
        ended = list(self._finished.values())
        self._enter("idle")
        if self._settings.isolation == "fresh" or any(over.replace for over in ended):
            self._broadcast(messages.Exit())
            self._deliver(outcome)
            self._spawn()
            return
        self._deliver(outcome)
        if self._size > 1 and (self._failure is not None or any(over.regroup for over in ended)):
            self._join()

    def _conclude_without_stragglers(self) -> None:
        """Some ranks go on although the worker's result is known: the next individual cannot wait for them."""
        outcome = self._judged()
        if self._failure is None:
            waited = f"{self.straggler_s:g} s after rank 0 had ended"
            late = f"{self._missing(set(self._finished))} {waited}, and was killed."
            outcome = replace(outcome, error=late if outcome.error is None else f"{outcome.error}\n{late}")
        self._conclude(outcome)

    def _judged(self) -> TaskOutcome:
        """The worker's outcome: what kept a rank from beginning, else the first failure, else rank 0's outcome."""
        for over in self._finished.values():
            if over.outcome.storage:
                return over.outcome
        if self._failure is not None and 0 not in self._finished:
            return self._failure
        leader = self._finished[0].outcome  # without a failure it is over only once this rank has ended
        if self._failure is not None:
            more = {"metrics": leader.metrics, "remarks": leader.remarks, "seconds": leader.seconds}
            leader = replace(self._failure, **more)
        ended = [self._finished.get(rank) for rank in range(self._size)]
        return with_joules(leader, [None if over is None else over.joules for over in ended])

    def _conclude(self, outcome: TaskOutcome) -> None:
        """The evaluation is over, but not its evaluators: kill them and start others."""
        self._unusable = 0
        self._kill_evaluators()
        self._deliver(outcome)
        self._spawn()

    def _time_out(self, timeout_s: float) -> None:
        if self._phase == "starting":
            started = self._joined if len(self._ready) == self._size else set(self._ready)
            waited = f"{timeout_s:g} s (start_timeout)"
            self._fail_start(
                CRASHED, f"the evaluators were not ready within {waited}; {self._missing(started)}."
            )
            return
        error = (
            f"not over after {timeout_s:g} s (timeout); {self._missing(set(self._finished))}.",
            self._waiting.sentence,
            "Where each thread was stands at the end of its output.",
        )
        seconds = self._clock() - self._since
        self._conclude(TaskOutcome(status=TIMEOUT, error=" ".join(filter(None, error)), seconds=seconds))

    def _on_death(self, worker_rank: int, error: str) -> None:
        if self._phase == "running":
            if self._failure is not None and (worker_rank in self._finished or worker_rank in self._outlived):
                self._conclude(self._judged())  # the failure came first, and has a traceback
            else:
                seconds = self._clock() - self._since
                self._conclude(TaskOutcome(status=CRASHED, error=error, seconds=seconds))
        elif self._phase == "starting":
            self._fail_start(CRASHED, error)
        elif self._phase == "idle":
            self._kill_evaluators()
            self._spawn()

    def _deliver(self, outcome: TaskOutcome) -> None:
        self._job = None
        self._storage_failed = outcome.storage
        self._outcomes.append(outcome)

    # --- both ------------------------------------------------------------------------------------------------

    @property
    def _timeout_s(self) -> float | None:
        if self._phase == "starting":
            return self._settings.start_timeout_s
        return self._settings.timeout_s if self._phase == "running" else None

    def _enter(self, phase: Literal["down", "starting", "idle", "running"]) -> None:
        self._phase = phase
        self._since = self._clock()
        self._limit = None

    def _kill_evaluators(self) -> None:
        self._broadcast(messages.Kill())
        self._enter("down")

    def _missing(self, present: set[int]) -> str:
        absent = [str(rank) for rank in range(self._size) if rank not in present]
        return f"worker rank{'s' if len(absent) > 1 else ''} {', '.join(absent)} still ran"

    def _broadcast(self, order: messages.CrewOrder) -> None:
        for worker_rank in range(self._size):
            self._send(worker_rank, order)

    def _send(self, worker_rank: int, order: messages.CrewOrder) -> None:
        if worker_rank == 0:
            self._own.follow(self._epoch, order)
        else:
            self._send_other(worker_rank, messages.pack(self._epoch, worker_rank, order))
