"""Calls of functions every few seconds from a thread of its own, whatever the rest of the process does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from hpo.terminal import one_line

_log = logging.getLogger("hpo.journal")

# A call that is under way is waited for: a storage that hangs must not keep the process from ending.
_FAREWELL_S = 5.0


class Heartbeat:
    """Calls the registered functions one after the other, every ``interval_s`` seconds from ``start`` to ``stop``.

    Only C code that keeps Python's global lock holds the thread up. What a function raises is logged once, until it
    succeeds again, and stops neither the other functions nor the process."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._functions: list[Callable[[], object]] = []
        self._failing: set[Callable[[], object]] = set()
        self._stop = threading.Event()
        self._hastened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def register(self, function: Callable[[], object]) -> None:
        """Call ``function``, which must be quick, from the next beat on."""
        self._functions.append(function)

    def start(self) -> None:
        self._thread.start()

    def hasten(self) -> None:
        """Call the functions soon, and not only when it is time to."""
        self._hastened.set()

    def stop(self) -> None:
        """Call nothing more."""
        self._stop.set()
        self._hastened.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._hastened.wait(self._interval_s)
            self._hastened.clear()
            if not self._stop.is_set():
                self.beat()

    def beat(self) -> None:
        for function in tuple(self._functions):
            try:
                function()
            except Exception as error:  # whatever it is: the others go on beside it
                if function not in self._failing:
                    self._failing.add(function)
                    with suppress(OSError):  # its reader may be gone
                        text = one_line(f"{type(error).__name__}: {error}")
                        _log.warning("%s failed (%s).", function.__qualname__, text)
            else:
                self._failing.discard(function)
