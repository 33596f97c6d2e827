"""Early stopping as one leader does it: its running evaluation, what its peers need to know, and
the paused individuals that it may promote.

Nothing here waits: a decision uses what has arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpo.individual import REEVALUATION
from hpo.search.protocols import GO, PAUSE, STOP, Candidate, TrialReport, Verdict
from hpo.search.stopping_rules import PruningSettings, Report, make_rule

MOST_RESTING = 16


@dataclass
class _Evaluation:
    """The one that runs here. ``judged``: the number of its last rung. ``last_step``: of the whole run, where the task
    has said it. ``condemned``: it failed at its last rung, and may save itself or is stopped; ``last`` stays there.
    ``spared``: it is never stopped."""

    id: str
    judged: int
    strikes: int = 0
    count: int = 0
    total: float = 0.0
    best: float = math.inf
    last: tuple[int, float] | None = None
    last_step: int | None = None
    condemned: bool = False
    spared: bool = False


class Pruner:
    """What one leader knows and does of early stopping; without ``settings`` it only remembers the last report.

    ``sign``: -1 where larger reports are better. ``steps``: of a whole run, None where the task does not say it; then
    it is learnt from those that complete, and until then no individual is stopped. ``forget``: called with the id of
    a paused individual that will not go on."""

    def __init__(
        self,
        settings: PruningSettings | None,
        *,
        sign: float,
        forget: Callable[[str], None],
        steps: int | None = None,
    ) -> None:
        self._rule = None if settings is None else make_rule(settings)
        self._means = settings is not None and settings.rule == "median"
        self._patience = 0 if settings is None else settings.patience
        self._sign = sign
        self._forget = forget
        self._running: _Evaluation | None = None
        self._resting: dict[str, Candidate] = {}
        self._steps = steps
        self._longest: int | None = None
        """The most steps that an individual of the island has completed with."""
        self._saves: bool | None = None
        """Whether the task can save itself; None until one of its evaluations here has shown it."""
        self.news: list[Report] = []
        """Reports that have not been sent to peers yet."""

    def observe(self, reports: Iterable[Report]) -> None:
        """Learn what others reported."""
        for identity, step, loss in reports:
            rung = None if self._rule is None else self._rule.rung(step)
            if self._rule is not None and rung is not None:
                self._rule.observe(rung, identity, loss)

    def start(self, candidate: Candidate) -> None:
        """``candidate`` is evaluated from now on; one that was promoted has passed the rung at which it paused."""
        passed = None if self._rule is None else self._rule.rung(candidate.resumed_at_step)
        self._running = _Evaluation(candidate.id, -1 if passed is None else passed)
        # Of repetitions that end early the bad ones would be missing in the mean.
        self._running.spared = candidate.operator == REEVALUATION

    def report(self, report: TrialReport) -> tuple[Verdict, Report | None]:
        """The verdict on the running evaluation, and its report at a rung if it has just got to one.

        A verdict falls at a rung, and never at the last step: what has been paid for in full is kept."""
        running = self._running
        if running is None or running.id != report.id:
            return GO, None
        if report.saves:
            self._saves = True
        elif running.count and self._saves is None:
            self._saves = False  # it has reported before, and did not ask then whether to save
        if report.last_step is not None:
            running.last_step = report.last_step
        at_end = self._at_end(running, report.step)
        if running.condemned and not at_end:
            return STOP, None  # it failed at its last rung, and went on without having saved itself
        running.condemned = False
        loss = self._sign * report.value if math.isfinite(report.value) else math.inf
        running.last = (report.step, report.value)
        running.count += 1
        running.total += loss
        running.best = min(running.best, loss)
        rule = self._rule
        rung = None if rule is None else rule.rung(report.step)
        if rule is None or rung is None or rung <= running.judged:
            return GO, None
        running.judged = rung
        found = (report.id, rule.steps(rung), running.total / running.count if self._means else loss)
        rule.observe(rung, report.id, found[2])
        self.news.append(found)
        if at_end or at_end is None or running.spared:
            return GO, found
        if rule.passes(rung, report.id, running.best):
            running.strikes = 0
            return GO, found
        running.strikes += 1
        if running.strikes <= self._patience:
            return GO, found
        running.condemned = True
        return (PAUSE if rule.resumes and self._saves is not False else STOP), found

    def _at_end(self, running: _Evaluation, step: int) -> bool | None:
        """Whether ``step`` is the run's last; None where that is not known yet."""
        known = (running.last_step, self._steps, self._longest)
        last = next((steps for steps in known if steps is not None), None)
        return None if last is None else step >= last

    def completed(self) -> None:
        """The running evaluation has completed, which shows how many steps a whole run has."""
        if self.last is not None:
            self.learn_end(self.last[0])

    def learn_end(self, steps: int) -> None:
        """An individual of the island completed after ``steps`` steps."""
        if steps >= 1:
            self._longest = max(steps, self._longest or 0)

    @property
    def condemned(self) -> bool:
        """Whether the running evaluation failed at its last rung, and is to end there."""
        return self._running is not None and self._running.condemned

    @property
    def last(self) -> tuple[int, float] | None:
        """Step and value of the running evaluation's last report; the value may not be finite."""
        return None if self._running is None else self._running.last

    def reported(self, identity: str) -> bool:
        """Whether the running evaluation, if it is that one, has reported a finite value."""
        return (
            self._running is not None and self._running.id == identity and math.isfinite(self._running.best)
        )

    def progress(self) -> tuple[int, float] | None:
        """Step and loss of the last report, for the island."""
        last = self.last
        if last is None:
            return None
        return last[0], self._sign * last[1] if math.isfinite(last[1]) else math.inf

    def rest(self, candidate: Candidate, step: int) -> None:
        """``candidate`` has paused at ``step``, or had in an earlier launch; it may be promoted by this leader, and
        by no other."""
        candidate.resumed_at_step = step
        self._resting[candidate.id] = candidate
        rule = self._rule
        over = [
            one
            for one in self._resting.values()
            if rule is None or rule.hopeless(rule.rung(one.resumed_at_step) or 0, one.id)
        ]
        over += [one for one in self._resting.values() if one not in over][:-MOST_RESTING]
        for one in over:
            del self._resting[one.id]
            self._forget(one.id)

    def promoted(self) -> Candidate | None:
        """The paused individual that is to go on now, the furthest first; it rests no longer."""
        rule = self._rule
        if rule is None or not self._resting:
            return None
        fit = [
            one
            for one in self._resting.values()
            if rule.promotable(rule.rung(one.resumed_at_step) or 0, one.id)
        ]
        if not fit:
            return None
        chosen = max(fit, key=lambda one: one.resumed_at_step)
        return self._resting.pop(chosen.id)

    @property
    def can_promote(self) -> bool:
        """Whether a paused individual could go on at once."""
        rule = self._rule
        return rule is not None and any(
            rule.promotable(rule.rung(one.resumed_at_step) or 0, one.id) for one in self._resting.values()
        )

    def known(self) -> list[Report]:
        """All reports that count."""
        return [] if self._rule is None else self._rule.known()
