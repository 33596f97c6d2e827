"""Signals that end a program: the first asks the campaign to stop in good order, further signals end it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 3


def stop_signals() -> list[signal.Signals]:
    """Signals that ask for a stop, a terminal's hang-up included unless it is ignored, as under nohup."""
    numbers = [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


class Requests:
    """How often a stop was asked for by signals.

    Slurm and systemd signal all processes of a job at once, and those that started others pass on what they get:
    the same request so comes twice, as two signals. Only when the same signal comes again is it another request."""

    def __init__(self) -> None:
        self._heard: Counter[int] = Counter()
        self.count = 0
        self.terminated: float | None = None
        """When the first SIGTERM came, in Unix seconds."""

    def note(self, number: int) -> bool:
        """Count a signal; True when it is a new request."""
        if number == signal.SIGTERM and self.terminated is None:
            self.terminated = time.time()
        self._heard[number] += 1
        if self._heard[number] <= self.count:
            return False
        self.count += 1
        return True


class Signals:
    """Turns stop signals into a count, and restores the former handlers on leaving.

    Request number ``patience`` raises KeyboardInterrupt, for functions that never return and are evaluated inside the
    rank. Outside the main thread (some notebooks) Python allows no handlers; there nothing is installed.
    """

    def __init__(self, *, patience: int = PATIENCE) -> None:
        self.requests = Requests()
        self.patience = patience
        self._former: dict[int, object] = {}
        self._held = False

    @property
    def count(self) -> int:
        return self.requests.count

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._former[number] = signal.signal(number, self._note)
        return self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, KeyboardInterrupt waits for the end: for imports of hpo itself. Raised in their midst it may crash
        the process, as msgspec 0.22 does where it makes a decoder, or come out as any other error."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.count >= self.patience:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requests.note(number) and self.count >= self.patience and not self._held:
            raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
