"""What the islands of a campaign contribute: which operators find good configurations there, and what they exchange."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo.individual import COMPLETED, FINAL

if TYPE_CHECKING:
    from hpo.results.record import CampaignRecord

SHARE = 0.1
"""What counts as good: the best tenth of all that completed."""


@dataclass(frozen=True, kw_only=True)
class Success:
    """Of ``ended`` evaluations, failures among them, how many are ``good``."""

    ended: int
    good: int

    @property
    def rate(self) -> float:
        return self.good / self.ended if self.ended else 0.0


def good(record: CampaignRecord, share: float = SHARE) -> set[str]:
    """Ids of the best ``share`` of the campaign's completed evaluations, at least one; with several objectives by
    how many fronts lie before theirs, all of a front or none unless it is the first."""
    import numpy
    from moocore import pareto_rank

    from hpo.results.analysis.pareto import with_losses

    pairs = with_losses(record, own=True)
    if not pairs:
        return set()
    losses = numpy.array([loss for loss, _ in pairs], dtype=float)
    most = max(1, math.ceil(share * len(pairs)))
    if losses.shape[1] == 1:
        chosen = numpy.argsort(losses[:, 0], kind="stable")[:most]
    else:
        ranks = pareto_rank(losses)
        counts = numpy.cumsum(numpy.bincount(ranks))
        last = max(0, int(numpy.searchsorted(counts, most, side="right")) - 1)
        chosen = numpy.flatnonzero(ranks <= last)
    return {pairs[place][1].id for place in chosen}


def success(record: CampaignRecord, share: float = SHARE) -> dict[tuple[str, int], Success]:
    """By operator and island; most used operators first."""
    best = good(record, share)
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
    """How many individuals moved, by source and target island."""
    return Counter(move for one in record.individuals for move in one.migrations)
