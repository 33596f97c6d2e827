"""What ``hpo best`` says: the best configurations, or the front, and what the campaign as a whole has shown."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hpo import fronts, results, tables
from hpo.individual import Individual
from hpo.journal import storable
from hpo.known import is_known


def _top(record: results.CampaignRecord, top: int | None) -> list[Individual]:
    return fronts.best(record, top if top or len(record.objectives) > 1 else 1)


def best(directory: Path, top: int | None) -> str:
    """The text; ``top``: how many, None for one, or the whole front.

    Raises:
        HpoError: as ``results.load``.
    """
    record = results.load(directory)
    found = _top(record, top)
    if len(record.objectives) < 2:
        return tables.best(directory, found)
    front = fronts.front(record)
    return tables.front(
        directory, found, fronts.knee(front, record.objectives), fronts.hypervolume(record), len(front)
    )


def best_json(directory: Path, top: int | None) -> str:
    """A list of objects, best first: ``id, value, objectives, params``, ``known`` for known points, with several
    objectives ``knee``; the first has ``campaign``, too: what is said of all together."""
    record = results.load(directory)
    found = _top(record, top)
    several = len(record.objectives) > 1
    knee = fronts.knee(fronts.front(record), record.objectives) if several else None
    entries: list[dict[str, object]] = []
    for one in found:
        entry: dict[str, object] = {
            "id": one.id,
            "value": one.value,
            "objectives": one.objectives,
            "params": one.params,
        }
        if is_known(one.id):
            entry["known"] = one.metrics.get("source")
        if several:
            entry["knee"] = knee is not None and one.id == knee.id
        entries.append(entry)
    if entries:
        campaign: dict[str, object] = {}
        if several:
            volume = fronts.hypervolume(record)
            campaign["hypervolume"] = {
                "value": volume.last,
                "reference": volume.reference,
                "given": volume.given,
                "over_time": _thinned(list(zip(volume.evaluations, volume.values))),
            }
        entries[0]["campaign"] = campaign
    return json.dumps(storable(entries))


def _thinned(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The first, the last, and where the value changes between them."""
    inside = [after for before, after in pairwise(curve[:-1]) if after[1] != before[1]]
    return curve[:1] + inside + curve[1:][-1:]
