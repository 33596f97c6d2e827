"""Early stopping as one leader does it: its running evaluation, what its peers need to know, and
the paused individuals that it may promote.

Nothing here waits: a decision uses what has arrived."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from hpo.individual import REEVALUATION, Scalar
from hpo.search.protocols import GO, PAUSE, STOP, Candidate, TrialReport, Verdict
from hpo.search.stopping_rules import PruningSettings, Report, Rule, make_rule

MOST_RESTING = 16
_MOST_LENGTHS = 1024

Steps = Callable[[dict[str, Scalar]], int | None]
"""The number of steps of a whole run with these parameters, None where that is not known."""


@dataclass
class _Evaluation:
    """The running evaluation. ``judged``: the number of its last rung. ``resumed``: it may go on from a checkpoint;
    ``partial``: it most likely does, so that its first values are not known here. ``count``, ``total``: of its finite
    values. ``last_step``: of the whole run, where the task says it. ``condemned``: it failed at its last rung, and may
    save itself or is stopped; ``last`` stays there. ``doubtful``: it failed at its last rung, which may be its end.
    ``spared``: it is never stopped."""

    id: str
    judged: int
    resumed: bool = False
    partial: bool = False
    strikes: int = 0
    count: int = 0
    total: float = 0.0
    best: float = math.inf
    last: tuple[int, float] | None = None
    last_step: int | None = None
    condemned: bool = False
    doubtful: bool = False
    spared: bool = False


class Pruner:
    """What one leader knows and does of early stopping; without ``settings`` it only remembers the last report.

    ``sign``: -1 where larger reports are better. ``steps``: of whole runs; where the task does not say it, lengths are
    learnt from the individuals that complete, and until then none is stopped. ``forget``: called with the id of a
    paused individual that will not go on."""

    def __init__(
        self,
        settings: PruningSettings | None,
        *,
        sign: float,
        forget: Callable[[str], None],
        steps: Steps = lambda params: None,
    ) -> None:
        self._rule = None if settings is None else make_rule(settings)
        self._means = settings is not None and settings.rule == "median"
        self._patience = 0 if settings is None else settings.patience
        self._sign = sign
        self._forget = forget
        self._running: _Evaluation | None = None
        self._resting: dict[str, Candidate] = {}
        self._steps = steps
        self._lengths: set[int] = set()
        """The numbers of steps with which individuals of the island have completed."""
        self._longest = 0
        self._first: int | None = None
        """The lowest step at which an evaluation that began anew here has reported first."""
        # The id of the last individual that failed at a rung here, and the rung: it may crash before it has ended.
        self._failed: tuple[str, int] | None = None
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
        self._running = _Evaluation(
            candidate.id,
            -1 if passed is None else passed,
            resumed=candidate.resumed and not candidate.promoted,
        )
        if self._rule is not None:
            self._running.last_step = self._steps(candidate.params)
        # Of repetitions that end early the bad ones would be missing in the mean.
        self._running.spared = candidate.operator == REEVALUATION

    def report(self, report: TrialReport) -> tuple[Verdict, Report | None]:
        """The verdict on the running evaluation, and its report at a rung if it has just got to one.

        A verdict falls at a rung, and never at the last step: what has been paid for in full is kept. Where a run may
        be at its end, as another was after as many steps, the verdict falls when it reports again."""
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
        if running.doubtful and not at_end:
            return self._condemned(running), None
        running.condemned = running.doubtful = False
        first = running.last is None
        loss = self._sign * report.value if math.isfinite(report.value) else math.inf
        running.last = (report.step, report.value)
        if loss < math.inf:
            running.count += 1
            running.total += loss
            running.best = min(running.best, loss)
        rule = self._rule
        rung = None if rule is None else rule.rung(report.step)
        if first and running.resumed:
            running.partial = report.step > (1 if self._first is None else self._first)
        elif first:
            self._first = report.step if self._first is None else min(self._first, report.step)
        if rule is None or rung is None or rung <= running.judged:
            return GO, None
        running.judged = rung
        if self._passed_before(rule, running, rung, first and report.step > rule.steps(rung)):
            return GO, None
        if self._means and running.partial:  # its mean and its best lack the values before the interruption
            return GO, None
        found = self._at_rung(rule, running, rung, loss)
        if at_end or at_end is None or running.spared:
            return GO, found
        if rule.passes(rung, report.id, running.best):
            running.strikes = 0
            return GO, found
        running.strikes += 1
        if running.strikes <= self._patience:
            return GO, found
        if running.last_step is None and report.step in self._lengths:
            running.doubtful = True
            return GO, found
        return self._condemned(running), found

    def _passed_before(self, rule: Rule, running: _Evaluation, rung: int, beyond: bool) -> bool:
        """Whether an evaluation that goes on had passed ``rung`` before: a later value is not compared there.
        ``beyond``: its first report lies behind the rung."""
        if not running.resumed or self._failed == (running.id, rung):
            return False
        return beyond or rule.has_seen(rung, running.id)

    def _at_rung(self, rule: Rule, running: _Evaluation, rung: int, loss: float) -> Report:
        """Enter what the running evaluation reported at ``rung``."""
        if self._means:
            loss = running.total / running.count if running.count else math.inf
        found = (running.id, rule.steps(rung), loss)
        rule.observe(rung, running.id, loss)
        self.news.append(found)
        return found

    def _condemned(self, running: _Evaluation) -> Verdict:
        """The running evaluation failed at its last rung, and is to end."""
        running.condemned, running.doubtful = True, False
        self._failed = (running.id, running.judged)
        pauses = self._rule is not None and self._rule.resumes and self._saves is not False
        return PAUSE if pauses else STOP

    def _at_end(self, running: _Evaluation, step: int) -> bool | None:
        """Whether ``step`` is the run's last; None where that is not known yet."""
        if running.last_step is not None:
            return step >= running.last_step
        return step >= self._longest if self._longest else None

    def completed(self) -> None:
        """The running evaluation has completed, which shows how many steps a whole run has."""
        if self.last is not None:
            self.learn_end(self.last[0])

    def learn_end(self, steps: int) -> None:
        """An individual of the island completed after ``steps`` steps."""
        if steps >= 1 and len(self._lengths) < _MOST_LENGTHS:
            self._lengths.add(steps)
        self._longest = max(steps, self._longest)

    @property
    def unsaid_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest of the runs that have completed, where they differ and the task does not say how long
        the running evaluation is; None where nothing is stopped, too."""
        running = self._running
        if self._rule is None or running is None or running.last_step is not None or len(self._lengths) < 2:
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
        candidate.attempt = replace(candidate.attempt, resumed_at_step=step)
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
