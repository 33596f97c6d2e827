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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from hpo.evaluation.conversation import (
    Evaluate,
    EvaluationOver,
    pack_answer,
    pack_order,
    unpack_answer,
    unpack_order,
)
from hpo.evaluation.cuda import OwnDevice
from hpo.evaluation.recording import Recording
from hpo.individual import FAILED
from hpo.journal.curves import CurveFile
from hpo.search.protocols import GO, PAUSE, STOP, ReportHandler, TrialReport
from hpo.task.outcome import TaskOutcome
from hpo.task.trial import Job, Trial, attempt
from hpo.task.trial_directory import check_place, clear_directory, not_begun


class Communicator(Protocol):
    """What is needed of mpi4py's communicator."""

    def bcast(self, obj: Any, root: int = 0) -> Any: ...


class InlineLink:
    """A trial's way to the campaign where both are one process."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        comm: Communicator | None,
        device: OwnDevice | None,
        lock: threading.Lock,
        on_report: ReportHandler,
        stopping: Callable[[], bool],
        on_warning: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._device = device or OwnDevice()
        self._on_warning = on_warning
        self._lock = lock
        self.comm: object | None = comm
        self.id = ""
        self._rank = rank
        self._agreement = comm if size > 1 else None
        self._on_report = on_report
        self._stopping = stopping
        self._saves = False
        self._pause = False

    def listen(self, on_report: ReportHandler) -> None:
        """Have another decide on reports from now on."""
        self._on_report = on_report

    @property
    def device(self) -> str:
        name = self._device.name
        self._warn()
        return name

    def _warn(self) -> None:
        text = self._device.take_warning()
        if text is not None:
            self._on_warning(text)

    def attempt(
        self, evaluate: Callable[[Trial], object], trial: Trial, objectives: tuple[str, ...]
    ) -> tuple[TaskOutcome, bool]:
        """How the evaluation ended, and whether it was for this rank's device, which does not work."""
        self.id = trial.id
        self._saves = self._pause = False
        outcome = attempt(evaluate, trial, objectives)
        self._warn()
        fault = self._device.take_fault()
        if fault is None:
            return outcome, False
        return TaskOutcome(status=FAILED, error=fault), True  # whatever the task made of it

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        verdict = GO
        if self._rank == 0:
            with self._lock:
                verdict = self._on_report(TrialReport(self.id, step, value, last_step, self._saves))
        self._pause = verdict == PAUSE
        return self._agree(verdict == STOP)

    def should_checkpoint(self) -> bool:
        self._saves = True
        return self._agree(self._rank == 0 and (self._pause or self._stopping()))

    def should_checkpoint_soon(self) -> bool:
        return self.should_checkpoint()

    def _agree(self, answer: bool) -> bool:
        return answer if self._agreement is None else bool(self._agreement.bcast(answer, root=0))


@dataclass(frozen=True, kw_only=True)
class WorkerRanks:
    """The ranks of a worker. ``comm``: their communicator; with several ranks it is needed, and so is
    ``send(worker_rank, content)`` to the InlineHost of another rank."""

    size: int = 1
    comm: Communicator | None = None
    send: Callable[[int, dict[str, Any]], None] | None = None


class InlineCrew:
    """Has the face of ``hpo.evaluation.crew.ProcessCrew``; what ``start`` took is evaluated by ``evaluate``.

    ``ranks``: those of the worker, None for one. ``stopping``: whether this process knows already that the campaign
    wants to stop. ``curve``: where reports are kept.
    """

    def __init__(
        self,
        *,
        evaluate: Callable[[Trial], object],
        objectives: tuple[str, ...],
        ranks: WorkerRanks | None = None,
        stopping: Callable[[], bool] = lambda: False,
        on_warning: Callable[[str], None] = lambda text: None,
        device: OwnDevice | None = None,
        curve: CurveFile | None = None,
    ) -> None:
        ranks = ranks or WorkerRanks()
        if ranks.size > 1 and (ranks.comm is None or ranks.send is None):
            raise ValueError(f"a worker of {ranks.size} ranks needs comm and send")
        self._evaluate = evaluate
        self._objectives = objectives
        self._size = ranks.size
        self._send = ranks.send
        self.lock = threading.Lock()
        self._stop_asked = False
        self._link = InlineLink(
            rank=0,
            size=ranks.size,
            comm=ranks.comm,
            device=device,
            lock=self.lock,
            on_report=lambda report: GO,
            stopping=lambda: self._stop_asked or stopping(),
            on_warning=on_warning,
        )
        self._recording = Recording(curve, 0 if device is None else device.index)
        self._turn = 0
        self._finished: dict[int, TaskOutcome] = {}
        self._outcomes: list[TaskOutcome] = []
        self._unusable = False
        self._own: Trial | None = None  # from start to the end of this rank's part
        self._killed: str | None = None
        self.busy = False
        self.failed_starts = 0
        """How many individuals in a row met a device that does not work: the host is at fault, none of them."""

    @property
    def ready(self) -> bool:
        """Whether ``start`` may be called."""
        return not self.busy and self._own is None

    @property
    def prepared(self) -> bool:
        """Nothing is known of an evaluation before its end."""
        return False

    def prepare(self) -> None:
        """There is nothing to prepare."""

    def start(self, job: Job) -> None:
        """Take an individual; its outcome is there when ``evaluate`` returns, or the other ranks have sent theirs."""
        if not self.ready:
            raise RuntimeError(f"{job.id} cannot start while another individual is being evaluated")
        self.busy = True
        self._stop_asked = False
        self._killed = None
        self._turn += 1
        self._finished.clear()
        self._unusable = False
        several = self._send is not None and self._size > 1
        try:
            check_place(Path(job.directory))
            if several and not job.resumed:
                clear_directory(Path(job.directory))  # before any rank may write there
        except OSError as error:
            self.busy = False
            self._outcomes.append(not_begun(error, job.directory))
            return
        if self._send is not None and several:
            for worker_rank in range(1, self._size):
                self._send(worker_rank, pack_order(0, Evaluate(self._turn, job)))
        self._own = Trial(
            self._link,
            job,
            size=self._size,
            stale=self._size == 1 and not job.resumed,
            curve=self._recording.curve,
        )
        self._recording.begin(job)

    @property
    def pending(self) -> bool:
        """Whether ``evaluate`` is to be called."""
        return self._own is not None

    def evaluate(self) -> None:
        """Evaluate what was started, here and now, without the lock."""
        assert self._own is not None
        outcome, unusable = self._link.attempt(self._evaluate, self._own, self._objectives)
        outcome = self._recording.finish(outcome)
        with self.lock:
            self._own = None
            if self.busy:
                self._finish(0, outcome, unusable)
                if self._killed is not None:
                    self.kill(self._killed)

    def receive(self, content: dict[str, Any]) -> None:
        """Take the answer of another rank's InlineHost."""
        _, worker_rank, answer = unpack_answer(content)
        if self.busy and isinstance(answer, EvaluationOver) and answer.turn == self._turn:
            self._finish(worker_rank, answer.outcome, answer.unusable)

    def poll(self) -> list[TaskOutcome]:
        """The outcome of an evaluation that is over."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def listen(self, on_report: ReportHandler) -> None:
        """Have another decide on reports from now on."""
        self._link.listen(on_report)

    def request_checkpoint(self) -> None:
        """Make ``trial.should_checkpoint()`` true for the individual under evaluation."""
        self._stop_asked = True

    def kill(self, status: str) -> None:
        """Wait for other ranks no longer; what they and this one do cannot be ended."""
        if self._own is not None:
            self._killed = status
        elif self.busy:
            self.busy = False
            self._outcomes.append(TaskOutcome(status=status, error="ended by the campaign"))

    def disband(self) -> None:
        """The worker is no more: wait for no other rank."""
        self.busy = False
        self._outcomes.clear()

    @property
    def gone(self) -> bool:
        """Whether nothing is evaluated here."""
        return self._own is None

    def filenos(self) -> list[int]:
        """There is nothing to wait on."""
        return []

    def deadline(self) -> float | None:
        """Nothing is ever due."""
        return None

    def close(self, timeout_s: float = 0.0) -> None:
        """Keep no reports any more; there is nothing else to close."""
        self._recording.close()

    def _finish(self, worker_rank: int, outcome: TaskOutcome, unusable: bool) -> None:
        self._finished[worker_rank] = outcome
        self._unusable |= unusable
        if len(self._finished) == self._size:
            self.busy = False
            self.failed_starts = self.failed_starts + 1 if self._unusable else 0
            failed = [one for one in self._finished.values() if one.status == FAILED]
            failed.sort(key=lambda one: not one.storage)
            self._outcomes.append(failed[0] if failed else self._finished[0])


class InlineHost:
    """Has the face of ``hpo.evaluation.evaluator_host.EvaluatorHost``; what ``receive`` took is evaluated by
    ``evaluate``."""

    def __init__(
        self,
        *,
        worker_rank: int,
        local_rank: int = 0,
        size: int,
        evaluate: Callable[[Trial], object],
        objectives: tuple[str, ...],
        comm: Communicator,
        send: Callable[[dict[str, Any]], None],
        device: OwnDevice | None = None,
    ) -> None:
        self._worker_rank = worker_rank
        self._local_rank = local_rank
        self._size = size
        self._evaluate = evaluate
        self._objectives = objectives
        self._send = send
        self.lock = threading.Lock()
        self._order: Evaluate | None = None  # until its end
        self._link = InlineLink(
            rank=worker_rank,
            size=size,
            comm=comm,
            device=device,
            lock=self.lock,
            on_report=lambda report: GO,
            stopping=lambda: False,
        )

    def receive(self, content: dict[str, Any]) -> None:
        """Take what is to be evaluated with the other ranks."""
        _, order = unpack_order(content)
        if not isinstance(order, Evaluate):
            raise TypeError(f"a rank that evaluates inline does not follow {order!r}")
        self._order = order

    @property
    def pending(self) -> bool:
        """Whether ``evaluate`` is to be called."""
        return self._order is not None

    def evaluate(self) -> None:
        """Evaluate, here and now, without the lock, and send the outcome to the InlineCrew."""
        assert self._order is not None
        order = self._order
        trial = Trial(
            self._link, order.job, rank=self._worker_rank, size=self._size, local_rank=self._local_rank
        )
        outcome, unusable = self._link.attempt(self._evaluate, trial, self._objectives)
        if outcome.status == FAILED and not unusable:
            outcome = replace(outcome, error=f"worker rank {self._worker_rank}: {outcome.error}")
        over = EvaluationOver(turn=order.turn, outcome=outcome, unusable=unusable)
        with self.lock:
            self._order = None
            self._send(pack_answer(0, self._worker_rank, over))

    def poll(self) -> bool:
        """Nothing happens by itself."""
        return False

    def disband(self) -> None:
        """The worker is no more; what is evaluated here cannot be ended."""

    @property
    def gone(self) -> bool:
        """Whether nothing is evaluated here."""
        return self._order is None

    def filenos(self) -> list[int]:
        """There is nothing to wait on."""
        return []

    def deadline(self) -> float | None:
        """Nothing is ever due."""
        return None

    def close(self, timeout_s: float = 0.0) -> None:
        """There is nothing to close."""
