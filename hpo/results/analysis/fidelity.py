"""Relation of intermediate to final values: whether early stopping would stop individuals that become good."""

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
"""Fewest completed individuals with a curve for which a rank correlation is shown."""
_MOST_STEPS = 60
_QUANTILE_95 = 1.959964
"""Quantile of the normal distribution for two-sided intervals of 95 %."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Losses of N individuals over S steps."""

    ids: list[str]  # ids of the individuals (N)
    steps: list[int]  # steps in ascending order (S)
    losses: Array
    """Last report at or before each step (N × S); NaN before an individual's first report and after its last."""
    final: Array  # final losses (N); NaN for individuals that did not complete


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation between losses at a step and final losses."""

    step: int
    value: float  # the correlation, from -1 to 1
    low: float  # lower end of the 95 % confidence interval
    high: float  # upper end of the 95 % confidence interval
    count: int  # number of individuals


def progress(record: CampaignRecord, curves: pandas.DataFrame) -> Progress:
    """Curves of a campaign on a grid of at most 60 steps, which are denser at the beginning.

    With a single objective, ``final`` is its value; with several, the last report, which alone is comparable.
    """
    import numpy

    from hpo.individual import COMPLETED

    ways = list(record.objectives.values())
    sign = -1.0 if ways[0] == "maximize" else 1.0
    table = curves[["id", "step", "value"]].dropna()
    # A step may be reported again after a restart; its last value counts.
    table = table.drop_duplicates(["id", "step"], keep="last").sort_values(["id", "step"])
    steps = numpy.unique(table["step"].to_numpy())
    grid = steps[_spread(len(steps))]
    ended = {one.id: one for one in record.individuals if one.status == COMPLETED}
    rows, ids = table["id"].factorize()
    reported, values = table["step"].to_numpy(), sign * table["value"].to_numpy(dtype=float)
    losses = numpy.full((len(ids), len(grid)), numpy.nan)
    final = numpy.full(len(ids), numpy.nan)
    # Curve by curve, because a table of all curves at all steps could be too large.
    bounds = numpy.searchsorted(rows, numpy.arange(len(ids) + 1))
    for row, (first, end) in enumerate(pairwise(bounds.tolist())):
        own, curve = reported[first:end], values[first:end]
        # Filled forward up to the last report: reports are thinned out, and individuals may report at other steps.
        before = numpy.searchsorted(own, grid, side="right") - 1
        finite = own[numpy.isfinite(curve)]
        there = (before >= 0) & (grid <= (finite[-1] if len(finite) else -numpy.inf))
        losses[row, there] = curve[before[there]]
        one = ended.get(str(ids[row]))
        if one is not None:
            final[row] = sign * one.value if one.value is not None else curve[-1]
    return Progress(ids=list(map(str, ids)), steps=[int(step) for step in grid], losses=losses, final=final)


def _spread(count: int) -> list[int]:
    """Places of at most ``_MOST_STEPS`` of ``count`` steps: half evenly spread, half on a logarithmic scale."""
    import numpy

    if count <= _MOST_STEPS:
        return list(range(count))
    half = _MOST_STEPS // 2
    evenly = numpy.linspace(0, count - 1, half)
    early = numpy.geomspace(1, count, half) - 1
    return sorted({round(float(place)) for place in (*evenly, *early)})


def correlations(found: Progress) -> list[Correlation]:
    """Correlations between losses at each step and final losses, over completed individuals.

    Steps with fewer than ``FEWEST`` individuals are left out. The interval is that of Bonett and Wright 2000
    (doi:10.1007/BF02294183).
    """
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
        # Constant values have no correlation.
        if first.std() == 0 or second.std() == 0:
            continue
        value = float(numpy.clip(numpy.corrcoef(first, second)[0, 1], -1.0, 1.0))
        # Fisher's transformation; its variance for rank correlations is that of Bonett and Wright.
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
    """Part of the finally best individuals that successive halving would not have stopped, knowing all curves.

    Rungs are at ``min_steps · reduction^k`` steps. The best ⌊n / reduction⌋ of the n individuals at a rung pass, and an
    individual that fails at more than ``patience`` rungs in a row is stopped.

    The best ``share`` of the completed individuals count, at least five. None if there is no rung before the last step.
    """
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
        # The grid may lack the rung's own step: the last step before it is used.
        place = max((i for i, one in enumerate(found.steps) if one <= rung), default=None)
        if place is None:
            continue
        here = found.losses[:, place]
        there = numpy.isfinite(here) & ~stopped
        order = numpy.argsort(numpy.where(there, here, numpy.inf), kind="stable")
        passing = numpy.zeros(len(found.ids), dtype=bool)
        passing[order[: max(1, int(there.sum()) // reduction)]] = True
        # Passing a rung resets the failures in a row; individuals that did not reach it keep theirs.
        strikes = numpy.where(there & ~passing, strikes + 1, numpy.where(there, 0, strikes))
        stopped |= strikes > patience
    return float(1 - stopped[top].mean())
