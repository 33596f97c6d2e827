from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.data.assignment import (
    Coarse,
    FineGrained,
    FullOverlap,
    MediumCoarse,
    Overlapping,
    effective_epochs,
)
from trainers.data.batches import Batch, Disjoint

SEEDS = st.integers(0, 3)


def plan(
    assignment: Overlapping | Disjoint,
    *,
    samples: int,
    ranks: int,
    epoch: int = 0,
    seed: int = 0,
    **sizes: int,
) -> list[list[list[Batch]]]:
    """Batches by rank and step."""
    given_or_one = {"batch_size": 1, "accumulate": 1, **sizes}
    return [
        assignment.epoch(samples=samples, epoch=epoch, seed=seed, rank=rank, ranks=ranks, **given_or_one)
        for rank in range(ranks)
    ]


def of_steps(planned: list[list[list[Batch]]]) -> list[set[int]]:
    """The samples of each step, over all ranks and passes."""
    return [{*seen([*ranks])} for ranks in zip(*planned, strict=True)]


def seen(steps: list[list[Batch]]) -> list[int]:
    return [index for passes in steps for batch in passes for index in batch.indices.tolist()]


@st.composite
def assignments(draw: st.DrawFn) -> tuple[Overlapping | Disjoint, int]:
    """An assignment and a number of ranks that it fits."""
    ranks = draw(st.integers(1, 6))
    copies = draw(st.integers(1, ranks))
    divisors = [shards for shards in range(1, ranks + 1) if ranks % shards == 0]
    return draw(
        st.sampled_from(
            [
                Disjoint(),
                Coarse(shards=draw(st.sampled_from(divisors))),
                FullOverlap(),
                MediumCoarse(copies=copies),
                FineGrained(copies=copies),
            ]
        )
    ), ranks


@given(assignments(), st.integers(60, 200), st.integers(1, 20), st.integers(1, 2), SEEDS)
def test_over_the_epochs_of_an_overlap_epoch_each_holder_sees_its_samples_once(
    assigned: tuple[Overlapping | Disjoint, int], samples: int, batch_size: int, accumulate: int, seed: int
) -> None:
    assignment, ranks = assigned
    copies = 1 if isinstance(assignment, Disjoint) else assignment.copies_of(ranks)
    totals: list[list[int]] = [[] for _ in range(ranks)]
    for epoch in range(copies):
        steps = plan(
            assignment,
            samples=samples,
            ranks=ranks,
            epoch=epoch,
            seed=seed,
            batch_size=batch_size,
            accumulate=accumulate,
        )
        assert len({len(own) for own in steps}) == 1
        for rank, own in enumerate(steps):
            assert all(len(passes) == accumulate for passes in own)
            sizes = [len(batch.indices) for passes in own for batch in passes]
            assert min(sizes) >= 1
            assert max(sizes) - min(sizes) <= 1
            if isinstance(assignment, Disjoint):
                assert max(sizes) <= max(batch_size, 2)
                assert samples % (ranks * accumulate * batch_size) or {*sizes} == {batch_size}
            totals[rank] += seen(own)
        for of_step in zip(*steps, strict=True):
            # Mean over ranks and passes of weight × mean loss is the mean over the step's samples.
            batches = [batch for passes in of_step for batch in passes]
            count = sum(len(batch.indices) for batch in batches)
            for batch in batches:
                assert batch.weight / len(batches) == pytest.approx(len(batch.indices) / count)
    assert all(len(set(total)) == len(total) for total in totals)
    assert Counter(index for total in totals for index in total) == dict.fromkeys(range(samples), copies)


@given(st.integers(24, 300), st.integers(1, 20))
def test_a_step_s_samples_do_not_depend_on_who_shares_them(samples: int, per_step: int) -> None:
    whole = of_steps(plan(Disjoint(), samples=samples, ranks=1, batch_size=per_step * 6))
    for ranks, accumulate in ((6, 1), (3, 2), (2, 3), (1, 6)):
        if samples // 6 >= len(whole):
            sizes = {"batch_size": per_step, "accumulate": accumulate}
            assert of_steps(plan(Disjoint(), samples=samples, ranks=ranks, **sizes)) == whole


def test_epochs_and_seeds_decide_the_order() -> None:
    first, again, later, other = (
        of_steps(plan(Disjoint(), samples=64, ranks=2, batch_size=8, epoch=epoch, seed=seed))
        for epoch, seed in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert first == again and first not in (later, other)


def holders(assignment: Overlapping, samples: int, ranks: int) -> list[set[int]]:
    return [set(own.tolist()) for own in assignment.holders(samples, ranks, 0)]


@pytest.mark.parametrize("seed", range(4))
def test_who_holds_what_is_the_same_in_all_epochs_and_orders_are_not(seed: int) -> None:
    epochs = [
        [seen(own) for own in plan(MediumCoarse(copies=2), samples=96, ranks=4, epoch=epoch, seed=seed)]
        for epoch in range(4)
    ]
    for first, second, third, fourth in zip(*epochs, strict=True):
        assert {*first, *second} == {*third, *fourth}
        assert first != third


def test_samples_overlap_as_the_assignment_says() -> None:
    coarse = holders(Coarse(shards=2), 20, 4)
    assert coarse[0] == coarse[2] and coarse[1] == coarse[3] and not coarse[0] & coarse[1]
    ring = holders(MediumCoarse(copies=2), 40, 4)
    assert [len(ring[0] & ring[rank]) for rank in range(4)] == [20, 10, 0, 10]
    # Ranks with equal samples take them in different orders.
    first, second = (seen(steps) for steps in plan(FullOverlap(), samples=40, ranks=2))
    assert first != second


@pytest.mark.parametrize(("ranks", "copies"), [(4, 2), (8, 3), (16, 8)])
def test_fine_grained_makes_all_pairs_share_about_as_many(ranks: int, copies: int) -> None:
    samples = 1000 * ranks
    held = holders(FineGrained(copies=copies), samples, ranks)
    assert {len(own) for own in held} == {samples * copies // ranks}
    shared = [len(held[a] & held[b]) for a, b in combinations(range(ranks), 2)]
    mean = samples * copies * (copies - 1) / (ranks * (ranks - 1))
    assert sum(shared) / len(shared) == pytest.approx(mean)
    assert max(shared) - min(shared) <= 0.03 * mean


def test_of_many_samples_pairs_share_as_evenly() -> None:
    # As many as make blocks of blocks of rounds, and part of one more.
    samples, ranks, copies = 600_003, 4, 2
    held = FineGrained(copies=copies).holders(samples, ranks, 0)
    assert max(map(len, held)) - min(map(len, held)) <= copies
    assert torch.equal(torch.cat(held).bincount(minlength=samples), torch.full((samples,), copies))
    shared = [int(torch.isin(held[a], held[b]).sum()) for a, b in combinations(range(ranks), 2)]
    mean = samples * copies * (copies - 1) / (ranks * (ranks - 1))
    assert max(shared) - min(shared) <= 0.001 * mean


@pytest.mark.parametrize(("epochs", "copies"), [(1, 1), (1, 4), (8, 4), (9, 4), (400, 16)])
def test_effective_epochs_are_the_fewest_that_complete_overlap_epochs(epochs: int, copies: int) -> None:
    found = effective_epochs(epochs, copies)
    assert found % copies == 0 and epochs <= found < epochs + copies


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        (Coarse(shards=3), "shards=3 4"),
        (Coarse(shards=0), "shards=0 4"),
        (MediumCoarse(copies=5), "copies=5 4"),
        (FineGrained(copies=0), "copies=0 4"),
        (MediumCoarse(copies=1), "6 samples 4 ranks 2"),
        (Disjoint(), "6 samples 4 ranks 2"),
    ],
)
def test_what_ranks_cannot_share_is_refused(assignment: Overlapping | Disjoint, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        plan(assignment, samples=6, ranks=4, accumulate=2)
    assert all(word in str(caught.value) for word in words.split())
