"""The choice of checkpoints that a leader keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from hpo.search.models.pareto import dominates


class RetentionPolicy:
    """Keeps the checkpoints of the ``best`` and the ``latest`` individuals, by number. The best come first in the
    ``order`` of pairs of loss and id. With several objectives those stay that fewer than ``best`` others dominate: no
    other can be among the ``best`` of the campaign, sorted by fronts."""

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
        # Losses, ids and numbers of others that dominate each, with several objectives.
        self._fronts: list[tuple[tuple[float, ...], str, int]] = []
        self._latest: deque[tuple[str, Sequence[float], bool]] = deque()

    def add(self, identity: str, losses: Sequence[float] | None, *, keeps: bool = True) -> list[str]:
        """Note an individual's end, without ``losses`` if it failed; ids whose checkpoints are not kept any more.
        ``keeps``: whether it keeps all limits, without which it is among the latest alone."""
        if losses is None:
            return [identity]
        if self._most_latest:
            self._latest.append((identity, losses, keeps))
            if len(self._latest) <= self._most_latest:
                return []
            identity, losses, keeps = self._latest.popleft()
        if not keeps:
            return [identity]
        if len(losses) > 1:
            return self._add_to_fronts(identity, tuple(losses))
        self._best.append((losses[0], identity))
        if len(self._best) <= self._most:
            return []
        self._best = self._order(self._best)
        return [self._best.pop()[1]]

    def _add_to_fronts(self, identity: str, losses: tuple[float, ...]) -> list[str]:
        """Same as ``add``, with several objectives. Those that have gone need not be counted: whatever one of them
        dominates, at least ``best`` that stay dominate."""
        added = sum(dominates(one, losses) for one, _, _ in self._fronts)
        counted = [(one, name, count + dominates(losses, one)) for one, name, count in self._fronts]
        counted.append((losses, identity, added))
        self._fronts = [entry for entry in counted if entry[2] < self._most]
        return [name for _, name, count in counted if count >= self._most]
