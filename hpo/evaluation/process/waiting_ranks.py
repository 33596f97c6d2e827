"""The ranks of a worker that wait for other ranks of it, as its crew sees them."""

from __future__ import annotations

from collections.abc import Callable

from hpo.evaluation.conversation import Waits

_SETTLED_S = 5.0
"""Ranks that wait say so this often. What a rank said a moment ago may have been overtaken by what ended its wait."""


class WaitingRanks:
    """Which ranks wait in which call, and whether they wait in vain.

    A call of hpo is one that all ranks have to make: it is in vain as soon as another rank has ended, or waits in
    another of these calls. A collective of torch may be one of some ranks only, and finishes on some ranks before it
    does on others: these waits are in vain only where every other rank has ended or waits as well, not all in the same
    call, and none of them exchanges so much that the network may be what is slow.
    """

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self._size = size
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """The next evaluation begins."""
        self._waits: dict[int, tuple[Waits, float]] = {}
        self._ended: dict[int, float] = {}

    def waits(self, rank: int, answer: Waits) -> None:
        """``rank`` has said that it waits."""
        if rank not in self._ended:
            self._waits[rank] = answer, self._clock()

    def ended(self, rank: int) -> None:
        """``rank`` has ended the evaluation."""
        self._ended[rank] = self._clock()
        self._waits.pop(rank, None)

    @property
    def in_vain(self) -> bool:
        """Whether a rank waits for a rank that will not come."""
        now = self._clock()
        gone = sum(now - when >= _SETTLED_S for when in self._ended.values())
        waits = self._current()
        own = {one.call for one in waits.values() if one.of_all}
        if own and (gone or len(own) > 1):
            return True
        sure = [one.call for one in waits.values() if not one.large]
        nobody_works = bool(sure) and len(sure) + gone == self._size
        return nobody_works and (gone > 0 or len(set(sure)) > 1)

    @property
    def sentence(self) -> str:
        """Who waits in which call; empty where nobody does."""
        waits = [
            f"worker rank {rank} waited in {one.call} for other ranks of the worker"
            for rank, one in sorted(self._current().items())
        ]
        return f"{', '.join(waits)}: every rank of the group has to make this call." if waits else ""

    def _current(self) -> dict[int, Waits]:
        now = self._clock()
        return {rank: one for rank, (one, when) in self._waits.items() if now - when <= 2 * _SETTLED_S}
