"""When a launch stops admitting individuals, when it is over, and with which exit code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from hpo.errors import EXIT_RESUMABLE
from hpo.individual import COMPLETED, INTERRUPTED, PRUNED
from hpo.islands.coordinator.tally import Tally
from hpo.islands.end_reasons import (
    DEADLINE,
    DONE,
    EXHAUSTED,
    FUTILE,
    INCOMPLETE,
    NOTHING_COMPLETED,
    REFUSED,
    STOPPED,
    STORAGE,
    UNFIT,
)
from hpo.islands.messages import End

_FORCED_END_S = 60.0
_KNOWN = 5
"""Evaluations that must have completed before others are compared with them."""
_TIMES = 20
"""Longer than this many medians is far."""
_LEAST_S = 600.0
_LOOK_S = 10.0


class Ending:
    """Watches the clock. Times are Unix seconds.

    ``began``: when the launch began; ``deadline``: of the campaign; ``must_end``: when all must be on disk, asked again
    and again, as a signal may change it; ``checkpoints``: whether the task saves when it is asked to."""

    def __init__(
        self,
        *,
        began: float,
        deadline: float | None,
        must_end: Callable[[], float] | None,
        grace_s: float,
        checkpoints: bool,
    ) -> None:
        self._began = began
        self.deadline = deadline
        self._must_end = must_end
        self._grace_s = grace_s
        self._checkpoints = checkpoints
        self._stop_time = 0.0
        self._urgent = False
        self.next_look = 0.0
        """When to look at the clock at the latest."""
        self.stopping: str | None = None
        """Why nothing more is admitted; None until then."""

    def due(self, now: float) -> bool:
        """Whether it is time to look, which it is once a second."""
        if now < self.next_look:
            return False
        self.next_look = now + 1.0
        if self.deadline is not None:
            self.next_look = min(self.next_look, max(now, self.deadline))
        return True

    def reason_to_stop(self, now: float) -> str | None:
        """Why to admit nothing more from now on; None where there is no reason."""
        if self.deadline is not None and now >= self.deadline:
            return DEADLINE
        # Slurm's warning may be set too late, or not at all.
        if self._must_end is not None and now >= self._must_end() - self._grace_s:
            return STOPPED
        return None

    def stop(self, reason: str, *, urgent: bool, now: float) -> bool:
        """Admit nothing more; False where that changes nothing. An urgent stop follows a first one."""
        if self.stopping is None:
            self.stopping, self._stop_time = reason, now
        elif not urgent or self._urgent:
            return False
        self._urgent = urgent
        return True

    def must_hurry(self, now: float) -> bool:
        """Whether what runs may not save itself any more."""
        return self._must_end is not None and now >= self._must_end()

    def overdue(self, now: float) -> bool:
        """Whether leaders that were asked to stop are not waited for any more."""
        return now > self._stop_time + self._grace_s + _FORCED_END_S

    def grace_left(self, now: float) -> float:
        """Seconds for which what runs may still save itself, once the launch is stopping."""
        return 0.0 if self._urgent else max(0.0, self._stop_time + self._grace_s - now)

    @property
    def grace_until(self) -> float | None:
        """Until when what runs may save itself, in Unix seconds; None unless the launch is stopping and lets it."""
        return None if self.stopping is None or self._urgent else self._stop_time + self._grace_s

    def too_late(self, now: float, recent_s: Sequence[float], before: int) -> bool:
        """Whether what is granted now will most likely not be over in time, and so be lost, as the task does not save.

        It takes as long as the median of the last completed ones, ``recent_s``, and so does each of those ``before``
        it in its worker. Nothing is held back while few are known, nor where not even a whole launch is long enough:
        the next one would be no better."""
        limit = math.inf if self.deadline is None else self.deadline
        if self._must_end is not None:
            limit = min(limit, self._must_end() - self._grace_s)
        if limit == math.inf or self._checkpoints or len(recent_s) < _KNOWN:
            return False
        expected_s = median(recent_s)
        return now + (1 + before) * expected_s > limit >= self._began + expected_s

    @property
    def reason_of_lateness(self) -> str:
        """Whose end it is that comes before another evaluation could be over."""
        own = self.deadline is not None and (self._must_end is None or self.deadline <= self._must_end())
        return DEADLINE if own else STOPPED


def refused_sentence(refused: int) -> str:
    """Sentence and remedy where the constraints ``refused`` so many proposals in a row that the launch ends."""
    return (
        f"the constraints refused {refused} proposals in a row, so the search ended before its budget was used up. "
        "Narrow the ranges to where the constraints hold, or choose parameters that meet them by themselves (such as "
        "one parameter and a ratio, in place of two that must be close); what was recorded stays"
    )


def verdict(
    reason: str,
    *,
    evaluations: int | None,
    tally: Tally,
    works: bool,
    unfit: str | None,
    futile: str | None,
    storage: str | None = None,
    refused: str | None = None,
) -> End:
    """How the launch has ended that stopped for ``reason``. ``works``: something has shown in this launch that the task
    can be evaluated; ``unfit``, ``futile``, ``storage``, ``refused``: the sentences for launches that end for these
    reasons."""
    complete = evaluations is not None and tally.final >= evaluations
    if complete:
        reason = DONE
    elif reason == DONE or (reason == EXHAUSTED and tally.counts.get(INTERRUPTED)):
        # A task raised Interrupted unasked: that individual is still to be finished.
        reason = INCOMPLETE
    finished = complete or reason == EXHAUSTED or (reason == DEADLINE and evaluations is None)
    counts = tally.counts
    # Those that a deadline cut off did not fail: where most were, it came too soon, and nothing else is wrong.
    judged = complete or tally.final > counts.get(INTERRUPTED, 0)
    if finished and judged and tally.final and not any(map(counts.get, (COMPLETED, PRUNED))):
        finished, reason = False, NOTHING_COMPLETED
    elif reason == FUTILE and works:
        # Something worked after all while the launch was stopping.
        reason = STOPPED
    error = {UNFIT: unfit, FUTILE: futile, STORAGE: storage, REFUSED: refused}.get(reason)
    code = 0 if finished else 1 if reason in (UNFIT, FUTILE, NOTHING_COMPLETED, REFUSED) else EXIT_RESUMABLE
    return End(reason, code, error)


class Overdue:
    """Watches for evaluations that run far longer than the others, where no time-out ends them: a person should know.
    ``timed``: a time-out ends what takes long, so that there is nothing to watch."""

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
