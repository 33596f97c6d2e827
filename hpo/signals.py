"""What the signals that end a program mean here: stop in good order, and only at last at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


def stop_signals() -> list[signal.Signals]:
    """Those that ask for a stop; a terminal's hang-up does unless it is ignored, as under nohup."""
    numbers = [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


class Signals:
    """Turns stop signals into a count, and restores the former handlers on leaving.

    Signal number ``patience`` raises KeyboardInterrupt. By default that is the third: whoever sends it has seen
    that asking does not help, as with a function that never returns and is evaluated inside the rank. Outside the
    main thread (some notebooks) Python allows no handlers; there nothing is installed.
    """

    def __init__(self, *, patience: int = 3) -> None:
        self.count = 0
        self._patience = patience
        self._former: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._former[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= self._patience:
            raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
