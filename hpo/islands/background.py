"""Turns of a rank's event loop while its main thread evaluates (``isolation = "inline"``).

The task runs in the main thread, as its own MPI code and signal handlers need that. Turns are taken by one thread at a
time, which holds the lock: the main thread between evaluations, a second thread during them. Evaluations that are
expected to be short get no turns until they have lasted for a while: a function of microseconds pays nothing for
this."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

LONG_S = 0.002
"""Length of an evaluation after which the next evaluation gets turns from its beginning."""
# Pause between looks whether an evaluation that was expected to be short still runs.
_LOOK_S = 0.05


class InlineEvaluator(Protocol):
    """Evaluates in the thread that calls ``evaluate``; ``lock`` guards what that shares with the event loop."""

    lock: threading.Lock

    @property
    def pending(self) -> bool: ...
    def evaluate(self) -> None: ...


class BackgroundTurns:
    """``turn``: takes a turn and returns the seconds to ``wait`` before the next. It is called with ``lock`` held, and
    so is ``failed`` with the exception that ended it, which the main thread raises again after the evaluation."""

    def __init__(
        self,
        *,
        lock: threading.Lock,
        turn: Callable[[], float],
        wait: Callable[[float], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._lock = lock
        self._turn = turn
        self._wait = wait
        self._failed = failed
        self._error: BaseException | None = None
        self._closed = False
        self._evaluation = 0
        """Number of begins and ends of evaluations: odd during an evaluation."""
        self._seconds = 0.0
        self._needed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hpo event loop", daemon=True)

    def __enter__(self) -> BackgroundTurns:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:  # no turn is begun after this
            self._closed = True
        self._needed.set()
        self._thread.join(2 * _LOOK_S)  # it may wait, or import what breeding needs

    def evaluate(self, evaluation: Callable[[], None]) -> None:
        """Run ``evaluation`` in this thread, and turns beside it."""
        begun = time.monotonic()
        self._evaluation += 1
        if self._seconds >= LONG_S:
            self._needed.set()
        try:
            evaluation()
        finally:
            self._seconds = time.monotonic() - begun
            with self._lock:
                self._evaluation += 1
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        seen = 0
        while not self._closed:
            expected = self._needed.wait(_LOOK_S)
            self._needed.clear()
            current = self._evaluation
            if current % 2 and (expected or current == seen):
                self._serve()
            seen = current

    def _serve(self) -> None:
        while True:
            with self._lock:
                if self._closed or self._error is not None or self._evaluation % 2 == 0:
                    return
                try:
                    pause_s = self._turn()
                except BaseException as error:
                    self._error = error
                    self._failed(error)
                    return
            self._wait(pause_s)
