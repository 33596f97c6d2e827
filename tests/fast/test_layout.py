"""A layout that fits deals all ranks out evenly; any other is refused with the sizes that would fit."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hpo.config.layout import Layout, topology_matrix
from hpo.errors import UsageError

COUNTS = st.integers(1, 12)


@given(islands=COUNTS, ranks_per_worker=COUNTS, extra_workers=st.integers(0, 40))
def test_ranks_are_dealt_evenly_and_in_order(islands: int, ranks_per_worker: int, extra_workers: int) -> None:
    ranks = (islands + extra_workers) * ranks_per_worker
    layout = Layout.plan(ranks=ranks, islands=islands, ranks_per_worker=ranks_per_worker)

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
        Layout.plan(ranks=ranks, islands=islands, ranks_per_worker=ranks_per_worker)
        return
    sentence = refused(lambda: Layout.plan(ranks=ranks, islands=islands, ranks_per_worker=ranks_per_worker))
    below = [n for n in range(1, ranks) if fits(n, islands, ranks_per_worker)][-1:]
    above = [n for n in range(ranks + 1, 500) if fits(n, islands, ranks_per_worker)][:1]
    named = re.search(
        r"(?:(\d+) and )?(\d+) (?:are the nearest that do|is the nearest that does)\.$", sentence
    )
    assert named is not None
    assert [int(number) for number in named.groups() if number] == below + above
    assert sentence.startswith(f"{ranks} rank")


@pytest.mark.parametrize("key", ["ranks", "islands", "ranks_per_worker"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2", None])
def test_counts_are_whole_numbers_from_one(key: str, value: object) -> None:
    sizes: dict[str, object] = {"ranks": 4, "islands": 2, "ranks_per_worker": 2, key: value}
    with pytest.raises(UsageError, match=re.escape(f"{key} = {value!r}: must be")):
        Layout.plan(**sizes)


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
