"""Whether failures are the doing of one worker, or of all that a launch depends on, and not of the configurations.

- *A worker* is suspected after failures in a row that are improbable, given how many of the launch's other evaluations
  failed. While it is, nothing more is granted to it, and one of these individuals runs again elsewhere. If that works,
  the worker gets nothing more in this launch, and its failures in a row are reopened; if it fails there too, the worker
  goes on, and is suspected again after twice as many. All ends but those of healthy evaluations count: a node without
  its scratch disk fails, crashes or times out.
- *A launch* has come to nothing once ``limit`` evaluations in a row have failed on all workers together, or more where
  that is not improbable. A third of that is enough, but not below five, if nothing has worked in this launch and all
  errors are the same but for numbers in them. At least as many as there are workers must have failed. Then nothing more
  begins until the running evaluations have ended, for at most ``patience_s`` or as long as the slowest of these
  failures took. If they fail too, the launch ends, and these failures are reopened: they do not use up the budget.
  Individuals that an earlier launch or another worker began do not count: their checkpoints may be to blame.
- *A sign of life* of a worker is an evaluation that completed, was pruned, or had reported a finite value before it
  ended in any way, but by returning what is no value, as without ``return``. Of a launch, none that failed, timed out
  or crashed after a report: nothing comes of it. A sign of life ends a worker's or the launch's row of failures; the
  launch's also ends with an evaluation that returned NaN or an infinity.
- Each launch begins a new count: the data may have gone since. Time-outs and crashes depend more on configurations:
  for a row with some of these, completed individuals of earlier launches count too; and a third is not enough where
  some timed out, as time-outs all have the same error."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hpo.individual import COMPLETED, CRASHED, FAILED, INTERRUPTED, INVALID, LOST, PRUNED, TIMEOUT
from hpo.islands.messages import Assignment, EvaluationEnd
from hpo.task.outcome import alike

_FEWEST = 3
"""Failures in a row after which a worker is suspected where hardly any other evaluation fails."""
_IMPROBABLE = 0.001
"""Probability below which a row of failures is not taken for chance."""
_LONGEST = 10_000
"""Number of last failures of a row that are kept, and may be reopened."""
# Where all failures have the same error, this part of them is enough, but no fewer than a handful.
_SAME, _HANDFUL = 3, 5


def _is_alive(end: EvaluationEnd) -> bool:
    return end.reported or end.outcome.status in (COMPLETED, PRUNED)


def improbable(succeeded: int, failed: int) -> int:
    """Length of a row of failures that is improbable, given the numbers of other evaluations that ``succeeded`` and
    ``failed``."""
    rate = (failed + 0.5) / (succeeded + failed + 1)
    return max(_FEWEST, math.ceil(math.log(_IMPROBABLE) / math.log(rate)))


def counted(statuses: Mapping[str, int]) -> str:
    """Numbers of individuals by status, in words, the most frequent first."""
    return ", ".join(f"{count} {status}" for status, count in Counter(statuses).most_common())


@dataclass(frozen=True)
class ReopenableFailure:
    """A failure."""

    status: str
    again: Assignment
    """Assignment of its individual if it is reopened."""
    error: str
    """Error of the failure, on one line."""

    @cached_property
    def cause(self) -> str:
        """Text that is equal where errors differ by numbers alone."""
        # Cached: a row of thousands is asked for it again and again.
        return alike(self.error)


@dataclass
class _Worker:
    size: int
    """Number of its ranks."""
    succeeded: int = 0
    row: deque[ReopenableFailure] = field(default_factory=lambda: deque(maxlen=_LONGEST))
    factor: int = 1
    drained: bool = False
    test: ReopenableFailure | None = None
    """The failure whose individual runs elsewhere; the worker is suspected until that has ended."""


@dataclass(frozen=True, kw_only=True)
class Actions:
    """Consequences of an end."""

    leader: int
    test: ReopenableFailure | None = None
    """Failure to evaluate again by another worker than that of ``leader``."""
    bench: bool = False
    """Whether ``leader`` gets nothing more, for failures of which ``error`` was the last."""
    error: str = ""
    reopen: list[ReopenableFailure] = field(default_factory=list)
    """Failures that do not count."""


class Health:
    """The watch over a launch.

    Args:
        limit: failures in a row that end the launch, None to watch workers alone.
        printed: sentence on the place of an individual's output, by id.
        patience_s: the most seconds for which nothing is begun.
        leaders: number of ranks of each worker, by its leader.
        earlier: numbers of individuals that completed or were pruned, and that failed, in earlier launches.
    """

    def __init__(
        self,
        limit: int | None,
        *,
        printed: Callable[[str], str] = lambda identity: "",
        patience_s: float,
        leaders: Mapping[int, int],
        earlier: tuple[int, int] = (0, 0),
    ) -> None:
        self._limit = limit
        self._printed = printed
        self._patience_s = patience_s
        self._workers = {leader: _Worker(size) for leader, size in leaders.items()}
        # Leader of the worker that is tested, by id of the individual that runs elsewhere.
        self._tests: dict[str, int] = {}
        self._succeeded = self._failed = 0
        self._earlier = earlier
        self._row: deque[ReopenableFailure] = deque(maxlen=_LONGEST)
        # Counts of the launch's signs of life and other ends; statuses and the longest evaluation of the present row.
        self._worked = self._in_vain = 0
        self._kinds: set[str] = set()
        self._slowest_s = 0.0
        self._awaited: set[int] = set()
        self._held_since: float | None = None
        self.futile = False
        """Whether the launch was declared failed."""
        self.works = False
        """Whether an evaluation has worked since."""

    # --- workers --------------------------------------------------------------------------------------------

    def ended(self, leader: int, end: EvaluationEnd) -> Actions:
        """Take the end of an evaluation of ``leader``, which may be benched or dead."""
        worker = self._workers.get(leader)
        if worker is None:
            return self._ended_elsewhere(leader, end)
        self._awaited.discard(leader)
        alive = _is_alive(end)
        self._watch_launch(end, alive)
        suspect = self._tests.get(end.id)
        if alive:
            self._succeeded += 1
            worker.succeeded += 1
            worker.row.clear()
            self._drop_test(worker)
        elif end.outcome.status not in (INTERRUPTED, LOST):
            self._failed += 1
            if suspect == leader:  # no other worker could take it, so it tests nothing
                self._drop_test(worker)
            if end.again is not None and suspect in (None, leader):
                worker.row.append(ReopenableFailure(end.outcome.status, end.again, end.outcome.error or ""))
        if suspect is not None and suspect != leader and end.outcome.status not in (INTERRUPTED, LOST):
            return self._tested(suspect, works=alive)
        return self._look_at(leader)

    def _ended_elsewhere(self, leader: int, end: EvaluationEnd) -> Actions:
        # A test that ended on a worker that is not watched any more: success shows that the suspect fails,
        # failure shows nothing.
        suspect = self._tests.get(end.id)
        if suspect is not None and end.outcome.status not in (INTERRUPTED, LOST):
            if _is_alive(end):
                return self._tested(suspect, works=True)
            self._drop_test(self._workers[suspect])
        return Actions(leader=leader)

    def _tested(self, leader: int, *, works: bool) -> Actions:
        worker = self._workers[leader]
        tested, reopen = worker.test, list(worker.row)
        assert tested is not None
        worker.row.clear()
        self._drop_test(worker)
        if not works:
            worker.factor *= 2
            return Actions(leader=leader)
        del self._workers[leader]
        self.forget({one.again.id for one in reopen})
        return Actions(leader=leader, bench=True, error=[tested, *reopen][-1].error, reopen=reopen)

    def _look_at(self, leader: int) -> Actions:
        worker = self._workers[leader]
        row = len(worker.row)
        if worker.test is not None or row < _FEWEST or not self._can_test(leader):
            return Actions(leader=leader)
        if row < worker.factor * improbable(self._succeeded, self._failed - row):
            return Actions(leader=leader)
        test = worker.row[-1]
        worker.test = test
        self._tests[test.again.id] = leader
        # The failure is reopened now; reopened again with its row, it would be evaluated twice under one number.
        self.forget({test.again.id})
        return Actions(leader=leader, test=test)

    def _drop_test(self, worker: _Worker) -> None:
        if worker.test is not None:
            del self._tests[worker.test.again.id]
            worker.test = None

    def _can_test(self, suspect: int) -> bool:
        """Whether another worker of this size has shown that it works, and is not suspected."""
        size = self._workers[suspect].size
        others = (one for leader, one in self._workers.items() if leader != suspect and one.size == size)
        return any(other.succeeded and other.test is None and not other.drained for other in others)

    def forget(self, identities: Container[str]) -> None:
        """Remove these individuals, which are reopened, from all rows, which would reopen them again."""
        for row in (self._row, *(worker.row for worker in self._workers.values())):
            standing = [one for one in row if one.again.id not in identities]
            row.clear()
            row.extend(standing)

    def drained(self, leader: int) -> None:
        """Note that ``leader`` gets nothing more; its running evaluation still counts."""
        if leader in self._workers:
            self._workers[leader].drained = True

    def left(self, leader: int) -> None:
        """Note that ``leader`` takes no more part."""
        worker = self._workers.pop(leader, None)
        if worker is not None:
            self._drop_test(worker)
        self._awaited.discard(leader)

    def holds(self, leader: int) -> bool:
        """Whether to grant ``leader`` nothing for now."""
        worker = self._workers.get(leader)
        if self.holds_all or worker is None:
            return True
        return worker.test is not None and self._can_test(leader)

    # --- the launch -----------------------------------------------------------------------------------------

    def _watch_launch(self, end: EvaluationEnd, alive: bool) -> None:
        alive &= end.outcome.status not in (FAILED, TIMEOUT, CRASHED)
        self._worked += alive
        self._in_vain += not alive and end.outcome.status not in (INTERRUPTED, LOST)
        if alive or end.outcome.status == INVALID:
            self._row.clear()
            self._kinds.clear()
            self._slowest_s = 0.0
            self._awaited.clear()
            self._held_since = None
            self.works |= self.futile
        elif end.fault is not None and end.again is not None:
            self._row.append(ReopenableFailure(end.outcome.status, end.again, end.fault))
            self._kinds.add(end.outcome.status)
            self._slowest_s = max(self._slowest_s, end.outcome.seconds)

    @property
    def holds_all(self) -> bool:
        """Whether to begin nothing until the running evaluations have ended."""
        if self._limit is None or self._awaited or len(self._row) < len(self._workers):
            return False
        needed = self._limit
        worked, in_vain = self._earlier if self._kinds - {FAILED} else (0, 0)
        if worked + self._worked:
            # All evaluations count, also this row: after a success in thirty, thirty failures are no surprise.
            needed = max(needed, improbable(worked + self._worked, in_vain + self._in_vain))
        elif TIMEOUT not in self._kinds and len({one.cause for one in self._row}) == 1:
            needed = max(min(needed, _HANDFUL), math.ceil(needed / _SAME))
        return len(self._row) >= needed

    def lost_patience(self, now: float, busy: Callable[[], Iterable[int]]) -> bool:
        """Whether nothing was begun for so long that evaluations begin again until those of the ``busy`` leaders have
        ended. To be asked often."""
        if self.futile or not self.holds_all:
            return False
        if self._held_since is None:
            self._held_since = now
        if now - self._held_since < max(self._patience_s, self._slowest_s):
            return False
        self._awaited, self._held_since = set(busy()), None
        return True

    def end_launch(self) -> list[ReopenableFailure]:
        """Declare the launch failed; the failures to reopen."""
        self.futile = True
        return list(self._row)

    def sentence(self) -> str:
        """Sentence on the failures, the rule and the remedy."""
        shown = []
        latest = {one.cause: one for one in self._row}
        for cause, times in Counter(one.cause for one in self._row).most_common(1):
            one, last = latest[cause], self._row[-1]
            shown += [f"{times} of them for this, {one.again.id} the latest: {one.error}"]
            shown += [self._printed(one.again.id)]
            if last.cause != cause:
                shown += [f"The last was {last.again.id}: {last.error}", self._printed(last.again.id)]
        causes = "\n    ".join(filter(None, shown))
        since = "none completed" if not self._worked else "none completed any more"
        ends = Counter(one.status for one in self._row)
        how = f" ({counted(ends)})" if ends.keys() - {FAILED} else ""
        longer = " Where they need longer, raise [evaluation] timeout." if TIMEOUT in ends else ""
        assert self._limit is not None
        fewer = "; fewer are enough where all failed alike" if len(self._row) < self._limit else ""
        return (
            f"{len(self._row)} evaluations failed{how} and {since}, so this launch was ended before the whole budget "
            f"is spent on failures ([evaluation] first_failures = {self._limit}{fewer}).\n    {causes}\n"
            "Mend this and give the same command again, which evaluates them anew; where failures like these are "
            f'expected, raise first_failures, or set it to "off".{longer}'
        )
