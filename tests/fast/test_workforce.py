from __future__ import annotations

import random

import pytest
from individuals import make_assignment

from hpo.config.layout import Layout
from hpo.islands.coordinator.worker_registry import WorkerRegistry


def force(ranks: int, islands: int, size: int) -> WorkerRegistry:
    return WorkerRegistry(Layout.plan(ranks=ranks, islands=islands, ranks_per_worker=size).workers)


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
    workers.settle(1)
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


@pytest.mark.parametrize("seed", range(3))
def test_every_living_rank_works_or_ends_what_it_ran_or_idles(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 4)
    workers = force(size * rng.randint(2, 8), rng.randint(1, 2), size)
    ranks = {rank for place in workers.places.values() for rank in place.ranks}
    idle: set[int] = set()
    for _ in range(6):
        workers.handle_rank_deaths(rng.sample(sorted(ranks), rng.randint(0, min(3, len(ranks)))))
        for rank in sorted(ranks - workers.dead):
            account = workers.broken_of(rank)
            if account is not None and rng.random() < 0.8:
                account.open = False
                workers.settle(rank)
                idle.add(rank)
        at_work = [rank for place in workers.places.values() for rank in place.ranks]
        settling = [rank for rank in ranks if workers.broken_of(rank) is not None]
        assert sorted([*at_work, *settling, *(idle - workers.dead)]) == sorted(ranks - workers.dead)
