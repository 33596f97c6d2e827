"""Contributions of the islands of a campaign: success of their operators, and migrations between them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo.individual import COMPLETED, FINAL

if TYPE_CHECKING:
    from hpo.results.record import CampaignRecord

SHARE = 0.1
"""Share of completed evaluations that count as good."""


@dataclass(frozen=True, kw_only=True)
class Success:
    """Success of an operator on an island."""

    ended: int  # evaluations that have ended, including failures
    good: int  # good evaluations

    @property
    def rate(self) -> float:
        return self.good / self.ended if self.ended else 0.0


def good(record: CampaignRecord) -> set[str]:
    """Ids of the best ``SHARE`` of the campaign's completed evaluations, at least a single id.

    With several objectives, these are the first fronts that fit into the share as a whole; the first front always.
    """
    import numpy
    from moocore import pareto_rank

    from hpo.results.analysis.pareto import with_losses

    pairs = with_losses(record, own=True)
    if not pairs:
        return set()
    losses = numpy.array([loss for loss, _ in pairs], dtype=float)
    most = max(1, math.ceil(SHARE * len(pairs)))
    if losses.shape[1] == 1:
        chosen = numpy.argsort(losses[:, 0], kind="stable")[:most]
    else:
        # Members of a front cannot be ranked, so whole fronts are taken as long as they fit.
        # moocore crashes on infinite values, which a damaged journal may have.
        ranks = pareto_rank(numpy.nan_to_num(losses))
        counts = numpy.cumsum(numpy.bincount(ranks))
        last = max(0, int(numpy.searchsorted(counts, most, side="right")) - 1)
        chosen = numpy.flatnonzero(ranks <= last)
    return {pairs[place][1].id for place in chosen}


def success(record: CampaignRecord) -> dict[tuple[str, int], Success]:
    """Success by operator and island, most used operators first."""
    best = good(record)
    ended: Counter[tuple[str, int]] = Counter()
    hits: Counter[tuple[str, int]] = Counter()
    for one in record.individuals:
        if one.status in FINAL:
            place = (one.operator, one.island)
            ended[place] += 1
            hits[place] += one.status == COMPLETED and one.id in best
    used: Counter[str] = Counter()
    for (operator, _), count in ended.items():
        used[operator] += count
    return {
        place: Success(ended=ended[place], good=hits[place])
        for place in sorted(ended, key=lambda one: (-used[one[0]], one))
    }


def migrations(record: CampaignRecord) -> Counter[tuple[int, int]]:
    """Numbers of migrated individuals by source and target island."""
    return Counter(move for one in record.individuals for move in one.migrations)
