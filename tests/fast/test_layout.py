"""A layout that fits deals all ranks out evenly; any other is refused with the sizes that would fit."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from simulation.ledger import MemoryStore

from hpo.config.layout import Layout, topology_matrix
from hpo.errors import UsageError
from hpo.ledger.entries import Limits, Opened
from hpo.ledger.joining import Newcomer
from hpo.ledger.ledger import Ledger
from hpo.ledger.participation import join

COUNTS = st.integers(1, 12)


@given(islands=COUNTS, ranks_per_worker=COUNTS, extra_workers=st.integers(0, 40))
def test_ranks_are_dealt_evenly_and_in_order(islands: int, ranks_per_worker: int, extra_workers: int) -> None:
    ranks = (islands + extra_workers) * ranks_per_worker
    layout = Layout.plan(ranks=ranks, sizes=[ranks_per_worker] * islands)

    assert [rank for place in layout.workers for rank in place.ranks] == list(range(ranks))
    assert all(len(place.ranks) == ranks_per_worker for place in layout.workers)
    assert [place.index for place in layout.workers] == list(range(islands + extra_workers))

    crews = [layout.of_island(island) for island in range(islands)]
    assert [place for crew in crews for place in crew] == list(layout.workers)
    assert all(place.worker == place.index for place in layout.workers)
    assert all(first in (second, second + 1) for first, second in pairwise(len(crew) for crew in crews))
    assert len(crews[0]) - len(crews[-1]) <= 1

    later = layout.numbered_from(7)
    assert [place.worker for place in later.workers] == list(range(7, 7 + len(later.workers)))
    assert later.numbered_from(0) == layout

    for rank in range(ranks):
        place, worker_rank = layout.place_of(rank)
        assert place.ranks[worker_rank] == rank
        assert place is layout.workers[place.index]


def fits(ranks: int, islands: int, ranks_per_worker: int) -> bool:
    return ranks % ranks_per_worker == 0 and ranks >= islands * ranks_per_worker


@given(ranks=st.integers(1, 200), islands=COUNTS, ranks_per_worker=COUNTS)
def test_an_impossible_layout_names_the_nearest_that_fit(
    ranks: int, islands: int, ranks_per_worker: int
) -> None:
    if fits(ranks, islands, ranks_per_worker):
        Layout.plan(ranks=ranks, sizes=[ranks_per_worker] * islands)
        return
    sentence = refused(lambda: Layout.plan(ranks=ranks, sizes=[ranks_per_worker] * islands))
    below = [n for n in range(1, ranks) if fits(n, islands, ranks_per_worker)][-1:]
    above = [n for n in range(ranks + 1, 500) if fits(n, islands, ranks_per_worker)][:1]
    named = re.search(
        r"(?:(\d+) and )?(\d+) (?:are the nearest that do|is the nearest that does)\.$", sentence
    )
    assert named is not None
    assert [int(number) for number in named.groups() if number] == below + above
    assert sentence.startswith(f"{ranks} rank")


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None])
def test_ranks_are_a_whole_number_from_one(value: Any) -> None:
    with pytest.raises(UsageError, match=re.escape(f"ranks = {value!r}: must be")):
        Layout.plan(ranks=value, sizes=[1])


SIZES = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6)


@given(sizes=SIZES, extra=st.integers(0, 40), first=st.integers(0, 5))
def test_islands_of_other_worker_sizes_share_the_ranks(sizes: list[int], extra: int, first: int) -> None:
    ranks = sum(sizes) + extra * min(sizes)
    layout = Layout.plan(ranks=ranks, sizes=sizes, first_island=first % len(sizes))
    assert [rank for place in layout.workers for rank in place.ranks] == list(range(ranks))
    assert all(len(place.ranks) == sizes[place.island] for place in layout.workers)
    shares = [sum(len(place.ranks) for place in layout.of_island(one)) for one in range(len(sizes))]
    # Beside a worker more, an island has what is too little for a worker of the other.
    own = [*zip(shares, sizes)]
    assert all(share <= other + size + of for share, size in own for other, of in own)
    # Large workers begin where hosts of as many ranks do.
    assert all(place.leader % len(place.ranks) == 0 for place in layout.workers)
    for place in layout.workers:
        assert [layout.place_of(rank) for rank in place.ranks] == [
            (place, k) for k in range(len(place.ranks))
        ]


def test_launches_too_small_for_all_islands_take_turns() -> None:
    plans = [Layout.plan(ranks=8, sizes=[1, 8], joins=True, first_island=first) for first in (0, 1)]
    assert [[len(one.of_island(island)) for island in (0, 1)] for one in plans] == [[8, 0], [0, 1]]
    assert len(Layout.plan(ranks=4, sizes=[1, 8], joins=True, first_island=1).of_island(0)) == 4
    sentence = refused(lambda: Layout.plan(ranks=8, sizes=[1, 8]))
    assert (
        sentence.startswith("8 ranks do not fit 2 islands of workers of 1 and 8 ranks") and "9 is" in sentence
    )


@pytest.mark.parametrize(
    ("sizes", "ranks", "islands"),
    [([1, 4], 4, [{0}, {1}, {0}]), ([4, 1], 4, [{0}, {1}, {0}]), ([1, 1, 1], 2, [{0, 1}, {2, 0}, {1, 2}])],
)
def test_launches_that_join_take_turns_on_the_islands(
    sizes: list[int], ranks: int, islands: list[set[int]]
) -> None:
    ledger, limits = Ledger(MemoryStore()), Limits(evaluations=8)
    ledger.append(lambda state: Opened(limits=limits, in_file=limits, islands=len(sizes), seed=0))
    plan = partial(Layout.plan, ranks=ranks, sizes=sizes, joins=True)
    found = []
    for _ in islands:
        made = join(
            ledger, pytest.fail, Newcomer(), layout=lambda first: plan(first_island=first), in_file=limits
        )
        assert made is not None
        found.append({place.island for place in plan(first_island=made.own.joined.first_island).workers})
    assert found == islands


def test_ring_and_full() -> None:
    assert topology_matrix("ring", 1) == topology_matrix("full", 1) == ((0,),)
    assert topology_matrix("ring", 2) == ((0, 1), (1, 0))
    assert topology_matrix("ring", 3) == ((0, 1, 0), (0, 0, 1), (1, 0, 0))
    assert topology_matrix("full", 3) == ((0, 1, 1), (1, 0, 1), (1, 1, 0))
    assert topology_matrix([[0, 2], [3, 0]], 2) == ((0, 2), (3, 0))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("rng", "'rng'"),
        ([[0, 1]], "2 rows of 2 numbers"),
        ([[0, 1, 1], [1, 0, 1]], "2 rows of 2 numbers"),
        (7, "topology = 7"),
        ([0, 1], "2 rows of 2 numbers"),
        ([[0, -1], [1, 0]], "row 1, column 2 = -1"),
        ([[0, 1.0], [1, 0]], "row 1, column 2 = 1.0"),
        ([[0, 1], [True, 0]], "row 2, column 1 = True"),
        ([[0, 1], [1, 2]], "row 2, column 2 = 2"),
    ],
)
def test_a_topology_that_cannot_be(spec: object, named: str) -> None:
    assert refused(lambda: topology_matrix(spec, 2), named).startswith("topology")
