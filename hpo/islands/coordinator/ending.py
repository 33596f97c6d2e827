"""The end of a launch: when it stops admitting individuals, when it is over, and with which exit code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hpo.errors import EXIT_RESUMABLE
from hpo.individual import COMPLETED, INTERRUPTED, PRUNED
from hpo.islands import end_reasons
from hpo.islands.coordinator.tally import Tally
from hpo.islands.messages import End

_FORCED_END_S = 60.0
_KNOWN = 5
"""Evaluations that must have completed before others are compared with them."""
# Medians after which an evaluation is overdue, and the least time.
_TIMES = 20
_LEAST_S = 600.0
_LOOK_S = 10.0
# Another launch would end in the same way.
_HOPELESS = (end_reasons.UNFIT, end_reasons.FUTILE, end_reasons.NOTHING_COMPLETED, end_reasons.REFUSED)


@dataclass(kw_only=True)
class Ending:
    """Watches the clock. Times are Unix seconds."""

    began: float
    """Begin of the launch."""
    deadline: float | None
    """Deadline of the campaign."""
    must_end: Callable[[], float] | None
    """Time at which all must be on disk; asked again and again, as a signal may change it."""
    grace_s: float
    checkpoints: bool
    """Whether the task saves when it is asked to."""
    stopping: str | None = None
    """Why nothing more is admitted; None until then."""
    next_look: float = 0.0
    """Latest time of the next look at the clock."""
    _stop_time: float = 0.0
    _urgent: bool = False

    def due(self, now: float) -> bool:
        """Whether it is time to look at the clock, once a second."""
        if now < self.next_look:
            return False
        self.next_look = now + 1.0
        if self.deadline is not None:
            self.next_look = min(self.next_look, max(now, self.deadline))
        return True

    def reason_to_stop(self, now: float) -> str | None:
        """Reason to admit nothing more from now on, if any."""
        if self.deadline is not None and now >= self.deadline:
            return end_reasons.DEADLINE
        # Slurm's warning may be set too late, or not at all.
        if self.must_end is not None and now >= self.must_end() - self.grace_s:
            return end_reasons.STOPPED
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
        """Whether running evaluations may not save themselves any more."""
        return self.must_end is not None and now >= self.must_end()

    def overdue(self, now: float) -> bool:
        """Whether to wait no longer for leaders that were asked to stop."""
        return now > self._stop_time + self.grace_s + _FORCED_END_S

    def grace_left(self, now: float) -> float:
        """Seconds in which running evaluations may still save themselves, once the launch is stopping."""
        return 0.0 if self._urgent else max(0.0, self._stop_time + self.grace_s - now)

    @property
    def grace_until(self) -> float | None:
        """Time until which running evaluations may save themselves; None where they may not, or nothing stops them."""
        return None if self.stopping is None or self._urgent else self._stop_time + self.grace_s

    def too_late(self, now: float, recent_s: Callable[[], Sequence[float]], before: int) -> bool:
        """Whether an individual granted now would most likely not end in time, and so be lost, as the task does not
        save.

        It, and each individual ``before`` it in its worker, is taken to last the median of ``recent_s``. Nothing is too
        late while few are known, nor where a whole launch is too short: the next launch would be no better."""
        limit = math.inf if self.deadline is None else self.deadline
        if self.must_end is not None:
            limit = min(limit, self.must_end() - self.grace_s)
        if limit == math.inf or self.checkpoints or len(known_s := recent_s()) < _KNOWN:
            return False
        expected_s = median(known_s)
        return now + (1 + before) * expected_s > limit >= self.began + expected_s

    @property
    def reason_of_lateness(self) -> str:
        """Reason for which another evaluation could not end in time."""
        own = self.deadline is not None and (self.must_end is None or self.deadline <= self.must_end())
        return end_reasons.DEADLINE if own else end_reasons.STOPPED


def refused_sentence(refused: int) -> str:
    """Sentence for a launch that ends because the constraints refused ``refused`` proposals in a row."""
    return (
        f"the constraints refused {refused} proposals in a row, so the search ended before its budget was used up. "
        "Narrow the ranges to where the constraints hold, or choose parameters that meet them by themselves (such as "
        "one parameter and a ratio, in place of two that must be close); what was recorded stays"
    )


def verdict(
    reason: str,
    *,
    complete: bool,
    limited: bool,
    early: str | None,
    alone: bool,
    tally: Tally,
    works: bool,
    unfit: str | None,
    futile: str | None,
    storage: str | None = None,
    refused: str | None = None,
) -> End:
    """End of the launch that stopped for ``reason``.

    Args:
        complete: the budget is used up.
        limited: there is a budget of evaluations.
        early: why the whole campaign has ended before its budget was used up; None where it has not.
        alone: ``tally`` is of the whole campaign: no other launch is or was at work beside this launch.
        works: an evaluation of this launch has worked after all.
        unfit, futile, storage, refused: sentences for launches that end for these reasons.
    """
    if early is not None and reason not in (*_HOPELESS, end_reasons.STORAGE):
        reason = early
    elif complete:
        reason = end_reasons.DONE
    elif reason == end_reasons.DONE or (reason == end_reasons.EXHAUSTED and tally.counts.get(INTERRUPTED)):
        # A task raised Interrupted unasked: that individual is still to be finished.
        reason = end_reasons.INCOMPLETE
    finished = (
        complete
        or reason in (end_reasons.EXHAUSTED, end_reasons.HANDED_OVER, *end_reasons.EARLY)
        or (reason == end_reasons.DEADLINE and not limited)
    )
    counts = tally.counts
    # Individuals that a deadline cut off did not fail: if most were, it came too soon, and nothing else is wrong.
    judged = complete or tally.final > counts.get(INTERRUPTED, 0)
    worked = any(map(counts.get, (COMPLETED, PRUNED)))
    if finished and judged and tally.final and alone and not worked:
        finished, reason = False, end_reasons.NOTHING_COMPLETED
    elif reason == end_reasons.FUTILE and works:
        # An evaluation worked after all while the launch was stopping.
        reason = end_reasons.STOPPED
    error = {
        end_reasons.UNFIT: unfit,
        end_reasons.FUTILE: futile,
        end_reasons.STORAGE: storage,
        end_reasons.REFUSED: refused,
    }.get(reason)
    code = 1 if reason in _HOPELESS else EXIT_RESUMABLE
    return End(reason, 0 if finished else code, error)


class Overdue:
    """Watches for evaluations that run far longer than the others, unless they are ``timed``, so that a time-out ends
    them."""

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed
        self._next_look = 0.0
        # Token of the present evaluation and its begin by leader; no begin once it was reported.
        self._since: dict[int, tuple[int, float | None]] = {}

    def look(
        self, now: float, running: Iterable[tuple[int, int]], recent_s: Callable[[int], Sequence[float]]
    ) -> Iterator[tuple[int, float, float]]:
        """Leader, seconds and median of each evaluation that has just become overdue. ``running``: leaders and tokens
        of present evaluations; ``recent_s``: seconds of evaluations that workers as large as a leader's completed."""
        if self._timed or now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        for leader, token in running:
            known, since = self._since.get(leader, (None, None))
            if known != token:
                self._since[leader] = token, now
            elif since is not None and now - since > _LEAST_S:
                known_s = recent_s(leader)
                if len(known_s) >= _KNOWN and now - since > _TIMES * (median_s := median(known_s)):
                    self._since[leader] = token, None
                    yield leader, now - since, median_s
