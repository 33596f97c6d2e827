"""Whether an evaluation is to save itself, asked before every training step without holding the ranks together.

Ranks that exchange something at each step wait for the slowest of them, and methods that spare communication would gain
nothing. So what worker rank 0 answers at one call is sent while the ranks train and read at a later call: at the same
one on all ranks, as each message says how many calls lie between the next two.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Words = tuple[int, int, int]
"""The call at which rank 0 sent it, whether to save, and how many calls later the message after the next is read."""

INTERVAL_S = 0.5
"""About how far apart messages are; a rank that is this far behind the others is waited for."""
_MOST_CALLS = 200


class Announcement:
    """The messages of an evaluation. ``send`` begins to send rank 0's words to all ranks, and returns a function that
    waits for them. ``rank``: of the worker."""

    def __init__(
        self,
        rank: int,
        send: Callable[[Words], Callable[[], Words]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._send = send
        self._clock = clock
        self._calls = 0
        self._due = 0
        self._sent_at = 0
        self._sent_s = clock()
        self._receive: Callable[[], Words] | None = None

    def ask(self, asked: bool) -> bool:
        """Whether to save: what worker rank 0 was ``asked`` at an earlier call. Every rank makes each call, and all
        get the same answer.

        Raises:
            RuntimeError: the ranks have not made the same calls.
        """
        call = self._calls
        self._calls += 1
        if call < self._due:
            return False
        gap = 1
        if self._receive is not None:
            sent_at, found, gap = self._receive()
            self._receive = None
            if sent_at != self._sent_at:
                raise RuntimeError(
                    f"worker rank {self._rank} asked before step {self._sent_at} whether to save, and rank 0 before "
                    f"step {sent_at}: all ranks of a worker must take the same steps."
                )
            if found:
                return True
        mean_s = (self._clock() - self._sent_s) / max(1, call - self._sent_at)
        ahead = min(_MOST_CALLS, max(1, int(INTERVAL_S / mean_s))) if mean_s > 0 else _MOST_CALLS
        self._sent_at, self._sent_s, self._due = call, self._clock(), call + gap
        self._receive = self._send((call, int(asked), ahead if call else 1))
        return False

    def finish(self) -> None:
        """The evaluation is over: take the message that is under way, which the next evaluation must not meet."""
        if self._receive is not None:
            self._receive()
            self._receive = None
