"""Several objectives: which individuals no other dominates, and the volume that they dominate."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAULTS, FINAL, REEVALUATION
from hpo.results.analysis import repeated as repeats
from hpo.search.models.pareto import crowding, reference_losses
from hpo.task.task import losses_of

if TYPE_CHECKING:
    import pandas

    from hpo.individual import Individual
    from hpo.results.analysis.repeated import Repeated
    from hpo.results.record import CampaignRecord

Losses = tuple[float, ...]
"""One number an objective, all to be minimised."""


def best(record: CampaignRecord, top: int | None = 1, *, own: bool = False) -> list[Individual]:
    """The ``top`` best completed individuals, best first; with several objectives, of the :func:`front` (None: all
    of it), so that the best is the best in the first objective. Of equal individuals the first is that of
    :attr:`hpo.islands.coordinator.tally.Best.order`, which is what a running campaign names. Known points are among
    them, unless only the campaign's ``own`` evaluations are asked for.

    Where configurations were evaluated more than once on purpose, one individual a configuration, by what is
    believed of its mean (``hpo.results.analysis.repeated``)."""
    if len(record.objectives) > 1:
        return front(record, own=own)[:top]
    most = 1 if top is None else top
    if found := repeated(record, own=own):
        return [one.individual for one in found[:most]]
    ordered = heapq.nsmallest(most, with_losses(record, own), key=lambda pair: pair[0])
    return [individual for _, individual in ordered]


def repeated(record: CampaignRecord, *, own: bool = False) -> list[Repeated]:
    """Where configurations were evaluated more than once on purpose, what all are worth, best first; else nothing."""
    again = [one for one in record.individuals if one.operator == REEVALUATION]
    pairs = with_losses(record, own) if again and len(record.objectives) == 1 else []
    return repeats.ranked(pairs, [one for one in again if one.status in FAULTS]) if pairs else []


def front(record: CampaignRecord, *, own: bool = False) -> list[Individual]:
    """The completed individuals that no other dominates, those best in the first objective first; known points
    among them, unless only ``own`` evaluations are asked for.

    One dominates another if it is better in one objective and worse in none; equals all stay.
    """
    return [one for _, one in _not_dominated(with_losses(record, own))]


def most_telling(record: CampaignRecord, count: int) -> list[Individual]:
    """With several objectives the ``count`` individuals of the campaign that say most about its front: the knee, the
    best in each objective, then those that are most alone (crowding distance). Where the front is shorter, those of the
    front that there would be without it follow, and so on.
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
    """Those that no other dominates, in ascending order of their losses."""
    import numpy

    if not candidates:
        return []
    losses = numpy.array([loss for loss, _ in candidates])
    rows = numpy.lexsort(losses.T[::-1])
    losses = losses[rows]
    # Each survivor in turn removes all that it dominates: the cost is the front's length times what is left.
    turn = 0
    while turn < len(rows):
        kept = (losses < losses[turn]).any(axis=1) | (losses == losses[turn]).all(axis=1)
        rows, losses = rows[kept], losses[kept]
        turn = int(kept[: turn + 1].sum())
    return [candidates[row] for row in rows]


def with_losses(record: CampaignRecord, own: bool = False) -> list[tuple[Losses, Individual]]:
    """The completed individuals, each with its losses; the campaign's own, in the order in which they started, come
    before known points."""
    return [
        (losses_of(one.objectives, record.objectives), one)
        for one in (record.individuals if own else [*record.individuals, *record.known])
        if one.status == COMPLETED and one.objectives is not None
    ]


def knee(individuals: Sequence[Individual], objectives: Mapping[str, str]) -> Individual | None:
    """Of a front the one nearest to its ideal point, which has the best of each objective, where each objective runs
    from 0 at its best on the front to 1 at its worst; None for an empty one."""
    if not individuals:
        return None
    losses = [losses_of(one.objectives or {}, objectives) for one in individuals]
    ideal = [min(column) for column in zip(*losses)]
    widths = [max(column) - low or 1.0 for column, low in zip(zip(*losses), ideal)]

    def distance(index: int) -> float:
        return sum(
            (((value - low) / width) ** 2 for value, low, width in zip(losses[index], ideal, widths)),
            start=0.0,
        )

    return individuals[min(range(len(losses)), key=distance)]


@dataclass(frozen=True, kw_only=True)
class Hypervolume:
    """The volume that the front dominates up to the ``reference``, after each finished evaluation of the campaign.

    ``evaluations``: how many had finished, 0 for what was known before; ``finished``: Unix seconds, None for that.
    ``given``: whether the reference was given; else it is the worst of each objective."""

    reference: dict[str, float]
    given: bool
    evaluations: list[int] = field(default_factory=list)
    finished: list[float | None] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        """The volume now."""
        return self.values[-1] if self.values else 0.0

    def after(self, evaluations: int) -> float:
        """The volume after the first ``count`` evaluations."""
        known = [value for count, value in zip(self.evaluations, self.values) if count <= evaluations]
        return known[-1] if known else 0.0

    def dataframe(self) -> pandas.DataFrame:
        """Columns ``evaluations``, ``finished`` and ``hypervolume``."""
        import pandas

        columns = {"evaluations": self.evaluations, "finished": self.finished, "hypervolume": self.values}
        return pandas.DataFrame(columns)


def hypervolume(record: CampaignRecord, reference: Mapping[str, float] | None = None) -> Hypervolume:
    """The hypervolume over the campaign's time (moocore; Guerreiro et al. 2021, doi:10.1145/3453474).

    ``reference``: a value an objective, what is worse than it does not count; by default the campaign's own, else the
    worst value of each objective that has been seen.

    Raises:
        UsageError: there is one objective, or the reference does not fit them.
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
    if not all(map(isfinite, corner)):  # a damaged journal's
        return found
    edge = numpy.array(corner)
    points = numpy.empty((0, len(corner)))
    value = 0.0
    ended = [one for one in record.individuals if one.status in FINAL and one.finished is not None]
    ended.sort(key=lambda one: (one.finished or 0.0, one.id))
    for count, one in [*((0, one) for one in record.known), *enumerate(ended, start=1)]:
        if one.status == COMPLETED and one.objectives is not None:
            loss = numpy.array(losses_of(one.objectives, objectives))
            if numpy.isfinite(loss).all() and (loss < edge).all() and not (points <= loss).all(axis=1).any():
                points = numpy.vstack([points[(points < loss).any(axis=1)], loss])
                value = float(volume(points, ref=edge))
        if count == 0 and found.values:  # all that was known before is one step
            found.values[-1] = value
            continue
        found.evaluations.append(count)
        found.finished.append(one.finished)
        found.values.append(value)
    return found
