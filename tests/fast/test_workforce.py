from __future__ import annotations

import random

import pytest

from hpo.config.layout import Layout
from hpo.islands.coordinator.worker_registry import WorkerRegistry


def force(ranks: int, islands: int, size: int, **keywords: object) -> WorkerRegistry:
    return WorkerRegistry(
        Layout.plan(ranks=ranks, islands=islands, ranks_per_worker=size).workers, **keywords
    )


def test_survivors_of_two_workers_become_one_on_the_island_with_the_fewest() -> None:
    workers = force(12, 2, 2)  # leaders 0 2 4 on island 0, 6 8 10 on island 1
    broken = workers.handle_rank_deaths({7, 8})
    assert [place.leader for place in broken] == [6, 8]
    assert workers.leaders(1) == [10]
    assert workers.settling and workers.form() is None
    for rank in (6, 9):
        account = workers.broken_of(rank)
        assert account is not None
        account.open = False
        workers.settle(rank)
    place = workers.form()
    assert place is not None
    assert (place.island, place.worker, place.ranks) == (1, 3, (6, 9))
    assert workers.leaders(1) == [10, 6]
    assert workers.form() is None and workers.spares == []


def test_what_a_broken_worker_held_is_free_once_nothing_runs_there_and_all_is_told() -> None:
    workers = force(3, 1, 3)
    workers.handle_rank_deaths({0})
    (broken,) = workers.unaccounted
    broken.held.append("an individual")  # type: ignore[arg-type]
    broken.open = False
    assert workers.holds and workers.released() == []
    workers.settle(1)
    assert workers.released() == []
    workers.handle_rank_deaths({2})  # dies before it could say that it has ended
    assert workers.released() == ["an individual"]
    assert workers.released() == [] and not workers.holds


def test_a_leader_that_dies_before_it_gave_account_is_to_be_looked_up() -> None:
    workers = force(4, 1, 2)
    assert [place.leader for place in workers.handle_rank_deaths({3})] == [2]
    assert workers.unaccounted == []  # it lives, and will tell
    assert workers.handle_rank_deaths({2}) == []
    assert [broken.place.leader for broken in workers.unaccounted] == [2]


def test_a_worker_that_is_unfit_is_no_leader_and_breaks_no_more() -> None:
    workers = force(4, 2, 2)
    workers.dismiss(2)
    assert workers.leaders(1) == []
    assert workers.next_with_leaders(1) == [0]
    assert workers.handle_rank_deaths({3}) == []


def test_new_workers_are_of_one_host_if_they_can_be() -> None:
    workers = force(8, 1, 2, hosts=["a", "b"] * 4)
    workers.handle_rank_deaths({1, 2, 5})
    for rank in (0, 3, 4):
        account = workers.broken_of(rank)
        assert account is not None
        account.open = False
        workers.settle(rank)
    place = workers.form()
    assert place is not None and place.ranks == (0, 4)


def test_where_no_worker_can_be_formed_ranks_stand_by() -> None:
    workers = force(4, 1, 2, reforms=False)
    workers.handle_rank_deaths({1, 3})
    for rank in (0, 2):
        workers.settle(rank)
    assert workers.form() is None
    assert sorted(workers.spares) == [0, 2]


@pytest.mark.parametrize("seed", range(10))
def test_every_living_rank_is_in_one_worker_or_stands_by(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randint(1, 4)
    workers = force(size * rng.randint(2, 8), rng.randint(1, 2), size)
    ranks = {rank for place in workers.places.values() for rank in place.ranks}
    names = {(place.island, place.worker) for place in workers.places.values()}
    for _ in range(6):
        workers.handle_rank_deaths(rng.sample(sorted(ranks), rng.randint(0, min(3, len(ranks)))))
        for rank in sorted(ranks - workers.dead):
            account = workers.broken_of(rank)
            if account is not None and rng.random() < 0.8:
                account.open = False
                workers.settle(rank)
        while (place := workers.form()) is not None:
            assert (place.island, place.worker) not in names, "two journals of one name"
            names.add((place.island, place.worker))
            assert len(place.ranks) == size
        at_work = [rank for place in workers.places.values() for rank in place.ranks]
        settling = [rank for rank in ranks if workers.broken_of(rank) is not None]
        assert sorted(at_work + workers.spares + settling) == sorted(ranks - workers.dead)
