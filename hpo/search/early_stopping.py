"""Early stopping by a leader: its running evaluation, news for its peers, and the paused individuals that it may
promote. Nothing here waits: a decision uses what has arrived."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from hpo.individual import REEVALUATION, Scalar
from hpo.search.protocols import GO, PAUSE, STOP, Candidate, TrialReport, Verdict
from hpo.search.stopping_rules import Median, PruningSettings, Report, make_rule

MOST_RESTING = 16
"""Paused individuals that a leader keeps for a promotion."""
_MOST_LENGTHS = 1024

Steps = Callable[[dict[str, Scalar]], int | None]
"""The number of steps of a whole run with these parameters, None where that is not known."""


@dataclass
class _Evaluation:
    """The running evaluation."""

    id: str
    judged: int
    """Number of its last rung."""
    resumed: bool = False
    """Whether it may continue from a checkpoint."""
    partial: bool = False
    """Whether it most likely continued from one, so that its first values are not known here."""
    strikes: int = 0
    count: int = 0
    total: float = 0.0
    best: float = math.inf
    last: tuple[int, float] | None = None
    """Step and value of its last report."""
    last_step: int | None = None
    """Last step of the whole run, where the task says it."""
    condemned: bool = False
    """Whether it failed at its last rung, and may save itself or is stopped."""
    doubtful: bool = False
    """Whether it failed at its last rung, which may be its end."""
    spared: bool = False
    """Whether it is never stopped."""

    def add(self, loss: float) -> None:
        if loss < math.inf:
            self.count += 1
            self.total += loss
            self.best = min(self.best, loss)


class Pruner:
    """Early stopping of a leader's individuals; without ``settings`` it only remembers the last report.

    ``sign``: -1 where larger reports are better. ``steps``: length of a whole run; where the task does not say it,
    lengths are learnt from the individuals that complete, and until then none is stopped. ``forget``: called with the
    id of a paused individual that will never continue."""

    def __init__(
        self,
        settings: PruningSettings | None,
        *,
        sign: float,
        forget: Callable[[str], None],
        steps: Steps = lambda params: None,
    ) -> None:
        self._stops = settings is not None
        self._rule = make_rule(settings)
        self._means = isinstance(self._rule, Median)
        self._patience = 0 if settings is None else settings.patience
        self._sign = sign
        self._forget = forget
        self._running: _Evaluation | None = None
        self._resting: dict[str, Candidate] = {}
        self._steps = steps
        self._lengths: set[int] = set()
        """Numbers of steps with which individuals of the island have completed."""
        self._longest = 0
        self._first: int | None = None
        """Lowest step of a first report, among evaluations that began from the start here."""
        # Id and rung of the last individual that failed here: it may crash before it has ended.
        self._failed: tuple[str, int] | None = None
        self._saves: bool | None = None
        """Whether the task can save itself; None until one of its evaluations here has shown it."""
        self.news: list[Report] = []
        """Reports that have not been sent to peers yet."""

    def observe(self, reports: Iterable[Report]) -> None:
        """Learn the reports of other leaders."""
        for identity, step, loss in reports:
            if (rung := self._rule.rung(step)) is not None:
                self._rule.observe(rung, identity, loss)

    def start(self, candidate: Candidate) -> None:
        """Begin with the evaluation of ``candidate``, which has passed the rung at which it paused, if it did."""
        passed = self._rule.rung(candidate.resumed_at_step)
        self._running = _Evaluation(
            candidate.id,
            -1 if passed is None else passed,
            resumed=candidate.resumed and not candidate.promoted,
            last_step=self._steps(candidate.params) if self._stops else None,
            # Early stopping would remove the bad repetitions of a configuration from its mean.
            spared=candidate.operator == REEVALUATION,
        )

    def report(self, report: TrialReport) -> tuple[Verdict, Report | None]:
        """Verdict on the running evaluation, and its report at a rung if it has just reached the rung.

        A verdict falls at a rung, and never at the last step: the result of a whole run is kept. Where a run may be at
        its end, as another was after as many steps, the verdict falls when it reports again."""
        running = self._running
        if running is None or running.id != report.id:
            return GO, None
        if report.saves:
            self._saves = True
        elif running.last is not None and self._saves is None:
            self._saves = False  # it has reported before, and did not ask then whether to save
        if report.last_step is not None:
            running.last_step = report.last_step
        at_end = self._at_end(running, report.step)
        if running.condemned and not at_end:
            return STOP, None  # it failed at its last rung, and went on without having saved itself
        # The run did not end at the rung where it failed: another report has come.
        if running.doubtful and not at_end:
            return self._condemned(running), None
        running.condemned = running.doubtful = False
        first = running.last is None
        loss = self._sign * report.value if math.isfinite(report.value) else math.inf
        running.last = (report.step, report.value)
        running.add(loss)
        rung = self._rule.rung(report.step)
        # A first report behind those of runs from the start comes from a run that continued from a checkpoint.
        if first and running.resumed:
            running.partial = report.step > (1 if self._first is None else self._first)
        elif first:
            self._first = report.step if self._first is None else min(self._first, report.step)
        if rung is None or rung <= running.judged:
            return GO, None
        running.judged = rung
        skipped = first and report.step > self._rule.steps(rung)
        # A later value than the first at the rung is not compared there.
        if (
            running.resumed
            and self._failed != (running.id, rung)
            and (skipped or self._rule.has_seen(rung, running.id))
        ):
            return GO, None
        if self._means and running.partial:  # its mean and its best lack the values before the interruption
            return GO, None
        if self._means:
            loss = running.total / running.count if running.count else math.inf
        found = (running.id, self._rule.steps(rung), loss)
        self._rule.observe(rung, running.id, loss)
        self.news.append(found)
        if at_end or at_end is None or running.spared:
            return GO, found
        if self._rule.passes(rung, report.id, running.best):
            running.strikes = 0
            return GO, found
        # Learning curves cross: a run may fail at several rungs in a row.
        running.strikes += 1
        if running.strikes <= self._patience:
            return GO, found
        # Other runs ended at this step. Only another report can show that this run does not.
        if running.last_step is None and report.step in self._lengths:
            running.doubtful = True
            return GO, found
        return self._condemned(running), found

    def _condemned(self, running: _Evaluation) -> Verdict:
        running.condemned, running.doubtful = True, False
        self._failed = (running.id, running.judged)
        return PAUSE if self._rule.resumes and self._saves is not False else STOP

    def _at_end(self, running: _Evaluation, step: int) -> bool | None:
        """Whether ``step`` is the run's last; None where that is not known yet."""
        if running.last_step is not None:
            return step >= running.last_step
        return step >= self._longest if self._longest else None

    def completed(self) -> None:
        """Learn the length of a whole run from the running evaluation, which has completed."""
        if self.last is not None:
            self.learn_end(self.last[0])

    def learn_end(self, steps: int) -> None:
        """Learn that an individual of the island completed after ``steps`` steps."""
        # A task may end each run at a step of its own; the set must not grow with the campaign.
        if steps >= 1 and len(self._lengths) < _MOST_LENGTHS:
            self._lengths.add(steps)
        self._longest = max(steps, self._longest)

    @property
    def unsaid_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest of the runs that have completed, where they differ and the task does not say how long
        the running evaluation is; None where nothing is stopped, too."""
        running = self._running
        if not self._stops or running is None or running.last_step is not None or len(self._lengths) < 2:
            return None
        return min(self._lengths), self._longest

    @property
    def condemned(self) -> bool:
        """Whether the running evaluation failed at its last rung, and is to end there."""
        return self._running is not None and self._running.condemned

    @property
    def last(self) -> tuple[int, float] | None:
        """Step and value of the running evaluation's last report; the value may not be finite."""
        return None if self._running is None else self._running.last

    def reported(self, identity: str) -> bool:
        """Whether the running evaluation is that of ``identity``, and has reported a finite value."""
        return (
            self._running is not None and self._running.id == identity and math.isfinite(self._running.best)
        )

    def progress(self) -> tuple[int, float] | None:
        """Step and loss of the last report, for the island."""
        if self.last is None:
            return None
        step, value = self.last
        return step, self._sign * value if math.isfinite(value) else math.inf

    def rest(self, candidate: Candidate, step: int) -> None:
        """Keep ``candidate``, which has paused at ``step``, perhaps in an earlier launch; this leader alone may promote
        it."""
        candidate.attempt = replace(candidate.attempt, resumed_at_step=step)
        self._resting[candidate.id] = candidate
        paused = list(self._resting.values())
        # Their checkpoints take space on disk until the campaign ends.
        given_up = [one for one in paused if self._rule.hopeless(self._rung(one), one.id)]
        given_up += [one for one in paused if one not in given_up][:-MOST_RESTING]
        for one in given_up:
            del self._resting[one.id]
            self._forget(one.id)

    def promoted(self) -> Candidate | None:
        """The paused individual to continue now, the furthest first; it rests no longer."""
        if not (promotable := self._promotable()):
            return None
        return self._resting.pop(max(promotable, key=lambda one: one.resumed_at_step).id)

    @property
    def can_promote(self) -> bool:
        """Whether a paused individual could continue at once."""
        return bool(self._promotable())

    def known(self, most: int = sys.maxsize) -> list[Report]:
        """See ``Rule.known``."""
        return self._rule.known(most)

    def _promotable(self) -> list[Candidate]:
        return [one for one in self._resting.values() if self._rule.promotable(self._rung(one), one.id)]

    def _rung(self, paused: Candidate) -> int:
        return self._rule.rung(paused.resumed_at_step) or 0
