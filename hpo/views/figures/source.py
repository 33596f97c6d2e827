"""What figures are drawn from: one campaign, and what several figures need of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from hpo.errors import CampaignError
from hpo.individual import COMPLETED, FINAL, Individual
from hpo.results.analysis import pareto
from hpo.results.analysis.importance import Importance, importance
from hpo.space.space import described_space

if TYPE_CHECKING:
    import pandas

    from hpo.results.record import CampaignRecord
    from hpo.space.space import SearchSpace


class NotDrawn(Exception):
    """The data do not fill a figure; the text says why, in words that follow a colon."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One campaign. ``curves``: rows ``id, step, value, time`` and a column per further metric, in the order of their
    times; ``name``: what it is called beside others."""

    name: str
    record: CampaignRecord
    curves: pandas.DataFrame

    @cached_property
    def objectives(self) -> dict[str, str]:
        """Name to direction ("minimize", "maximize"), in the task's order."""
        return self.record.objectives

    @property
    def objective(self) -> str:
        """The first objective's name."""
        return next(iter(self.objectives))

    def sign(self, objective: str | None = None) -> float:
        """-1 where the objective (default: the first) is maximised, else 1: times a value, less is better."""
        return -1.0 if self.objectives[objective or self.objective] == "maximize" else 1.0

    @cached_property
    def space(self) -> SearchSpace | None:
        """The search space; None where ``campaign.json`` describes none."""
        try:
            return described_space(self.record.identity.get("space"))
        except CampaignError:
            return None

    @cached_property
    def ended(self) -> list[Individual]:
        """Those that count for the budget, in the order in which they ended."""
        found = [one for one in self.record.individuals if one.status in FINAL and one.finished is not None]
        return sorted(found, key=lambda one: (one.finished or 0.0, one.id))

    @cached_property
    def completed(self) -> list[Individual]:
        """Those of ``ended`` that completed."""
        return [one for one in self.ended if one.status == COMPLETED and one.objectives is not None]

    @cached_property
    def number(self) -> dict[str, int]:
        """By id, the place among those that ended, from 1: the horizontal axis of figures over evaluations."""
        return {one.id: place for place, one in enumerate(self.ended, start=1)}

    @cached_property
    def best(self) -> Individual | None:
        """The best individual, as ``hpo best`` has it, known points included; None where none has completed."""
        return next(iter(pareto.best(self.record, 1)), None)

    @cached_property
    def default(self) -> Individual | None:
        """The completed evaluation of the task's own point: its default, else the first that was given."""
        for operator in ("default", "given"):
            for one in self.completed:
                if one.operator == operator:
                    return one
        return None

    @property
    def default_is_given(self) -> bool:
        """Whether ``default`` is not the task's default but the first of its points."""
        return self.default is not None and self.default.operator == "given"

    def default_value(self, objective: str | None = None) -> float | None:
        """Value of the default in the objective (default: the first); None where it has not completed."""
        return None if self.default is None else self.value(self.default, objective)

    def value(self, one: Individual, objective: str | None = None) -> float | None:
        """What a completed or pruned individual brought in the objective (default: the first)."""
        values = one.objectives or {}
        found = values.get(objective or self.objective)
        if found is None and objective in (None, self.objective):
            pruned = one.metrics.get("pruned_value")
            found = float(pruned) if isinstance(pruned, (int, float)) else None
        return found

    def importance(self, objective: str | None = None) -> Importance:
        """Of each parameter for an objective (default: the first), learnt once.

        Raises:
            NotDrawn: too few evaluations have completed, all have the same result, or the forests explain none of it.
        """
        name = objective or self.objective
        if name not in self._importance:
            try:
                self._importance[name] = importance(self.record, name)
            except CampaignError as error:
                self._importance[name] = str(error).removeprefix("importance of parameters: ")
        found = self._importance[name]
        if isinstance(found, str):
            raise NotDrawn(found)
        if not found.explains:
            raise NotDrawn(found.nothing_explained())
        return found

    @cached_property
    def _importance(self) -> dict[str, Importance | str]:
        return {}

    def at_work(self, times: Sequence[float]) -> NDArray[Any]:
        """Unix seconds as seconds at work: the time between launches does not count."""
        spans = sorted((one.started, max(one.started, one.updated)) for one in self.record.launches)
        if not spans:
            return numpy.zeros(len(times))
        at, worked, total = [], [], 0.0
        for began, ended in spans:
            at += [began, ended]
            worked += [total, total + ended - began]
            total += ended - began
        return numpy.interp(numpy.asarray(times, dtype=float), at, worked)

    @cached_property
    def later_launches(self) -> list[float]:
        """Seconds at work at which the second and later launches began."""
        return [float(one) for one in self.at_work([one.started for one in self.record.launches[1:]])]


def thinned(count: int, most: int, keep: Sequence[int] = ()) -> NDArray[Any]:
    """At most about ``most`` of the indices from 0 to ``count``, evenly spread, ``keep`` among them."""
    if count <= most:
        return numpy.arange(count)
    even = numpy.linspace(0, count - 1, most).round().astype(int)
    return numpy.union1d(even, numpy.asarray(keep, dtype=int))


def important(source: Source) -> list[str]:
    """All parameters that have more than one value: the most important for the first objective first; in the order of
    the space where there are too few evaluations to know."""
    if source.space is None:
        raise NotDrawn("campaign.json describes no search space")
    names = [name for name, one in source.space.parameters.items() if one.count != 1]
    try:
        shares = source.importance().shares
    except NotDrawn:
        return names
    return sorted(names, key=lambda name: -shares[name].total)
