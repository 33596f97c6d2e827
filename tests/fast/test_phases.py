from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from populations import population_of
from refusals import refused
from simulation import Simulation
from simulation.campaigns import finished, losses, make, records_of

import hpo
from hpo.config import reader as config
from hpo.config.settings import Settings
from hpo.individual import COMPLETED
from hpo.islands.end_reasons import STOPPED
from hpo.islands.leader.retention import RetentionPolicy
from hpo.islands.resume.fold import fold
from hpo.journal.records import Finished, Record
from hpo.search.models.pareto import dominates
from hpo.search.phases import InheritingBreeder, Phases, searched
from hpo.search.population import Member, Population
from hpo.search.protocols import Breeder, Offspring, SearchContext

SPACE = hpo.SearchSpace(
    depth=hpo.Ordinal(1, 2, 3, 4), kind=hpo.Categorical("a", "b", "c"), lr=hpo.Float(1e-4, 1.0, log=True)
)
PHASES: list[dict[str, Any]] = [
    {"until": 20, "only": {"depth": [1], "kind": ["a"]}},
    {"until": 40, "only": {"depth": [1, 2]}},
]


def settings(**keywords: Any) -> Settings:
    return config.from_keywords(directory=".", evaluations=60, **{"phase": PHASES, **keywords})


def goal(params: dict[str, Any]) -> float:
    return -params["depth"] + abs(params["lr"] - 0.01)


def simulate(case: int, **changes: Any) -> Simulation:
    keywords: dict[str, Any] = {
        "phased": settings(kind="evolution"), "evaluations": 60, "islands": 2, "workers": 5, **changes,
    }  # fmt: skip
    return make(case, space=SPACE, goal=goal, **keywords)[0]


def in_order(records: list[Record]) -> list[Finished]:
    """As they were begun: a grant is on its way for less than an evaluation lasts."""
    ends = [one for one in records if isinstance(one, Finished) and one.status == COMPLETED]
    return sorted(ends, key=lambda one: one.started)


def closed(ends: list[Finished]) -> list[Finished]:
    """Those that have what only the whole space has."""
    return [one for one in ends if int(one.params["depth"]) > 2]


# --- the phase that an individual belongs to ---------------------------------------------------------------------


def test_a_phase_ends_with_the_count_of_what_was_granted() -> None:
    phases = Phases([20, 40])
    assert [phases.at(one) for one in (0, 19, 20, 39, 40, 1000)] == [0, 0, 1, 1, 2, 2]
    assert phases.skip(0, 3) and [phases.at(one, 3) for one in (0, 20, 40)] == [1, 1, 2]
    assert phases.skip(1, 3) and phases.at(0, 3) == 2
    assert not phases.skip(2, 3)
    assert [phases.at(0), phases.at(0, 1)] == [0, 0]  # the others have not come as far
    assert Phases().at(10**9) == 0


@pytest.mark.parametrize("case", range(4))
def test_what_is_bred_in_a_phase_keeps_to_it(case: int) -> None:
    simulation = simulate(case)
    simulation.run()
    ends = in_order(records_of(simulation))
    assert len(ends) == 60
    # That many of each exactly: the coordinator refuses what was bred in another phase.
    assert sum(one.params["depth"] == 1 and one.params["kind"] == "a" for one in ends) >= 20
    assert not closed(ends[:35]) and closed(ends[45:])
    assert all(one.params["kind"] == "a" for one in ends[:15])
    assert any(one.params["depth"] == 2 for one in ends[25:40])


def test_children_go_on_from_their_first_native_parent() -> None:
    simulation = simulate(1, copy=True)
    simulation.run()
    rows = {one.id: one for one in finished(simulation)}
    children = [one for one in rows.values() if one.inherits]
    assert len(children) > 20
    assert all(one.inherits in one.parents for one in children)
    assert all(one.inherits.split("-")[0] == one.id.split("-")[0] for one in children)
    assert not any(one.inherits for one in rows.values() if one.operator == "random")

    alone = simulate(1, phased=settings(kind="evolution", inherit=False))
    alone.run()
    assert not any(one.inherits for one in finished(alone))


def test_an_immigrant_gives_no_checkpoint() -> None:
    class Fixed(Breeder):
        def breed(self, population: Population, rng: random.Random) -> Offspring:
            return Offspring((0, 0, 0.5), operator="evolution", parents=("1-0-0", "0-0-1"))

    population = population_of([((0, 0, 0.1), 1.0)], worker="1-0", history=(1,))
    saved = {"0-0-1"}
    breeder = InheritingBreeder(Fixed(), lambda parents: next((one for one in parents if one in saved), ""))
    assert breeder.breed(population, random.Random(0)).inherits == ""
    population.add(Member("0-0-1", (0, 0, 0.2), (2.0,), COMPLETED))
    assert breeder.breed(population, random.Random(0)).inherits == "0-0-1"
    saved.clear()
    assert breeder.breed(population, random.Random(0)).inherits == "", "there is nothing to go on from"
    assert breeder.checkpoints_for_others > 0


def test_checkpoints_of_the_best_and_of_the_latest_eight_stay_for_children() -> None:
    _, breeder = searched(SPACE, settings(), 0, SearchContext())
    policy = RetentionPolicy(2, latest=breeder.checkpoints_for_others)
    draws = random.Random(0)
    ended: list[tuple[float, str]] = []
    there: set[str] = set()
    for number in range(40):
        ended.append((draws.random(), f"0-0-{number}"))
        there.add(ended[-1][1])
        there -= {*policy.add(ended[-1][1], (ended[-1][0],))}
        assert there == {identity for _, identity in (*sorted(ended[:-8])[:2], *ended[-8:])}


@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("objectives", [2, 3])
def test_of_several_objectives_those_that_few_dominate_keep_their_checkpoints(
    objectives: int, keep: int
) -> None:
    policy, draws = RetentionPolicy(keep), random.Random(objectives)
    ended: dict[str, tuple[float, ...]] = {}
    there: set[str] = set()
    for number in range(60):
        losses = tuple(float(draws.randrange(6)) for _ in range(objectives))
        ended[str(number)] = losses
        there |= {str(number)}
        there -= {*policy.add(str(number), losses)}
        better = {one: sum(dominates(other, it) for other in ended.values()) for one, it in ended.items()}
        assert there == {one for one, count in better.items() if count < keep}


@pytest.mark.parametrize("when", [1.0, 4.0, 8.0])
def test_a_resumed_campaign_is_in_the_phase_in_which_it_was(when: float) -> None:
    first = simulate(3)
    first.at(when, lambda: first.coordinator.stop(STOPPED))
    first.run()
    before = records_of(first)
    done = len(in_order(before))
    assert 0 < done < 60
    earlier = fold(before, space=SPACE, islands=2, losses=losses)
    second = simulate(4, earlier=earlier)
    second.run()
    later = in_order(records_of(second))
    assert done + len(later) == 60
    rest = [one for one in later if one.id not in {each.id for each in earlier.pending}]
    phases = Phases([20, 40])
    for place, one in enumerate(rest, start=done + len(later) - len(rest)):
        if phases.at(place + 5) == 0:  # five workers
            assert (one.params["depth"], one.params["kind"]) == (1, "a")
        elif phases.at(place + 5) == 1:
            assert one.params["depth"] in (1, 2)


def test_an_island_keeps_to_its_own_choices_too() -> None:
    own = settings(island=[{"only": {"kind": ["a", "b"]}}, {}], islands=2, kind="evolution")
    space, breeder = searched(SPACE, own, 0, SearchContext())
    rng = random.Random(0)
    found = []
    for phase in range(3):
        breeder.begin_phase(phase)
        drawn = [space.decode(space.sample(rng)) for _ in range(100)]
        found.append(({one["depth"] for one in drawn}, {one["kind"] for one in drawn}))
    assert found == [({1}, {"a"}), ({1, 2}, {"a", "b"}), ({1, 2, 3, 4}, {"a", "b"})]


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([{"until": 5}], "phase[0] only"),
        ([{"only": {"depth": [1]}}], "phase[0] until"),
        ([{"until": 0, "only": {"depth": [1]}}], "until = 0"),
        ([{"until": 5, "only": {}}], "only = {}"),
        ([{"until": 5, "only": {"depth": 1}}], "phase[0] only"),
        ([{"untill": 5, "only": {"depth": [1]}}], '"until"'),
        ([PHASES[1], PHASES[0]], "until = 20"),
        ({"until": 5}, "table for each phase"),
    ],
)
def test_mistakes_in_keywords(phases: object, words: str) -> None:
    refused(lambda: settings(phase=phases), words)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"phase": [{"until": 5, "only": {"dept": [1]}}]}, ["number 1", "'dept'"]),
        ({"phase": [{"until": 5, "only": {"depth": [9]}}]}, ["number 1", "depth = 9"]),
        ({"phase": [{"until": 5, "only": {"lr": [0.1]}}]}, ["lr"]),
        ({"only": {"depth": [4]}}, ["number 1", "depth = [1]", "island 0", "[4]"]),
        ({"kind": "pbt"}, ["[[phase]]", '"pbt"']),
        ({"kind": "pbt", "phase": [], "inherit": True}, ["inherit = True", '"pbt"']),
        ({"reevaluate": 0.1}, ["reevaluate = 0.1", "inherit = false"]),
    ],
)
def test_mistakes_that_the_space_shows(tmp_path: Path, keywords: dict[str, Any], words: list[str]) -> None:
    task = hpo.Task(SPACE, lambda trial: 1.0)
    keywords = {"directory": tmp_path / "one", "evaluations": 9, "phase": PHASES, **keywords}
    refused(hpo.Campaign(task, **keywords).run, *words)
    assert not (tmp_path / "one").exists()


def test_a_campaign_file_has_phases(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'task = "my.py:task"\ndirectory = "runs/my"\nevaluations = 3\n'
    path.write_text(text + "[[phase]]\nuntil = 2\nonly = { depth = [1] }\n")
    read = config.read_file(path)
    assert [(one.until, one.only) for one in read.phase] == [(2, {"depth": [1]})]
    assert read.inherits(0) and not settings(phase=[]).inherits(0)
    path.write_text(text + "[phase]\nuntil = 2\n")
    refused(lambda: config.read_file(path), "[[phase]]")
    path.write_text(text + "[[phase]]\nuntil = 2\nwhen = 3\nonly = { depth = [1] }\n")
    refused(lambda: config.read_file(path), "[[phase]] number 1", "when = 3")


def test_children_find_their_parents_checkpoints(tmp_path: Path) -> None:
    def grow(trial: hpo.Trial) -> float:
        before = 0
        if trial.parent_checkpoint is not None:
            before = int((trial.parent_checkpoint / "state").read_text())
        depth = int(trial.params["depth"])
        (trial.directory / "state").write_text(str(before + 1))
        trial.log(generation=before + 1)
        return float(before + depth)

    task = hpo.Task(SPACE, grow, "maximize")
    keywords: dict[str, Any] = {"isolation": "inline", "kind": "evolution", "phase": PHASES, "keep": 60}
    hpo.Campaign(task, directory=tmp_path / "one", evaluations=30, **keywords).run()
    result = hpo.Campaign(task, directory=tmp_path / "one", evaluations=60, **keywords).run()
    rows = {one.id: one for one in result.individuals}
    ordered = sorted(rows.values(), key=lambda one: one.started or 0.0)
    assert {one.params["depth"] for one in ordered[:20]} == {1}
    assert {one.params["depth"] for one in ordered[20:40]} == {1, 2}
    assert any(int(one.params["depth"]) > 2 for one in ordered[40:])
    grown = [one for one in rows.values() if one.inherits and one.metrics.get("parent_checkpoint") != "gone"]
    assert len(grown) > 20
    for one in grown:
        assert one.metrics["generation"] == rows[one.inherits].metrics["generation"] + 1  # type: ignore[operator]
    assert max(int(one.metrics["generation"]) for one in grown) > 1  # type: ignore[call-overload]
