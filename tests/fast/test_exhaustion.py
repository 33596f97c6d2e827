"""Islands that keep to parts of the space, and use them up at different times."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from simulation import Simulation
from simulation.campaigns import (
    SPACE,
    disturb,
    fall_sick,
    finished,
    give_at,
    losses,
    make,
    records_of,
    standing,
)
from simulation.ledger import SimulatedLedger

import hpo
from hpo.campaign.definition import CampaignDefinition
from hpo.config import reader as config
from hpo.config.settings import Settings
from hpo.individual import COMPLETED
from hpo.islands.coordinator import unseen
from hpo.islands.coordinator.unseen import Configurations, UnseenConfigurations
from hpo.islands.end_reasons import DONE, EXHAUSTED, LOST
from hpo.islands.resume.fold import fold
from hpo.journal.commands import Drain
from hpo.journal.records import Finished, Migrated, Record
from hpo.results.record import load

FINITE = hpo.SearchSpace(a=hpo.Ordinal(*range(8)), b=hpo.Ordinal(*range(6)))
# Without end where ``kind`` is "b".
MIXED = hpo.SearchSpace(
    kind=hpo.Categorical("a", "b"),
    depth=hpo.Ordinal(1, 2, 3, when={"kind": "a"}),
    lr=hpo.Float(0.0, 1.0, when={"kind": "b"}),
)
ASKED = {"time": 0.0, "by": "me"}


def settings(parts: list[dict[str, list[Any]]], **keywords: Any) -> Settings:
    island = [{"only": part} for part in parts]
    return config.from_keywords(
        directory=".", evaluations=1, kind="evolution", islands=len(parts), island=island, **keywords
    )


def simulate(
    case: int, space: hpo.SearchSpace, parts: list[dict[str, list[Any]]], *, phase: Any = (), **changes: Any
) -> Simulation:
    keywords = {
        "phased": settings(parts, phase=list(phase), **({"inherit": False} if phase else {})),
        "islands": len(parts),
        "workers": 2 * len(parts),
        "goal": lambda params: float(params.get("a", 0)) + float(params.get("lr", 0)),
        **changes,
    }
    return make(case, space=space, **keywords)[0]


def island_of(record: Finished) -> int:
    return int(record.id.split("-")[0])


def completed(records: list[Record]) -> list[Finished]:
    return [one for one in standing(records) if one.status == COMPLETED]


def check_parts(ends: list[Finished], space: hpo.SearchSpace, parts: list[dict[str, list[Any]]]) -> None:
    """All are different, and each keeps to what its island may evaluate."""
    assert len({space.key(one.params) for one in ends}) == len(ends)
    for one in ends:
        only = parts[island_of(one)]
        assert all(one.params[name] in choices for name, choices in only.items() if name in one.params)


@pytest.mark.parametrize("case", range(3))
@pytest.mark.parametrize(
    ("space", "narrow", "wide", "size"),
    [
        (FINITE, {"a": [0], "b": [0, 1, 2]}, {"a": [1, 2, 3, 4, 5, 6, 7]}, 3),
        (MIXED, {"kind": ["a"]}, {"kind": ["b"]}, 3),
    ],
    ids=["listed", "endless"],
)
def test_an_island_that_has_used_up_its_part_does_not_end_the_campaign(
    space: hpo.SearchSpace, narrow: dict[str, list[Any]], wide: dict[str, list[Any]], size: int, case: int
) -> None:
    parts = [wide, narrow] if case % 2 else [narrow, wide]
    simulation = simulate(case, space, parts, evaluations=40)
    simulation.run()
    ends = finished(simulation)
    check_parts(ends, space, parts)
    assert len(ends) == 40 and simulation.coordinator.end is not None
    assert simulation.coordinator.end.reason == DONE
    assert sum(island_of(one) == parts.index(narrow) for one in ends) == size
    if space is FINITE:  # else it takes 20 000 claims in vain to find out, each as long as two messages
        said = [one for one in simulation.coordinator.remarks if "idle while the others go on" in one]
        assert said and said[0].startswith(f"island {parts.index(narrow)} has evaluated all that it may")


def test_a_claim_in_vain_looks_at_a_piece_of_the_space_whatever_the_constraints_refuse() -> None:
    looked = 0

    def listed() -> Configurations:
        nonlocal looked
        for number in range(50_000):
            looked += 1
            yield ({"a": number}, str(number)) if number == 49_999 else None

    rest, taken, claims = UnseenConfigurations(listed), {"0"}, 0
    while (found := rest.next(taken, lambda key: not taken.add(key))) is None:
        claims += 1
        assert looked <= 2_000 * claims and not rest.exhausted
    assert found.key == "49999" and claims > 20
    while not rest.exhausted:
        assert rest.next(taken, lambda key: not taken.add(key)) is None


@pytest.mark.parametrize("share, completed, reason", [(5e-5, 4, "done"), (1e-15, 1, "refused")])
def test_rare_configurations_are_found_and_a_search_in_vain_does_not_look_complete(
    share: float, completed: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unseen, "_PATIENCE_S", 20.0 if reason == "done" else 0.5)
    task = hpo.Task(
        hpo.SearchSpace(a=hpo.Float(0, 1), b=hpo.Float(0, 1)),
        lambda trial: 0.0,
        constraints=[lambda params: abs(params["a"] - params["b"]) <= share],
        default={"a": 0.5, "b": 0.5},
    )
    monkeypatch.setattr(
        CampaignDefinition, "_check_constraints", lambda campaign: None
    )  # it draws 10 000, too
    campaign = hpo.Campaign(task, directory=tmp_path, evaluations=4, kind="random", isolation="inline")
    refuses = pytest.raises(hpo.CampaignError, match=r"refused \d{4,} proposals in a row")
    with refuses if reason == "refused" else nullcontext():
        campaign.run()
    record = load(tmp_path)
    assert len(record.individuals) == completed
    assert record.ended == (reason, campaign.exit_code) == (reason, int(reason == "refused"))


def test_what_is_left_to_islands_without_workers_is_for_the_next_launch() -> None:
    parts: list[dict[str, list[Any]]] = [{"kind": ["a"]}, {"kind": ["b"]}]
    simulation = simulate(3, MIXED, parts, evaluations=30, workers=3)  # ranks 0 and 1, and rank 2
    simulation.at(2.0, lambda: simulation.kill(2))
    simulation.run()
    end = simulation.coordinator.end
    assert end is not None and (end.reason, end.exit_code) == (LOST, 75)
    before = records_of(simulation)
    earlier = fold(before, space=MIXED, islands=2, losses=losses)
    second = simulate(4, MIXED, parts, evaluations=30, workers=3, earlier=earlier)
    second.run()
    ends = completed(before + records_of(second))
    check_parts([one for one in ends if one.operator != "retry"], MIXED, parts)
    assert len(ends) == 30
    assert second.coordinator.end is not None and second.coordinator.end.reason == DONE


def test_a_phase_ends_early_for_the_island_that_has_used_up_its_part_alone() -> None:
    parts: list[dict[str, list[Any]]] = [{"b": [0]}, {}]
    phase = [{"until": 24, "only": {"a": [0, 1, 2, 3]}}]
    simulation = simulate(2, FINITE, parts, phase=phase, evaluations=36)
    simulation.run()
    ends = sorted(finished(simulation), key=lambda one: one.started)
    assert len(ends) == 36
    narrow = [int(one.params["a"]) for one in ends if island_of(one) == 0]
    assert len(narrow) <= 8 and set(narrow[:4]) <= {0, 1, 2, 3} and max(narrow) > 3
    others = [int(one.params["a"]) for one in ends[:20] if island_of(one) == 1]
    assert len(others) >= 12 and max(others) <= 3
    said = [
        one
        for one in simulation.coordinator.remarks
        if one.startswith("island 0 finds nothing new in phase 1")
    ]
    assert len(said) == 1


def known_to_those_that_work(simulation: Simulation, working: list[int]) -> float:
    """The share of the campaign's best twenty that the islands which go on know."""
    best = sorted(finished(simulation), key=lambda one: list((one.objectives or {}).values()))[:20]
    known = {
        member.id
        for leader in simulation.leaders
        if leader.place.island in working
        for member in leader.population.best
    }
    return sum(one.id in known for one in best) / len(best)


@pytest.mark.parametrize("why", ["used up", "drained", "benched", "unfit"])
@pytest.mark.parametrize("case", range(3))
def test_what_migrated_to_workers_that_get_nothing_more_is_not_lost_to_the_search(
    why: str, case: int
) -> None:
    """Their leaders took what came, and as they evaluated nothing, passed nothing on."""
    changes: dict[str, Any] = {
        "evaluations": 200,
        "workers": 3,
        "copy": False,
        "topology": "ring",
        "duration": lambda index: 60.0 + index * 7919 % 31,
        "migration": 0.9,
    }
    ledger = SimulatedLedger(200, SPACE)
    if why == "used up":
        parts: list[dict[str, list[Any]]] = [{"kind": ["b"]}, {"kind": ["a"]}, {"kind": ["b"]}]
        simulation = simulate(case, MIXED, parts, **changes)
    else:
        simulation, _ = make(case, islands=3, ledger=ledger, **changes)
    if why == "drained":
        give_at(simulation, ledger, 250.0, Drain(**ASKED, worker="1-1"))  # type: ignore[arg-type]
    elif why == "benched":
        fall_sick(simulation, 1, 250.0)
    elif why == "unfit":
        simulation.crews[1].fit_for = 3
    simulation.run()
    moved = [one for one in records_of(simulation) if isinstance(one, Migrated) and one.target == 1]
    assert len(moved) < 20
    assert known_to_those_that_work(simulation, [0, 2]) >= 0.7
    # Island 0 sends to island 2 from then on, to which it did not before.
    assert sum(isinstance(one, Migrated) and one.target == 2 for one in records_of(simulation)) > 20


@pytest.mark.parametrize("case", range(10))
def test_whatever_happens_nothing_is_evaluated_twice_and_the_next_launch_completes_it(case: int) -> None:
    rng = random.Random(f"exhaustion/{case}")
    space = rng.choice([FINITE, MIXED])
    parts: list[dict[str, list[Any]]]
    if space is FINITE:
        parts = [
            {
                "a": sorted(rng.sample(range(8), rng.randint(1, 8))),
                "b": sorted(rng.sample(range(6), rng.randint(1, 6))),
            }
            for _ in range(rng.randint(1, 4))
        ]
        most = len({(a, b) for part in parts for a in part["a"] for b in part["b"]})
    else:
        parts = [{"kind": [kind]} for kind in ("a", "b", *rng.choices("ab", k=rng.randint(0, 2)))]
        most = 10**6
    evaluations = rng.randint(1, 60)
    records: list[Record] = []
    for launch in range(8):
        earlier = fold(records, space=space, islands=len(parts), losses=losses)
        workers = len(parts) + rng.randint(0, 6)
        made = {"evaluations": evaluations, "workers": workers, "earlier": earlier}
        simulation = simulate(100 * case + launch, space, parts, **made)
        until = disturb(simulation, rng, workers) if launch < 7 else float("inf")
        simulation.run(until)
        records += records_of(simulation)
        end = simulation.coordinator.end
        if end is not None and end.exit_code == 0 and 0 not in simulation.dead:
            break
    ends = completed(records)
    assert end is not None and end.reason == (DONE if evaluations <= most else EXHAUSTED)
    assert len(ends) == min(evaluations, most)
    assert len({space.key(one.params) for one in ends}) == len(ends)
