"""Limits of outcomes: bounds of metrics and objectives that a result has to keep to be the best."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from hpo.errors import UsageError
from hpo.individual import Metric
from hpo.task.metrics import as_number
from hpo.text import excerpt

MOST_EXCESS = 1e9
"""Largest excess, which models can still compute with."""


Objectives = Mapping[str, float] | None
Metrics = Mapping[str, Metric]


class OutcomeLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds by name of a metric or objective. A value equal to its bound keeps the limit. Methods get the objectives
    and the metrics of a result."""

    at_most: dict[str, float] = {}
    at_least: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self.at_most or self.at_least)

    @property
    def names(self) -> tuple[str, ...]:
        """Limited metrics and objectives, each once."""
        return tuple(dict.fromkeys((*self.at_most, *self.at_least)))

    def missing(self, objectives: Objectives, metrics: Metrics) -> list[str]:
        """Limited names that have no number."""
        numbers = self._numbers(objectives, metrics)
        return [name for name in self.names if name not in numbers]

    def broken(self, objectives: Objectives, metrics: Metrics) -> list[str]:
        """Limited names whose numbers break a limit."""
        numbers = self._numbers(objectives, metrics).items()
        low, high = self.at_least, self.at_most
        return [one for one, x in numbers if not low.get(one, -math.inf) <= x <= high.get(one, math.inf)]

    def excess(self, objectives: Objectives, metrics: Metrics) -> tuple[float, ...] | None:
        """Excess over each limit: above 0 where it is broken, in units of the bound's absolute value, or of 1 for the
        bound 0. None where a limited name has no number."""
        if not self:  # most tasks have none, and a campaign that goes on asks for each of its results
            return ()
        numbers, found = self._numbers(objectives, metrics), []
        if len(numbers) < len(self.names):
            return None
        for sign, bounds in (1.0, self.at_most), (-1.0, self.at_least):
            for name, bound in bounds.items():
                excess = sign * (numbers[name] - bound) / (abs(bound) or 1.0)
                found.append(max(-MOST_EXCESS, min(excess, MOST_EXCESS)))
        return tuple(found)

    def keeps(self, objectives: Objectives, metrics: Metrics) -> bool:
        """Whether all limited numbers are there, and keep the limits."""
        excess = self.excess(objectives, metrics)
        return excess is not None and max(excess, default=0.0) <= 0.0

    def _numbers(self, objectives: Objectives, metrics: Metrics) -> dict[str, float]:
        """Numbers of limited names. An objective comes before a metric of its name."""
        found: dict[str, float] = {}
        for name in self.names:
            number = as_number((objectives or {}).get(name, metrics.get(name)))
            if number is not None and not math.isnan(number):
                found[name] = number
        return found

    def __str__(self) -> str:
        parts = [f"{name} at most {bound:g}" for name, bound in self.at_most.items()]
        return ", ".join(parts + [f"{name} at least {bound:g}" for name, bound in self.at_least.items()])


UNLIMITED = OutcomeLimits()


def without_best(limits: OutcomeLimits, completed: int) -> list[str]:
    """Remark where none of the ``completed`` individuals is the best, or none without limits."""
    if not limits or not completed:
        return []
    return [f"no evaluation keeps the limits ({limits}), so there is no best: evaluate more, or loosen them"]


def checked_limits(at_most: object, at_least: object, of: str = "Task") -> OutcomeLimits:
    """Limits from the arguments of a task; UsageError, which begins with ``of``, where they are not allowed."""
    limits = OutcomeLimits(_checked(f"{of}: at_most", at_most), _checked(f"{of}: at_least", at_least))
    for name in limits.at_most.keys() & limits.at_least.keys():
        if limits.at_most[name] < limits.at_least[name]:
            raise UsageError(
                f"{of}: {name!r} is to be at most {limits.at_most[name]} and at least {limits.at_least[name]}: no "
                "number is both. Correct one of them."
            )
    return limits or UNLIMITED


def _checked(label: str, bounds: object) -> dict[str, float]:
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping) or not all(isinstance(name, str) and name for name in bounds):
        raise UsageError(f'{label} = {excerpt(bounds)}: must map names to numbers. Write {{"memory": 70}}.')
    found = {}
    for name, bound in bounds.items():
        number = as_number(bound)
        if number is None or not math.isfinite(number):
            raise UsageError(f"{label}[{name!r}] = {excerpt(bound)}: must be a finite number. Correct it.")
        found[name] = number
    return found
