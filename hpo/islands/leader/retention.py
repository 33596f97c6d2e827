"""Which checkpoints a leader keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence


class RetentionPolicy:
    """Keeps the checkpoints of a leader's ``best`` individuals (a number), and of its ``latest`` (a number).

    The best have the lowest losses, or come first in the ``order`` of pairs of loss and id. With several objectives the
    best are a Pareto front, which is known at the end only: all stay until then."""

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
        self._latest: deque[tuple[str, Sequence[float]]] = deque()

    def add(self, identity: str, losses: Sequence[float] | None) -> list[str]:
        """An individual has ended, without ``losses`` if it failed; the ids whose checkpoints are not kept any more."""
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
