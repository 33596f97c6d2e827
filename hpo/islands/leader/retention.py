"""Whose checkpoints a leader keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RetentionPolicy:
    """Whose checkpoints one leader leaves: those of the ``best`` of its own, and of the ``latest`` so many.

    The best are those of the lowest losses, or those that come first as ``order`` puts them, which gets pairs of loss
    and id. With several objectives the best are a front, which is known at the end only: all stay until then."""

    def __init__(
        self,
        best: int,
        *,
        latest: int = 0,
        order: Callable[[list[tuple[float, str]]], list[tuple[float, str]]] = sorted,
    ) -> None:
        self._most = best
        self._most_latest = latest
        self._order = order
        self._best: list[tuple[float, str]] = []
        self._latest: deque[tuple[str, list[float]]] = deque()

    def add(self, identity: str, losses: list[float] | None) -> list[str]:
        """One has ended, without ``losses`` if it failed; the ids of those that are let go of for it."""
        if losses is None:
            return [identity]
        if self._most_latest:
            self._latest.append((identity, losses))
            if len(self._latest) <= self._most_latest:
                return []
            identity, losses = self._latest.popleft()
        if len(losses) > 1:
            return []
        self._best.append((losses[0], identity))
        if len(self._best) <= self._most:
            return []
        self._best = self._order(self._best)
        return [self._best.pop()[1]]
