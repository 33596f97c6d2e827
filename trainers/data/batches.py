"""Assignment of samples to ranks and steps, and checks of data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import cache
from typing import Protocol, overload

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from trainers.data.streams import gives_by_number, stream_of
from trainers.randomness import derive


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Samples of a rank in a forward and backward pass."""

    indices: Tensor
    weight: float
    """Factor of the mean loss of these samples, so that its mean over ranks and passes is that over all samples."""
    seed: int
    """Seed of random augmentation."""


class Plan(Sequence[Sequence[Batch]]):
    """Batches of a rank in each step of an epoch, made by ``of_step(step)`` when they are read: all of a long epoch
    would hold up its first step.
    """

    def __init__(self, steps: int, of_step: Callable[[int], Sequence[Batch]]) -> None:
        self._steps, self._of_step = range(steps), of_step

    def __len__(self) -> int:
        return len(self._steps)

    @overload
    def __getitem__(self, step: int) -> Sequence[Batch]: ...
    @overload
    def __getitem__(self, step: slice) -> Sequence[Sequence[Batch]]: ...
    def __getitem__(self, step: int | slice) -> Sequence[Batch] | Sequence[Sequence[Batch]]:
        if isinstance(step, slice):
            return [self._of_step(number) for number in self._steps[step]]
        return self._of_step(self._steps[step])


class SampleAssignment(Protocol):
    """Assignment of samples to ranks.

    A checkpoint keeps its ``repr``, so that a run is resumed with the same assignment: it must have the settings, like
    that of a dataclass. Without a ``__repr__``, class and arguments of the constructor count.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> Sequence[Sequence[Batch]]:
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
    ) -> Plan:
        """Batches of ``rank`` in an epoch of ``samples`` samples: a list of ``accumulate`` batches for each optimizer
        step; ValueError if there are too few samples for the ranks.
        """
        parts = ranks * accumulate
        steps = _even_steps(samples, ranks, batch_size, accumulate)

        @cache
        def order() -> Tensor:
            # A generator of its own gives the same permutation on all ranks, whatever they have drawn before.
            generator = torch.Generator("cpu").manual_seed(derive(seed, "order", epoch))
            return torch.randperm(samples, generator=generator, device="cpu")

        def of_step(step: int) -> list[Batch]:
            all_ranks = share(samples, rank=step, ranks=steps)
            batches = []
            for position in range(rank, parts, ranks):
                mine = share(len(all_ranks), rank=position, ranks=parts)
                batches.append(
                    Batch(
                        indices=order()[all_ranks.start + mine.start : all_ranks.start + mine.stop],
                        weight=len(mine) * parts / len(all_ranks),
                        seed=derive(seed, "augmentation", epoch, step, position),
                    )
                )
            return batches

        return Plan(steps, of_step)


@dataclass(frozen=True, kw_only=True)
class InTurn:
    """Same as ``Disjoint`` for a stream: indices count this rank's own samples, in order.

    A rank's own samples are those that it gets if samples go to the ranks in turn; with a sharded stream, the same
    number of its own stream.
    """

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> Plan:
        """Same as ``Disjoint.epoch``."""
        steps = _even_steps(samples, ranks, batch_size, accumulate)

        def before(number: int) -> int:
            """How many of the first ``number`` samples the rank gets in turn."""
            return len(range(rank, number, ranks))

        def of_step(step: int) -> list[Batch]:
            all_ranks = share(samples, rank=step, ranks=steps)
            # Exactly the samples of this step that the rank gets in turn, so that at the end of an epoch no sample is
            # left over or needed twice.
            taken = before(all_ranks.start)
            own = before(all_ranks.stop) - taken
            passes = []
            for part in range(accumulate):
                mine = share(own, rank=part, ranks=accumulate)
                passes.append(
                    Batch(
                        indices=torch.arange(taken + mine.start, taken + mine.stop, device="cpu"),
                        weight=len(mine) * ranks * accumulate / len(all_ranks),
                        seed=derive(seed, "augmentation", epoch, step, part * ranks + rank),
                    )
                )
            return passes

        return Plan(steps, of_step)


def _even_steps(samples: int, ranks: int, batch_size: int, accumulate: int) -> int:
    """Number of steps of an epoch, which share the samples evenly; ValueError if there are too few for the ranks."""
    parts = ranks * accumulate
    refuse_too_few(samples, samples, parts=parts, ranks=ranks, accumulate=accumulate)
    # The second number is smaller only for batches of a single sample that are not even: some batches then have two
    # samples, as none may be empty.
    return min(-(-samples // (parts * batch_size)), samples // parts)


def refuse_too_few(fewest: int, samples: int, *, parts: int, ranks: int, accumulate: int) -> None:
    """ValueError if ``fewest`` of ``samples`` samples are shared by more ``parts``."""
    if fewest < parts:
        raise ValueError(
            f"{samples} samples for {ranks} ranks with {accumulate} accumulated batches each: every "
            "batch needs a sample. Use fewer ranks, accumulate less or bring more data."
        )


def share(samples: int, *, rank: int, ranks: int) -> range:
    """Consecutive part of ``samples`` samples for this rank; parts differ by at most one sample."""
    return range(rank * samples // ranks, (rank + 1) * samples // ranks)


def in_order(indices: Sequence[int], *, batch_size: int) -> list[Batch]:
    """``indices`` in batches of ``batch_size``, for evaluation."""
    whole = torch.tensor(indices, dtype=torch.int64, device="cpu")
    return [
        Batch(indices=whole[first : first + batch_size], weight=1.0, seed=indices[first])
        for first in range(0, len(indices), batch_size)
    ]


def length_of(samples: object, which: str = "") -> int:
    """Number of samples of a data set, or of an epoch of a stream, that errors name ``which``.

    TypeError if ``samples`` is no data set, or has no length; ValueError if it is empty.
    """
    named = f"{which}: {type(samples).__name__}" if which else type(samples).__name__
    if isinstance(samples, DataLoader):
        raise TypeError(f"{named} deals samples itself, and here ranks are dealt theirs. Pass its data set.")
    if isinstance(samples, Tensor) or not _may_hold_pairs(samples):
        raise TypeError(
            f"{named} holds no pairs of inputs and target. Make a data set of two tensors, as by "
            "torch.utils.data.TensorDataset(inputs, targets)."
        )
    if (stream := stream_of(samples)) is not None:
        length = stream.known_length
        if length is None:
            raise TypeError(
                f"{named} streams its samples and does not say how many an epoch has. Say it: "
                "trainers.Stream(samples, length=…), of all ranks together."
            )
    elif not isinstance(samples, Sized):
        raise TypeError(f"{named} has no length: samples cannot be dealt to ranks. Give it a __len__.")
    elif not gives_by_number(samples):
        raise TypeError(f"{named} gives no sample by its number. Give it a __getitem__.")
    else:
        length = len(samples)
    if not length:
        raise ValueError(f"{named} is empty. Bring data.")
    return length


def _may_hold_pairs(samples: object) -> bool:
    """Whether ``samples`` is no list or tuple, or one that is empty or begins with a pair."""
    # Subclasses of list and tuple are not examined, as they may return other items than they contain.
    if type(samples) is not list and type(samples) is not tuple:
        return True
    first = samples[0] if samples else ((), ())
    return isinstance(first, (tuple, list)) and len(first) == 2
