from __future__ import annotations

from individuals import make_assignment

from hpo.config.layout import Layout
from hpo.islands.coordinator.worker_registry import WorkerRegistry


def force(ranks: int, islands: int, size: int) -> WorkerRegistry:
    return WorkerRegistry(Layout.plan(ranks=ranks, sizes=[size] * islands).workers)


def test_a_worker_that_lost_a_rank_is_none_any_more() -> None:
    workers = force(12, 2, 2)  # leaders 0 2 4 on island 0, 6 8 10 on island 1
    broken = workers.handle_rank_deaths({7, 8})
    assert [place.leader for place in broken] == [6, 8]
    assert workers.leaders(0) == [0, 2, 4]
    assert workers.leaders(1) == [10]
    assert workers.holds and workers.broken_of(6) is not None


def test_what_a_broken_worker_held_is_free_once_nothing_runs_there_and_all_is_told() -> None:
    workers = force(3, 1, 3)
    workers.handle_rank_deaths({0})
    (broken,) = workers.unaccounted
    individual = make_assignment(key="a", params={})
    broken.held.append(individual)
    broken.open = False
    assert workers.holds and workers.released() == []
    broken.waiting.remove(1)
    assert workers.released() == []
    workers.handle_rank_deaths({2})  # dies before it could say that it has ended
    assert workers.released() == [individual.as_contested()]
    assert workers.released() == [] and not workers.holds


def test_a_leader_that_dies_before_it_gave_account_is_to_be_looked_up() -> None:
    workers = force(4, 1, 2)
    assert [place.leader for place in workers.handle_rank_deaths({3})] == [2]
    assert workers.unaccounted == []  # it lives, and will tell
    assert workers.handle_rank_deaths({2}) == []
    assert [broken.place.leader for broken in workers.unaccounted] == [2]
