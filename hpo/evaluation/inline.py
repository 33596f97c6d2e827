"""Evaluations inside the rank (``isolation = "inline"``), for tasks of microseconds or with their own MPI code.

A crew or host takes what is to be evaluated, and ``evaluate`` does it, which the event loop calls when its turn is over
(see ``hpo.islands.background``): its ``lock`` is held by whoever calls anything else here.

Nothing protects the rank from what the task does, and there is no time-out. A worker of several ranks
evaluates on all of them at once; they agree through the worker's communicator, so that a rank which raises
while others wait for it there blocks them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from hpo.evaluation.conversation import Evaluate, EvaluationOver, pack, unpack
from hpo.evaluation.gpu import DeviceLink, OwnDevice
from hpo.evaluation.recording import Recording
from hpo.individual import FAILED
from hpo.journal.curves import CurveFile
from hpo.search.protocols import GO, PAUSE, STOP, ReportHandler, TrialReport
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Job, Trial, attempt
from hpo.task.trial_directory import check_place, clear_directory, not_begun

if TYPE_CHECKING:
    from hpo.task.task import Task


class WorkerCommunicator(Protocol):
    """The part of mpi4py's communicator that agreements need."""

    def bcast(self, obj: Any, root: int = 0) -> Any: ...


class InlineLink(DeviceLink):
    """A trial's way to the campaign where both are one process."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        comm: WorkerCommunicator | None,
        device: OwnDevice | None,
        stopping: Callable[[], bool] = lambda: False,
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(device or OwnDevice(), on_warning)
        self.lock = threading.Lock()
        self.comm: object | None = comm
        self.id = ""
        self.on_report: ReportHandler = lambda report: GO
        self._rank = rank
        self._agreement = comm if size > 1 else None
        self._stopping = stopping
        self._saves = False
        self._pause = False

    def attempt(self, task: Task, trial: Trial) -> tuple[TaskOutcome, bool]:
        """How the evaluation ended, and whether because this rank's device does not work."""
        self.id = trial.id
        self._saves = self._pause = False
        outcome = attempt(task.run, trial, tuple(task.objectives), task.limits)
        self.warn()
        fault = self._device.take_fault()
        if fault is None:
            return outcome, False
        return TaskOutcome(status=FAILED, error=fault), True  # whatever the task made of it

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        verdict = GO
        if self._rank == 0:
            with self.lock:
                verdict = self.on_report(TrialReport(self.id, step, value, last_step, self._saves))
        self._pause = verdict == PAUSE
        return self._agree(verdict == STOP)

    def should_checkpoint(self) -> bool:
        self._saves = True
        return self._agree(self._rank == 0 and (self._pause or self._stopping()))

    should_checkpoint_soon = should_checkpoint

    def _agree(self, answer: bool) -> bool:
        return answer if self._agreement is None else bool(self._agreement.bcast(answer, root=0))


class InlineRank:
    """A rank that evaluates in its own process: nothing to wait on, and nothing is ever due."""

    def __init__(self, link: InlineLink) -> None:
        self._link = link
        self.lock = link.lock
        self._trial: Trial | None = None
        """Taken and not evaluated to its end."""

    @property
    def pending(self) -> bool:
        """Whether ``evaluate`` is to be called."""
        return self._trial is not None

    @property
    def gone(self) -> bool:
        """Whether nothing is evaluated here."""
        return self._trial is None

    def filenos(self) -> list[int]:
        return []

    def deadline(self) -> float | None:
        return None


class InlineCrew(InlineRank):
    """Has the face of ``hpo.evaluation.crew.ProcessCrew``; what ``start`` took is evaluated by ``evaluate``.

    ``size``: the worker's number of ranks; if there are several, ``comm`` is their communicator, and
    ``send(worker_rank, content)`` reaches the InlineHost of another rank. ``stopping``: whether this process knows
    already that the campaign wants to stop. ``curve``: where reports are kept."""

    def __init__(
        self,
        *,
        task: Task,
        size: int = 1,
        comm: WorkerCommunicator | None = None,
        send: Callable[[int, dict[str, Any]], None] = lambda worker_rank, content: None,
        stopping: Callable[[], bool] = lambda: False,
        on_warning: Callable[[str], None] = lambda text: None,
        device: OwnDevice | None = None,
        curve: CurveFile | None = None,
    ) -> None:
        link = InlineLink(
            rank=0,
            size=size,
            comm=comm,
            device=device,
            stopping=lambda: self._stop_asked or stopping(),
            on_warning=on_warning,
        )
        super().__init__(link)
        self._task = task
        self._size = size
        self._send = send
        self._stop_asked = False
        self._recording = Recording(curve, 0 if device is None else device.index)
        self._turn = 0
        self._finished: dict[int, TaskOutcome] = {}
        self._outcomes: list[TaskOutcome] = []
        self._unusable = False
        self._killed: str | None = None
        self.busy = False
        self.prepared = False  # nothing is known of an evaluation before its end
        self.failed_starts = 0
        """How many individuals in a row met a device that does not work: the host is at fault, none of them."""

    @property
    def ready(self) -> bool:
        """Whether ``start`` may be called."""
        return not self.busy and self._trial is None

    def start(self, job: Job) -> None:
        """Take an individual; its outcome is there when ``evaluate`` returns, or the other ranks have sent theirs."""
        if not self.ready:
            raise RuntimeError(f"{job.id} cannot start while another individual is being evaluated")
        self._stop_asked = False
        self._killed = None
        self._turn += 1
        self._finished.clear()
        self._unusable = False
        several = self._size > 1
        try:
            check_place(Path(job.directory))
            if several and not job.resumed:
                clear_directory(Path(job.directory))  # before any rank may write there
        except OSError as error:
            self._outcomes.append(not_begun(error, job.directory))
            return
        self.busy = True
        for worker_rank in range(1, self._size):
            self._send(worker_rank, pack(0, worker_rank, Evaluate(self._turn, job)))
        stale = not several and not job.resumed
        self._trial = Trial(self._link, job, size=self._size, stale=stale, curve=self._recording.curve)
        self._recording.begin(job)

    def evaluate(self) -> None:
        """Evaluate what was started, here and now, without the lock."""
        assert self._trial is not None
        outcome, unusable = self._link.attempt(self._task, self._trial)
        outcome = self._recording.finish(outcome)
        with self.lock:
            self._trial = None
            if self.busy:
                self._finish(0, outcome, unusable)
                if self._killed is not None:
                    self.kill(self._killed)

    def receive(self, content: dict[str, Any]) -> None:
        """Take the answer of another rank's InlineHost."""
        _, worker_rank, answer = unpack(content)
        if self.busy and isinstance(answer, EvaluationOver) and answer.turn == self._turn:
            self._finish(worker_rank, answer.outcome, answer.unusable)

    def poll(self) -> list[TaskOutcome]:
        """The outcome of an evaluation that is over."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def listen(self, on_report: ReportHandler) -> None:
        """Let ``on_report`` decide on reports from now on."""
        self._link.on_report = on_report

    def request_checkpoint(self) -> None:
        """Make ``trial.should_checkpoint()`` true for the individual under evaluation."""
        self._stop_asked = True

    def kill(self, status: str) -> None:
        """Wait for other ranks no longer; an evaluation, here or there, cannot be ended."""
        if self._trial is not None:
            self._killed = status
        elif self.busy:
            self.busy = False
            self._outcomes.append(TaskOutcome(status=status, error="ended by the campaign"))

    def disband(self) -> None:
        """The worker is no more: wait for no other rank."""
        self.busy = False
        self._outcomes.clear()

    def close(self, timeout_s: float = 0.0) -> None:
        """Keep no reports any more; there is nothing else to close."""
        self._recording.close()

    def _finish(self, worker_rank: int, outcome: TaskOutcome, unusable: bool) -> None:
        self._finished[worker_rank] = outcome
        self._unusable |= unusable
        if len(self._finished) == self._size:
            self.busy = False
            self.failed_starts = self.failed_starts + 1 if self._unusable else 0
            failed = [ended for ended in self._finished.values() if ended.status == FAILED]
            failed.sort(key=lambda ended: not ended.storage)
            self._outcomes.append(failed[0] if failed else self._finished[0])


class InlineHost(InlineRank):
    """Has the face of ``hpo.evaluation.evaluator_host.EvaluatorHost``; what ``receive`` took is evaluated by
    ``evaluate``."""

    def __init__(
        self,
        *,
        worker_rank: int,
        local_rank: int = 0,
        size: int,
        task: Task,
        comm: WorkerCommunicator,
        send: Callable[[dict[str, Any]], None],
        device: OwnDevice | None = None,
    ) -> None:
        super().__init__(InlineLink(rank=worker_rank, size=size, comm=comm, device=device))
        self._worker_rank = worker_rank
        self._local_rank = local_rank
        self._size = size
        self._task = task
        self._send = send
        self._turn = 0

    def receive(self, content: dict[str, Any]) -> None:
        """Take what is to be evaluated with the other ranks."""
        _, _, order = unpack(content)
        assert isinstance(order, Evaluate), order
        self._turn = order.turn
        self._trial = Trial(
            self._link, order.job, rank=self._worker_rank, size=self._size, local_rank=self._local_rank
        )

    def evaluate(self) -> None:
        """Evaluate, here and now, without the lock, and send the outcome to the InlineCrew."""
        assert self._trial is not None
        outcome, unusable = self._link.attempt(self._task, self._trial)
        if outcome.status == FAILED and not unusable:
            outcome = replace(outcome, error=f"worker rank {self._worker_rank}: {outcome.error}")
        over = EvaluationOver(turn=self._turn, outcome=outcome, unusable=unusable)
        with self.lock:
            self._trial = None
            self._send(pack(0, self._worker_rank, over))

    def poll(self) -> bool:
        return False

    def disband(self) -> None:
        """The worker is no more; an evaluation here cannot be ended."""

    def close(self, timeout_s: float = 0.0) -> None:
        """There is nothing to close."""
