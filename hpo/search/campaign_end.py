"""Rules by which a campaign ends before its budget is used up: a value that is good enough, and too small a gain that
is expected of further evaluations."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpo.config.bounds import MOST_OVER
from hpo.errors import UsageError
from hpo.search.models.estimates import estimates
from hpo.search.population import Population
from hpo.spelling import suggestion
from hpo.task.task import MAXIMIZE
from hpo.text import excerpt

_FEWEST = 30
"""Evaluations before which nothing is said of the gain of others."""
_BEFORE = 0.5
"""Evaluations that are looked at before the last N, as a share of N."""
# Half of what the last N evaluations gained, and a quarter of what those before them did: gains become
# smaller from N to N, and a while without any may be chance. Chosen by tests/benchmarks/campaign_end.py.
_LAST, _EARLIER = 0.5, 0.25
_MOST_ENDS = math.ceil((1 + _BEFORE) * MOST_OVER) + 1


def losses_to_reach(
    value: float | Mapping[str, float] | None, objectives: Mapping[str, str]
) -> tuple[float, ...] | None:
    """Losses that an individual must not exceed to have the ``value`` of ``[stop]``; None where that is None.

    Raises:
        UsageError: an objective is unknown, or a number is given for several.
    """
    if value is None:
        return None
    names = ", ".join(objectives)
    if not isinstance(value, Mapping):
        if len(objectives) > 1:
            raise UsageError(
                f"[stop] value = {value:g}: the task has the objectives {names}, so it must be a table of those to "
                "reach, such as "
                f"{{ {next(iter(objectives))} = {value:g} }}"
            )
        value = dict.fromkeys(objectives, value)
    for name in value.keys() - objectives.keys():
        near = suggestion(name, objectives)
        raise UsageError(f"[stop] value = {excerpt(dict(value))}: the task has no objective {name!r}. {near}")
    return tuple(
        math.inf if name not in value else -value[name] if way == MAXIMIZE else value[name]
        for name, way in objectives.items()
    )


def check(
    value: float | Mapping[str, float] | None, gain: float | None, objectives: Mapping[str, str]
) -> None:
    """Raise UsageError where ``[stop]`` does not suit the ``objectives``."""
    losses_to_reach(value, objectives)
    if gain is not None and len(objectives) > 1:
        raise UsageError(
            f"[stop] gain = {gain:g} is for one objective, and the task has {', '.join(objectives)}. Remove it, or "
            "name values to reach: value = { … }"
        )


def noise_of(populations: Iterable[Population]) -> float:
    """Standard deviation of an evaluation around the mean of its configuration, by the repeated evaluations among the
    members; 0 where none is repeated."""
    losses: dict[tuple[float, ...], dict[str, float]] = {}
    for population in populations:
        for member in population:
            if member.losses is not None:
                losses.setdefault(tuple(member.genome), {})[member.id] = member.losses[0]
    if all(len(own) < 2 for own in losses.values()):
        return 0.0
    return math.sqrt(estimates([list(own.values()) for own in losses.values()])[0].noise)


@dataclass
class BestOverTime:
    """The best loss of one objective over the evaluations of a campaign, which may be added in any order."""

    ended: int = 0
    """Number of evaluations."""
    ends: list[float] = field(default_factory=list)
    """Unix seconds of the last ends, earliest first."""
    records: list[tuple[float, float]] = field(default_factory=list)
    """Ends of the evaluations that were better than all that ended before, with their losses, earliest first."""

    def add(self, finished: float, losses: Sequence[float] | None) -> None:
        """Add an evaluation that ended at ``finished`` (Unix seconds). ``losses``: None unless it completed."""
        self.ended += 1
        insort(self.ends, finished)
        del self.ends[:-_MOST_ENDS]
        if losses is None or len(losses) > 1:
            return
        place = bisect_left(self.records, (finished, losses[0]))
        if place and self.records[place - 1][1] <= losses[0]:
            return
        after = place
        while after < len(self.records) and self.records[after][1] >= losses[0]:
            after += 1
        self.records[place:after] = [(finished, losses[0])]

    def _before(self, ends: int) -> float:
        """Best loss before the last ``ends`` evaluations."""
        place = bisect_left(self.records, (self.ends[-ends], -math.inf))
        return self.records[place - 1][1] if place else math.inf

    def expected_gain(self, over: int) -> float | None:
        """Gain in the best loss that is expected of ``over`` more evaluations, rather too large than too small: half of
        what the last ``over`` gained, and a quarter of what half as many before them did. None where that is not known:
        before 30 evaluations and one and a half times ``over``."""
        seen = math.ceil((1 + _BEFORE) * over)
        if self.ended < max(_FEWEST, seen + 1) or not self.records:
            return None
        last, earlier = self._before(over), self._before(seen)
        if math.isinf(earlier):
            return None
        return _LAST * (last - self.records[-1][1]) + _EARLIER * (earlier - last)
