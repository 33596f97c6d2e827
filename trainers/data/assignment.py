"""Assignments in which ranks share samples (thesis 004, section 4.1), beside ``Disjoint``.

After one shuffle each sample is given to C ranks for the whole run; C is the number of copies. A rank goes through its
own samples in an order of its own, shuffled for each *overlap epoch*, which takes as long as C epochs of the loop: in
an epoch of the loop the ranks together take as many samples as the set has, whatever the assignment, so that runs are
validated and compared after equal work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor

from trainers.arguments import check_kinds
from trainers.data.batches import Batch, Plan, refuse_too_few, share
from trainers.randomness import derive

_CANDIDATES = 16
_ROUNDS = 512


def effective_epochs(epochs: int, copies: int) -> int:
    """``epochs``, rounded up so that each sample is seen equally often: ⌈E / C⌉ · C.

    Args:
        epochs (int): E, of the training loop.
        copies (int): C, how many ranks have each sample.
    """
    return math.ceil(epochs / copies) * copies


@dataclass(frozen=True, kw_only=True)
class Overlapping(ABC):
    """Base of the assignments below."""

    def __post_init__(self) -> None:
        check_kinds(self)

    @abstractmethod
    def copies_of(self, ranks: int) -> int:
        """Number of ``ranks`` that each sample is given to; ValueError if the settings do not fit them."""

    @abstractmethod
    def holders(self, samples: int, ranks: int, seed: int) -> list[Tensor]:
        """Indices of the samples of each rank, in no order that matters, the same in all epochs."""

    def epoch(
        self, *, samples: int, epoch: int, seed: int, rank: int, ranks: int, batch_size: int, accumulate: int
    ) -> Plan:
        """Same as ``Disjoint.epoch``."""
        copies = self.copies_of(ranks)
        held = _held(self, samples, ranks, seed)
        parts = [share(len(own), rank=epoch % copies, ranks=copies) for own in held]
        refuse_too_few(min(map(len, parts)), samples, parts=accumulate, ranks=ranks, accumulate=accumulate)
        # Counted over all epochs, as the loop expects as many steps in each.
        largest = max(-(-len(own) // copies) for own in held)
        fewest = min(len(own) // copies for own in held)
        steps = min(-(-largest // (accumulate * batch_size)), max(1, fewest // accumulate))
        pieces = steps * accumulate

        @cache
        def mine() -> Tensor:
            generator = torch.Generator("cpu").manual_seed(derive(seed, "order", epoch // copies, rank))
            order = torch.randperm(len(held[rank]), generator=generator, device="cpu")
            return held[rank][order][parts[rank].start : parts[rank].stop]

        def of_step(step: int) -> list[Batch]:
            first, last = step * accumulate, (step + 1) * accumulate
            all_ranks = sum(last * len(part) // pieces - first * len(part) // pieces for part in parts)
            batches = []
            for turn in range(accumulate):
                own = share(len(parts[rank]), rank=first + turn, ranks=pieces)
                batches.append(
                    Batch(
                        indices=mine()[own.start : own.stop],
                        weight=len(own) * ranks * accumulate / all_ranks,
                        seed=derive(seed, "augmentation", epoch, step, turn * ranks + rank),
                    )
                )
            return batches

        return Plan(steps, of_step)


@dataclass(frozen=True, kw_only=True)
class Coarse(Overlapping):
    """Every rank has one of ``shards`` parts of the set: rank i has part i mod S, so that M / S ranks have equal
    samples.

    S = M gives every rank a part of its own for the whole run. S = H_S · M / H gives H households of consecutive
    ranks H_S household shards (section 4.2.1).

    Args:
        shards (int): S, a divisor of the number of ranks M.
    """

    shards: int

    def copies_of(self, ranks: int) -> int:
        if self.shards < 1 or ranks % self.shards:
            raise ValueError(
                f"{self}: {ranks} ranks cannot share {self.shards} shards evenly. Choose a divisor of {ranks}."
            )
        return ranks // self.shards

    def holders(self, samples: int, ranks: int, seed: int) -> list[Tensor]:
        shards = _shards(samples, self.shards, seed)
        return [shards[rank % self.shards] for rank in range(ranks)]


@dataclass(frozen=True, kw_only=True)
class FullOverlap(Overlapping):
    """Every rank has all samples."""

    def copies_of(self, ranks: int) -> int:
        return ranks

    def holders(self, samples: int, ranks: int, seed: int) -> list[Tensor]:
        return [torch.arange(samples)] * ranks


@dataclass(frozen=True, kw_only=True)
class _Copied(Overlapping):
    copies: int

    def copies_of(self, ranks: int) -> int:
        if not 1 <= self.copies <= ranks:
            raise ValueError(
                f"{self}: the number of copies must be from 1 to the {ranks} ranks. Correct it, or start more."
            )
        return self.copies


@dataclass(frozen=True, kw_only=True)
class MediumCoarse(_Copied):
    """As many parts as ranks; rank i has ``copies`` parts from the i-th on, so that no two have equal samples.

    Args:
        copies (int): how many ranks have each sample, from 1 to all.
    """

    def holders(self, samples: int, ranks: int, seed: int) -> list[Tensor]:
        shards = _shards(samples, ranks, seed)
        return [
            torch.cat([shards[(rank + offset) % ranks] for offset in range(self.copies)])
            for rank in range(ranks)
        ]


@dataclass(frozen=True, kw_only=True)
class FineGrained(_Copied):
    """Each sample on ``copies`` ranks, chosen such that all pairs of ranks share about as many samples.

    Args:
        copies (int): how many ranks have each sample, from 1 to all.
    """

    def holders(self, samples: int, ranks: int, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(derive(seed, "holders"))
        order = torch.randperm(samples, generator=generator)
        window = (torch.arange(ranks)[:, None] + torch.arange(self.copies)) % ranks
        # A round gives each of as many samples as ranks to a window of a permuted ring: every rank gets equally many.
        # How often two places of the ring lie in one window:
        together = torch.zeros(ranks, ranks, dtype=torch.float64)
        for places in window:
            together[places[:, None], places] += 1
        rings = _rings(together, -(-samples // ranks), generator)
        ranks_of_sample = rings[:, window].flatten(0, 1)[:samples]
        return [order[(ranks_of_sample == rank).any(1)] for rank in range(ranks)]


def _rings(together: Tensor, rounds: int, generator: torch.Generator) -> Tensor:
    """A permutation of the ranks for each of ``rounds``, such that all pairs share about as much.

    ``together``: what the ranks at two places share in a round. After ``_ROUNDS`` the rounds so far repeat as a block,
    with other ranks in their places, chosen in the same way: choosing each would take seconds.
    """
    ranks = len(together)
    first, second = together.triu(1).nonzero().T
    weights = together[first, second]
    shared = torch.zeros(ranks * ranks, dtype=torch.float64)
    chosen = []
    for _ in range(min(rounds, _ROUNDS)):
        rings = torch.rand(_CANDIDATES, ranks, generator=generator).argsort(1)
        pairs = rings[:, first] * ranks + rings[:, second]
        # The random ring whose places join those ranks that share the least so far.
        best = (shared[pairs] @ weights).argmin()
        ring, pair = rings[best], pairs[best]
        shared[pair] += weights
        shared[pair % ranks * ranks + pair // ranks] += weights
        chosen.append(ring)
    block = torch.stack(chosen)
    if rounds <= _ROUNDS:
        return block
    blocks = _rings(shared.view(ranks, ranks), -(-rounds // _ROUNDS), generator)
    return blocks[:, block].flatten(0, 1)[:rounds]


@lru_cache(maxsize=8)
def _held(assignment: Overlapping, samples: int, ranks: int, seed: int) -> tuple[Tensor, ...]:
    return tuple(assignment.holders(samples, ranks, seed))


def _shards(samples: int, shards: int, seed: int) -> list[Tensor]:
    """The shuffled samples cut into parts that differ by one at most."""
    generator = torch.Generator().manual_seed(derive(seed, "shards"))
    return list(torch.tensor_split(torch.randperm(samples, generator=generator), shards))
