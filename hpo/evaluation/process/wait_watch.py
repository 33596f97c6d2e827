"""A rank that waits for the other ranks of its worker for long says for what."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from hpo.terminal import write

_SLOW_S = 20.0


class WaitWatch:
    """Says on standard error, once an evaluation, where this rank has waited for the others for long: a task in which
    not all ranks make a call would hang without a word. ``begun``: the call and when it began, None between two."""

    def __init__(self, rank: int, tell: Callable[[str], None] = lambda call: None) -> None:
        """``tell`` gets the call every few seconds for as long as the wait goes on."""
        self._rank = rank
        self._tell = tell
        self.begun: tuple[str, float] | None = None
        self.said = False
        threading.Thread(target=self._look, name="waits", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_SLOW_S / 4)
            wait = self.begun
            if wait is None or time.monotonic() - wait[1] < _SLOW_S:
                continue
            self._tell(wait[0])
            if self.said:
                continue
            write(
                f"hpo: worker rank {self._rank} has waited {time.monotonic() - wait[1]:.0f} s in {wait[0]} for "
                "other ranks of the worker. Every rank has to make this call; where one of them still works, nothing "
                "is wrong.",
                sys.stderr,
                flush=True,
            )
            self.said = True
