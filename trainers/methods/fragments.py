"""Fragments of the parameters, which ranks that train apart exchange in turn (Streaming DiLoCo, Douillard et al. 2025,
arXiv 2501.18512, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trainers.names import format_of


class Tensors(Protocol):
    """List of tensors, or ``Fragment``."""

    def __iter__(self) -> Iterator[Tensor]: ...
    def __getitem__(self, index: int, /) -> Tensor: ...


@dataclass(frozen=True)
class Fragment:
    """Flat views of elements of tensors, in their order in memory.

    A view is made when it is asked for, as an optimizer may give a parameter other memory (SAM does).
    """

    cuts: list[tuple[Tensor, int, int]]
    """Tensors with the numbers of the first element and the end."""

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self.cuts)))

    def __getitem__(self, index: int) -> Tensor:
        tensor, first, end = self.cuts[index]
        flat = tensor.detach()
        return flat.as_strided((end - first,), (1,), flat.storage_offset() + first)


def fragments_of(tensors: list[Tensor], count: int) -> list[Tensors]:
    """``count`` parts of ``tensors``, in their order, with the same numbers of elements, but for one.

    ValueError if a tensor is not dense in memory, and there are several parts.
    """
    if count == 1:
        return [tensors]
    total, begin = sum(tensor.numel() for tensor in tensors), 0
    bounds = [(total * index // count, total * (index + 1) // count) for index in range(count)]
    fragments = [Fragment([]) for _ in bounds]
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=format_of(tensor)):
            raise ValueError(
                f"fragments={count}: a trained parameter of shape {tuple(tensor.shape)} has strides "
                f"{tensor.stride()}, and is not cut. Make it contiguous, or use fragments=1."
            )
        length = tensor.numel()
        for fragment, (low, high) in zip(fragments, bounds, strict=True):
            first, end = max(0, low - begin), min(length, high - begin)
            if first < end:
                fragment.cuts.append((tensor, first, end))
        begin += length
    return [*fragments]


@dataclass(kw_only=True)
class Rota:
    """Fragments that are due at a step: of ``count``, number i at step (i + 1) B // ``count`` of each period of B."""

    count: int
    since: int = 0
    """Steps since the last period ended, or all fragments met."""
    sent: int = 0
    """Fragments that were due since then."""

    def due(self, every: int) -> range:
        """Numbers of the fragments that are due in this step of a period of ``every``, which may have changed."""
        first = self.sent
        while self.sent < self.count and self.since >= max(1, (self.sent + 1) * every // self.count):
            self.sent += 1
        found = range(first, self.sent)
        if self.sent == self.count:
            self.meet()
        return found

    def meet(self) -> None:
        """Begin a period, as all fragments have been exchanged."""
        self.since = self.sent = 0
