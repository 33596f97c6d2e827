"""Evaluations that run far longer than the others, where no time-out ends them: a person should know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

_TIMES = 20
"""Longer than this many medians is far."""
_LEAST_S = 600.0
_KNOWN = 5
"""Evaluations must have completed before others are compared with them."""
_LOOK_S = 10.0


class Overdue:
    """``timed``: a time-out ends what takes long, so that there is nothing to watch."""

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed
        self._next_look = 0.0
        # By leader the token of what it evaluates, and since when; None once it was said.
        self._since: dict[int, tuple[int, float | None]] = {}

    def look(
        self, now: float, running: Iterable[tuple[int, int]], recent_s: Sequence[float]
    ) -> Iterator[tuple[int, float, float]]:
        """Leader, seconds and median of each evaluation that has just become overdue. ``running``: the leaders that
        evaluate something, with its token; ``recent_s``: what the last completed ones took."""
        if self._timed or now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        limit = max(_LEAST_S, _TIMES * median(recent_s)) if len(recent_s) >= _KNOWN else float("inf")
        for leader, token in running:
            known, since = self._since.get(leader, (None, None))
            if known != token:
                self._since[leader] = token, now
            elif since is not None and now - since > limit:
                self._since[leader] = token, None
                yield leader, now - since, median(recent_s)
