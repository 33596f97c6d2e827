"""Source of figures: one campaign with the facts that several figures need."""

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
from hpo.results.launch import union
from hpo.space.space import described_space

if TYPE_CHECKING:
    import pandas

    from hpo.results.record import CampaignRecord
    from hpo.space.space import SearchSpace


class NotDrawn(Exception):
    """The campaign lacks the data for a figure; the text is the reason, in words to follow a colon."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A campaign to draw figures of."""

    name: str  # name that distinguishes the campaign from others beside it
    record: CampaignRecord
    curves: pandas.DataFrame  # table of ``hpo.results.curves.load``

    @cached_property
    def objectives(self) -> dict[str, str]:
        """Direction by name, in the task's order."""
        return self.record.objectives

    @property
    def objective(self) -> str:
        """Name of the first objective."""
        return next(iter(self.objectives))

    def sign(self, objective: str | None = None) -> float:
        """Factor that makes a value of the objective (default: the first) a loss: -1 if it is maximised, else 1."""
        return -1.0 if self.objectives[objective or self.objective] == "maximize" else 1.0

    @cached_property
    def space(self) -> SearchSpace | None:
        """The search space; None if ``campaign.json`` describes none."""
        try:
            return described_space(self.record.identity.get("space"))
        except CampaignError:
            return None

    @cached_property
    def ended(self) -> list[Individual]:
        """Individuals that count for the budget, by end."""
        found = [one for one in self.record.individuals if one.status in FINAL and one.finished is not None]
        return sorted(found, key=lambda one: (one.finished or 0.0, one.id))

    @cached_property
    def completed(self) -> list[Individual]:
        return [one for one in self.ended if one.status == COMPLETED and one.objectives is not None]

    @cached_property
    def number(self) -> dict[str, int]:
        """Number among the evaluations that ended, from 1, by id."""
        return {one.id: place for place, one in enumerate(self.ended, start=1)}

    @cached_property
    def best(self) -> Individual | None:
        """The best individual of ``hpo best``, which may be a known point; None without any."""
        return next(iter(pareto.best(self.record, 1)), None)

    @cached_property
    def default(self) -> Individual | None:
        """Completed evaluation of the task's own point: its default, or else the first given point."""
        for operator in ("default", "given"):
            for one in self.completed:
                if one.operator == operator:
                    return one
        return None

    @property
    def default_name(self) -> str:
        """Name of the point that ``default`` is."""
        given = self.default is not None and self.default.operator == "given"
        return "first given point" if given else "default"

    def default_value(self, objective: str | None = None) -> float | None:
        """Value of the default in the objective (default: the first); None if it has not completed."""
        return None if self.default is None else self.value(self.default, objective)

    def value(self, one: Individual, objective: str | None = None) -> float | None:
        """Value of a completed or pruned individual in the objective (default: the first)."""
        values = one.objectives or {}
        found = values.get(objective or self.objective)
        if found is None and objective in (None, self.objective):
            pruned = one.metrics.get("pruned_value")
            found = float(pruned) if isinstance(pruned, (int, float)) else None
        return found

    def importance(self, objective: str | None = None, best: float = 1.0) -> Importance:
        """Importance of each parameter for an objective (default: the first) among the share ``best``, computed once.

        Raises:
            NotDrawn: too few evaluations have completed, all have the same result, or the forests explain none of it.
        """
        name = objective or self.objective
        try:
            found = self._importance.get((name, best)) or importance(self.record, name, best)
        except CampaignError as error:
            raise NotDrawn(str(error).removeprefix("importance of parameters: ")) from None
        self._importance[name, best] = found
        if not found.explains:
            raise NotDrawn(found.nothing_explained())
        return found

    @cached_property
    def _importance(self) -> dict[tuple[str, float], Importance]:
        return {}

    def at_work(self, times: Sequence[float]) -> NDArray[Any]:
        """Unix seconds as seconds at work, without the time between launches."""
        spans = union((one.started, one.updated) for one in self.record.launches)
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
        """Begins of the second and later launches, in seconds at work."""
        return [float(one) for one in self.at_work([one.started for one in self.record.launches[1:]])]


def important(source: Source) -> list[str]:
    """Parameters with more than one value by importance for the first objective, or in the order of the space as long
    as importance is unknown."""
    if source.space is None:
        raise NotDrawn("campaign.json describes no search space")
    names = [name for name, one in source.space.parameters.items() if one.count != 1]
    try:
        shares = source.importance().shares
    except NotDrawn:
        return names
    return sorted(names, key=lambda name: -shares[name].total)
