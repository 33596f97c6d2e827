"""First individuals of a design, and grids: every point once, whoever asks."""

from __future__ import annotations

import random
from itertools import product

import pytest
from populations import asked_and_told
from simulation import Simulation
from simulation.campaigns import finished

import hpo
from hpo.config.settings import SearchSettings
from hpo.errors import UsageError
from hpo.individual import make_id
from hpo.search.kinds.grid import GridBreeder
from hpo.search.phases import make_breeder
from hpo.search.population import Population
from hpo.search.protocols import SearchContext

SPACE = hpo.SearchSpace(
    x=hpo.Float(0, 1),
    rate=hpo.Float(1e-4, 1.0, log=True),
    kind=hpo.Categorical("a", "b"),
    inner=hpo.Int(1, 100, when={"kind": "b"}),
)


def simulated(space, breeder, **settings):
    """A campaign of two islands, to its end."""
    simulation = Simulation(
        space,
        lambda params: 0.0,
        islands=2,
        duration=lambda number: 1.0,
        breeder=breeder,
        **{"seed": 1, **settings},
    )
    simulation.run()
    return simulation


def design(kind, workers):
    return make_breeder(SPACE, SearchSettings(kind="evolution", initial=kind), SearchContext(workers=workers))


def point(breeder, seed, island, worker, sequence):
    breeder.begin_proposal(sequence)
    return breeder.propose_first(make_id(island, worker, sequence), seed, Population(), random.Random(0))


@pytest.mark.parametrize("kind", ["sobol", "latin-hypercube"])
def test_workers_share_one_design_and_a_resumed_one_goes_on(kind):
    workers, points = 4, {}
    known = design(kind, workers)
    for worker, sequence in product(range(workers), range(5)):
        # Each of another launch, which has drawn nothing before, as one that has.
        child, again = (point(breeder, 7, 0, worker, sequence) for breeder in (known, design(kind, workers)))
        assert child == again
        if child is not None:
            points[sequence, worker] = child.genome
            assert child.operator == kind
    assert len(points) == 16 and len(set(points.values())) == 16
    assert {sequence for sequence, _ in points} == {0, 1, 2, 3}
    for seed, island in ((8, 0), (7, 1)):
        assert point(known, seed, island, 0, 0).genome != points[0, 0]
    for genome in points.values():
        assert SPACE.validate(SPACE.decode(genome)) == SPACE.decode(genome)
    # Spread: one in each sixteenth of each number, both choices equally often.
    for gene in (0, 1, 3):
        assert sorted(int(16 * genome[gene]) for genome in points.values()) == list(range(16))
    assert sum(genome[2] for genome in points.values()) == 8


def test_each_design_is_the_one_that_was_chosen():
    """A Latin hypercube is even over all of its points, a Sobol sequence over its first power of two."""
    workers, even = 10, {}
    for kind in ("sobol", "latin-hypercube"):
        breeder = design(kind, workers)
        places = [divmod(place, workers) for place in range(20)]
        xs = [point(breeder, 7, 0, worker, sequence).genome[0] for sequence, worker in places]
        even[kind] = [sorted(int(count * x) for x in xs[:count]) == [*range(count)] for count in (16, 20)]
    assert even == {"sobol": [True, False], "latin-hypercube": [False, True]}


def test_the_design_comes_first_in_a_search_and_a_campaign():
    search = hpo.Search(SPACE, kind="evolution", initial="sobol", seed=3)
    operators = [one.operator for one in asked_and_told(search, 24, lambda one, number: float(number))]
    assert operators[:16] == ["sobol"] * 16 and "sobol" not in operators[16:]

    settings = SearchSettings(kind="evolution", initial="sobol")
    simulation = simulated(
        SPACE, lambda rank: make_breeder(SPACE, settings, SearchContext(workers=4)), workers=8, evaluations=60
    )
    drawn = [record for record in finished(simulation) if record.operator == "sobol"]
    assert len(drawn) == 2 * 16
    assert {record.sequence for record in drawn} == {0, 1, 2, 3}


def test_a_grid_is_all_combinations_once():
    breeder = GridBreeder(SPACE, 3)
    bred = [SPACE.decode(breeder.breed(Population(), random.Random(n)).genome) for n in range(9 + 9 * 3)]
    expected = [
        *({"x": x, "rate": r, "kind": "a"} for x, r in product((0.0, 0.5, 1.0), (1e-4, 1e-2, 1.0))),
        *(
            {"x": x, "rate": r, "kind": "b", "inner": i}
            for x, r, i in product((0.0, 0.5, 1.0), (1e-4, 1e-2, 1.0), (1, 51, 100))
        ),
    ]
    assert sorted(map(repr, bred)) == sorted(map(repr, expected))
    assert bred != expected, "not in random order"
    assert breeder.breed(Population(), random.Random(0)).operator == "random"


def test_values_that_conditions_name_are_on_the_grid():
    space = hpo.SearchSpace(n=hpo.Int(0, 100), x=hpo.Float(0, 1, when={"n": 37}))
    breeder = GridBreeder(space, 2)
    bred = [space.decode(breeder.breed(Population(), random.Random(n)).genome) for n in range(4)]
    assert sorted(map(repr, bred)) == sorted(
        map(repr, [{"n": 0}, {"n": 100}, {"n": 37, "x": 0.0}, {"n": 37, "x": 1.0}])
    )


def test_a_condition_may_name_a_step_by_a_rounded_sum():
    space = hpo.SearchSpace(
        d=hpo.Float(0.1, 0.4, step=0.1), n=hpo.Ordinal(1, 2, when={"d": (0.1 + 0.2, 0.4)})
    )
    assert GridBreeder(space, 10).further_attempts(0) == 2 + 2 * 2


def test_a_value_that_a_condition_names_is_not_looked_for_in_a_huge_range():
    space = hpo.SearchSpace(n=hpo.Int(0, 2**40), x=hpo.Ordinal(1, 2, when={"n": 12345}))
    breeder = GridBreeder(space, 3)
    assert breeder.further_attempts(0) == 5  # three values of n and the named one, which has x too


@pytest.mark.parametrize(
    ("evaluations", "latency_s", "seed"),
    [
        (27, 0.001, 1),
        (60, 0.001, 1),
        *((evaluations, 1.0, seed) for evaluations in (27, 33) for seed in range(4)),
    ],
)
def test_workers_and_islands_go_through_one_grid(evaluations, latency_s, seed):
    """27 points of the grid first; then, the space being infinite, random ones. Where answers take as long as
    evaluations, leaders give back what was refused to others meanwhile."""
    space = hpo.SearchSpace({name: hpo.Float(0, 1) for name in "abc"})
    simulation = simulated(
        space,
        lambda rank: GridBreeder(space, 3),
        seed=seed,
        workers=6,
        evaluations=evaluations,
        latency_s=latency_s,
        jitter=latency_s > 0.1,
    )
    records = finished(simulation)
    points = {tuple(one.params.values()) for one in records if one.operator == "grid"}
    assert points == set(product((0.0, 0.5, 1.0), repeat=3))
    assert len(records) == evaluations
    assert sum(one.operator == "grid" for one in records) == 27


def test_points_in_whose_place_others_were_evaluated_are_still_to_come(tmp_path):
    space = hpo.SearchSpace(x=hpo.Float(0, 1))
    task = hpo.Task(space, lambda trial: 0.0, default={"x": 0.3}, points=[{"x": 0.4}])
    run = {"directory": tmp_path / "run", "evaluations": 5, "kind": "grid", "grid_points": 3}
    found = hpo.Campaign(task, **run, isolation="inline").run()
    assert {one.params["x"] for one in found.individuals} == {0.3, 0.4, 0.0, 0.5, 1.0}


def test_a_grid_that_is_too_large_is_refused():
    with pytest.raises(UsageError, match="grid_points = 10 makes 10000000000 configurations, and 100000 are"):
        GridBreeder(hpo.SearchSpace({f"x{i}": hpo.Float(0, 1) for i in range(10)}), 10)
