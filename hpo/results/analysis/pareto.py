"""Best individuals, Pareto fronts of several objectives, and the hypervolumes that they dominate."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.individual import FAULTS, FINAL, REEVALUATION
from hpo.results.analysis import repeated as repeats
from hpo.search.models.pareto import crowding, reference_losses
from hpo.task.task import losses_of

if TYPE_CHECKING:
    import pandas

    from hpo.individual import Individual
    from hpo.results.analysis.repeated import Repeated
    from hpo.results.record import CampaignRecord

Losses = tuple[float, ...]
"""A number for each objective, all to be minimised."""


def best(record: CampaignRecord, top: int | None = 1, *, own: bool = False) -> list[Individual]:
    """Best completed individuals that keep the limits, best first.

    With several objectives, these are members of the :func:`front`, sorted by the first objective. If configurations
    were repeated on purpose, there is an individual for each configuration, sorted by the estimate of its mean
    (``hpo.results.analysis.repeated``). ``top`` None: the whole front, or the single best without a front; ``own``
    leaves out known points."""
    # Equal individuals are in the order of hpo.islands.coordinator.tally.BestSoFar.order, as in a running campaign.
    if len(record.objectives) > 1:
        return front(record, own=own)[:top]
    most = 1 if top is None else top
    if found := repeated(record, own=own):
        return [one.individual for one in found[:most]]
    ordered = heapq.nsmallest(most, with_losses(record, own), key=lambda pair: pair[0])
    return [individual for _, individual in ordered]


def repeated(record: CampaignRecord, *, own: bool = False) -> list[Repeated]:
    """All configurations with estimates of their means, best first, if some were repeated on purpose; otherwise []."""
    again = [one for one in record.individuals if one.operator == REEVALUATION]
    pairs = with_losses(record, own) if again and len(record.objectives) == 1 else []
    # A repetition that breaks a limit says as little of the value as one that failed.
    bad = [one for one in again if one.status in FAULTS or one.breaks]
    return repeats.ranked(pairs, bad) if pairs else []


def front(record: CampaignRecord, *, own: bool = False) -> list[Individual]:
    """Individuals that no other dominates of those that completed and keep the limits, sorted by the first objective,
    best first.

    An individual dominates another if it is better in an objective and worse in none; equal individuals all stay.
    ``own`` leaves out known points.
    """
    return [one for _, one in _not_dominated(with_losses(record, own))]


def most_telling(record: CampaignRecord, count: int) -> list[Individual]:
    """The ``count`` individuals that represent the campaign's front best, with several objectives.

    These are the knee, the best individual in each objective, and then the individuals with the largest crowding
    distances. After a front with fewer individuals come those of the next front, and so on.
    """
    chosen: list[Individual] = []
    left = with_losses(record, own=True)
    while left and len(chosen) < count:
        found = _not_dominated(left)
        chosen += _most_telling_first(found, record.objectives)[: count - len(chosen)]
        taken = {one.id for _, one in found}
        left = [pair for pair in left if pair[1].id not in taken]
    return chosen


def _most_telling_first(
    found: Sequence[tuple[Losses, Individual]], objectives: Mapping[str, str]
) -> list[Individual]:
    middle = knee([one for _, one in found], objectives)
    best_in_each = [
        min(found, key=lambda pair: (pair[0][place], pair[0]))[1] for place in range(len(objectives))
    ]
    alone = crowding([losses for losses, _ in found])
    others = sorted(range(len(found)), key=lambda place: -alone[place])
    ordered = [*filter(None, [middle]), *best_in_each, *(found[place][1] for place in others)]
    return [*{one.id: one for one in ordered}.values()]


def _not_dominated(candidates: Sequence[tuple[Losses, Individual]]) -> list[tuple[Losses, Individual]]:
    """Candidates that no other dominates, in ascending order of their losses."""
    import numpy

    if not candidates:
        return []
    losses = numpy.array([loss for loss, _ in candidates])
    rows = numpy.lexsort(losses.T[::-1])
    losses = losses[rows]
    # Each survivor in turn removes all candidates that it dominates, so the cost is the length of the front times the
    # number of remaining candidates.
    turn = 0
    while turn < len(rows):
        kept = (losses < losses[turn]).any(axis=1) | (losses == losses[turn]).all(axis=1)
        rows, losses = rows[kept], losses[kept]
        turn = int(kept[: turn + 1].sum())
    return [candidates[row] for row in rows]


def with_losses(
    record: CampaignRecord, own: bool = False, *, broken: bool = False
) -> list[tuple[Losses, Individual]]:
    """Completed individuals that keep the limits (``broken``: others, too), with their losses: the campaign's own in
    order of their start, then known points unless ``own``."""
    return [
        (losses_of(one.objectives or {}, record.objectives), one)
        for one in (record.individuals if own else [*record.individuals, *record.known])
        if one.fit or (broken and one.breaks)
    ]


def knee(individuals: Sequence[Individual], objectives: Mapping[str, str]) -> Individual | None:
    """Front member closest to the ideal point, with each objective scaled to 0 (best on the front) … 1 (worst).

    The ideal point has the best value of each objective. None for an empty front.
    """
    if not individuals:
        return None
    losses = [losses_of(one.objectives or {}, objectives) for one in individuals]
    ideal = [min(column) for column in zip(*losses)]
    # An objective that is equal on the whole front is 0 everywhere, with any width.
    widths = [max(column) - low or 1.0 for column, low in zip(zip(*losses), ideal)]

    def distance(index: int) -> float:
        return sum(
            (((value - low) / width) ** 2 for value, low, width in zip(losses[index], ideal, widths)),
            start=0.0,
        )

    return individuals[min(range(len(losses)), key=distance)]


@dataclass(frozen=True, kw_only=True)
class Hypervolume:
    """Hypervolume of the campaign's front after each finished evaluation."""

    reference: dict[str, float]
    """Reference point: value by objective, beyond which individuals do not count."""
    given: bool
    """Whether the user gave the reference; otherwise it is the worst value of each objective."""
    evaluations: list[int] = field(default_factory=list)
    """Numbers of finished evaluations; 0 for known points."""
    finished: list[float | None] = field(default_factory=list)
    """Times of the evaluations' ends, in Unix seconds; None for known points."""
    values: list[float] = field(default_factory=list)
    """Hypervolumes after these evaluations."""

    @property
    def last(self) -> float:
        """Hypervolume after all evaluations."""
        return self.values[-1] if self.values else 0.0

    def after(self, evaluations: int) -> float:
        """Hypervolume after the first ``evaluations`` evaluations."""
        known = [value for count, value in zip(self.evaluations, self.values) if count <= evaluations]
        return known[-1] if known else 0.0

    def dataframe(self) -> pandas.DataFrame:
        """Table with the columns ``evaluations``, ``finished`` and ``hypervolume``."""
        import pandas

        columns = {"evaluations": self.evaluations, "finished": self.finished, "hypervolume": self.values}
        return pandas.DataFrame(columns)


def hypervolume(record: CampaignRecord, reference: Mapping[str, float] | None = None) -> Hypervolume:
    """Hypervolume over the evaluations of a campaign (moocore; Guerreiro et al. 2021, doi:10.1145/3453474).

    ``reference``: value by objective beyond which individuals do not count; None: the campaign's own reference, or
    without any the worst value of each objective.

    Raises:
        UsageError: there is a single objective, or the reference does not have the campaign's objectives.
    """
    import numpy
    from moocore import hypervolume as volume

    objectives = record.objectives
    if len(objectives) < 2:
        raise UsageError(
            "a hypervolume needs several objectives, and this campaign has one. Look at its best value."
        )
    signs = {name: -1.0 if way == "maximize" else 1.0 for name, way in objectives.items()}
    own = (
        record.reference
        if reference is None or (isinstance(reference, Mapping) and not reference)
        else reference
    )
    corner = None if own is None else reference_losses(own, objectives)
    if corner is None:
        seen = [losses for losses, _ in with_losses(record)]
        corner = tuple(max(column) for column in zip(*seen)) if seen else (0.0,) * len(objectives)
    found = Hypervolume(
        reference={name: sign * value for (name, sign), value in zip(signs.items(), corner)}, given=bool(own)
    )
    if not all(map(isfinite, corner)):  # possible only in a damaged journal
        return found
    edge = numpy.array(corner)
    points = numpy.empty((0, len(corner)))
    value = 0.0
    ended = [one for one in record.individuals if one.status in FINAL and one.finished is not None]
    ended.sort(key=lambda one: (one.finished or 0.0, one.id))
    for count, one in [*((0, one) for one in record.known), *enumerate(ended, start=1)]:
        if one.fit:
            loss = numpy.array(losses_of(one.objectives or {}, objectives))
            # Only points that no other point dominates change the volume, and only these are kept.
            if numpy.isfinite(loss).all() and (loss < edge).all() and not (points <= loss).all(axis=1).any():
                points = numpy.vstack([points[(points < loss).any(axis=1)], loss])
                value = float(volume(points, ref=edge))
        if count == 0 and found.values:  # all known points together are a single step
            found.values[-1] = value
            continue
        found.evaluations.append(count)
        found.finished.append(one.finished)
        found.values.append(value)
    return found
