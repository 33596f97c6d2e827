from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import trainers
from trainers.data.batches import Batch, Disjoint, in_order
from trainers.data.fetching import Collated
from trainers.data.loader import Loader
from trainers.randomness import derive, generators_kept, seed_generators

CPU = torch.device("cpu")


def load(samples: Any, batches: list[Batch], *, processes: int = 0) -> Iterator[tuple[Any, Any]]:
    with Loader(samples, device=CPU, processes=processes) as loader:
        yield from loader.batches(batches)


def plans(
    samples: int, ranks: int, *, epoch: int = 0, seed: int = 0, **keywords: int
) -> list[list[list[Batch]]]:
    """Batches by rank and step."""
    given_or_one = {"batch_size": 1, "accumulate": 1, **keywords}
    return [
        Disjoint().epoch(samples=samples, epoch=epoch, seed=seed, rank=rank, ranks=ranks, **given_or_one)
        for rank in range(ranks)
    ]


def step_samples(plan: list[list[list[Batch]]]) -> list[set[int]]:
    """The samples of each step, over all ranks and passes."""
    return [
        {index for rank in ranks for batch in rank for index in batch.indices.tolist()}
        for ranks in zip(*plan, strict=True)
    ]


@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 40), st.integers(1, 3), st.integers(0, 3))
def test_disjoint_covers_every_sample_once_in_even_batches(
    samples: int, ranks: int, batch_size: int, accumulate: int, epoch: int
) -> None:
    if samples < ranks * accumulate:
        with pytest.raises(ValueError, match="every batch needs a sample"):
            plans(samples, ranks, batch_size=batch_size, accumulate=accumulate)
        return
    plan = plans(samples, ranks, batch_size=batch_size, accumulate=accumulate, epoch=epoch)
    batches = [batch for steps in plan for passes in steps for batch in passes]
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(samples))
    assert len({len(steps) for steps in plan}) == 1
    assert all(len(passes) == accumulate for steps in plan for passes in steps)
    sizes = [len(batch.indices) for batch in batches]
    assert min(sizes) >= 1
    assert max(sizes) <= max(batch_size, 2)
    assert max(sizes) - min(sizes) <= 1
    if samples % (ranks * accumulate * batch_size) == 0:
        assert set(sizes) == {batch_size}


@given(st.integers(24, 300), st.integers(1, 20))
def test_a_step_s_samples_do_not_depend_on_who_shares_them(samples: int, per_step: int) -> None:
    whole = step_samples(plans(samples, 1, batch_size=per_step * 6))
    for ranks, accumulate in ((6, 1), (3, 2), (2, 3), (1, 6)):
        if samples // 6 >= len(whole):
            assert step_samples(plans(samples, ranks, accumulate=accumulate, batch_size=per_step)) == whole


@given(st.integers(6, 200), st.integers(1, 3), st.integers(2, 9), st.integers(1, 2))
def test_weights_make_the_average_of_means_the_mean_of_all(
    samples: int, ranks: int, batch_size: int, accumulate: int
) -> None:
    values = torch.randn(samples, dtype=torch.float64, generator=torch.Generator().manual_seed(samples))
    plan = plans(samples, ranks, batch_size=batch_size, accumulate=accumulate)
    for indices, step in zip(step_samples(plan), zip(*plan, strict=True), strict=True):
        parts = [values[batch.indices].mean() * batch.weight for rank in step for batch in rank]
        assert torch.stack(parts).mean().item() == pytest.approx(values[list(indices)].mean().item())


def test_epochs_and_seeds_decide_the_order() -> None:
    first = step_samples(plans(64, 2, batch_size=8))
    assert first == step_samples(plans(64, 2, batch_size=8))
    assert first != step_samples(plans(64, 2, batch_size=8, epoch=1))
    assert first != step_samples(plans(64, 2, batch_size=8, seed=1))


class Noisy(Dataset[Any]):
    """Augments with each of the three global generators."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:
        noise = [random.random(), np.random.rand(), torch.rand(()).item()]
        return {"x": torch.tensor([index, *noise], dtype=torch.float64)}, index


def noisy_batches(processes: int) -> list[tuple[Tensor, Tensor]]:
    batches = [batch for passes in plans(20, 1, batch_size=6)[0] for batch in passes]
    return [(inputs["x"], targets) for inputs, targets in load(Noisy(), batches, processes=processes)]


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_augmentation_hangs_on_the_batch_and_leaves_the_generators_alone() -> None:
    seed_generators(7)
    expected = draw()
    seed_generators(7)
    first = noisy_batches(0)
    assert draw() == expected
    for processes in (0, 1):
        for (x, y), (other_x, other_y) in zip(first, noisy_batches(processes), strict=True):
            assert torch.equal(x, other_x) and torch.equal(y, other_y)
    # Different from sample to sample and from batch to batch.
    noise = torch.cat([inputs[:, 1:] for inputs, _ in first])
    assert len(noise.unique()) == noise.numel()


class Doubled(TensorDataset):
    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return 2 * x, y


def test_a_tensor_data_set_is_read_as_item_by_item() -> None:
    x, y = torch.arange(40.0).view(10, 4), torch.arange(10)
    batches = in_order(range(3, 10), batch_size=3)
    fast = list(load(TensorDataset(x, y), batches))
    # A subclass is asked for its items.
    slow = list(load(Doubled(x / 2, y), batches))
    assert [len(targets) for _, targets in fast] == [3, 3, 1]
    for (a, b), (c, d) in zip(fast, slow, strict=True):
        assert torch.equal(a, c) and torch.equal(b, d)
    part = list(load(Subset(TensorDataset(x, y), [5, 3, 1]), in_order(range(3), batch_size=2)))
    assert [targets.tolist() for _, targets in part] == [[5, 3], [1]]


class Together(Dataset[Any]):
    """Counts how often it is asked, and for how many items."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 5

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        self.asked.append(len(indices))
        return [(torch.tensor([float(i)]), torch.tensor(i)) for i in indices]


class Stacked(Together):
    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        self.asked.append(len(indices))
        return indices.double().unsqueeze(1), indices


@pytest.mark.parametrize("kind", [Together, Stacked])
def test_a_set_that_reads_batches_is_asked_for_them(kind: type[Together]) -> None:
    samples = kind()
    read = list(load(samples, in_order(range(5), batch_size=3)))
    assert samples.asked == [3, 2]
    for (inputs, targets), expected in zip(read, ([0, 1, 2], [3, 4]), strict=True):
        assert inputs.dtype == (torch.float64 if kind is Stacked else torch.float32)
        assert inputs.flatten().tolist() == targets.tolist() == expected
    ((inputs, _),) = load(Subset(kind(), [4, 2]), in_order(range(2), batch_size=2))
    assert inputs.tolist() == [[4.0], [2.0]]


class Bytes:
    """Items are bytes, of which the device makes fractions, or draws numbers."""

    def __init__(self, *, draws: bool = False) -> None:
        self.draws = draws

    def __len__(self) -> int:
        return 8

    def read_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return indices.to(torch.uint8)[:, None], indices

    def on_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return torch.rand(len(inputs)) if self.draws else inputs / 8, targets + 1


class BytesInTurn(IterableDataset[Any]):
    draws, on_device = False, Bytes.on_device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((torch.tensor([index], dtype=torch.uint8), torch.tensor(index)) for index in range(8))


@pytest.mark.parametrize("processes", cases([0], nightly=[1]))
@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (Bytes(), range(8)),
        (Subset(Subset(Bytes(), [7, *range(7)]), [6, 7, 2, 3]), [5, 6, 1, 2]),
        (trainers.Stream(BytesInTurn(), length=8), range(8)),
    ],
    ids=["whole", "parts", "stream"],
)
def test_a_set_finishes_its_batches_on_the_device(samples: Any, expected: Any, processes: int) -> None:
    read = list(load(samples, in_order(range(len(expected)), batch_size=3), processes=processes))
    wanted = torch.tensor([*expected])
    assert torch.equal(torch.cat([inputs for inputs, _ in read]), wanted[:, None] / 8)
    assert torch.equal(torch.cat([targets for _, targets in read]), wanted + 1)


class Epochs(TensorDataset):
    """Notes the epochs that it is in."""

    def __init__(self) -> None:
        super().__init__(torch.arange(8.0), torch.arange(8))
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda one: one,
        lambda one: Subset(Subset(one, range(7)), [3, 2]),
        lambda one: ConcatDataset([Subset(one, [0, 1]), TensorDataset(torch.ones(2), torch.ones(2))]),
    ],
)
def test_a_set_knows_the_epoch_whatever_it_is_a_part_of(wrapped: Callable[[Any], Any]) -> None:
    samples = Epochs()
    with Loader(wrapped(samples), device=CPU, processes=0) as loader:
        for epoch in (0, 1, 5):
            list(loader.batches(in_order(range(2), batch_size=1), epoch=epoch))
    assert samples.epochs == [0, 1, 5]


@pytest.mark.parametrize("processes", cases([0], nightly=[1]))
def test_what_is_drawn_on_the_device_depends_on_the_batch_alone(processes: int) -> None:
    drawn = []
    for start in (0, 1):
        torch.manual_seed(start)
        expected = torch.rand(2)
        torch.manual_seed(start)
        read = list(load(Bytes(draws=True), in_order(range(8), batch_size=4)[start:], processes=processes))
        assert torch.equal(torch.rand(2), expected), "the loop's own numbers are as they were"
        drawn.append(read[-1][0])
    assert torch.equal(*drawn)
    assert len(set(drawn[0].tolist())) == 4


def test_only_what_is_on_the_cpu_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[tuple[int, ...]] = []

    def note(tensor: Tensor) -> Tensor:
        assert tensor.device.type == "cpu"
        pinned.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", note)
    parts = ({"a": torch.zeros(2), "b": torch.zeros(3, device="meta")}, [torch.zeros(4), "text"])
    batch = Collated(parts, 2, 0).pin_memory().parts
    assert pinned == [(2,), (4,)]
    assert isinstance(batch, tuple)
    assert batch[0]["b"].device.type == "meta"


def test_items_must_be_pairs() -> None:
    with pytest.raises(TypeError, match="TensorDataset"):
        list(load(TensorDataset(torch.zeros(3, 2)), in_order(range(3), batch_size=3)))


def test_derived_seeds_differ_by_every_part() -> None:
    seeds = {derive(s, name, number) for s in range(5) for name in ("a", "b") for number in range(5)}
    assert len(seeds) == 50 and all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, "ab", 1) != derive(1, "a", "b1")


def test_generators_are_given_back_after_an_error() -> None:
    seed_generators(3)
    expected = draw()
    seed_generators(3)
    with pytest.raises(RuntimeError), generators_kept():
        seed_generators(99)
        raise RuntimeError
    assert draw() == expected


class ByName(Dataset[tuple[Tensor, Tensor]]):
    """Samples with names as keys, in an order that is drawn in each epoch."""

    def __init__(self) -> None:
        self.shift = 0.0

    def set_epoch(self, epoch: int) -> None:
        torch.manual_seed(epoch)
        self.shift = float(torch.rand(()))

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        return torch.full((4,), float(name) + self.shift), torch.zeros(1)


def trained_by_name(directory: Path | None, stop_after: int | None = None) -> Tensor:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    calls = iter(range(10**6))
    trainers.train(
        model,
        Subset(ByName(), [str(number) for number in range(8)]),  # type: ignore[arg-type]
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.001),
        epochs=2,
        batch_size=1,
        checkpoint=directory,
        interrupt=lambda: next(calls) == stop_after,
    )
    return model[1].weight.detach()


def test_a_run_goes_on_bit_for_bit_where_set_epoch_seeds_the_global_generator(tmp_path: Path) -> None:
    with pytest.raises(trainers.Interrupted):
        trained_by_name(tmp_path, stop_after=11)
    assert torch.equal(trained_by_name(tmp_path), trained_by_name(None))
