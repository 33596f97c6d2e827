"""The evaluator process: joins its worker's process group, runs the task, and reports how it ended to its control rank.

Started as ``python -m hpo.evaluation.process.evaluator FD`` by ``hpo.evaluation.evaluator_process``; FD is its end of a
socket pair. Imports torch only for workers of several ranks.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import socket
import sys
import time
import traceback
from pathlib import Path

from msgspec.structs import replace

from hpo import logs
from hpo.errors import HpoError
from hpo.evaluation import conversation as messages
from hpo.evaluation import gpu
from hpo.evaluation.gpu import DeviceLink, OwnDevice, evaluator_device
from hpo.evaluation.process.control_socket import ControlSocket
from hpo.evaluation.process.energy import EnergyMeter, counters_of, filled
from hpo.evaluation.process.global_state import GlobalState, Seeder
from hpo.evaluation.process.output_capture import OutputCapture
from hpo.evaluation.process.task_groups import TaskGroups
from hpo.evaluation.process.torch_state import accept_repetition
from hpo.evaluation.process.wait_watch import Wait
from hpo.evaluation.process.when_imported import when_imported
from hpo.evaluation.process.worker_group import CHECKPOINT, REPORT, WorkerGroup
from hpo.evaluation.process_tree import kill_started_since
from hpo.evaluation.recording import Recording
from hpo.individual import COMPLETED, FAILED
from hpo.search.protocols import GO, PAUSE, STOP, Verdict
from hpo.task.outcome import JOULES, TaskOutcome, describe_exception
from hpo.task.trial import Job, Trial, attempt
from hpo.task.trial_directory import OUTPUT, check_place, clear_directory, not_begun
from hpo.text import excerpt

_log = logging.getLogger("hpo.evaluation")

_HELLO_S = 60.0
_DUMP_LEAD_S = 0.2
"""Stacks are written this long before the time-out."""
_VERDICTS: tuple[Verdict, ...] = (GO, STOP, PAUSE)
_LEFT_BEHIND = (
    "the evaluation changed what cannot be put back ({}): the next evaluation gets a new evaluator, which imports the "
    "task again. Set or begin it at the top of the task's module, or undo it before `evaluate` returns."
)


class EvaluatorLink(DeviceLink):
    """A trial's way to the campaign through the control rank, and to the other ranks through the group."""

    comm: object | None = None

    def __init__(
        self, channel: ControlSocket, group: WorkerGroup | None, rank: int, device: OwnDevice
    ) -> None:
        super().__init__(device, lambda text: channel.send(messages.Warned(text)))
        self._channel = channel
        self._group = group
        self._rank = rank
        self._turn = 0
        self._saves = False
        self._pause = False

    def begin(self, turn: int) -> None:
        """The next evaluation begins."""
        self._turn = turn
        self._saves = self._pause = False

    def report(self, step: int, value: float, last_step: int | None) -> bool:
        verdict: Verdict = GO
        if self._rank == 0:
            verdict = self._channel.ask(self._turn, step, value, last_step=last_step, saves=self._saves)
        if self._group is not None:
            verdict = _VERDICTS[self._group.agree(self._turn, REPORT, _VERDICTS.index(verdict))]
        self._pause = verdict == PAUSE
        return verdict == STOP

    def should_checkpoint(self) -> bool:
        self._saves = True
        asked = self._pause or self._channel.checkpoint_turn == self._turn
        return asked if self._group is None else bool(self._group.agree(self._turn, CHECKPOINT, asked))

    def should_checkpoint_soon(self) -> bool:
        self._saves = True
        asked = self._channel.checkpoint_turn == self._turn
        if self._pause or self._group is None:  # all ranks know the verdict on a report
            return self._pause or asked
        return self._group.announcement.ask(asked)


class Evaluator:
    """Serves one rank: follows the orders from the channel until ``Exit``."""

    def __init__(self, channel: ControlSocket, hello: messages.EvaluatorHello) -> None:
        context = hello.context
        self._channel = channel
        self._rank = context.worker_rank
        self._size = context.size
        self._local_rank = context.worker_local_rank
        self._label = context.label
        self._output = OutputCapture()
        self._seeder = Seeder()
        when_imported({"torch": accept_repetition})
        self._device = evaluator_device(os.environ, hello.device, self._label)
        self._recording = Recording(context.curve, self._device.index)
        self._energy = EnergyMeter(counters_of(os.environ, hello.device, context))
        # Before torch is imported, here or by the task.
        self._task_groups = TaskGroups()
        self._group = (
            WorkerGroup(context, self._device, self._task_groups, self._send_wait) if self._size > 1 else None
        )
        self._link = EvaluatorLink(channel, self._group, self._rank, self._device)
        self._task = context.source.load()
        self._objectives = tuple(self._task.objectives)
        self._state = GlobalState()
        self._left: list[str] = []
        """Kinds of global state that the evaluation has changed and that cannot be put back."""
        self._modules = 0
        self._turn = 0

    def serve(self) -> None:
        """Say that this rank is ready, and follow orders."""
        self._clean()
        self._channel.send(
            messages.Ready(
                host=socket.gethostname(),
                gpu=None if self._group is None else self._group.gpu,
                address=None if self._group is None else self._group.address,
            )
        )
        while True:
            order = self._channel.receive()
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("the rank orders %s", excerpt(order))
            if isinstance(order, messages.Exit):
                self._leave_or_end()
                return
            if isinstance(order, messages.Evaluate):
                self._evaluate(order)
                continue
            self._state.changed()  # forming a group sets environment variables
            if isinstance(order, messages.FormGroup) and self._group is not None:
                self._group.join(order)
                _log.debug("the worker's group %d is formed", order.generation)
                self._channel.send(messages.GroupFormed(order.generation))
            elif isinstance(order, messages.LeaveGroup):
                self._leave_or_end()
            else:
                raise TypeError(f"an evaluator does not follow {order!r}")

    def _leave_or_end(self) -> None:
        """A group that cannot be left, as when NCCL is in trouble, would be in the way of the next one. How the
        evaluation ended has been reported; at this process's end the others are freed as well."""
        try:
            if self._group is not None:
                self._group.leave()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def _evaluate(self, order: messages.Evaluate) -> None:
        self._turn = order.turn
        self._left = []
        self._link.begin(self._turn)
        job = order.job
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            check_place(Path(job.directory))
            if self._rank == 0 and not job.resumed:
                clear_directory(Path(job.directory))
            self._output.open(Path(job.directory, f"{OUTPUT}{self._rank}.txt"))
        except OSError as error:
            outcome = not_begun(error, job.directory)
        else:
            if order.confirm:
                self._channel.send(messages.Prepared(order.turn))
            outcome = self._attempt(job, order.timeout_s)
            if self._left:
                text = _LEFT_BEHIND.format(", ".join(self._left))
                _log.warning("%s", text)
                self._channel.send(messages.Warned(text))
            self._output.close()
            self._link.warn()
            fault = self._device.take_fault()
            if fault is not None:  # whatever the task made of it: the individual is not to blame
                self._channel.send(messages.EvaluatorBroken(fault))
                return
        failed = outcome.status == FAILED and not outcome.storage
        if self._size > 1 and failed:
            outcome = replace(outcome, error=f"{self._label}: {outcome.error}")
        # A GPU's error may poison all later calls of the process, and need not have reached the task, or ended it. Once
        # it failed nothing is awaited: kernels may wait for ranks that never come.
        poisoned = bool(self._left) or (gpu.in_use() is not None and (failed or not gpu.healthy()))
        if outcome.status != COMPLETED and not outcome.storage:
            # Processes that it started may hold a GPU, and would go on beside the next evaluations. These get another
            # evaluator: a pool that lost its workers is of no use.
            poisoned = kill_started_since(began) or poisoned
        # Where a worker failed, it leaves all groups when the first failure is known.
        poisoned = poisoned or ((self._size == 1 or not failed) and not self._task_groups.tidy())
        self._channel.send(
            messages.EvaluationOver(
                turn=order.turn,
                outcome=outcome,
                replace=poisoned,
                regroup=self._group is not None and not self._task_groups.whole,
                joules=self._energy.end(),
            )
        )
        if not poisoned:
            self._clean()
            # Generators that end only now restore what they had found when they began.
            self._state.restore()

    def _attempt(self, job: Job, timeout_s: float | None) -> TaskOutcome:
        trial = Trial(
            self._link,
            job,
            rank=self._rank,
            size=self._size,
            local_rank=self._local_rank,
            curve=self._recording.curve,
        )
        self._recording.begin(job)
        self._energy.begin()
        if timeout_s is not None:
            faulthandler.dump_traceback_later(timeout_s - min(_DUMP_LEAD_S, timeout_s / 2), file=2)
        try:
            return self._recording.finish(attempt(self._call, trial, self._objectives, self._task.limits))
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _clean(self) -> None:
        """Free models in reference cycles, whose memory the next model needs, and what torch keeps of them on the GPU.

        Objects of modules are set aside whenever more modules have been imported, or each collection would look through
        all of torch, which takes 0.2 s."""
        gc.collect()
        gpu.free()
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()

    def _send_wait(self, wait: Wait) -> None:
        self._channel.send(
            messages.Waits(turn=self._turn, call=wait.call, of_all=wait.of_all, large=wait.large)
        )

    def _call(self, trial: Trial) -> object:
        """The task, begun on all ranks at once: when rank 0 has emptied the directory."""
        if self._group is not None:
            self._group.begin(self._turn)
        self._task_groups.begin(self._turn)
        self._seeder.seed(trial.seed)
        self._state.begin()
        try:
            returned = self._task.run(trial)
            joules = self._energy.end()
            if joules is not None and JOULES in {*self._task.limits.names} - {*self._objectives}:
                trial.metrics.setdefault(JOULES, joules)
            return filled(returned, self._objectives, joules)
        finally:
            if self._group is not None:
                self._group.end()
            self._left = self._state.restore()


def main(arguments: list[str]) -> int:
    """Serve the control rank at the other end of the socket that ``arguments[0]`` numbers."""
    faulthandler.enable(file=2, all_threads=False)
    logs.follow_rank()
    channel = ControlSocket(int(arguments[0]))
    hello = channel.receive(_HELLO_S)
    if not isinstance(hello, messages.EvaluatorHello):
        raise TypeError(f"the first order to an evaluator is EvaluatorHello, not {hello!r}")
    try:
        evaluator = Evaluator(channel, hello)
    except (Exception, SystemExit) as error:  # the task's module runs in there
        text = str(error) if isinstance(error, HpoError) else describe_exception(error)
        channel.send(messages.EvaluatorBroken(f"{hello.context.label} could not load the task: {text}"))
        return 1
    evaluator.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
