"""The way of samples from the data set to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from trainers.data.batches import Batch
from trainers.randomness import generators_kept, seed_generators


@runtime_checkable
class ReadsBatches(Protocol):
    """A data set that gives many items faster together than one by one, and stacked; it is asked so.

    One that has torch's ``__getitems__`` is asked for that, and its items are stacked here.
    """

    def read_batch(self, indices: Tensor) -> tuple[object, Tensor]:
        """Inputs and targets of these items, along a first axis."""
        ...


@dataclass(frozen=True)
class _Order:
    """A batch to be fetched, in the epoch of this number, if the data set wants to know it."""

    epoch: int | None
    batch: Batch


class _Fetched(Dataset[object]):
    """A data set that is asked for whole batches, each under the batch's own seed."""

    def __init__(self, samples: Dataset[object]) -> None:
        self._samples = samples
        self._epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Have the data set know the epoch, if it wants to: once in each process."""
        if epoch != self._epoch:
            self._epoch = epoch
            own = getattr(self._samples, "set_epoch", None)
            if own is not None:
                own(epoch)

    def __getitems__(self, order: _Order) -> object:
        batch = order.batch
        if order.epoch is not None:
            self.set_epoch(order.epoch)
        # Not its subclasses, whose items may be others than the tensors'.
        if type(self._samples) is TensorDataset:
            return tuple(tensor[batch.indices] for tensor in self._samples.tensors)
        with generators_kept():
            seed_generators(batch.seed)
            if isinstance(self._samples, ReadsBatches):
                return self._samples.read_batch(batch.indices)
            indices = batch.indices.tolist()
            together = getattr(self._samples, "__getitems__", None)
            items = together(indices) if together else [self._samples[i] for i in indices]
            # Not where the user's default device has numbers become tensors: processes that read ahead have no GPU.
            with torch.device("cpu"):
                return default_collate(items)


class _Collated:
    """A batch, which DataLoader asks to pin itself."""

    def __init__(self, parts: object) -> None:
        self.parts = parts

    def pin_memory(self, device: object = None) -> _Collated:
        return _Collated(_pinned(self.parts))


def _pinned(value: object) -> object:
    """``value`` with the tensors in it that are on the CPU in page-locked memory; those on a GPU cannot be."""
    if isinstance(value, Tensor):
        return value.pin_memory() if value.device.type == "cpu" else value
    if isinstance(value, Mapping):
        return {name: _pinned(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return _like(value, map(_pinned, value))
    return value


class Loader:
    """The batches of a data set, epoch after epoch, with the same ``processes`` of each rank reading ahead.

    They are started at the first batch and have copies of the data set as it is then; this process reads alone if there
    are none. To a GPU batches go on a stream of their own, while it computes.
    """

    def __init__(self, samples: Dataset[object], *, device: torch.device, processes: int) -> None:
        self._name = type(samples).__name__
        self._fetched = _Fetched(samples)
        self._device = device
        self._processes = processes
        self._planned: list[_Order] = []
        self._loader: DataLoader[object] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def batches(
        self, batches: Sequence[Batch], *, epoch: int | None = None
    ) -> Generator[tuple[object, Tensor]]:
        """(inputs, targets) of each batch, on the device. ``epoch``: for the data set's ``set_epoch``.

        Raises:
            TypeError: the data set's items are not pairs.
        """
        if epoch is not None:
            self._fetched.set_epoch(epoch)
        self._planned[:] = [_Order(epoch, batch) for batch in batches]
        return self._arrived(self._copies())

    def close(self) -> None:
        """End the processes. Frames of an error may hold on to this object; not to them."""
        self._loader = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self) -> Generator[tuple[object, object]]:
        if self._loader is None:
            self._loader = DataLoader(
                self._fetched,
                # DataLoader hands each element of a batch sampler to __getitems__ as it is.
                batch_sampler=self._planned,  # type: ignore[arg-type]
                collate_fn=_Collated,
                num_workers=self._processes,
                persistent_workers=self._processes > 0,
                pin_memory=self._device.type == "cuda",
                # A generator of its own: iterating would otherwise draw from the global one.
                generator=torch.Generator(),
            )
        # It draws a number, on the default device with a generator of the CPU.
        with torch.device("cpu"):
            fetched_batches = iter(self._loader)
        for collated in fetched_batches:
            assert isinstance(collated, _Collated)
            fetched = collated.parts
            pair = isinstance(fetched, (tuple, list)) and len(fetched) == 2
            if not pair or not isinstance(fetched[1], Tensor):  # type: ignore[index]
                raise TypeError(
                    f"An item of {self._name} is no pair of inputs and target. "
                    "Several inputs go into the first as a tuple or a dictionary."
                )
            yield fetched[0], fetched[1]  # type: ignore[index]

    def _copies(self) -> Generator[tuple[object, Tensor, torch.cuda.Event | None]]:
        """The batches, whose copies to the device may be under way until the event."""
        with closing(self._read()) as pairs:
            for inputs, targets in pairs:
                if self._stream is None:
                    yield moved(inputs, self._device), moved(targets, self._device), None  # type: ignore[misc]
                    continue
                with torch.cuda.stream(self._stream):
                    copied = moved(inputs, self._device), moved(targets, self._device)
                yield *copied, self._stream.record_event()  # type: ignore[misc]

    def _arrived(
        self, copies: Generator[tuple[object, Tensor, torch.cuda.Event | None]]
    ) -> Generator[tuple[object, Tensor]]:
        # What other processes have read is there already: its copy begins while the batch before it is computed.
        waiting = 1 if self._processes and self._stream is not None else 0
        under_way: deque[tuple[object, Tensor, torch.cuda.Event | None]] = deque()
        with closing(copies):
            for copy in copies:
                under_way.append(copy)
                if len(under_way) > waiting:
                    yield self._ready(*under_way.popleft())
            while under_way:
                yield self._ready(*under_way.popleft())

    def _ready(
        self, inputs: object, targets: Tensor, copied: torch.cuda.Event | None
    ) -> tuple[object, Tensor]:
        if copied is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(copied)
            # Or their memory might be given to the next copy while they are still read.
            for tensor in tensors_in((inputs, targets)):
                if tensor.is_cuda:
                    tensor.record_stream(computing)
        return inputs, targets


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors in ``value``, a tensor or tuples, lists and dictionaries of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_in(part)


def moved(value: object, device: torch.device) -> object:
    """``value``, a tensor or tuples, lists and dictionaries of them, on ``device``; tuples without names as lists."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: moved(part, device) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return _like(value, (moved(part, device) for part in value))
    return value


def _like(value: tuple[object, ...] | list[object], parts: Iterable[object]) -> object:
    """``parts`` by the names that those of ``value`` have, if any, as a model may ask for them; else a list."""
    named: Callable[..., object] | None = getattr(value, "_make", None)
    return list(parts) if named is None else named(parts)
