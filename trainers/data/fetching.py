"""How a batch is made of a data set's items, in whichever process reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from trainers.data.batches import Batch
from trainers.data.streams import StreamReader, stream_of
from trainers.randomness import generators_kept, seed_generators
from trainers.structures import in_kind, mapped

Collate = Callable[[Sequence[object]], object]
"""The items of a batch to a pair of inputs and targets."""


@runtime_checkable
class ReadsBatches(Protocol):
    """A data set that gives many items faster together than one by one, and stacked; it is asked so.

    One that has torch's ``__getitems__`` is asked for that, and its items are stacked here.
    """

    def read_batch(self, indices: Tensor) -> tuple[object, object]:
        """Inputs and targets of these items, along a first axis."""
        ...


@runtime_checkable
class FinishesOnDevice(Protocol):
    """A data set that leaves work for the device: to read bytes and to make floats of them there moves less, and leaves
    the CPU to reading.
    """

    def on_device(self, inputs: Any, targets: Any) -> tuple[object, object]:
        """What the model and the loss get of a batch that has come to the device. The global generators are seeded for
        each batch.
        """
        ...


@dataclass(frozen=True)
class Order:
    """A batch to be fetched, in the epoch of this number, if the data set wants to know it. With ``once`` a stream that
    is at its end gives no more.
    """

    epoch: int | None
    batch: Batch
    once: bool = False


class Fetched(Dataset[object]):
    """A data set that is asked for whole batches, each under the batch's own seed.

    Args:
        samples (Dataset): of pairs.
        collate (callable): makes a batch of items; None: torch's way.
        rank (int): this one; for a stream, as the others.
        ranks (int): their number.
        seed (int): of the run.
    """

    def __init__(
        self, samples: Dataset[object], *, collate: Collate | None, rank: int, ranks: int, seed: int
    ) -> None:
        stream = stream_of(samples)
        given = samples if stream is None else stream.samples
        whole = _undivided(given)
        self.on_device = whole.on_device if isinstance(whole, FinishesOnDevice) else None
        """What the data set does on the device, if anything."""
        self._samples: object = given
        self._epoch_setters = [*epoch_setters(given)]
        self._chosen: Tensor | None = None
        # Not its subclasses, whose items may be others than the tensors'.
        self._tensors = whole.tensors if type(whole) is TensorDataset and collate is None else None
        if collate is None and (self._tensors is not None or isinstance(whole, ReadsBatches)):
            self._samples, self._chosen = whole, _chosen(samples)
        self._stream = None if stream is None else StreamReader(stream, rank=rank, ranks=ranks, seed=seed)
        self._collate = _stacked if collate is None else collate
        self._epoch: int | None = None

    @property
    def name(self) -> str:
        """Of the data set's kind."""
        return type(self._samples).__name__

    def set_epoch(self, epoch: int) -> None:
        """Have the data set know the epoch, if it wants to, or those that it is made of: once in each process."""
        if epoch != self._epoch:
            self._epoch = epoch
            for set_epoch in self._epoch_setters:
                set_epoch(epoch)

    def __getitems__(self, order: Order) -> tuple[object, int, int]:
        """The batch, its number of samples, and its seed."""
        batch = order.batch
        if order.epoch is not None:
            self.set_epoch(order.epoch)
        indices = batch.indices if self._chosen is None else self._chosen[batch.indices]
        if self._tensors is not None:
            # Where they are on a GPU, the host would wait for it if the indices were not.
            chosen = [tensor[indices.to(tensor.device, non_blocking=True)] for tensor in self._tensors]
            return tuple(chosen), len(indices), batch.seed
        items = None
        if self._stream is not None:
            first, count = int(batch.indices[0]), len(batch.indices)
            items = self._stream.read(first, count, epoch=order.epoch, again=not order.once)
            if not items:
                return None, 0, batch.seed
        with generators_kept():
            seed_generators(batch.seed)
            if items is None:
                if isinstance(self._samples, ReadsBatches):
                    return self._samples.read_batch(indices), len(indices), batch.seed
                items = self._items(indices.tolist())
            # Not where the user's default device has numbers become tensors: processes that read ahead have no GPU.
            with torch.device("cpu"):
                return self._collate(items), len(items), batch.seed

    def _items(self, indices: list[int]) -> list[object]:
        samples = self._samples
        together: Callable[[list[int]], list[object]] | None = getattr(samples, "__getitems__", None)
        if together is not None:
            return together(indices)
        return [samples[index] for index in indices]  # type: ignore[index]


class Collated:
    """A batch of ``samples`` samples, which DataLoader asks to pin itself; ``seed``: for what is drawn to make it."""

    def __init__(self, parts: object, samples: int, seed: int) -> None:
        self.parts = parts
        self.samples = samples
        self.seed = seed

    @classmethod
    def of(cls, fetched: tuple[object, int, int]) -> Collated:
        """What ``Fetched`` gave."""
        return cls(*fetched)

    def pin_memory(self, device: object = None) -> Collated:
        """The same with its tensors in page-locked memory."""
        return Collated(mapped(self.parts, _pinned), self.samples, self.seed)


def check_reading(name: str, samples: object, *, loader_processes: int, collate: object) -> None:
    """ValueError if the data set ``name`` cannot be read by these processes, or made batches of by ``collate``."""
    if collate is not None and isinstance(samples, ReadsBatches):
        raise ValueError(
            f"collate: {name} has read_batch(), which makes the batches itself. Do there what is to be done, and leave "
            "collate out."
        )
    if stream_of(samples) is not None and loader_processes > 1:
        raise ValueError(
            f"loader_processes = {loader_processes}: {name} streams its samples, and a stream is read by one process "
            "of each rank, so that the order does not depend on their number. Set it to 1 or 0, and use threads in "
            "the data set where reading is slow."
        )


def _undivided(samples: object) -> Any:
    """The data set that ``samples`` is a part of, by torch's Subset, or else itself."""
    while type(samples) is Subset:
        samples = samples.dataset
    return samples


def epoch_setters(samples: object) -> Iterator[Callable[[int], object]]:
    """``set_epoch`` of ``samples``, or of what torch's Subset and ConcatDataset have made it of."""
    own = getattr(samples, "set_epoch", None)
    if own is not None:
        yield own
    elif isinstance(samples, Subset):
        yield from epoch_setters(samples.dataset)
    elif isinstance(samples, ConcatDataset):
        for part in samples.datasets:
            yield from epoch_setters(part)


def _chosen(samples: object) -> Tensor | None:
    """Which items of ``_undivided(samples)`` a Subset has; None: all."""
    chosen: Tensor | None = None
    while type(samples) is Subset:
        of_whole = torch.as_tensor(samples.indices, device="cpu")
        chosen = of_whole if chosen is None else of_whole[chosen]
        samples = samples.dataset
    return chosen


def _stacked(items: Sequence[object]) -> object:
    return in_kind(default_collate(items), items[0])  # type: ignore[arg-type]


def _pinned(tensor: Tensor) -> Tensor:
    """``tensor`` in page-locked memory of its own; one on a GPU cannot be."""
    if tensor.device.type != "cpu":
        return tensor
    # The data set may read the next batch into the same memory while this one is still copied.
    return (tensor.clone() if tensor.is_pinned() else tensor).pin_memory()
