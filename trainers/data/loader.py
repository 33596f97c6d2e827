"""Loading of batches from the data set to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainers.data.batches import Batch
from trainers.data.device_copy import LARGE, SMALL, DeviceCopy, ItemReader, free_bytes
from trainers.data.fetching import BatchOrder, Collate, Collated, Fetched
from trainers.data.ring import Ring
from trainers.gpu import is_gpu, module_of
from trainers.randomness import derive
from trainers.structures import moved, tensors_in


class _BatchPlan:
    """Batches to read next, over which DataLoader iterates again in each epoch."""

    def __init__(self) -> None:
        self.orders: Iterable[BatchOrder] = ()

    def __iter__(self) -> Iterator[BatchOrder]:
        return iter(self.orders)


class _Copy(NamedTuple):
    """Batch of ``samples`` samples that is on the device after the event ``copied``, or already where that is None."""

    inputs: object
    targets: object
    samples: int
    copied: torch.Event | None


def _unchanged(collated: Collated) -> Collated:
    return collated


class Loader:
    """Loads batches of a data set, epoch after epoch, with processes of each rank that read ahead.

    The processes start at the first batch, with copies of the data set as it is then, and stay. Without processes, this
    process reads. Batches are copied to a GPU in a stream of their own while it computes. ``rank``, ``ranks`` and
    ``seed`` are for reading a stream; ``keeps`` is that of ``Fetched``.
    """

    def __init__(
        self,
        samples: Dataset[object],
        *,
        device: torch.device,
        processes: int,
        collate: Collate | None = None,
        rank: int = 0,
        ranks: int = 1,
        seed: int = 0,
        keeps: bool = True,
    ) -> None:
        self._fetched = Fetched(samples, collate=collate, rank=rank, ranks=ranks, seed=seed, keeps=keeps)
        self.draws = self._fetched.finishes or (self._fetched.draws and not processes)
        """Whether to ask for a batch may draw from this process's global generators."""
        self._device = device
        self._processes = processes
        self._seed = seed
        self._plan = _BatchPlan()
        self._loader: DataLoader[object] | None = None
        self._copying = module_of(device).Stream(device) if is_gpu(device) else None
        self._ring = Ring(device) if is_gpu(device) else None
        self._items: ItemReader | None = None
        self._copy: DeviceCopy | None = None
        self._share = SMALL

    def keep_on_device(self, kept: bool | str, name: str) -> None:
        """Gather batches on the device, from a copy of the whole data set.

        With ``kept`` = "auto" the copy is made on a GPU alone: at the first batch if it is small, and otherwise after
        the data set was read once, when the run's own need of memory is known. True makes it now, and raises ValueError
        with the ``name`` of the data set where that cannot be done.
        """
        if kept is False or (kept == "auto" and not is_gpu(self._device)):
            return
        if self._fetched.holds_pairs_on(self._device):
            return
        whole = self._fetched.whole
        found = None if whole is None else ItemReader(whole, self._fetched.chosen)
        refusal = "is a stream, or has collate" if found is None else found.refusal
        if kept == "auto":
            self._items = None if refusal else found
            return
        if found is not None and not refusal:
            free = free_bytes(self._device)
            if found.bytes > free:
                refusal = f"takes {found.bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free there"
            else:
                self._copy = found.copied_to(self._device)
                refusal = None if self._copy else "returns items of several shapes from read_batch"
        if refusal:
            raise ValueError(
                f'data_on_device = True: {name} {refusal}. Leave it "auto", which copies what can be copied.'
            )

    def batches(
        self, batches: Iterable[Batch], *, epoch: int | None = None
    ) -> Generator[tuple[object, object]]:
        """Inputs and targets of each batch, on the device; TypeError if the data set's items are not pairs.

        ``epoch`` is the number for the data set's ``set_epoch``, which is not called with None.
        """
        if epoch is not None:
            self._fetched.set_epoch(epoch)
        self._look_for_copy()
        if self._copy is not None:
            return self._from_copy(self._copy, batches, epoch)
        # No generator itself: ``set_epoch`` may draw random numbers, and runs before the first step's seeds are set.
        if not self._processes:
            if self._fetched.holds_pairs_on(self._device):
                return self._gathered(batches)
            if self._ring is None:
                return self._read_here(batches, epoch)
        self._plan.orders = (BatchOrder(epoch, batch) for batch in batches)
        return self._pairs(self._arrived(self._read()))

    def _look_for_copy(self) -> None:
        """Make the copy that "auto" stands for, or drop one whose tensors were changed."""
        if self._copy is not None and not self._copy.is_current:
            self._copy = None
        if self._items is None or self._copy is not None:
            return
        if self._items.bytes <= self._share * free_bytes(self._device):
            self._copy = self._items.copied_to(self._device)
        if self._copy is not None or self._share == LARGE:
            self._items = None
        if self._copy is not None:
            self._loader = None
        self._share = LARGE

    def _from_copy(
        self, copy: DeviceCopy, batches: Iterable[Batch], epoch: int | None
    ) -> Generator[tuple[object, object]]:
        for batch in batches:
            if not copy.is_current:  # a tensor was changed in the midst of an epoch
                collated = self._fetched.__getitems__(BatchOrder(epoch, batch))
                yield self._on_device(*self._pair(collated), collated.seed)
                continue
            inputs, targets = copy.gathered(batch.indices)
            yield self._fetched.finished(inputs, targets, batch.seed)

    def _gathered(self, batches: Iterable[Batch]) -> Generator[tuple[object, object]]:
        for batch in batches:
            inputs, targets = self._fetched.gathered(batch.indices)
            yield inputs, targets

    def _read_here(self, batches: Iterable[Batch], epoch: int | None) -> Generator[tuple[object, object]]:
        """Batches that this process reads and that stay on the CPU."""
        for batch in batches:
            collated = self._fetched.__getitems__(BatchOrder(epoch, batch))
            yield self._on_device(*self._pair(collated), collated.seed)

    def _pairs(self, arrived: Generator[_Copy]) -> Generator[tuple[object, object]]:
        with closing(arrived) as copies:
            for copy in copies:
                yield copy.inputs, copy.targets

    def to_the_end(self, batch_size: int) -> Generator[tuple[object, object, int]]:
        """Inputs, targets and number of samples of all batches of this rank's samples of a stream, on the device."""

        def order(first: int) -> BatchOrder:
            indices = torch.arange(first, first + batch_size, device="cpu")
            seed = derive(self._seed, "evaluation", first)
            return BatchOrder(None, Batch(indices=indices, weight=1.0, seed=seed), once=True)

        # Not a list, because the number of batches is not known before the end of the stream.
        self._plan.orders = map(order, count(0, batch_size))
        with closing(self._arrived(self._read_until_short(batch_size))) as copies:
            for copy in copies:
                yield copy.inputs, copy.targets, copy.samples

    def close(self) -> None:
        """End the processes, and let go the plan, even if frames of an error still refer to this object."""
        self._loader, self._plan.orders = None, ()
        self._items = self._copy = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self) -> Generator[Collated]:
        if self._processes:
            yield from self._read_ahead()
            return
        for order in self._plan.orders:
            if self._ring is None:
                yield self._fetched.__getitems__(order)
            else:
                in_ring = self._fetched.gathered_into(self._ring, order.batch)
                yield in_ring or self._fetched.__getitems__(order).pin_memory()

    def _read_ahead(self) -> Generator[Collated]:
        if self._loader is None:
            self._loader = DataLoader(
                self._fetched,
                # DataLoader hands each element of a batch sampler to __getitems__ as it is.
                batch_sampler=self._plan,  # type: ignore[arg-type]
                collate_fn=_unchanged,  # type: ignore[arg-type]
                num_workers=self._processes,
                persistent_workers=True,
                pin_memory=is_gpu(self._device),
                # A generator of its own, because iterating would otherwise draw from the global generator.
                generator=torch.Generator(),
            )
        # DataLoader draws a number on the default device with a generator of the CPU, so both must be the same.
        with torch.device("cpu"):
            fetched_batches = iter(self._loader)
        for collated in fetched_batches:
            assert isinstance(collated, Collated)
            yield collated

    def _read_until_short(self, batch_size: int) -> Generator[Collated]:
        with closing(self._read()) as batches:
            for collated in batches:
                if collated.samples:
                    yield collated
                if collated.samples < batch_size:
                    return

    def _copies(self, batches: Generator[Collated]) -> Generator[_Copy]:
        with closing(batches):
            self._copy_after(())
            for collated in batches:
                inputs, targets = parts = self._pair(collated)
                if self._copying is None or self._ring is None:
                    yield _Copy(*self._on_device(inputs, targets, collated.seed), collated.samples, None)
                    continue
                self._ring.keep_up()
                if made_here := [tensor for tensor in tensors_in(parts) if is_gpu(tensor.device)]:
                    self._copy_after(made_here)
                with module_of(self._device).stream(self._copying):
                    inputs, targets = self._on_device(inputs, targets, collated.seed)
                copied = self._copying.record_event()
                self._ring.copied(copied)
                yield _Copy(inputs, targets, collated.samples, copied)

    def _pair(self, collated: Collated) -> tuple[object, object]:
        """Inputs and targets of a batch; TypeError if it has other parts."""
        parts = collated.parts
        if not isinstance(parts, (tuple, list)) or len(parts) != 2:
            raise TypeError(
                f"An item of {self._fetched.name}, or what collate returned, is no pair of inputs and target. "
                "Several inputs go into the first as a tuple or a dictionary, several targets into the second."
            )
        inputs, targets = parts
        return inputs, targets

    def _copy_after(self, made: Sequence[Tensor]) -> None:
        """Let copies wait for the GPU's operations so far.

        The data set may have ``made`` tensors of a batch on the GPU, or may keep tensors there for ``on_device``.
        """
        if self._copying is None:
            return
        self._copying.wait_stream(module_of(self._device).current_stream(self._device))
        # Without this, the tensors' memory might be used again while the copy still reads it.
        for tensor in made:
            tensor.record_stream(self._copying)

    def _on_device(self, inputs: object, targets: object, seed: int) -> tuple[object, object]:
        """Inputs and targets on the device, for the model and the loss, once the current stream has reached this."""
        return self._fetched.finished(moved(inputs, self._device), moved(targets, self._device), seed)

    def _arrived(self, batches: Generator[Collated]) -> Generator[_Copy]:
        # Batches of other processes are read already, so the copy of a batch begins while the batch before is computed.
        waiting = 1 if self._processes and self._copying is not None else 0
        under_way: deque[_Copy] = deque()
        with closing(self._copies(batches)) as copies:
            for copy in copies:
                under_way.append(copy)
                if len(under_way) > waiting:
                    yield self._ready(under_way.popleft())
            while under_way:
                yield self._ready(under_way.popleft())

    def _ready(self, copy: _Copy) -> _Copy:
        if copy.copied is not None:
            computing = module_of(self._device).current_stream(self._device)
            computing.wait_event(copy.copied)
            # Without this, the tensors' memory might be used for the next copy while it is still read.
            for tensor in tensors_in((copy.inputs, copy.targets)):
                if is_gpu(tensor.device):
                    tensor.record_stream(computing)
        return copy
