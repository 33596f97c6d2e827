"""What intermediate values say about final ones: whether early stopping stops what would have become good."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import pandas

    from hpo.results.record import CampaignRecord

    Array = numpy.ndarray[Any, numpy.dtype[numpy.float64]]

FEWEST = 8
"""Completed individuals with a curve: a rank correlation of fewer says nothing."""
_MOST_STEPS = 60
_QUANTILE_95 = 1.959964


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Losses over steps. ``steps``: (S), ascending; ``losses``: (N, S), the last report at or before each step, NaN
    beyond an individual's last report and before its first; ``final``: (N), the loss in the end, NaN for those that
    did not complete."""

    ids: list[str]
    steps: list[int]
    losses: Array
    final: Array


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation at one step with its 95 % confidence interval, from ``count`` individuals."""

    step: int
    value: float
    low: float
    high: float
    count: int


def progress(record: CampaignRecord, curves: pandas.DataFrame) -> Progress:
    """The campaign's curves on one grid of at most 60 steps, which are closer at the beginning.

    With one objective ``final`` is its value; with several, the last report, as only that is comparable.
    """
    import numpy

    from hpo.individual import COMPLETED

    ways = list(record.objectives.values())
    sign = -1.0 if ways[0] == "maximize" else 1.0
    table = curves[["id", "step", "value"]].dropna()
    table = table.drop_duplicates(["id", "step"], keep="last").sort_values(["id", "step"])
    steps = numpy.unique(table["step"].to_numpy())
    grid = steps[_spread(len(steps))]
    ended = {one.id: one for one in record.individuals if one.status == COMPLETED}
    rows, ids = table["id"].factorize()
    reported, values = table["step"].to_numpy(), sign * table["value"].to_numpy(dtype=float)
    losses = numpy.full((len(ids), len(grid)), numpy.nan)
    final = numpy.full(len(ids), numpy.nan)
    # One after the other: a table of all steps would be as large as their number times that of the curves.
    bounds = numpy.searchsorted(rows, numpy.arange(len(ids) + 1))
    for row, (first, end) in enumerate(pairwise(bounds.tolist())):
        own, curve = reported[first:end], values[first:end]
        # Filled forward up to the last report: some reports are dropped, not all tasks report at the same steps.
        before = numpy.searchsorted(own, grid, side="right") - 1
        finite = own[numpy.isfinite(curve)]
        there = (before >= 0) & (grid <= (finite[-1] if len(finite) else -numpy.inf))
        losses[row, there] = curve[before[there]]
        one = ended.get(str(ids[row]))
        if one is not None:
            final[row] = sign * one.value if one.value is not None else curve[-1]
    return Progress(ids=list(map(str, ids)), steps=[int(step) for step in grid], losses=losses, final=final)


def _spread(count: int) -> list[int]:
    """Places of at most ``_MOST_STEPS`` of ``count`` steps: half evenly spread, half by their logarithm."""
    import numpy

    if count <= _MOST_STEPS:
        return list(range(count))
    half = _MOST_STEPS // 2
    evenly = numpy.linspace(0, count - 1, half)
    early = numpy.geomspace(1, count, half) - 1
    return sorted({round(float(place)) for place in (*evenly, *early)})


def correlations(found: Progress) -> list[Correlation]:
    """Between the losses at each step and the final ones, over individuals that completed; steps that fewer than
    ``FEWEST`` of them have reported at are left out. The interval is that of Bonett and Wright 2000
    (doi:10.1007/BF02294183)."""
    import numpy
    from scipy.stats import rankdata

    result = []
    for place, step in enumerate(found.steps):
        here = found.losses[:, place]
        both = numpy.isfinite(here) & numpy.isfinite(found.final)
        count = int(both.sum())
        if count < FEWEST:
            continue
        first, second = rankdata(here[both]), rankdata(found.final[both])
        if first.std() == 0 or second.std() == 0:
            continue
        value = float(numpy.clip(numpy.corrcoef(first, second)[0, 1], -1.0, 1.0))
        middle = math.atanh(max(-0.999999, min(0.999999, value)))
        width = _QUANTILE_95 * math.sqrt((1 + value**2 / 2) / (count - 3))
        result.append(
            Correlation(
                step=step,
                value=value,
                low=math.tanh(middle - width),
                high=math.tanh(middle + width),
                count=count,
            )
        )
    return result


def kept(
    found: Progress, *, min_steps: int, reduction: int = 3, patience: int = 0, share: float = 0.1
) -> float | None:
    """Of the individuals that are the best ``share`` in the end (at least five), the part that successive halving with
    these settings would not have stopped, had it known all curves. None where none of them could be stopped, because
    no rung lies before the last step. ``min_steps``: at least 1.

    Rungs are at ``min_steps · reduction^k`` steps; of n that got there the best ⌊n / reduction⌋ go on, and one that
    fails at more than ``patience`` rungs in a row is stopped."""
    import numpy

    ended = numpy.flatnonzero(numpy.isfinite(found.final))
    rungs = []
    step = min_steps
    while found.steps and step < found.steps[-1]:
        rungs.append(step)
        step *= reduction
    if not rungs or not len(ended):
        return None
    top = ended[numpy.argsort(found.final[ended], kind="stable")][: max(5, math.ceil(share * len(ended)))]
    strikes = numpy.zeros(len(found.ids), dtype=int)
    stopped = numpy.zeros(len(found.ids), dtype=bool)
    for rung in rungs:
        place = max((i for i, one in enumerate(found.steps) if one <= rung), default=None)
        if place is None:
            continue
        here = found.losses[:, place]
        there = numpy.isfinite(here) & ~stopped
        order = numpy.argsort(numpy.where(there, here, numpy.inf), kind="stable")
        passing = numpy.zeros(len(found.ids), dtype=bool)
        passing[order[: max(1, int(there.sum()) // reduction)]] = True
        strikes = numpy.where(there & ~passing, strikes + 1, numpy.where(there, 0, strikes))
        stopped |= strikes > patience
    return float(1 - stopped[top].mean())
