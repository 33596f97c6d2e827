"""The island protocol under the simulator: budget, duplicates, knowledge, migration, stopping, kills."""

from __future__ import annotations

import pytest
from simulation import Simulation
from simulation.campaigns import SPACE, finished, losses, make, make_repeating, objective, records_of

import hpo
from hpo.errors import EXIT_RESUMABLE
from hpo.individual import REEVALUATION
from hpo.islands.end_reasons import DONE, EXHAUSTED, STOPPED, UNFIT
from hpo.islands.messages import BeforeServing, Claim, Hello, Start, StopRequest, check_handlers, encode
from hpo.islands.resume.fold import fold
from hpo.journal.records import Migrated, Started
from hpo.search.kinds.evolution import RandomBreeder


@pytest.mark.parametrize("seed", range(3))
def test_only_what_is_to_be_evaluated_again_is(seed):
    """On several islands and workers at a time: the budget is met, and any other configuration comes once."""
    simulation, settings = make_repeating(seed, 0.3, evaluations=150)
    simulation.run()
    records = finished(simulation)
    assert len(records) == settings["evaluations"]
    assert len({record.id for record in records}) == len(records)
    again = [record for record in records if record.operator == REEVALUATION]
    if settings["islands"] == 1:
        assert 20 < len(again) < 60
    params = {record.id: record.params for record in records}
    assert all(params[record.parents[0]] == record.params for record in again)
    others = [SPACE.key(record.params) for record in records if record.operator != REEVALUATION]
    assert len(others) == len(set(others)) == len(records) - len(again)
    assert simulation.coordinator.end.reason == DONE
    assert simulation.coordinator.end.exit_code == 0


@pytest.mark.parametrize("copy", [False, True])
def test_a_migrant_leaves_its_island_and_pollen_does_not(copy):
    simulation, _ = make(3, workers=6, islands=3, evaluations=40, migration=1.0, copy=copy, topology="ring")
    simulation.run()
    moves = [r for j in simulation.journals for r in j.committed if isinstance(r, Migrated)]
    assert moves
    homes = {}
    for leader in simulation.leaders:
        for member in leader.population:
            homes.setdefault(member.id, set()).add(leader.place.island)
    travelled = {move.id for move in moves}
    for identity, islands in homes.items():
        hops = sorted((move for move in moves if move.id == identity), key=lambda move: move.hop)
        if not copy:
            assert len(islands) == 1
            if hops:
                assert islands == {hops[-1].target}
        elif identity in travelled:
            assert len(islands) > 1
    # Migrants keep their history: the islands that they left, in order.
    for member in () if copy else (member for leader in simulation.leaders for member in leader.population):
        hops = sorted((move for move in moves if move.id == member.id), key=lambda move: move.hop)
        assert list(member.history) == [move.source for move in hops]


@pytest.mark.parametrize("unfit", [[1], [0, 2], [0, 1, 2, 3]])
def test_workers_that_cannot_start_evaluators_hand_on_what_they_have_and_use_up_no_budget(unfit):
    simulation, _ = make(1, workers=4, islands=2, evaluations=30)
    for rank in unfit:
        crew = simulation.crews[rank]
        # From its third evaluation on, every start fails.
        crew.fit_for = 2
    simulation.run()
    records = finished(simulation)
    end = simulation.coordinator.end
    if len(unfit) == 4:
        assert (end.reason, end.exit_code) == (UNFIT, 1)
        assert "no evaluators" in end.error
        assert len(records) == 8
    else:
        assert (end.reason, end.exit_code) == (DONE, 0)
        assert len(records) == len({record.id for record in records}) == 30
    begun = {r.id for j in simulation.journals for r in j.committed if isinstance(r, Started)}
    left = begun - {record.id for record in records}
    assert bool(left) == (len(unfit) == 4), "what was begun must be handed on as long as there is anybody"


def test_idle_workers_get_what_busy_ones_hold_ahead():
    """Long evaluations at two workers, and messages so slow that individuals are claimed ahead."""
    draws = [30.0, 30.0] + [0.2] * 98
    simulation = Simulation(
        SPACE,
        objective,
        workers=4,
        islands=1,
        evaluations=100,
        duration=lambda index: draws[index],
        breeder=lambda rank: RandomBreeder(SPACE),
        latency_s=0.05,
    )
    report = simulation.run()
    assert report.evaluations == 100
    # Nothing waits in the queue of a worker that is busy for 30 s.
    assert report.seconds < 31.5


def test_an_exhausted_space_with_an_unfit_worker_still_ends():
    space = hpo.SearchSpace(a=hpo.Int(0, 8), b=hpo.Categorical("x", "y"))
    for seed in range(10):
        simulation, _ = make(
            seed, space=space, goal=lambda params: params["a"], workers=3, islands=1, evaluations=100
        )
        simulation.crews[seed % 3].fit_for = seed % 7
        simulation.run()
        records = finished(simulation)
        assert len(records) == len({space.key(record.params) for record in records}) == 18
        assert simulation.coordinator.end.reason == EXHAUSTED


def test_idle_leaders_do_not_ask_again_and_again_when_the_budget_is_used_up():
    space = hpo.SearchSpace(a=hpo.Int(0, 8), b=hpo.Categorical("x", "y"))
    simulation, _ = make(
        1,
        space=space,
        goal=lambda params: params["a"],
        workers=4,
        islands=1,
        evaluations=18,
        duration=lambda index: 60.0 if index == 3 else 0.1,
        latency_s=0.001,
    )
    simulation.run()
    assert len(finished(simulation)) == 18
    assert simulation.counter.messages["Claim"] < 1000


def test_pollen_that_comes_by_two_ways_is_one_member_and_is_found_again_on_resume():
    for seed in range(3):
        simulation, _ = make(
            seed, workers=6, islands=3, evaluations=60, migration=1.0, copy=True, topology="full"
        )
        simulation.run()
        for leader in simulation.leaders:
            ids = [member.id for member in leader.population.best]
            assert len(ids) == len(set(ids))
        earlier = fold(records_of(simulation), space=SPACE, islands=3, losses=losses)
        for leader in simulation.leaders:
            known = {member.id for member in earlier.populations[leader.place.island]}
            best = [member.id for member in leader.population.best][:20]
            assert set(best) <= known


def test_a_crash_while_stopping_leaves_the_individual_to_the_next_launch():
    simulation, _ = make(2, workers=2, islands=1, evaluations=20)
    simulation.at(1.0, lambda: simulation.post(1, 0, encode(StopRequest(STOPPED, False))))
    simulation.at(1.2, lambda: [crew.kill("crashed") for crew in simulation.crews if crew.busy])
    simulation.at(1.2, lambda: [simulation.wake(rank, 1.2) for rank in range(2)])
    simulation.run()
    crashed = [r for r in finished(simulation) if r.status == "crashed"]
    begun = {r.id for r in records_of(simulation) if isinstance(r, Started)}
    done = {r.id for r in finished(simulation)}
    assert not crashed and begun - done
    assert simulation.coordinator.end.exit_code == EXIT_RESUMABLE


def test_a_message_without_a_handler_is_refused_when_its_receiver_is_made() -> None:
    all_of_them = [Hello, Start]
    check_handlers(BeforeServing, all_of_them)
    with pytest.raises(TypeError, match="handlers of BeforeServing and its messages differ by Start"):
        check_handlers(BeforeServing, [Hello])
    with pytest.raises(TypeError, match="BeforeServing and its messages differ by Claim"):
        check_handlers(BeforeServing, [*all_of_them, Claim])
