from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import cases
from resuming import assert_same_in_pieces
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

import trainers
from trainers.data.batches import Batch, in_order
from trainers.data.fetching import Collated
from trainers.data.loader import Loader
from trainers.randomness import derive, generators_kept, seed_generators

CPU = torch.device("cpu")


def load(samples: Any, batches: list[Batch], *, processes: int = 0) -> Iterator[tuple[Any, Any]]:
    with Loader(samples, device=CPU, processes=processes) as loader:
        yield from loader.batches(batches)


class Noisy(Dataset[Any]):
    """Augments with each of the three global generators."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:
        noise = [random.random(), np.random.rand(), torch.rand(()).item()]
        return {"x": torch.tensor([index, *noise], dtype=torch.float64)}, index


def noisy_batches(processes: int) -> list[tuple[Tensor, Tensor]]:
    read = load(Noisy(), in_order(range(20), batch_size=6), processes=processes)
    return [(inputs["x"], targets) for inputs, targets in read]


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


def test_a_run_goes_on_bit_for_bit_where_set_epoch_seeds_the_global_generator(tmp_path: Path) -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

    def run(net: torch.nn.Module, **options: Any) -> trainers.Result:
        samples: Any = Subset(ByName(), [str(number) for number in range(8)])  # type: ignore[arg-type]
        settings: dict[str, Any] = {"epochs": 2, "batch_size": 1, "loss": torch.nn.functional.mse_loss}
        settings["optimizer"] = lambda parameters: torch.optim.SGD(parameters, lr=0.001)
        return trainers.train(net, samples, **settings, **options)

    assert_same_in_pieces(run, make, tmp_path, [11])
