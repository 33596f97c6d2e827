from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import trainers
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
    """Of each rank the steps, of each step the batches."""
    given_or_one = {"batch_size": 1, "accumulate": 1, **sizes}
    return [
        assignment.epoch(samples=samples, epoch=epoch, seed=seed, rank=rank, ranks=ranks, **given_or_one)
        for rank in range(ranks)
    ]


def seen(steps: list[list[Batch]]) -> list[int]:
    return [index for passes in steps for batch in passes for index in batch.indices.tolist()]


@st.composite
def assignments(draw: st.DrawFn) -> tuple[Overlapping, int]:
    """An assignment and a number of ranks that it fits."""
    ranks = draw(st.integers(1, 6))
    copies = draw(st.integers(1, ranks))
    divisors = [shards for shards in range(1, ranks + 1) if ranks % shards == 0]
    return draw(
        st.sampled_from(
            [
                Coarse(shards=draw(st.sampled_from(divisors))),
                FullOverlap(),
                MediumCoarse(copies=copies),
                FineGrained(copies=copies),
            ]
        )
    ), ranks


@given(assignments(), st.integers(60, 200), st.integers(1, 20), st.integers(1, 2), SEEDS)
def test_over_the_epochs_of_an_overlap_epoch_each_holder_sees_its_samples_once(
    assigned: tuple[Overlapping, int], samples: int, batch_size: int, accumulate: int, seed: int
) -> None:
    assignment, ranks = assigned
    copies = assignment.copies_of(ranks)
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
            totals[rank] += seen(own)
        for of_step in zip(*steps, strict=True):
            # Mean over ranks and passes of weight × mean loss is the mean over the step's samples.
            batches = [batch for passes in of_step for batch in passes]
            count = sum(len(batch.indices) for batch in batches)
            for batch in batches:
                assert batch.weight / len(batches) == pytest.approx(len(batch.indices) / count)
    assert all(len(set(total)) == len(total) for total in totals)
    assert Counter(index for total in totals for index in total) == dict.fromkeys(range(samples), copies)


@given(SEEDS, st.integers(0, 7))
def test_who_holds_what_is_the_same_in_all_epochs_and_orders_are_not(seed: int, epoch: int) -> None:
    assignment = MediumCoarse(copies=2)
    held = [
        {index for e in (2 * (epoch // 2), 2 * (epoch // 2) + 1) for index in seen(own)}
        for own in plan_of_both(assignment, seed, epoch)
    ]
    again = [
        {
            index
            for e in range(2)
            for index in seen(plan(assignment, samples=96, ranks=4, epoch=e, seed=seed)[r])
        }
        for r in range(4)
    ]
    assert held == again
    first, later = (seen(plan(assignment, samples=96, ranks=4, epoch=e, seed=seed)[0]) for e in (0, 2))
    assert first != later


def plan_of_both(assignment: Overlapping, seed: int, epoch: int) -> list[list[list[Batch]]]:
    """The two epochs of the overlap epoch that ``epoch`` is in, joined, for each of four ranks."""
    first = 2 * (epoch // 2)
    parts = [plan(assignment, samples=96, ranks=4, epoch=e, seed=seed) for e in (first, first + 1)]
    return [one + other for one, other in zip(*parts, strict=True)]


def holders(assignment: Overlapping, samples: int, ranks: int) -> list[set[int]]:
    return [set(own.tolist()) for own in assignment.holders(samples, ranks, 0)]


def test_coarse_gives_equal_samples_to_every_sth_rank() -> None:
    held = holders(Coarse(shards=2), 20, 4)
    assert held[0] == held[2]
    assert held[1] == held[3]
    assert not held[0] & held[1]


def test_ranks_with_equal_samples_take_them_in_different_orders() -> None:
    one, other = (seen(steps) for steps in plan(FullOverlap(), samples=40, ranks=2))
    assert one != other


def test_medium_coarse_overlaps_with_neighbours_on_the_ring() -> None:
    held = holders(MediumCoarse(copies=2), 40, 4)
    assert [len(held[0] & held[rank]) for rank in range(4)] == [20, 10, 0, 10]


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


def test_an_epoch_takes_as_many_steps_as_with_disjoint_samples() -> None:
    for assignment in (FullOverlap(), Coarse(shards=2), MediumCoarse(copies=3), FineGrained(copies=2)):
        found = plan(assignment, samples=240, ranks=4, batch_size=10)
        assert len(found[0]) == len(plan(Disjoint(), samples=240, ranks=4, batch_size=10)[0]) == 6


@given(st.integers(1, 400), st.integers(1, 16))
def test_effective_epochs_are_the_fewest_that_complete_overlap_epochs(epochs: int, copies: int) -> None:
    found = effective_epochs(epochs, copies)
    assert found % copies == 0
    assert epochs <= found < epochs + copies
    assert found == math.ceil(epochs / copies) * copies


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (Coarse(shards=3), "Choose a divisor of 4"),
        (Coarse(shards=0), "Choose a divisor of 4"),
        (MediumCoarse(copies=5), "from 1 to the 4 ranks"),
        (FineGrained(copies=0), "from 1 to the 4 ranks"),
    ],
)
def test_refuses(assignment: Overlapping, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(assignment, samples=40, ranks=4)


def test_refuses_too_few_samples() -> None:
    with pytest.raises(ValueError, match="every batch needs a sample"):
        plan(MediumCoarse(copies=1), samples=6, ranks=4, accumulate=2)


def test_the_loop_trains_with_it() -> None:
    x = torch.arange(12.0)[:, None]
    net = nn.Linear(1, 1)
    result = trainers.train(
        net,
        TensorDataset(x, x),
        loss=nn.functional.mse_loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=1e-3),
        epochs=2,
        batch_size=4,
        assignment=FullOverlap(),
    )
    assert result.history[1]["train_loss"] < result.history[0]["train_loss"]
