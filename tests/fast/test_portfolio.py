"""The portfolio pays who finds, from what the island knows; islands of all kinds in one campaign."""

from __future__ import annotations

import random
from typing import get_args

import pytest
from populations import Around, population_of, searched_alone
from simulation import Simulation

import hpo
from hpo.config.settings import Kind, SearchSettings
from hpo.individual import COMPLETED
from hpo.journal.records import Finished
from hpo.search.kinds.portfolio import PortfolioBreeder
from hpo.search.phases import make_breeder
from hpo.search.population import Member, Population

SPACE = hpo.SearchSpace(
    x=hpo.Float(-1, 1), y=hpo.Float(-1, 1), n=hpo.Int(0, 40), c=hpo.Categorical("a", "b", "c")
)
NUMBERS = hpo.SearchSpace({f"x{i}": hpo.Float(-1, 1) for i in range(3)})


def spend(breeders, value):
    """What share each got of the last hundred."""
    portfolio = PortfolioBreeder(breeders)
    bred = searched_alone(portfolio, lambda child, number: value(child.genome[0], number), 300)
    operators = [child.operator for child in bred[-100:]]
    return {name: operators.count(name) / 100 for name in breeders}, portfolio


def test_who_finds_gets_the_budget_and_loses_it_when_others_find_more():
    breeders = {"poor": Around(0.8), "good": Around(0.1), "worse": Around(0.5)}
    shares, portfolio = spend(breeders, lambda x, number: x)
    assert shares["good"] > 0.7 and min(shares.values()) > 0.0
    assert portfolio.shares()["good"] > 0.5
    turned, _ = spend(breeders, lambda x, number: x if number < 150 else 1 - x)
    assert turned["poor"] > 0.6
    assert len(breeders["worse"].learnt) == 600, "not everybody learnt everything"


def test_only_ranks_count_and_failures_are_worst():
    breeders = {"a": Around(0.1), "b": Around(0.5)}
    plain, _ = spend(breeders, lambda x, number: x)
    blown, _ = spend(breeders, lambda x, number: 1e6 ** (50 * x))
    assert plain == blown
    failing, _ = spend(breeders, lambda x, number: None if x < 0.3 else x)
    assert failing["b"] > 0.7


def test_nothing_is_stored_and_what_peers_bred_counts():
    """One that has bred nothing itself knows from the population alone whom to believe."""
    population = Population()
    for number in range(240):
        name = ("a", "b", "random")[number % 3]
        loss = {"a": 1.0, "b": 0.0, "random": -1.0}[name] + number / 10_000
        population.add(Member(f"0-{number % 5}-{number}", (0.5,), (loss,), COMPLETED, operator=name))
    shares = []
    for _ in range(2):
        portfolio = PortfolioBreeder({"a": Around(0.1), "b": Around(0.5)})
        assert portfolio.shares()["a"] > portfolio.shares()["b"]
        portfolio.breed(population, random.Random(0))
        shares.append(portfolio.shares())
    assert shares[0] == shares[1] and shares[0]["b"] > 0.8


def test_the_first_is_believed_in_until_others_have_shown_more_than_luck():
    def share(*places):
        """Of b, whose individuals are in these places of 60."""
        population = Population()
        for number in range(60):
            name = "b" if number in places else "a"
            population.add(Member(f"0-0-{number}", (0.5,), (number / 60,), COMPLETED, operator=name))
        portfolio = PortfolioBreeder({"a": Around(0.1), "b": Around(0.5), "c": Around(0.9)})
        portfolio.breed(population, random.Random(0))
        assert portfolio.shares()["c"] < 0.05
        return portfolio.shares()["b"]

    assert share() < 0.05 and share(20, 40) < 0.05, "who was hardly tried cost more than its least share"
    assert share(0, 40) < 0.25 < share(0, 1) and share(0, 1, 2) > 0.6
    assert PortfolioBreeder({"a": Around(0.1), "b": Around(0.5)}).shares()["b"] < 0.05


def test_it_begins_as_its_first_does_alone():
    def begun(kind):
        search = hpo.Search(SPACE, seed=3, kind=kind)
        asked = []
        for number in range(14):  # the first four that the model proposes are pending
            asked.append(search.ask())
            if number < 10:
                search.tell(asked[-1], float(asked[-1].params["x"]) ** 2)
        return [(one.params, one.operator) for one in asked]

    assert begun("portfolio") == begun("surrogate")
    assert begun("portfolio")[-1][1] == "surrogate"


def test_its_members_fit_the_space():
    def members(space):
        return set(make_breeder(space, SearchSettings(kind="portfolio"))._breeders)

    assert members(SPACE) == {"surrogate", "evolution", "tpe"}
    assert members(NUMBERS) == {"surrogate", "evolution", "tpe", "cmaes"}
    assert members(hpo.SearchSpace(x=hpo.Float(0, 1))) == {"surrogate", "evolution", "tpe"}


KINDS = [kind for kind in get_args(Kind) if kind not in ("pbt", "gp", "optuna-cmaes")]
"""Those two have tests of their own, and take their time."""


@pytest.mark.parametrize("exchange", ["migration", "pollination"])
def test_islands_of_all_kinds_in_one_campaign(exchange):
    """Each island breeds by its kind, and takes in what the others find."""
    kinds = [*KINDS, "optuna-cmaes"] if exchange == "migration" else KINDS
    islands = len(kinds)
    settings = [SearchSettings(kind=kind, initial="sobol", grid_points=4) for kind in kinds]
    simulation = Simulation(
        SPACE,
        lambda params: params["x"] ** 2 + params["y"] ** 2 + abs(params["n"] - 20) + (params["c"] != "b"),
        workers=islands,
        islands=islands,
        evaluations=24 * islands,
        duration=lambda number: 1.0 + (number % 7) / 10,
        breeder=lambda rank: make_breeder(SPACE, settings[rank]),
        migration=0.9,
        copy=exchange == "pollination",
        seed=3,
    )
    simulation.run()
    names = {"default": {"evolution"}, "portfolio": {"surrogate", "evolution", "tpe"}}
    for island, kind in enumerate(kinds):
        records = [one for one in simulation.journals[island].committed if isinstance(one, Finished)]
        bred = {one.operator for one in records} - {"sobol", "random"}
        assert (bred and bred <= names.get(kind, {kind})) or kind in ("random", "nelder-mead"), (kind, bred)
        population = simulation.leaders[island].population
        homes = {one.id.split("-")[0] for one in population}
        assert len(homes) > 1, f"nobody came to the island of kind {kind}"
        # What came from others carries its operator with it.
        foreign = {one.operator for one in population if not one.id.startswith(f"{island}-")}
        assert foreign and "" not in foreign


def test_migrants_are_observations_to_other_kinds():
    """An island that has evaluated nothing good itself proposes near what came from elsewhere."""
    rng = random.Random(0)
    own, foreign = (
        [[rng.uniform(low, high) for _ in range(3)] for _ in range(count)]
        for low, high, count in ((0.6, 1.0, 12), (0.1, 0.2, 24))
    )
    population = population_of((genome, sum(genome)) for genome in own)
    population_of(((genome, sum(genome)) for genome in foreign), into=population, worker="3-0", history=(3,))
    for kind in ("surrogate", "evolution", "tpe", "cmaes", "portfolio"):
        breeder = make_breeder(NUMBERS, SearchSettings(kind=kind, random=0.0))
        bred = [breeder.breed(population, random.Random(n)).genome for n in range(12)]
        near = sum(max(genome) < 0.5 for genome in bred)
        assert near >= 6, (kind, near)
