"""One rank's part in evaluations: it keeps an evaluator process for its worker's crew. Nothing here waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpo.evaluation.conversation import (
    Alive,
    Answer,
    Died,
    Evaluate,
    EvaluationOver,
    Exit,
    Kill,
    Order,
    Probe,
    Ready,
    Spawn,
    unpack_order,
)
from hpo.evaluation.evaluator_process import Guard, tail, wait_readable
from hpo.task.trial_directory import OUTPUT

_RETIREMENT_S = 10.0
"""How long an evaluator that is no longer needed may take to end by itself."""

_HOLD = 0.75
"""The part of start_timeout after which an evaluator is not held back any more, whatever the former one still holds."""

_POLL_S = 0.02
"""How often to look where the kernel cannot wake us."""


class Evaluator(Protocol):
    """What a host needs of an evaluator; described at ``EvaluatorProcess``."""

    pid: int
    has_device: bool

    @property
    def label(self) -> str: ...
    @property
    def must_be_polled(self) -> bool: ...
    @property
    def ending(self) -> bool: ...
    def filenos(self) -> list[int]: ...
    def send(self, order: Order) -> None: ...
    def flush(self) -> None: ...
    def receive(self) -> Sequence[Answer]: ...
    def ended(self) -> str | None: ...
    def kill(self) -> None: ...
    def release(self) -> None: ...
    def spooled(self) -> str: ...


class EvaluatorGuard(Protocol):
    """What ends evaluators should this process be killed; described at ``Guard``."""

    def watch(self, pids: Iterable[int]) -> None: ...
    def close(self) -> None: ...


class EvaluatorHost:
    """Keeps the evaluator of one rank for the crew of its worker. ``send``: takes epoch and answer to the crew."""

    def __init__(
        self,
        *,
        worker_rank: int,
        child_factory: Callable[[], Evaluator],
        send: Callable[[int, Answer], None],
        clock: Callable[[], float] = time.monotonic,
        guard: EvaluatorGuard | None = None,
    ) -> None:
        self._worker_rank = worker_rank
        self._factory = child_factory
        self._send = send
        self._clock = clock
        self._epoch = -1
        self._child: Evaluator | None = None
        self._leaving: list[tuple[float, Evaluator]] = []
        # That a new evaluator is ready, and until when to keep it to ourselves.
        self._held: tuple[float, Answer] | None = None
        self._hold_until = 0.0
        self._guard = Guard() if guard is None else guard
        self._output: Path | None = None
        self._printed = 0

    @property
    def pid(self) -> int | None:
        """The evaluator's process id, None while there is none."""
        return None if self._child is None else self._child.pid

    def receive(self, content: dict[str, Any]) -> None:
        """Follow an order that came from another rank."""
        self.follow(*unpack_order(content))

    def follow(self, epoch: int, order: Order) -> None:
        """Follow an order of the crew, or pass it on to the evaluator."""
        if isinstance(order, Spawn):
            self._spawn(epoch)
            self._hold_until = self._clock() + _HOLD * order.start_timeout_s
        elif epoch == self._epoch and self._child is not None:
            if isinstance(order, Kill):
                self._drop(kill=True)
            elif isinstance(order, Exit):
                self._drop(kill=False)
            elif isinstance(order, Probe):
                if not self._child.ending:
                    self._answer(Alive(order.turn))
            else:
                if isinstance(order, Evaluate):
                    self._output = Path(order.job.directory, f"{OUTPUT}{self._worker_rank}.txt")
                    self._printed = _size(self._output)
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
            if isinstance(answer, EvaluationOver):
                self._output = None
            if isinstance(answer, Ready) and child.has_device and self._leaving:
                # The former one may still hold memory of the device, which the next individual would lack.
                self._held = min(self._clock() + 2 * _RETIREMENT_S, self._hold_until), answer
                continue
            self._answer(answer)
            if self._child is not child:  # the crew has just replaced it; the rest would bear the new epoch
                return True
        if self._held is not None and (not self._leaving or self._clock() >= self._held[0]):
            (_, answer), self._held = self._held, None
            self._answer(answer)
        if cause is not None:
            error = self._exit_description(child, cause)
            self._drop(kill=True)
            self._answer(Died(error))
        return bool(answers) or cause is not None

    def disband(self) -> None:
        """End the evaluator at once: the worker is no more."""
        self._drop(kill=True)

    @property
    def gone(self) -> bool:
        """Whether no evaluator is left."""
        return self._child is None and not self._leaving

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
        end = time.monotonic() + timeout_s
        while self._leaving and time.monotonic() < end:
            wait_readable(self.filenos(), min(_POLL_S, end - time.monotonic()))
            self._release_ended()
        for _, child in self._leaving:
            child.kill()
        end = time.monotonic() + 1.0
        while self._leaving and time.monotonic() < end:
            wait_readable((), 0.005)
            self._release_ended()
        self._guard.close()

    def _spawn(self, epoch: int) -> None:
        self._drop(kill=False)
        self._epoch = epoch
        try:
            self._child = self._factory()
        except OSError as error:
            self._answer(Died(f"no evaluator could be started: {error}"))
        self._watch()

    def _drop(self, *, kill: bool) -> None:
        """Let go of the evaluator. One that works is killed: its result is not awaited."""
        child, self._child = self._child, None
        self._held = None
        if child is None:
            return
        if kill or self._output is not None:
            child.kill()
        else:
            child.send(Exit())
        self._leaving.append((self._clock() + _RETIREMENT_S, child))

    def _release_ended(self) -> None:
        if not self._leaving:
            return
        staying: list[tuple[float, Evaluator]] = []
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

    def _children(self) -> list[Evaluator]:
        leaving = [child for _, child in self._leaving]
        return leaving if self._child is None else [*leaving, self._child]

    def _exit_description(self, child: Evaluator, cause: str) -> str:
        printed = child.spooled() if self._output is None else tail(self._output, self._printed)
        self._output = None
        # Lines of their own: the first one alone stands for the error where there is room for one.
        return f"{child.label} {cause}." + (f"\nIt last printed:\n{printed}" if printed else "")

    def _answer(self, answer: Answer) -> None:
        self._send(self._epoch, answer)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
