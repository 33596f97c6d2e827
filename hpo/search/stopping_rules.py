"""Early-stopping rules: successive halving and the median rule.

They compare individuals at *rungs*, numbers of steps, from reports alone: the same reports in the same order give the
same answers."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.spelling import suggestion

if TYPE_CHECKING:
    from hpo.config.settings import SearchSettings

Report = tuple[str, int, float]
"""(id, steps of the rung, loss there), the loss infinite where no finite number was reported."""

_WINDOW = 1024
"""Latest reports that a rung keeps: shares and medians of this number differ little from those of all."""
_SILENT = 3
"""Completed individuals without a report after which it is unlikely that reports will come."""
_MEDIAN_STARTUP = 5
"""As in Vizier's successors: a median of fewer says little."""


@dataclass(frozen=True, kw_only=True)
class PruningSettings:
    """Keys of ``[search]`` with the same names; ``rule``: its ``pruner``, "halving" or "median"."""

    rule: str
    min_steps: int
    reduction: int
    patience: int
    startup: int
    promote: bool


def of_search(search: SearchSettings, objectives: Mapping[str, str]) -> PruningSettings | None:
    """Early stopping of an island of a task with ``objectives`` (directions by name), None where it has none;
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
    """Objective whose values ``trial.report`` gets; UsageError where an island stops individuals by it, and the
    settings leave open which of several it is."""
    # A report has the value of a single objective, and non-dominated ranks at a rung would need those of all.
    names = list(objectives)
    if search.reported is not None and search.reported not in objectives:
        remedy = (
            suggestion(search.reported, names) if len(names) > 1 else "It has one objective: remove the key."
        )
        raise UsageError(f"[search] reported = {search.reported!r} is no objective of the task. {remedy}")
    if search.reported is None and len(names) > 1 and search.pruner != "none":
        listed = ", ".join(f'"{name}"' for name in names)
        raise UsageError(
            f'[search] pruner = "{search.pruner}" compares what trial.report gets, and the task has the objectives '
            f'{listed}. Say which of them that is: reported = "{names[0]}"; those that are bad in it are stopped, '
            "however good they are in the others"
        )
    return search.reported or names[0]


def without_reports(pruner: str, completed: int, reports: bool) -> list[str]:
    """A remark on a ``pruner`` that has nothing to compare, or none. ``completed``: individuals so far; ``reports``:
    whether any that completed or was pruned had reported."""
    if pruner == "none" or reports or completed < _SILENT:
        return []
    return [
        f'pruner = "{pruner}" stops nothing: no evaluation has called trial.report so far. Call it at every epoch; '
        "with trainers.train, trial.training(…) does"
    ]


class _Rung:
    """Losses of the latest ``_WINDOW`` individuals that reached a rung; the older of equal losses is the better, and
    infinite losses come last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.ordered: list[tuple[float, int]] = []
        self._seen = 0

    def __contains__(self, identity: str) -> bool:
        return identity in self._entries

    def reports(self) -> Iterable[tuple[str, float]]:
        return ((identity, loss) for identity, (loss, _) in self._entries.items())

    def add(self, identity: str, loss: float) -> None:
        # An individual that crashes and is evaluated again reports at the same rung again.
        if identity in self._entries:
            return
        # The number of earlier reports sorts equal losses by their arrival.
        entry = (loss, self._seen)
        self._seen += 1
        self._entries[identity] = entry
        insort(self.ordered, entry)
        if len(self._entries) > _WINDOW:
            _, oldest = self._entries.popitem(last=False)
            del self.ordered[bisect_left(self.ordered, oldest)]

    def place(self, identity: str) -> int:
        """Number of better losses."""
        return bisect_left(self.ordered, self._entries[identity])

    @property
    def finite(self) -> int:
        """Number of finite losses: shares and medians are of these alone."""
        return bisect_left(self.ordered, (math.inf, -1))

    def loss(self, identity: str) -> float:
        return self._entries[identity][0]


class Rule:
    """Decides which individuals continue, from the reports of the whole island, which it keeps. The base class has no
    rung, and stops nothing."""

    resumes = False
    """Whether a paused individual may be promoted."""

    def __init__(self) -> None:
        self._rungs: dict[int, _Rung] = {}

    def rung(self, step: int) -> int | None:
        """Number of the last rung that ``step`` has reached, from 0."""
        return None

    def steps(self, rung: int) -> int:
        """Number of steps at which the rung lies."""
        raise NotImplementedError

    def passes(self, rung: int, identity: str, best: float) -> bool:
        """Whether an individual that was observed at ``rung`` and whose lowest loss is ``best`` continues; all do where
        fewer finite losses than the rule needs are known."""
        raise NotImplementedError

    def promotable(self, rung: int, identity: str) -> bool:
        """Whether an individual that paused at ``rung`` is among the best there by now."""
        return False

    def hopeless(self, rung: int, identity: str) -> bool:
        """Whether an individual that paused at ``rung`` is so far down that its checkpoint can be removed."""
        return True

    def observe(self, rung: int, identity: str, loss: float) -> None:
        """Learn an individual's report."""
        self._rungs.setdefault(rung, _Rung()).add(identity, loss)

    def has_seen(self, rung: int, identity: str) -> bool:
        """Whether the individual's loss at ``rung`` is known."""
        return rung in self._rungs and identity in self._rungs[rung]

    def known(self, most: int = sys.maxsize) -> list[Report]:
        """Reports that count, at most ``most``: an even part of those at each rung."""
        share = max(1, most // max(1, len(self._rungs)))
        return [
            (identity, self.steps(rung), loss)
            for rung, here in sorted(self._rungs.items())
            for identity, loss in islice(here.reports(), 0, None, -(-len(here.ordered) // share))
        ][:most]


class Halving(Rule):
    """Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934): rungs at r·η^k steps.

    The best ⌊n/η⌋ of n with a finite loss at a rung continue, and the best of all so far. Those that fail are paused
    where their task can save itself, and promoted as soon as they are among the best ⌊n/η⌋ (Algorithm 2 there);
    elsewhere they end (its stopping variant). The decision is made at the rung itself, so that none pauses that would
    be promoted at once, and a run is saved and loaded only where it fails. Only ranks matter."""

    def __init__(self, settings: PruningSettings) -> None:
        super().__init__()
        self._first = settings.min_steps
        self._reduction = settings.reduction
        self._startup = settings.startup
        self.resumes = settings.promote

    def rung(self, step: int) -> int | None:
        if step < self._first:
            return None
        # Multiplied and not by a logarithm, which errs at exact powers.
        rung, at = 0, self._first * self._reduction
        while at <= step:
            rung, at = rung + 1, at * self._reduction
        return rung

    def steps(self, rung: int) -> int:
        return int(self._first * self._reduction**rung)

    def passes(self, rung: int, identity: str, best: float) -> bool:
        here = self._rungs[rung]
        if here.finite < self._startup:
            return True
        finite = math.isfinite(here.loss(identity))
        return finite and here.place(identity) < max(1, here.finite // self._reduction)

    def promotable(self, rung: int, identity: str) -> bool:
        if not self.has_seen(rung, identity):
            return False
        here = self._rungs[rung]
        return math.isfinite(here.loss(identity)) and here.place(identity) < here.finite // self._reduction

    def hopeless(self, rung: int, identity: str) -> bool:
        # Twice as far down as what is promoted, with a margin of 2 η places.
        if not self.has_seen(rung, identity):
            return True
        here = self._rungs[rung]
        return here.place(identity) >= max(2 * self._reduction, 2 * (here.finite // self._reduction))


class Median(Rule):
    """Median rule (Golovin et al. 2017, doi:10.1145/3097983.3098043): at multiples of r steps, an individual whose best
    loss is worse than the median of the running means of all others that got there is stopped for good.

    NaN is left out of means and medians. An evaluation that continues from a checkpoint is neither compared nor
    stopped: its mean and its best value lack what it reported before."""

    def __init__(self, settings: PruningSettings) -> None:
        super().__init__()
        self._every = settings.min_steps
        self._startup = settings.startup

    def rung(self, step: int) -> int | None:
        number = step // self._every
        # All multiples up to 31, then sixteen an octave: long runs with many reports cost no more than short runs.
        coarse = max(0, number.bit_length() - 5)
        return (number >> coarse << coarse) - 1 if number else None

    def steps(self, rung: int) -> int:
        return (rung + 1) * self._every

    def passes(self, rung: int, identity: str, best: float) -> bool:
        here = self._rungs.get(rung, _Rung())
        others = [loss for loss, _ in here.ordered[: here.finite]]
        # An individual is not compared with itself.
        if identity in here and math.isfinite(here.loss(identity)):
            del others[here.place(identity)]
        if not others or len(others) < self._startup:
            return True
        # Halves are added, because the sum of two large losses may overflow.
        return best <= others[(len(others) - 1) // 2] / 2 + others[len(others) // 2] / 2


def make_rule(settings: PruningSettings | None) -> Rule:
    """The rule that ``settings.rule`` names; without ``settings`` nothing is stopped."""
    if settings is None:
        return Rule()
    return Halving(settings) if settings.rule == "halving" else Median(settings)
