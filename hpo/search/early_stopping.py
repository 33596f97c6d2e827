"""Early stopping: which evaluations are not worth going on with, by what their island knows of learning curves.

A *rung* is a number of steps at which individuals are compared. ``Halving`` and ``Median`` decide, from reports
alone: the same reports in the same order give the same answers. ``EarlyStopping`` is what one leader keeps: its own
running evaluation, what it has to tell its peers, and the paused individuals that it may promote. Nothing here
waits: a decision uses what has arrived."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hpo.errors import UsageError
from hpo.individual import REEVALUATION
from hpo.search.protocols import GO, PAUSE, STOP, Candidate, TrialReport, Verdict
from hpo.spelling import suggestion

if TYPE_CHECKING:
    from hpo.config.settings import SearchSettings

Report = tuple[str, int, float]
"""(id, steps of the rung, loss there), the loss infinite where no finite number was reported."""

_WINDOW = 1024
"""Reports that a rung keeps, the latest: a share of them is as well known as one of all."""
_MOST_RESTING = 16
_MEDIAN_STARTUP = 5
"""As in Vizier's successors: a median of fewer says little."""


@dataclass(frozen=True, kw_only=True)
class PruningSettings:
    """``rule``: "halving" or "median". ``min_steps``: the first rung; ``reduction``: η, the next rung is so many
    times as far, and one in so many gets there. ``patience``: rungs in a row that one may fail without being
    stopped, for curves that cross. ``startup``: how many must have reached a rung before one is stopped there.
    ``promote``: what fails at a rung is paused, and may go on later."""

    rule: str
    min_steps: int = 1
    reduction: int = 3
    patience: int = 0
    startup: int = 1
    promote: bool = True


def of_search(search: SearchSettings, objectives: Mapping[str, str]) -> PruningSettings | None:
    """The early stopping of an island of a task with ``objectives`` (name to direction); None where it has none.

    UsageError where it cannot work."""
    if search.traits.needs_checkpoints and search.pruner != "none":
        raise UsageError(
            f'[search] pruner = "{search.pruner}" and kind = "{search.kind}" both decide who goes on training. Set '
            'pruner = "none" for that island, or choose another kind'
        )
    reported_objective(search, objectives)
    if search.pruner == "none":
        return None
    startup = search.startup or (1 if search.pruner == "halving" else _MEDIAN_STARTUP)
    return PruningSettings(
        rule=search.pruner,
        min_steps=search.min_steps,
        reduction=search.reduction,
        patience=search.patience,
        startup=startup,
        promote=search.promote,
    )


def reported_objective(search: SearchSettings, objectives: Mapping[str, str]) -> str:
    """The objective that ``trial.report`` tells. UsageError where an island stops individuals by it, and it is not
    clear which one it is."""
    names = list(objectives)
    if search.reported is not None and search.reported not in objectives:
        raise UsageError(
            f"[search] reported = {search.reported!r} is no objective of the task. {suggestion(search.reported, names)}"
        )
    if search.reported is None and len(names) > 1 and search.pruner != "none":
        listed = ", ".join(f'"{name}"' for name in names)
        raise UsageError(
            f'[search] pruner = "{search.pruner}" compares what trial.report tells, and the task has the objectives '
            f'{listed}. Say which of them that is: reported = "{names[0]}"; those that are bad in it are stopped, '
            "however good they are in the others"
        )
    return search.reported or names[0]


class _Rung:
    """The losses of those who got here, latest ``_WINDOW``; of equal ones the first is the better."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.ordered: list[tuple[float, int]] = []
        self._seen = 0

    def __contains__(self, identity: str) -> bool:
        return identity in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def reports(self) -> Iterable[tuple[str, float]]:
        return ((identity, loss) for identity, (loss, _) in self._entries.items())

    def add(self, identity: str, loss: float) -> None:
        if identity in self._entries:
            return
        entry = (loss, self._seen)
        self._seen += 1
        self._entries[identity] = entry
        insort(self.ordered, entry)
        if len(self._entries) > _WINDOW:
            _, oldest = self._entries.popitem(last=False)
            del self.ordered[bisect_left(self.ordered, oldest)]

    def place(self, identity: str) -> int:
        """How many are better."""
        return bisect_left(self.ordered, self._entries[identity])

    def loss(self, identity: str) -> float:
        return self._entries[identity][0]


class Rule(Protocol):
    """Decides; fed with the reports of the whole island."""

    resumes: bool
    """Whether a paused individual may be promoted."""

    def rung(self, step: int) -> int | None:
        """The number of the last rung that ``step`` has reached, from 0."""
        ...

    def steps(self, rung: int) -> int: ...
    def observe(self, rung: int, identity: str, loss: float) -> None: ...
    def passes(self, rung: int, identity: str, best: float) -> bool:
        """Whether one that was observed at ``rung`` and whose lowest loss is ``best`` is worth going on with."""
        ...

    def promotable(self, rung: int, identity: str) -> bool: ...
    def hopeless(self, rung: int, identity: str) -> bool: ...
    def known(self) -> list[Report]: ...


class Halving:
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934): rungs at r·η^k steps.

    Of n at a rung, the best ⌊n/η⌋ go on, and one that is the best of all so far. Those who fail are paused where
    their task can save itself, and promoted as soon as they are among the best ⌊n/η⌋ (Algorithm 2 there); elsewhere
    they end (its stopping variant). So that nobody pauses who would be promoted at once, and a run is saved and
    loaded only where it fails, the decision is made at the rung itself. Only ranks matter."""

    def __init__(self, settings: PruningSettings) -> None:
        self._first = settings.min_steps
        self._reduction = settings.reduction
        self._startup = settings.startup
        self.resumes = settings.promote
        self._rungs: dict[int, _Rung] = {}

    def rung(self, step: int) -> int | None:
        if step < self._first:
            return None
        rung, at = 0, self._first * self._reduction
        while at <= step:
            rung, at = rung + 1, at * self._reduction
        return rung

    def steps(self, rung: int) -> int:
        return int(self._first * self._reduction**rung)

    def observe(self, rung: int, identity: str, loss: float) -> None:
        self._rungs.setdefault(rung, _Rung()).add(identity, loss)

    def passes(self, rung: int, identity: str, best: float) -> bool:
        here = self._rungs[rung]
        if len(here) < self._startup:
            return True
        finite = math.isfinite(here.loss(identity))
        return finite and here.place(identity) < max(1, len(here) // self._reduction)

    def promotable(self, rung: int, identity: str) -> bool:
        here = self._rungs.get(rung)
        if here is None or identity not in here or not math.isfinite(here.loss(identity)):
            return False
        return here.place(identity) < len(here) // self._reduction

    def hopeless(self, rung: int, identity: str) -> bool:
        """So far down that what it saved can be removed: twice as far as what is promoted, with a rung or more."""
        here = self._rungs.get(rung)
        if here is None or identity not in here:
            return True
        return here.place(identity) >= max(2 * self._reduction, 2 * (len(here) // self._reduction))

    def known(self) -> list[Report]:
        return [
            (identity, self.steps(rung), loss)
            for rung, here in sorted(self._rungs.items())
            for identity, loss in here.reports()
        ]


class Median:
    """The median rule (Golovin et al. 2017, doi:10.1145/3097983.3098043): at multiples of r steps, one whose best
    loss is worse than the median of the running means of all others that got there is stopped for good. From 32 r
    on they are sixteen between one power of two and the next.

    The mean of an evaluation that goes on after an interruption counts from there."""

    resumes = False

    def __init__(self, settings: PruningSettings) -> None:
        self._every = settings.min_steps
        self._startup = settings.startup
        self._rungs: OrderedDict[int, _Rung] = OrderedDict()

    def rung(self, step: int) -> int | None:
        number = step // self._every
        # All multiples up to 31, then sixteen an octave: long runs with many reports cost no more than short ones.
        coarse = max(0, number.bit_length() - 5)
        return (number >> coarse << coarse) - 1 if number else None

    def steps(self, rung: int) -> int:
        return (rung + 1) * self._every

    def observe(self, rung: int, identity: str, loss: float) -> None:
        self._rungs.setdefault(rung, _Rung()).add(identity, loss)

    def passes(self, rung: int, identity: str, best: float) -> bool:
        others = [loss for loss, _ in self._rungs[rung].ordered]
        del others[self._rungs[rung].place(identity)]
        if not others or len(others) < self._startup:
            return True
        middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        return best <= middle if math.isfinite(middle) else math.isfinite(best) or best <= middle

    def promotable(self, rung: int, identity: str) -> bool:
        return False

    def hopeless(self, rung: int, identity: str) -> bool:
        return True

    def known(self) -> list[Report]:
        return [
            (identity, self.steps(rung), loss)
            for rung, here in sorted(self._rungs.items())
            for identity, loss in here.reports()
        ]


def make_rule(settings: PruningSettings) -> Rule:
    """The rule that ``settings.rule`` names."""
    return Halving(settings) if settings.rule == "halving" else Median(settings)


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


class EarlyStopping:
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
        """What peers have not been told yet."""

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
        """The running evaluation has: so others learn how many steps a whole run has."""
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
        over += [one for one in self._resting.values() if one not in over][:-_MOST_RESTING]
        for one in over:
            del self._resting[one.id]
            self._forget(one.id)

    def promoted(self) -> Candidate | None:
        """Who is to go on now, the furthest first; it rests no longer."""
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
    def hopes(self) -> bool:
        """Whether somebody could go on at once."""
        rule = self._rule
        return rule is not None and any(
            rule.promotable(rule.rung(one.resumed_at_step) or 0, one.id) for one in self._resting.values()
        )

    def known(self) -> list[Report]:
        """All reports that count."""
        return [] if self._rule is None else self._rule.known()
