from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from individuals import make_candidate
from refusals import refused

import hpo
from hpo.config import reader as config
from hpo.config.settings import SearchSettings
from hpo.individual import COMPLETED
from hpo.search.kinds.vectorised import VectorisedGenomes
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population
from hpo.search.proposals import Proposals
from hpo.space.restricted import RestrictedSpace, restricted

SPACE = hpo.SearchSpace(
    optimizer=hpo.Categorical("sgd", "adam", "nadam", "adagrad"),
    width=hpo.Ordinal(1, 2, 4, 8),
    lr=hpo.Float(1e-4, 1.0, log=True),
    momentum=hpo.Float(0.0, 0.9, when={"optimizer": "sgd"}),
    depth=hpo.Int(1, 9),
)
ONLY: dict[str, Any] = {"optimizer": ["nadam", "adam"], "width": [2]}
KINDS = ["default", "surrogate", "evolution", "genetic", "cmaes", "pso", "nelder-mead", "random", "tpe"]


def test_draws_keep_to_it_and_reach_all_that_is_left() -> None:
    rng, space = random.Random(0), restricted(SPACE, ONLY)
    drawn = [space.decode(space.sample(rng)) for _ in range(200)]
    assert {p["optimizer"] for p in drawn} == {"adam", "nadam"}
    assert {p["width"] for p in drawn} == {2}
    assert {p["depth"] for p in drawn} == set(range(1, 10))


def test_genomes_mean_the_same_everywhere() -> None:
    space, params = (
        restricted(SPACE, ONLY),
        {"optimizer": "sgd", "width": 8, "lr": 0.1, "momentum": 0.5, "depth": 3},
    )
    assert space.encode(params) == SPACE.encode(params)
    assert space.decode(SPACE.encode(params)) == params
    assert space.describe() == SPACE.describe()


def test_what_is_not_allowed_is_replaced_and_the_rest_kept() -> None:
    space = restricted(SPACE, {"optimizer": ["adam", "adagrad"], "width": [2, 8]})
    for optimizer, width, instead in [
        ("sgd", 1, ("adam", 2)),  # the nearest width; the first's share of optimizers
        ("nadam", 4, ("adam", 2)),
        ("adagrad", 8, ("adagrad", 8)),
    ]:
        genome = SPACE.encode({"optimizer": optimizer, "width": width, "lr": 0.1, "depth": 3})
        found = space.decode(space.project_to_allowed(genome))
        assert (found["optimizer"], found["width"]) == instead
        assert (found["lr"], found["depth"]) == (0.1, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_children_of_immigrants_keep_to_it_whatever_breeds_them(kind: str) -> None:
    """The population holds what came from other islands alone."""
    rng, space = random.Random(0), restricted(SPACE, ONLY)
    breeder = make_breeder(space, SearchSettings(kind=kind))  # type: ignore[arg-type]
    population = Population()
    proposals = Proposals(space, breeder, seed=0, duplicates=False)
    for number in range(80):
        genome = SPACE.sample(rng)
        member = Member(f"0-0-{number}", genome, (SPACE.decode(genome)["lr"],), COMPLETED)  # type: ignore[arg-type]
        population.add(member)
        breeder.learn(member)
    for number in range(30):
        candidate = make_candidate(
            token=number, id=f"1-0-{number}", sequence=number, genome=(), params={}, key="", operator=""
        )
        proposals.fill(candidate, population)
        proposals.known.add(candidate.key)
        assert candidate.params["optimizer"] in ONLY["optimizer"]
        assert candidate.params["width"] in ONLY["width"]
        # What emigrates is its genome: elsewhere it must be the same individual.
        assert SPACE.decode(candidate.genome) == candidate.params
        member = Member(candidate.id, candidate.genome, (float(number),), COMPLETED)
        population.add(member)
        breeder.learn(member)


CONDITIONAL = hpo.SearchSpace(
    optimizer=hpo.Categorical("sgd", "adam"),
    nesterov=hpo.Categorical(False, True, when={"optimizer": "sgd"}),
    decay=hpo.Categorical(0, 1, 2, when={"nesterov": True}),
)


def test_what_does_not_exist_needs_no_other_choice() -> None:
    space = restricted(CONDITIONAL, {"nesterov": [True], "decay": [2]})
    adam = CONDITIONAL.encode({"optimizer": "adam"})
    assert space.project_to_allowed(adam) is adam
    # What begins to exist gets a choice that is allowed, too.
    sgd = CONDITIONAL.encode({"optimizer": "sgd", "nesterov": False})
    found = space.decode(space.project_to_allowed(sgd))
    assert found == {"optimizer": "sgd", "nesterov": True, "decay": 2}
    assert space.size == len(list(space.enumerate())) == 2

    search = hpo.Search(CONDITIONAL, kind="grid", only={"nesterov": [True]})
    asked = [search.ask() for _ in range(4)]
    assert [one.operator for one in asked] == ["grid"] * 4
    assert sum(one.params["optimizer"] == "adam" for one in asked) == 1


def test_models_choose_among_what_is_allowed_of_parameters_that_need_not_exist() -> None:
    numpy = pytest.importorskip("numpy")
    space = hpo.SearchSpace(
        optimizer=hpo.Categorical("adam", "sgd"),
        schedule=hpo.Categorical(*"abcdefgh", when={"optimizer": "sgd"}),
        lr=hpo.Float(0, 1),
    )
    part = restricted(space, {"schedule": ["c", "d"]})
    rows = VectorisedGenomes(part).drawn(200, numpy.random.default_rng(0))
    schedules = {space.decode(row).get("schedule") for row in rows.tolist()}
    assert schedules == {None, "c", "d"}


def test_repetitions_are_made_of_what_lacks_the_parameter_too() -> None:
    space = hpo.SearchSpace({**CONDITIONAL.parameters, "lr": hpo.Float(0, 1)})
    search = hpo.Search(space, only={"nesterov": [True]}, reevaluate=0.5, seed=1)
    for number in range(40):
        search.enter({"optimizer": "adam", "lr": number / 40}, number / 40)
    operators = [search.ask().operator for _ in range(40)]
    assert operators.count("reevaluation") > 5


@pytest.mark.parametrize(
    ("only", "number"),
    [
        ({"a": [*range(8, 28)], "b": [*range(20)]}, 400),
        ({"a": [7], "c": ["x"]}, 2000),
        ({"c": ["y"], "a": [1]}, None),
    ],
)
def test_the_size_is_that_of_the_part(only: dict[str, Any], number: int | None) -> None:
    space = hpo.SearchSpace(
        a=hpo.Ordinal(*range(2000)),
        b=hpo.Ordinal(*range(2000)),
        c=hpo.Categorical("x", "y", when={"a": [1, 7]}),
        d=hpo.Float(0, 1, when={"c": "y"}),
    )
    part = restricted(space, only)
    assert part.size == number
    if number is not None:
        assert len(list(part.enumerate())) == number


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    wrong = {"optimiser": ["sgd"], "optimizer": ["adm", "sgd", "sdg"], "lr": [0.1], "width": []}
    refused(lambda: RestrictedSpace(SPACE, {"width": [True]}), "width = True", "1")
    lines = refused(lambda: RestrictedSpace(SPACE, wrong)).splitlines()
    starts = ["'optimiser'", "optimizer = 'adm'", "optimizer = 'sdg'", "lr", "width = []"]
    assert all(line.startswith(f"[search] only: {start}") for line, start in zip(lines, starts, strict=True))
    task = hpo.Task(SPACE, lambda trial: 1.0)
    campaign = hpo.Campaign(task, directory=tmp_path / "one", evaluations=1, island=[{"only": wrong}])
    told = refused(campaign.run).splitlines()
    assert told == [one.replace("[search]", "[[island]] number 1,") for one in lines]


def test_a_finite_part_of_a_space_is_used_up_and_nothing_beyond_it_is_evaluated(tmp_path: Path) -> None:
    space = hpo.SearchSpace(
        a=hpo.Categorical(1, 2, "x"), b=hpo.Int(1, 4), c=hpo.Categorical("y", "z", when={"a": "x"})
    )
    only = {"a": [1, "x"], "c": ["z"]}
    search, found = hpo.Search(space, only=only), []
    with pytest.raises(hpo.SpaceExhausted):
        while True:
            found.append(search.ask().params)
    assert len(found) == 8 and all(one["a"] != 2 and one.get("c") != "y" for one in found)

    task = hpo.Task(space, lambda trial: float(trial.params["b"]))  # type: ignore[arg-type]
    settings = {"evaluations": 20, "isolation": "inline", "only": only}
    result = hpo.Campaign(task, directory=tmp_path / "run", **settings).run()
    assert result.reason == "exhausted"
    assert sorted(map(str, found)) == sorted(str(one.params) for one in result.individuals)


def test_a_campaign_file_gives_it_to_an_island(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'task = "my.py:task"\ndirectory = "runs/my"\nevaluations = 3\n[layout]\nislands = 2\n[[island]]\n'
    path.write_text(text + 'only = { optimizer = ["sgd"] }\n')
    settings = config.read_file(path)
    assert settings.search_of(0).only == {"optimizer": ["sgd"]}
    assert settings.search_of(1).only == {}
    path.write_text(text + 'only = { optimizer = "sgd" }\n')
    refused(lambda: config.read_file(path), "only", "table")
