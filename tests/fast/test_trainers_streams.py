"""Streams: which samples each rank reads, and that it reads the same again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

import trainers
from trainers.data.batches import Batch, Disjoint, InTurn
from trainers.data.loader import Loader
from trainers.data.streams import Stream, StreamReader
from trainers.randomness import seed_generators

CPU = torch.device("cpu")


class Shuffled(IterableDataset[Any]):
    """Draws its order, and a number for each sample, from global generators."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        order = list(range(self.samples))
        random.shuffle(order)
        for index in order:
            yield torch.tensor([float(index), torch.rand(()).item()]), self.epoch


def read(rank: int, ranks: int, *, samples: int, sharded: bool = False, count: int = 100) -> list[int]:
    stream = Stream(Shuffled(samples), length=samples, sharded=sharded)
    reader = StreamReader(stream, rank=rank, ranks=ranks, seed=1)
    return [int(item[0][0]) for item in reader.read(0, count, epoch=0, again=False)]


@given(st.integers(1, 30), st.integers(1, 5))
def test_ranks_read_each_sample_once_whatever_it_draws(samples: int, ranks: int) -> None:
    parts = [read(rank, ranks, samples=samples) for rank in range(ranks)]
    assert sorted(index for part in parts for index in part) == list(range(samples))
    assert [len(part) for part in parts] == [len(range(rank, samples, ranks)) for rank in range(ranks)]


def test_a_sharded_stream_is_all_its_rank_s_own() -> None:
    one, other = (read(rank, 2, samples=6, sharded=True) for rank in range(2))
    assert sorted(one) == sorted(other) == list(range(6))
    assert one != other  # drawn by each rank for itself


def batches_of(loader: Loader, planned: list[list[Batch]], epoch: int) -> list[tuple[Tensor, Tensor]]:
    with closing(loader.batches([batch for passes in planned for batch in passes], epoch=epoch)) as batches:
        return list(batches)  # type: ignore[arg-type]


def plan(samples: int, rank: int = 0, ranks: int = 1, epoch: int = 0) -> list[list[Batch]]:
    return InTurn().epoch(
        samples=samples, epoch=epoch, seed=3, rank=rank, ranks=ranks, batch_size=4, accumulate=2
    )


@pytest.mark.parametrize("processes", [0, 1])
def test_an_epoch_begins_anew_and_in_its_middle_alike(processes: int) -> None:
    planned = plan(22)
    with Loader(Shuffled(22), device=CPU, processes=processes, seed=5) as loader:
        seed_generators(7)
        expected = torch.rand(())
        seed_generators(7)
        epochs = [batches_of(loader, planned, epoch) for epoch in (0, 1, 0)]
        assert torch.equal(torch.rand(()), expected)
        rest = batches_of(loader, planned[1:], 1)
        once = [int(x[0]) for inputs, _, _ in loader.to_the_end(4) for x in inputs]  # type: ignore[attr-defined]
    assert all(set(targets.tolist()) == {epoch} for epoch in (0, 1) for _, targets in epochs[epoch])
    for (one, _), (other, _) in zip(epochs[0], epochs[2], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    for (one, _), (other, _) in zip(rest, epochs[1][2:], strict=True):
        assert torch.equal(one, other)
    assert sorted(once) == list(range(22))
    seen = [int(index) for inputs, _ in epochs[0] for index in inputs[:, 0]]
    assert sorted(seen) == list(range(22))


@given(st.integers(2, 60), st.integers(1, 4))
def test_an_epoch_has_each_sample_of_the_stream_once(samples: int, ranks: int) -> None:
    """In steps as those of samples that are dealt by number."""
    if samples < 2 * ranks:
        return
    seen: list[int] = []
    weights: list[list[float]] = []
    for rank in range(ranks):
        mine = range(rank, samples, ranks)  # as StreamReader gives them
        by_number = Disjoint().epoch(
            samples=samples, epoch=0, seed=3, rank=rank, ranks=ranks, batch_size=4, accumulate=2
        )
        of_stream = plan(samples, rank, ranks)
        assert [[b.seed for b in passes] for passes in of_stream] == [
            [b.seed for b in passes] for passes in by_number
        ]
        for passes in of_stream:
            counts = [len(batch.indices) for batch in passes]
            assert min(counts) >= 1 and max(counts) - min(counts) <= 1
        own = torch.cat([batch.indices for passes in of_stream for batch in passes])
        assert torch.equal(own, torch.arange(len(mine)))
        seen += [mine[index] for index in own]
        weights.append([sum(batch.weight for batch in passes) for passes in of_stream])
    assert sorted(seen) == list(range(samples))
    for of_step in zip(*weights, strict=True):
        assert sum(of_step) == pytest.approx(2 * ranks), "the average of means is the mean of all"


def test_a_stream_that_ends_before_its_length_begins_again_and_an_empty_one_is_refused() -> None:
    short = Stream(Shuffled(5), length=22)
    with Loader(short, device=CPU, processes=0) as loader:
        seen = [int(i) for inputs, _ in batches_of(loader, plan(22), 0) for i in inputs[:, 0]]
    assert len(seen) == 22
    assert all(sorted(seen[i : i + 5]) == list(range(5)) for i in (0, 5, 10, 15))
    # The third rank gets none of two samples.
    with (
        pytest.raises(ValueError, match="ended before it gave this rank a sample, of 3 that share it"),
        Loader(Stream(Shuffled(2), length=22), device=CPU, processes=0, rank=2, ranks=3) as loader,
    ):
        batches_of(loader, plan(22), 0)


def test_a_step_s_validation_set_must_give_a_sample() -> None:
    net = torch.nn.Linear(1, 1)

    def step(net: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"loss": net(batch[0]).square().mean()}

    with pytest.raises(ValueError, match=r"^validation_set: it gave no rank a sample\."):
        trainers.train(
            net,
            TensorDataset(torch.ones(4, 1), torch.ones(4)),
            Stream(Shuffled(0), length=1),
            step=step,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
            epochs=1,
            batch_size=2,
        )
