"""Assignment of samples to ranks and steps, and checks of data sets."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainers.data.streams import gives_by_number, stream_of
from trainers.randomness import derive


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples of a rank in a forward and backward pass."""

    indices: Tensor
    """Indices of the samples."""
    weight: float
    """Factor of the mean loss of these samples, so that its mean over ranks and passes is that over all samples."""
    seed: int
    """Seed of random augmentation."""


class Assignment(Protocol):
    """Assignment of samples to ranks.

    A checkpoint keeps its ``repr``, so that a run is resumed with the same assignment: it must have the settings, like
    that of a dataclass. Without a ``__repr__``, class and arguments of the constructor count.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> list[list[Batch]]:
        """Batches of this rank: a list of ``accumulate`` batches for each step; all ranks have equally many steps."""
        ...


@dataclass(frozen=True, kw_only=True)
class Disjoint:
    """Assignment by a new permutation in each epoch, in which each sample is used once, by one rank.

    The samples of a step do not depend on the numbers of ranks and passes that share them. Batches differ by at most
    one sample, so that an epoch has no small batch at its end, which would be noisy and disturb batch normalisation.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> list[list[Batch]]:
        """Batches of this rank in an epoch: a list of ``accumulate`` batches for each optimizer step, each with the
        indices of its samples, its weight in the mean over ranks, and a seed.

        Args:
            samples (int): number of samples of the training set.
            epoch (int): number of the epoch, from 0.
            seed (int): seed of the run.
            rank (int): this rank.
            ranks (int): number of ranks.
            batch_size (int): samples per rank and backward pass.
            accumulate (int): backward passes per step.

        Raises:
            ValueError: there are too few samples for the ranks.
        """
        steps = _even_steps(samples, ranks, batch_size, accumulate)
        # A generator of its own gives the same permutation on all ranks, whatever they have drawn before.
        generator = torch.Generator().manual_seed(derive(seed, "order", epoch))
        order = torch.randperm(samples, generator=generator)
        planned = []
        for step, of_step in enumerate(steps):
            passes = []
            for part in range(accumulate):
                position = part * ranks + rank
                mine = of_step.part(position)
                passes.append(
                    Batch(
                        indices=order[mine.start : mine.stop],
                        weight=of_step.weight(position),
                        seed=derive(seed, "augmentation", epoch, step, position),
                    )
                )
            planned.append(passes)
        return planned


@dataclass(frozen=True, kw_only=True)
class InTurn:
    """Same as ``Disjoint`` for a stream: indices count this rank's own samples, in order.

    A rank's own samples are those that it gets if samples go to the ranks in turn; with a sharded stream, the same
    number of its own stream.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> list[list[Batch]]:
        """Same as ``Disjoint.epoch``."""
        planned, taken = [], 0
        for step, of_step in enumerate(_even_steps(samples, ranks, batch_size, accumulate)):
            # Exactly the samples of this step that the rank gets in turn, so that at the end of an epoch no sample is
            # left over or needed twice.
            first = of_step.samples.start
            own = len(range(first + (rank - first) % ranks, of_step.samples.stop, ranks))
            passes = []
            for part in range(accumulate):
                count = len(share(own, rank=part, ranks=accumulate))
                passes.append(
                    Batch(
                        indices=torch.arange(taken, taken + count),
                        weight=count * of_step.parts / len(of_step.samples),
                        seed=derive(seed, "augmentation", epoch, step, part * ranks + rank),
                    )
                )
                taken += count
            planned.append(passes)
        return planned


@dataclass(frozen=True)
class _Step:
    """Samples of a step, in ``parts`` that differ by at most one sample."""

    samples: range
    parts: int

    def part(self, position: int) -> range:
        size = len(self.samples)
        return self.samples[position * size // self.parts : (position + 1) * size // self.parts]

    def weight(self, position: int) -> float:
        return len(self.part(position)) * self.parts / len(self.samples)


def _even_steps(samples: int, ranks: int, batch_size: int, accumulate: int) -> list[_Step]:
    """Steps of an epoch, which differ by at most one sample; ValueError for fewer samples than batches in a step."""
    parts = ranks * accumulate
    if samples < parts:
        raise ValueError(
            f"{samples} samples for {ranks} ranks with {accumulate} accumulated batches each: every "
            "batch needs a sample. Use fewer ranks, accumulate less or bring more data."
        )
    # The second number is smaller only for batches of a single sample that are not even: some batches then have two
    # samples, as none may be empty.
    steps = min(-(-samples // (parts * batch_size)), samples // parts)
    return [
        _Step(range(step * samples // steps, (step + 1) * samples // steps), parts) for step in range(steps)
    ]


def share(samples: int, *, rank: int, ranks: int) -> range:
    """Consecutive part of ``samples`` samples for this rank; parts differ by at most one sample."""
    return range(rank * samples // ranks, (rank + 1) * samples // ranks)


def in_order(indices: Sequence[int], *, batch_size: int) -> list[Batch]:
    """``indices`` in batches of ``batch_size``, for evaluation."""
    return [
        Batch(indices=torch.tensor(indices[i : i + batch_size], device="cpu"), weight=1.0, seed=indices[i])
        for i in range(0, len(indices), batch_size)
    ]


def _of_pairs(samples: object) -> bool:
    """Whether ``samples`` may be pairs: a list or tuple that is empty or begins with a pair, or any other object."""
    # Subclasses of list and tuple are not examined, as they may return other items than they contain.
    if type(samples) is not list and type(samples) is not tuple:
        return True
    first = samples[0] if samples else ((), ())
    return isinstance(first, (tuple, list)) and len(first) == 2


def length_of(samples: object, which: str = "") -> int:
    """Number of samples of a data set, or of an epoch of a stream.

    Args:
        samples (object): the data set.
        which (str; default ""): name of the data set in errors.

    Raises:
        TypeError: ``samples`` is no data set, or has no length.
        ValueError: the data set is empty.
    """
    named = f"{which}: {type(samples).__name__}" if which else type(samples).__name__
    if isinstance(samples, DataLoader):
        raise TypeError(f"{named} deals samples itself, and here ranks are dealt theirs. Pass its data set.")
    if isinstance(samples, Tensor) or not _of_pairs(samples):
        raise TypeError(
            f"{named} holds no pairs of inputs and target. Of two tensors make a data set: "
            "torch.utils.data.TensorDataset(inputs, targets)."
        )
    stream = stream_of(samples)
    if stream is not None:
        if stream.known_length is None:
            raise TypeError(
                f"{named} streams its samples and does not say how many an epoch has. Say it: "
                "trainers.Stream(samples, length=…), of all ranks together."
            )
        if not stream.known_length:
            raise ValueError(f"{named} is empty. Bring data.")
        return stream.known_length
    if not isinstance(samples, Sized):
        raise TypeError(f"{named} has no length: samples cannot be dealt to ranks. Give it a __len__.")
    if not gives_by_number(samples):
        raise TypeError(f"{named} gives no sample by its number. Give it a __getitem__.")
    if not len(samples):
        raise ValueError(f"{named} is empty. Bring data.")
    return len(samples)
