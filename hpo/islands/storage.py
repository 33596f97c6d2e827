"""Waiting for storage that fails: a worker tries again after growing pauses, for two minutes in all."""

from __future__ import annotations

import math

PATIENCE_S = 120.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


class StorageWait:
    """State of one use of the storage that may fail; times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._since = math.inf
        self._pause_s = 0.0
        self.error: str | None = None
        """Path and reason of the last failure; None while it works."""
        self.retry_at = -math.inf
        """Time of the next attempt; -inf while it works."""
        self.over = False
        """Whether it has failed for longer than it is waited for."""

    def failed(self, error: str, now: float) -> None:
        if self.error is None:
            self._since, self._pause_s = now, _FIRST_PAUSE_S
        else:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self.error = error
        end = self._since + PATIENCE_S
        self.over = now >= end
        # The last attempt is made when the time is over, and not before.
        self.retry_at = now + self._pause_s if self.over else min(now + self._pause_s, end)

    def worked(self) -> None:
        self.error, self.retry_at, self.over = None, -math.inf, False


def storage_sentence(error: str) -> str:
    """Sentence for a launch that ends because of ``error``, path and reason."""
    return (
        f"the storage did not work for {PATIENCE_S:g} s ({error}), so this launch has ended. Nothing that was recorded "
        "is lost, and no individual has failed for it. Make room (`df -h` and `df -i` say what is used up) or give "
        "write access there, then give the same command again to go on"
    )
