"""Text and JSON of ``hpo best``: the best configurations or the front, and findings about the campaign as a whole."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hpo.errors import CampaignError
from hpo.evaluation.directories import EvaluationDirectories
from hpo.individual import Individual, is_known
from hpo.journal.records import storable
from hpo.results import result as results
from hpo.results.analysis import pareto
from hpo.results.analysis.importance import Importance, importance
from hpo.results.analysis.repeated import Repeated
from hpo.results.curves import load as load_curves
from hpo.results.record import CampaignRecord, load
from hpo.terminal import one_line
from hpo.views import text
from hpo.views.terminal.show import step_ranges


def _top(record: CampaignRecord, top: int | None) -> list[Individual]:
    return pareto.best(record, top if top or len(record.objectives) > 1 else 1)


def _repeated(record: CampaignRecord) -> dict[str, Repeated]:
    return {one.individual.id: one for one in pareto.repeated(record)}


def best(directory: Path, top: int | None) -> str:
    """Text of ``hpo best``; ``top`` None: the best individual, or the whole front. Raises errors as
    ``hpo.results.record.load``."""
    record = load(directory)
    found = _top(record, top)
    if not found:
        return text.nothing(record)
    in_full = found[:1]
    if len(record.objectives) < 2:
        repeated = _repeated(record)
        parts = [text.block(one, repeated.get(one.id)) for one in found]
    else:
        front = pareto.front(record)
        knee = pareto.knee(front, record.objectives)
        assert knee is not None  # the front is not empty
        in_full += [knee] if knee.id != found[0].id else []
        parts = [text.front(found, knee, pareto.hypervolume(record), len(front), record.objectives)]
    for one in in_full:
        line = results.schedule(record, one.id)
        steps = step_ranges(load_curves(directory, {each.id for each in line})) if len(line) > 1 else {}
        parts.append(text.schedule(line, results.changed(line), steps))
        if home := EvaluationDirectories(directory).existing(one.id):
            parts.append(f"{one.id} has its files in {one_line(home)}")
        parts.append(text.code(record, one))
    return "\n".join([*filter(None, parts), *map(str, _importance(record).values())])


def _importance(record: CampaignRecord) -> dict[str, Importance | CampaignError]:
    """Importance by objective, or the reason why there is none for the first."""
    found: dict[str, Importance | CampaignError] = {}
    for name in record.objectives:
        try:
            found[name] = importance(record, name)
        except CampaignError as error:
            return {name: error}
    return found


def best_json(directory: Path, top: int | None) -> str:
    """The list of objects that ``hpo best --json`` prints (see hpo/views/README.md)."""
    record = load(directory)
    several = len(record.objectives) > 1
    knee = pareto.knee(pareto.front(record), record.objectives) if several else None
    repeated = _repeated(record)
    directories = EvaluationDirectories(directory)
    lineages = any(one.inherits for one in record.individuals)
    entries: list[dict[str, object]] = []
    for one in _top(record, top):
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
        if again := repeated.get(one.id):
            entry |= {"evaluations": len(again.values), "failed": again.failed}
            entry |= {"mean": again.mean, "error": again.error}
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
        entries[0]["campaign"] = _campaign(record)
    return json.dumps(storable(entries))


def _campaign(record: CampaignRecord) -> dict[str, object]:
    found: dict[str, object] = {
        "importance": {
            name: one.to_json() if isinstance(one, Importance) else {"missing": str(one)}
            for name, one in _importance(record).items()
        }
    }
    if len(record.objectives) > 1:
        volume = pareto.hypervolume(record)
        curve = list(zip(volume.evaluations, volume.values))
        changes = [after for before, after in pairwise(curve[:-1]) if after[1] != before[1]]
        found["hypervolume"] = {
            "value": volume.last,
            "reference": volume.reference,
            "given": volume.given,
            "over_time": curve[:1] + changes + curve[1:][-1:],
        }
    return found
