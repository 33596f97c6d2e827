"""Simulated campaigns do what they did when ``golden/traces.json`` was recorded.

A change that moves or renames code leaves the traces as they are. One that changes on purpose what a campaign does
records them again, and its commit says why: ``python tests/record.py traces``. Numbers are compared to nine digits,
as processors differ in the last ones."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from places import GOLDEN
from simulation import Simulation
from simulation.campaigns import SPACE, disturb, losses, make, make_repeating, records_of
from simulation.pruned import pruned_campaign

from hpo.config.settings import SearchSettings
from hpo.islands.resume.fold import fold
from hpo.journal.records import Finished
from hpo.search.kinds.evolution import EvolutionBreeder, RandomBreeder

RECORDED = GOLDEN / "traces.json"

Records = list[dict[str, Any]]

FIELDS = (
    *("id", "operator", "parents", "params", "run", "retries", "status", "objectives"),
    *("started", "finished", "time", "source", "target", "copy", "step", "loss"),
)
"""The facts of a record that are compared: a further field of a record leaves the traces as they are."""


def whole(simulation: Simulation) -> Records:
    simulation.run()
    return records_of(simulation)


def resumed(case: int) -> Records:
    """Launch after launch on other numbers of ranks and islands, with deaths and signals."""
    rng = random.Random(f"golden/{case}")
    records: Records = []
    for launch in range(6):
        workers = rng.randint(1, 8)
        islands = rng.randint(1, min(3, workers))
        simulation, _ = make(
            100 * case + launch,
            workers=workers,
            islands=islands,
            evaluations=60,
            earlier=fold(records, space=SPACE, islands=islands, losses=losses),
        )
        simulation.run(until=disturb(simulation, rng, workers) if launch < 5 else float("inf"))
        records += records_of(simulation)
    return records


CASES: dict[str, Callable[[], Records]] = {
    **{f"evolution {case}": lambda case=case: whole(make(case)[0]) for case in range(8)},  # type: ignore[misc]
    "evolution, twelve workers": lambda: whole(
        make(50, workers=12, islands=3, evaluations=400, copy=False, topology="ring")[0]
    ),
    "pollination between all": lambda: whole(
        make(51, workers=9, islands=3, evaluations=200, copy=True, topology="full")[0]
    ),
    "a larger pool and more at random": lambda: whole(
        make(
            52,
            evaluations=150,
            breeder=lambda rank: EvolutionBreeder(SPACE, SearchSettings(pool=12, random=0.5)),
        )[0]
    ),
    "random": lambda: whole(make(53, evaluations=100, breeder=lambda rank: RandomBreeder(SPACE))[0]),
    "repetitions": lambda: whole(make_repeating(54, 0.3, evaluations=120)[0]),
    **{
        f"early stopping {case}": lambda case=case: whole(pruned_campaign(case, evaluations=60)[0])  # type: ignore[misc]
        for case in range(6)
    },
    **{f"launches with deaths {case}": lambda case=case: resumed(case) for case in range(6)},  # type: ignore[misc]
}


def rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def trace(records: Records) -> dict[str, object]:
    """Digest of the chosen facts of all records in order, and counts that show what kind of thing has changed."""
    facts = [
        [type(record).__name__, *(rounded(getattr(record, name, None)) for name in FIELDS)]
        for record in records
    ]
    ends = [record for record in records if isinstance(record, Finished)]
    return {
        "digest": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16],
        "records": dict(sorted(Counter(type(record).__name__.lower() for record in records).items())),
        "statuses": dict(sorted(Counter(record.status for record in ends).items())),
        "operators": dict(sorted(Counter(record.operator for record in ends).items())),
        "last": rounded(max(record.finished for record in ends)),
    }


@pytest.mark.parametrize("name", CASES)
def test_a_simulated_campaign_is_what_it_was(name: str) -> None:
    assert trace(CASES[name]()) == json.loads(RECORDED.read_text())[name]


def test_no_trace_is_left_over() -> None:
    assert json.loads(RECORDED.read_text()).keys() == CASES.keys()


def record() -> None:
    RECORDED.write_text(json.dumps({name: trace(case()) for name, case in CASES.items()}, indent=1) + "\n")
