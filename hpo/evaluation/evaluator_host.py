"""One rank's part in evaluations: it keeps an evaluator process for its worker's crew. Nothing here waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpo.evaluation import conversation as messages
from hpo.evaluation.evaluator_process import EvaluatorGuard, EvaluatorProcess, tail, wait_readable
from hpo.task.trial_directory import OUTPUT

_RETIREMENT_S = 10.0
"""How long an evaluator that is no longer needed may take to end by itself."""
_HOLD = 0.75
"""Part of start_timeout after which an evaluator that is ready is used, whatever the former evaluator still holds."""
_POLL_S = 0.02
"""How often to look where the kernel cannot wake us."""


class EvaluatorHost:
    """Keeps the evaluator of one rank for the crew of its worker. ``send``: takes epoch and answer to the crew."""

    def __init__(
        self,
        *,
        worker_rank: int,
        child_factory: Callable[[], EvaluatorProcess],
        send: Callable[[int, messages.Answer], None],
        clock: Callable[[], float] = time.monotonic,
        guard: EvaluatorGuard | None = None,
    ) -> None:
        self._worker_rank = worker_rank
        self._factory = child_factory
        self._send = send
        self._clock = clock
        self._epoch = -1
        self._child: EvaluatorProcess | None = None
        self._leaving: list[tuple[float, EvaluatorProcess]] = []
        self._held: tuple[float, messages.Answer] | None = None
        """Until when an answer is kept from the crew: it says that a new evaluator is ready."""
        self._hold_until = 0.0
        self._guard = EvaluatorGuard() if guard is None else guard
        self._output: Path | None = None
        self._printed = 0

    @property
    def pid(self) -> int | None:
        """The evaluator's process id, None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def gone(self) -> bool:
        """Whether no evaluator is left."""
        return self._child is None and not self._leaving

    def receive(self, content: dict[str, Any]) -> None:
        """Follow an order that came from another rank."""
        epoch, _, order = messages.unpack(content)
        self.follow(epoch, order)

    def follow(self, epoch: int, order: messages.CrewOrder) -> None:
        """Follow an order of the crew, or pass it on to the evaluator."""
        if isinstance(order, messages.Spawn):
            self._spawn(epoch)
            self._hold_until = self._clock() + _HOLD * order.start_timeout_s
        elif epoch == self._epoch and self._child is not None:
            if isinstance(order, messages.Kill):
                self._drop(kill=True)
            elif isinstance(order, messages.Exit):
                self._drop(kill=False)
            elif isinstance(order, messages.Probe):
                if not self._child.ending:
                    self._answer(messages.EvaluatorAlive(order.turn))
            else:
                if isinstance(order, messages.Evaluate):
                    self._output = Path(order.job.directory, f"{OUTPUT}{self._worker_rank}.txt")
                    self._printed = 0
                    with suppress(OSError):  # there is none yet
                        self._printed = self._output.stat().st_size
                self._child.send(order)

    def poll(self) -> bool:
        """Pass on what the evaluator said and notice its end; True when there was something. Never waits."""
        self._release_ended()
        child = self._child
        if child is None:
            return False
        child.flush()
        cause = child.ended()  # asked before reading: what it said last is there by then
        answers = child.receive()
        for answer in answers:
            if isinstance(answer, messages.EvaluationOver):
                self._output = None
            if isinstance(answer, messages.Ready) and child.has_device and self._leaving:
                # The former evaluator may still hold memory of the device, which the next individual would lack.
                self._held = min(self._clock() + 2 * _RETIREMENT_S, self._hold_until), answer
                continue
            self._answer(answer)
            if self._child is not child:  # the crew has just replaced it; the rest would bear the new epoch
                return True
        if self._held is not None and (not self._leaving or self._clock() >= self._held[0]):
            (_, answer), self._held = self._held, None
            self._answer(answer)
        if cause is not None:
            printed = child.spooled() if self._output is None else tail(self._output, self._printed)
            self._drop(kill=True)
            # Lines of their own: the first alone stands for the error where there is room for one line.
            last = f"\nIt last printed:\n{printed}" if printed else ""
            self._answer(messages.Died(f"{child.label} {cause}.{last}"))
        return bool(answers) or cause is not None

    def disband(self) -> None:
        """End the evaluator at once: the worker is no more."""
        self._drop(kill=True)

    def filenos(self) -> list[int]:
        """Descriptors to wait on."""
        waiting = [] if self._child is None else self._child.filenos()
        for _, child in self._leaving:
            waiting += child.filenos()[-1:]
        return waiting

    def deadline(self) -> float | None:
        """When ``poll`` must be called at the latest, by the clock."""
        due = [when for when, _ in self._leaving]
        if self._held is not None:
            due.append(self._held[0])
        if any(child.must_be_polled for child in self._children()):
            due.append(self._clock() + _POLL_S)
        return min(due, default=None)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the evaluator, by force after ``timeout_s``. This waits, at most one second longer than that."""
        self._drop(kill=False)
        self._await_ends(timeout_s)
        for _, child in self._leaving:
            child.kill()
        self._await_ends(1.0)
        self._guard.close()

    def _await_ends(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while self._leaving and time.monotonic() < end:
            wait_readable(self.filenos(), min(_POLL_S, end - time.monotonic()))
            self._release_ended()

    def _spawn(self, epoch: int) -> None:
        self._drop(kill=False)
        self._epoch = epoch
        try:
            self._child = self._factory()
        except OSError as error:
            self._answer(messages.Died(f"no evaluator could be started: {error}"))
        self._watch()

    def _drop(self, *, kill: bool) -> None:
        """Let go of the evaluator. While it evaluates it is killed: its result is not awaited."""
        child, self._child = self._child, None
        self._held = None
        if child is None:
            return
        if kill or self._output is not None:
            child.kill()
        else:
            child.send(messages.Exit())
        self._output = None
        self._leaving.append((self._clock() + _RETIREMENT_S, child))

    def _release_ended(self) -> None:
        staying: list[tuple[float, EvaluatorProcess]] = []
        for when, child in self._leaving:
            child.receive()  # nothing waits for what it still says
            if child.ended() is None:
                child.flush()
                if self._clock() >= when:
                    child.kill()
                    when = self._clock() + _RETIREMENT_S
                staying.append((when, child))
            else:
                child.release()
        gone = len(staying) < len(self._leaving)
        self._leaving = staying
        if gone:
            self._watch()

    def _watch(self) -> None:
        self._guard.watch(child.pid for child in self._children())

    def _children(self) -> list[EvaluatorProcess]:
        leaving = [child for _, child in self._leaving]
        return leaving if self._child is None else [*leaving, self._child]

    def _answer(self, answer: messages.Answer) -> None:
        self._send(self._epoch, answer)
