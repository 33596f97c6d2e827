"""Ranks that hang: alive for MPI, and stuck (stopped, or in a write that never ends).

Every rank shows rank 0 that its event loop goes round, and rank 0 shows it to every rank. Rank 0 gives up a rank of
which it has heard nothing for ``hang_timeout``, as if it had died; the others end without rank 0 if they hear nothing
of it. What stops all at once (a laptop that sleeps, a virtual machine that moves) is no reason for either: the time
that counts is what the observer has itself spent looking."""

from __future__ import annotations

import math
from collections.abc import Iterable

_SIGNS = 4
"""So often within hang_timeout a rank shows that it lives: a few may be late."""
_LOOKS = 16
_LONGEST_LOOK_S = 1.0


class Liveness:
    """When a rank was last heard of by this one. ``watched``: ranks from which something is expected from now on;
    others are from the first time that they are heard. ``now`` of the methods: Unix seconds."""

    def __init__(self, watched: Iterable[int] = (), *, timeout_s: float = math.inf, now: float = 0.0) -> None:
        self._timeout_s = timeout_s
        self._interval_s = min(_LONGEST_LOOK_S, timeout_s / _LOOKS)
        self._observed_s = 0.0
        self._heard = dict.fromkeys(watched, 0.0)
        self._looked = self._next_sign = now
        self.next_look = math.inf if timeout_s == math.inf else now
        """When to call ``look`` at the latest."""

    def heard(self, rank: int) -> None:
        """A message of ``rank`` has arrived."""
        self._heard[rank] = self._observed_s

    def forget(self, ranks: Iterable[int]) -> None:
        """``ranks`` are dead: nothing is expected of them."""
        for rank in ranks:
            self._heard.pop(rank, None)

    def look(self, now: float) -> frozenset[int]:
        """The ranks that hang; to be called when what has arrived was heard. This rank's own pauses count little."""
        self._observed_s += min(max(0.0, now - self._looked), 2 * self._interval_s)
        self._looked = now
        self.next_look = now + self._interval_s
        limit = self._observed_s - self._timeout_s
        return frozenset(rank for rank, when in self._heard.items() if when <= limit)

    def sign_due(self, now: float) -> bool:
        """Whether to show now that this rank lives."""
        if now < self._next_sign:
            return False
        self._next_sign = now + self._timeout_s / _SIGNS
        return True
