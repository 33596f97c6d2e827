"""Ranks that hang: alive for MPI, and stuck (stopped, or in a write that never ends).

Every rank sends signs of life to rank 0, and rank 0 to every rank. Rank 0 gives up a rank that was silent for
``hang_timeout``, as if it had died; the others end where rank 0 was. A pause of all at once (a laptop that sleeps, a
virtual machine that moves) is no reason for either: the time that counts is what the observer has itself spent
looking."""

from __future__ import annotations

import math
from collections.abc import Iterable

# Signs of life within hang_timeout: a few may be late.
_SIGNS = 4
_LOOKS = 16
_LONGEST_LOOK_S = 1.0


class Liveness:
    """The times at which this rank last heard of others. ``watched``: ranks from which signs are expected from now on;
    they are expected of others once these have been heard. ``now`` of the methods: Unix seconds."""

    def __init__(self, watched: Iterable[int] = (), *, timeout_s: float = math.inf, now: float = 0.0) -> None:
        self._timeout_s = timeout_s
        self._interval_s = min(_LONGEST_LOOK_S, timeout_s / _LOOKS)
        self._observed_s = 0.0
        self._heard = dict.fromkeys(watched, 0.0)
        self._looked = self._next_sign = now
        self.next_look = math.inf if timeout_s == math.inf else now
        """When to call ``look`` at the latest."""

    def heard(self, rank: int) -> None:
        self._heard[rank] = self._observed_s

    def forget(self, ranks: Iterable[int]) -> None:
        """Expect nothing of ``ranks`` any more."""
        for rank in ranks:
            self._heard.pop(rank, None)

    def look(self, now: float) -> frozenset[int]:
        """Ranks that hang. Call it when all that has arrived was heard; pauses between calls count little."""
        self._observed_s += min(max(0.0, now - self._looked), 2 * self._interval_s)
        self._looked = now
        self.next_look = now + self._interval_s
        limit = self._observed_s - self._timeout_s
        return frozenset(rank for rank, when in self._heard.items() if when <= limit)

    def sign_due(self, now: float) -> bool:
        """Whether to send signs of life now."""
        if now < self._next_sign:
            return False
        self._next_sign = now + self._timeout_s / _SIGNS
        return True
