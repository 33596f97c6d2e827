"""Fetching of batches from a data set, in the process that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from trainers.data.batches import Batch
from trainers.data.ring import Ring
from trainers.data.streams import StreamReader, stream_of
from trainers.randomness import derive, generators_kept, seed_generators
from trainers.structures import in_kind, mapped

Collate = Callable[[Sequence[object]], object]
"""Function from the items of a batch to a pair of inputs and targets."""


@runtime_checkable
class ReadsBatches(Protocol):
    """Data set that reads many items faster together, and returns them stacked.

    The items of a data set with torch's ``__getitems__`` are read together too, and stacked by the trainers. With an
    attribute ``fixed_items`` that is true each index always gives the same item, so that all may be kept on a device.
    """

    def read_batch(self, indices: Tensor) -> tuple[object, object]:
        """Inputs and targets of the items at ``indices``, stacked along a first axis."""
        ...


@runtime_checkable
class FinishesOnDevice(Protocol):
    """Data set that does work on the device, such as converting bytes to floats, so that less data are sent to it."""

    def on_device(self, inputs: Any, targets: Any) -> tuple[object, object]:
        """Inputs and targets for the model and the loss, from a batch on the device.

        The global random generators are seeded for each batch.
        """
        ...


@dataclass(frozen=True)
class BatchOrder:
    """Order to fetch a batch, of a stream that ends at its end with ``once``, instead of beginning again."""

    epoch: int | None
    batch: Batch
    once: bool = False


class Fetched(Dataset[object]):
    """Data set whose items are whole batches of ``samples``, each fetched with the batch's own seed.

    With ``keeps``, the global generators are afterwards as they were before.
    """

    def __init__(
        self,
        samples: Dataset[object],
        *,
        collate: Collate | None,
        rank: int,
        ranks: int,
        seed: int,
        keeps: bool = True,
    ) -> None:
        stream = stream_of(samples)
        given = samples if stream is None else stream.samples
        whole = _undivided(given)
        self._finish = whole.on_device if isinstance(whole, FinishesOnDevice) else None
        self.name = type(given).__name__
        self._samples: Any = given
        self._epoch_setters = [*epoch_setters(given)]
        self._chosen: Tensor | None = None
        self.whole: object | None = whole if stream is None and collate is None else None
        """Data set that all items are of, by numbers; None for a stream, or where ``collate`` makes the batches."""
        # Subclasses of TensorDataset may have other items than the tensors'.
        self._tensors = whole.tensors if type(whole) is TensorDataset and collate is None else None
        self.draws = self._tensors is None
        """Whether fetching may draw from the global generators."""
        self._keeps = keeps
        if collate is None and (self._tensors is not None or isinstance(whole, ReadsBatches)):
            # Keys of other data sets need not be numbers.
            self._samples, self._chosen = whole, _chosen(given)
        # Asked once, as to look for methods takes longer than some of a small model's own work.
        self._reads_batches = isinstance(self._samples, ReadsBatches)
        self._stream = None if stream is None else StreamReader(stream, rank=rank, ranks=ranks, seed=seed)
        self._collate = _stacked if collate is None else collate
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Call ``set_epoch`` of the data set, or of the data sets in it, once for an epoch in each process."""
        if epoch != self._epoch:
            self._epoch = epoch
            for set_epoch in self._epoch_setters:
                set_epoch(epoch)

    def __getitems__(self, order: BatchOrder) -> Collated:
        """Batch of an order."""
        batch = order.batch
        if order.epoch is not None:
            self.set_epoch(order.epoch)
        if self._tensors is not None:
            return Collated(self.gathered(batch.indices), len(batch.indices), batch.seed)
        indices = self._in_whole(batch.indices)
        with self._generators_kept():
            items = None
            if self._stream is not None:
                first, count = int(batch.indices[0]), len(batch.indices)
                items = self._stream.read(first, count, epoch=order.epoch, again=not order.once)
                if not items:
                    return Collated(None, 0, batch.seed)
            # Random augmentation depends on the batch's seed alone, whichever process reads the batch.
            seed_generators(batch.seed)
            if items is None:
                if self._reads_batches:
                    return Collated(self._samples.read_batch(indices), len(indices), batch.seed)
                items = self._items(indices.tolist())
            # On the CPU even if the user's default device is a GPU, which processes that read ahead do not have.
            with torch.device("cpu"):
                return Collated(self._collate(items), len(items), batch.seed)

    def holds_pairs_on(self, device: torch.device) -> bool:
        """Whether the items are those of two tensors on ``device``, from which ``gathered`` makes whole batches."""
        return self._tensors is not None and [t.device for t in self._tensors] == [device, device]

    def gathered_into(self, ring: Ring, batch: Batch) -> Collated | None:
        """Batch in page-locked buffers of ``ring``; None unless the data set is of contiguous tensors of the host."""
        tensors = self._tensors
        if tensors is None or not all(t.device.type == "cpu" and t.is_contiguous() for t in tensors):
            return None
        indices = self._in_whole(batch.indices)
        into = ring.buffers(tensors, len(indices))
        for tensor, buffer in zip(tensors, into, strict=True):
            torch.ops.aten.index.Tensor_out(tensor, [indices], out=buffer)
        return Collated(tuple(into), len(indices), batch.seed)

    def gathered(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Items of the data set's tensors at ``indices``, on the tensors' devices."""
        assert self._tensors is not None
        indices, found = self._in_whole(indices), []
        for tensor in self._tensors:
            if tensor.is_cuda or tensor.is_xpu:
                # Moved to the tensors' GPU, because the host would wait for the GPU otherwise.
                indices = indices.to(tensor.device, non_blocking=True)
            found.append(tensor[indices])
        return tuple(found)

    @property
    def chosen(self) -> Tensor:
        """Indices of all items in ``whole``."""
        assert self.whole is not None
        whole: Any = self.whole
        return self._in_whole(
            torch.arange(len(whole) if self._chosen is None else len(self._chosen), device="cpu")
        )

    def _in_whole(self, indices: Tensor) -> Tensor:
        return indices if self._chosen is None else self._chosen[indices]

    @property
    def finishes(self) -> bool:
        """Whether the data set does work on the device."""
        return self._finish is not None

    def finished(self, inputs: object, targets: object, seed: int) -> tuple[object, object]:
        """Inputs and targets for the model and the loss, of a batch on the device that was fetched with ``seed``."""
        if self._finish is None:
            return inputs, targets
        # The batch's own seed, because it depends on the reading processes how far ahead of the step this happens.
        with self._generators_kept():
            seed_generators(derive(seed, "device"))
            return self._finish(inputs, targets)

    def _generators_kept(self) -> AbstractContextManager[None]:
        return generators_kept() if self._keeps else nullcontext()

    def _items(self, indices: list[int]) -> list[object]:
        samples = self._samples
        together: Callable[[list[int]], list[object]] | None = getattr(samples, "__getitems__", None)
        if together is not None:
            return together(indices)
        return [samples[index] for index in indices]


@dataclass(frozen=True)
class Collated:
    """Batch of ``samples`` samples that was fetched with ``seed``, with the method by which DataLoader pins memory."""

    parts: object
    samples: int
    seed: int

    def pin_memory(self, device: object = None) -> Collated:
        """Same batch with tensors in page-locked memory."""
        return replace(self, parts=mapped(self.parts, _pinned))


def check_reading(name: str, samples: object, *, loader_processes: int, collate: object) -> None:
    """Raise ValueError if ``name`` cannot be read by ``loader_processes`` processes, or with ``collate``."""
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
    """Data set that ``samples`` is a part of, if it is a torch Subset; else ``samples``."""
    while type(samples) is Subset:
        samples = samples.dataset
    return samples


def _chosen(samples: object) -> Tensor | None:
    """Indices of a Subset's items in ``_undivided(samples)``; None for all."""
    chosen: Tensor | None = None
    while type(samples) is Subset:
        of_whole = torch.as_tensor(samples.indices, device="cpu")
        chosen = of_whole if chosen is None else of_whole[chosen]
        samples = samples.dataset
    return chosen


def epoch_setters(samples: object) -> Iterator[Callable[[int], object]]:
    """Methods ``set_epoch`` of ``samples``, or of the data sets in a torch Subset or ConcatDataset."""
    own = getattr(samples, "set_epoch", None)
    if own is not None:
        yield own
    elif isinstance(samples, Subset):
        yield from epoch_setters(samples.dataset)
    elif isinstance(samples, ConcatDataset):
        for part in samples.datasets:
            yield from epoch_setters(part)


def _stacked(items: Sequence[object]) -> object:
    return in_kind(default_collate(items), items[0])  # type: ignore[arg-type]


def _pinned(tensor: Tensor) -> Tensor:
    """``tensor`` in page-locked memory of its own; a tensor on a GPU stays there."""
    if tensor.device.type != "cpu":
        return tensor
    # A tensor that is pinned already is copied: the data set may read the next batch into the same memory while this
    # batch is still being copied to the device.
    return (tensor.clone() if tensor.is_pinned() else tensor).pin_memory()
