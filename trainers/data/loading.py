"""Which samples each rank sees at each step, and their way from the data set to the device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from trainers.randomness import derive, generators_kept, seed_generators


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one rank feeds forward and backward at once.

    ``weight`` times the mean loss of these samples, averaged over the ranks and passes of a step, is the mean
    over the step's samples. ``seed`` is for random augmentation.
    """

    indices: Tensor
    weight: float
    seed: int


class Assignment(Protocol):
    """How samples are dealt to ranks.

    A checkpoint keeps its ``repr`` to know whether a run goes on with the same one: it must name the settings,
    as a dataclass's does. That of a class without a ``__repr__`` of its own differs in every process, and
    nothing could be resumed.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> list[list[Batch]]:
        """This rank's batches: a list for each step, which all ranks have as many of, of ``accumulate`` ones."""
        ...


@dataclass(frozen=True, kw_only=True)
class Disjoint:
    """Every epoch a new permutation, dealt so that each sample is seen once by one rank.

    The samples of a step do not depend on how many ranks and passes share them. Batches differ by at most one
    sample: an epoch that is no multiple of the batch size has no small rest, which would be noisy and upset
    batch normalisation.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> list[list[Batch]]:
        """The batches of this rank in an epoch: for each optimizer step a list of ``accumulate`` batches, each with
        the indices of its samples, its weight in the mean over ranks, and a seed.

        Args:
            samples (int): in the training set.
            epoch (int): from 0.
            seed (int): of the run.
            rank (int): this one.
            ranks (int): their number.
            batch_size (int): samples per rank and backward pass.
            accumulate (int): backward passes per step.

        Raises:
            ValueError: there are too few samples for the ranks.
        """
        parts = ranks * accumulate
        if samples < parts:
            raise ValueError(
                f"{samples} samples for {ranks} ranks with {accumulate} accumulated batches each: every "
                "batch needs a sample. Use fewer ranks, accumulate less or bring more data."
            )
        # The second number is smaller only for batches of one sample that do not come out even: better two
        # than none.
        steps = min(-(-samples // (parts * batch_size)), samples // parts)
        generator = torch.Generator().manual_seed(derive(seed, "order", epoch))
        order = torch.randperm(samples, generator=generator)
        planned = []
        for step in range(steps):
            first, last = step * samples // steps, (step + 1) * samples // steps
            size = last - first
            passes = []
            for part in range(accumulate):
                position = part * ranks + rank
                start, end = first + position * size // parts, first + (position + 1) * size // parts
                passes.append(
                    Batch(
                        indices=order[start:end],
                        weight=(end - start) * parts / size,
                        seed=derive(seed, "augmentation", epoch, step, position),
                    )
                )
            planned.append(passes)
        return planned


def share(samples: int, *, rank: int, ranks: int) -> range:
    """This rank's consecutive part of ``samples``, in order; parts differ by at most one sample."""
    return range(rank * samples // ranks, (rank + 1) * samples // ranks)


def in_order(indices: Sequence[int], *, batch_size: int) -> list[Batch]:
    """``indices`` cut into batches of ``batch_size``, for evaluation."""
    return [
        Batch(indices=torch.tensor(indices[i : i + batch_size], device="cpu"), weight=1.0, seed=indices[i])
        for i in range(0, len(indices), batch_size)
    ]


def _of_pairs(samples: object) -> bool:
    """Whether ``samples`` is no tuple or list, or begins with a pair, or is empty."""
    # Not subclasses, which may give other items than they hold.
    if type(samples) is not list and type(samples) is not tuple:
        return True
    first = samples[0] if samples else ((), ())
    return isinstance(first, (tuple, list)) and len(first) == 2


def _gives_by_number(samples: object) -> bool:
    own = getattr(type(samples), "__getitem__", None)
    # Dataset's raises NotImplementedError, and an IterableDataset has none but that.
    return own not in (None, Dataset.__getitem__) or any(
        hasattr(samples, name) for name in ("__getitems__", "read_batch")
    )


def length_of(samples: object, which: str = "") -> int:
    """The number of samples. TypeError for what is no data set with a length, ValueError for an empty one, both of
    which name it as ``which``.
    """
    named = f"{which}: {type(samples).__name__}" if which else type(samples).__name__
    if isinstance(samples, DataLoader):
        raise TypeError(f"{named} deals samples itself, and here ranks are dealt theirs. Pass its data set.")
    if isinstance(samples, Tensor) or not _of_pairs(samples):
        raise TypeError(
            f"{named} holds no pairs of inputs and target. Of two tensors make a data set: "
            "torch.utils.data.TensorDataset(inputs, targets)."
        )
    if isinstance(samples, IterableDataset) and not _gives_by_number(samples):
        raise TypeError(
            f"{named} streams its samples, and ranks are dealt theirs by number. Make it a torch.utils.data.Dataset "
            "with __getitem__ and __len__."
        )
    if not isinstance(samples, Sized):
        raise TypeError(f"{named} has no length: samples cannot be dealt to ranks. Give it a __len__.")
    if not _gives_by_number(samples):
        raise TypeError(f"{named} gives no sample by its number. Give it a __getitem__.")
    if not len(samples):
        raise ValueError(f"{named} is empty. Bring data.")
    return len(samples)


@runtime_checkable
class ReadsBatches(Protocol):
    """A data set that gives many items faster together than one by one, and stacked; it is asked so.

    One that has torch's ``__getitems__`` is asked for that, and its items are stacked here.
    """

    def read_batch(self, indices: Tensor) -> tuple[object, Tensor]:
        """Inputs and targets of these items, along a first axis."""
        ...


class _Fetched(Dataset[object]):
    """A data set that is asked for whole batches, each under the batch's own seed."""

    def __init__(self, samples: Dataset[object]) -> None:
        self._samples = samples

    def __getitems__(self, batch: Batch) -> object:
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


def load(
    samples: Dataset[object], batches: Sequence[Batch], *, device: torch.device, processes: int
) -> Generator[tuple[object, Tensor]]:
    """(inputs, targets) of each batch, on ``device``; ``processes`` of them read ahead, this one alone if 0.

    TypeError if the data set's items are not pairs.
    """
    loader: DataLoader[object] = DataLoader(
        _Fetched(samples),
        # DataLoader hands each element of a batch sampler to __getitems__ as it is.
        batch_sampler=batches,  # type: ignore[arg-type]
        collate_fn=_Collated,
        num_workers=processes,
        pin_memory=device.type == "cuda",
        # A generator of its own: iterating would otherwise draw from the global one.
        generator=torch.Generator(),
    )
    # It draws a number, on the default device with a generator of the CPU.
    with torch.device("cpu"):
        fetched_batches = iter(loader)
    for collated in fetched_batches:
        assert isinstance(collated, _Collated)
        fetched = collated.parts
        if not isinstance(fetched, (tuple, list)) or len(fetched) != 2 or not isinstance(fetched[1], Tensor):
            raise TypeError(
                f"An item of {type(samples).__name__} is no pair of inputs and target. "
                "Several inputs go into the first as a tuple or a dictionary."
            )
        yield moved(fetched[0], device), moved(fetched[1], device)  # type: ignore[misc]


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
