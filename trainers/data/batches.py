"""Which samples each rank sees at each step, and what a data set has to be for that."""

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
    """What one rank feeds forward and backward at once.

    ``weight`` times the mean loss of these samples, averaged over the ranks and passes of a step, is the mean
    over the step's samples. ``seed`` is for random augmentation.
    """

    indices: Tensor
    weight: float
    seed: int


class Assignment(Protocol):
    """How samples are dealt to ranks.

    A checkpoint keeps its ``repr`` to know whether a run goes on with the same assignment: it must name the settings,
    as a dataclass's does. Without a ``__repr__`` of its own, class and constructor arguments count.
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
        steps = _even_steps(samples, ranks, batch_size, accumulate)
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
    """As ``Disjoint``, of a stream: the indices are those of this rank's own samples, in order. It has those that come
    to it where samples go to the ranks in turn; of a stream that is sharded, as many of its own.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> list[list[Batch]]:
        """As ``Disjoint.epoch``."""
        planned, taken = [], 0
        for step, of_step in enumerate(_even_steps(samples, ranks, batch_size, accumulate)):
            # Of the stream's samples in this step those that are this rank's, and no others of its own: at the end
            # none is left, and none is needed twice.
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
    """The samples of a step, in ``parts`` that differ by at most one."""

    samples: range
    parts: int

    def part(self, position: int) -> range:
        size = len(self.samples)
        return self.samples[position * size // self.parts : (position + 1) * size // self.parts]

    def weight(self, position: int) -> float:
        return len(self.part(position)) * self.parts / len(self.samples)


def _even_steps(samples: int, ranks: int, batch_size: int, accumulate: int) -> list[_Step]:
    """The steps of an epoch, which differ by at most one sample. ValueError if there are too few."""
    parts = ranks * accumulate
    if samples < parts:
        raise ValueError(
            f"{samples} samples for {ranks} ranks with {accumulate} accumulated batches each: every "
            "batch needs a sample. Use fewer ranks, accumulate less or bring more data."
        )
    # The second number is smaller only for batches of one sample that do not come out even: better two
    # than none.
    steps = min(-(-samples // (parts * batch_size)), samples // parts)
    return [
        _Step(range(step * samples // steps, (step + 1) * samples // steps), parts) for step in range(steps)
    ]


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


def length_of(samples: object, which: str = "") -> int:
    """The number of samples, of an epoch if they stream. TypeError for what is no data set with a length, ValueError
    for an empty one, both of which name it as ``which``.
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
