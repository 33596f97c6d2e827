"""What ``hpo best`` says: the best configurations, or the front, and what the campaign as a whole has shown."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hpo.errors import CampaignError
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import Individual, is_known
from hpo.journal.records import storable
from hpo.results import result as results
from hpo.results.analysis import pareto as fronts
from hpo.results.analysis.importance import Importance, importance
from hpo.results.analysis.repeated import Repeated
from hpo.results.curves import of_individuals
from hpo.results.record import CampaignRecord, load
from hpo.terminal import one_line
from hpo.views import text


def _top(record: CampaignRecord, top: int | None) -> list[Individual]:
    return fronts.best(record, top if top or len(record.objectives) > 1 else 1)


def _repeated(record: CampaignRecord) -> dict[str, Repeated]:
    """By the id of that evaluation which stands for its configuration; empty where nothing was repeated."""
    return {one.individual.id: one for one in fronts.repeated(record)}


def best(directory: Path, top: int | None) -> str:
    """The text; ``top``: how many, None for one, or the whole front.

    Raises:
        HpoError: as ``record_of_results.load``.
    """
    record = load(directory)
    found = _top(record, top)
    if not found:
        return text.nothing(record)
    in_full = found[:1]
    if len(record.objectives) < 2:
        parts = [text.best(found, _repeated(record))]
    else:
        front = fronts.front(record)
        knee = fronts.knee(front, record.objectives)
        assert knee is not None  # as something was found
        in_full += [knee] if knee.id != found[0].id else []
        parts = [text.front(found, knee, fronts.hypervolume(record), len(front), record.objectives)]
    for one in in_full:
        line = results.schedule(record, one.id)
        steps = (
            text.step_ranges(of_individuals(directory, {each.id for each in line})) if len(line) > 1 else {}
        )
        parts.append(text.schedule(line, results.changed(line), steps))
        if home := EvaluationDirectories(directory).existing(one.id):
            parts.append(f"{one.id} has its files in {one_line(home)}")
        parts.append(text.code(record, one))
    return "\n".join([*filter(None, parts), *map(str, _importance(record).values())])


def _importance(record: CampaignRecord) -> dict[str, Importance | CampaignError]:
    """By objective; or, once, why there is none."""
    found: dict[str, Importance | CampaignError] = {}
    for name in record.objectives:
        try:
            found[name] = importance(record, name)
        except CampaignError as error:
            return {name: error}
    return found


def best_json(directory: Path, top: int | None) -> str:
    """A list of objects, best first: ``id, value, objectives, params``, the campaign's ``task`` and ``options``, which
    say what the parameters are of, ``code``, the hash of the code that evaluated it, ``directory``, where its files
    are, None where it has none, ``known`` for known points, with ``kind = "pbt"`` ``schedule``, with several objectives
    ``knee``; where configurations were evaluated again, their ``evaluations, failed, mean, error``; the first has
    ``campaign``, too: what is said of all together."""
    record = load(directory)
    found = _top(record, top)
    several = len(record.objectives) > 1
    knee = fronts.knee(fronts.front(record), record.objectives) if several else None
    repeated = _repeated(record)
    directories = EvaluationDirectories(directory)
    lineages = any(one.inherits for one in record.individuals)
    entries: list[dict[str, object]] = []
    for one in found:
        entry: dict[str, object] = {
            "id": one.id,
            "value": one.value,
            "objectives": one.objectives,
            "params": one.params,
            "task": record.identity.get("task"),
            "options": record.identity.get("options") or {},
            "code": record.code_versions.get(one.launch),
            "directory": None if (home := directories.existing(one.id)) is None else str(home),
        }
        if one.id in repeated:
            entry["evaluations"] = len(repeated[one.id].values)
            entry["failed"] = repeated[one.id].failed
            entry["mean"], entry["error"] = repeated[one.id].mean, repeated[one.id].error
        if is_known(one.id):
            entry["known"] = one.metrics.get("source")
        if lineages:
            line = results.schedule(record, one.id)
            entry["schedule"] = [
                {"id": each.id, "value": each.value, "objectives": each.objectives, "changed": changed}
                for each, changed in zip(line, results.changed(line))
            ]
        if several:
            entry["knee"] = knee is not None and one.id == knee.id
        entries.append(entry)
    if entries:
        campaign: dict[str, object] = {
            "importance": {
                name: one.to_json() if isinstance(one, Importance) else {"missing": str(one)}
                for name, one in _importance(record).items()
            }
        }
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
