"""Records and individuals for tests, from their facts side by side."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from hpo.individual import RUNNING, Attempt, Configuration, Individual, Outcome
from hpo.islands.messages import Assignment
from hpo.journal.records import Finished, Started
from hpo.results.record import CampaignRecord
from hpo.search.protocols import Candidate
from hpo.task.trial import Job

_PARTS: dict[str, type[msgspec.Struct]] = {
    "configuration": Configuration,
    "attempt": Attempt,
    "outcome": Outcome,
}
_BIRTHPLACE = ("island", "worker", "sequence")


def nested(facts: dict[str, Any], *parts: str) -> dict[str, Any]:
    """``facts`` with those of the named parts in these; the numbers that make up an id are left out."""
    rest = {name: value for name, value in facts.items() if name not in _BIRTHPLACE}
    found = {}
    for part in parts:
        kind = _PARTS[part]
        found[part] = kind(**{name: rest.pop(name) for name in kind.__struct_fields__ if name in rest})
    return {**rest, **found}


def make_started(**facts: Any) -> Started:
    return Started(**nested(facts, "configuration", "attempt"))


def _timed(facts: dict[str, Any]) -> dict[str, Any]:
    started, finished = facts.get("started"), facts.get("finished")
    return facts if started is None or finished is None else {"seconds": finished - started, **facts}


def make_finished(**facts: Any) -> Finished:
    return Finished(**nested(_timed(facts), "configuration", "attempt", "outcome"))


def make_individual(**facts: Any) -> Individual:
    facts = {"status": RUNNING, "operator": "random", **facts}
    return Individual(**nested(_timed(facts), "configuration", "attempt", "outcome"))


def make_record(
    individuals: Iterable[Individual], objectives: dict[str, str] | None = None, **more: Any
) -> CampaignRecord:
    """The record of a campaign with these individuals; ``more``: other fields, or ``space``."""
    identity = {"objectives": objectives or {"value": "minimize"}}
    if (space := more.pop("space", None)) is not None:
        identity["space"] = space.describe()
    fields = {"directory": Path(), "launches": [], "torn": [], **more}
    return CampaignRecord(identity=identity, individuals=list(individuals), **fields)


def make_assignment(**facts: Any) -> Assignment:
    return Assignment(**nested({"id": "", **facts}, "configuration", "attempt"))


def make_candidate(**facts: Any) -> Candidate:
    return Candidate(**nested({"params": {}, **facts}, "configuration", "attempt"))


def make_job(**facts: Any) -> Job:
    return Job(**nested(facts, "configuration", "attempt"))


def changed(record: Finished, **facts: Any) -> Finished:
    """``record`` with other ``facts``."""
    parts = ("configuration", "attempt", "outcome")
    for part in parts:
        kind = getattr(record, part)
        own = {name: facts.pop(name) for name in kind.__struct_fields__ if name in facts}
        record = replace(record, **{part: replace(kind, **own)})
    return replace(record, **facts)
