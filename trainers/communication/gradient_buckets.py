"""Buckets that are the gradients' memory, in place of a second copy of all gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainers.communication.averager import GradientAverager, refuse_sparse
from trainers.communication.buckets import Bucket
from trainers.communication.channel import Channel


@dataclass(eq=False)
class GradientBucket(Bucket):
    """Bucket of parameters, whose gradients become its views.

    Where something keeps a gradient of the step before, as some optimizers do, the bucket gets new memory.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._own_references = self._references()

    def _references(self) -> list[int]:
        """Numbers of tensors in the bucket's memory, and of references to each view."""
        return [
            torch._C._storage_Use_Count(self.flat.untyped_storage()._cdata),
            *map(sys.getrefcount, self.views),
        ]

    def adopt(self) -> None:
        """Copy gradients that lie elsewhere to the bucket, and have parameters take the views in their place."""
        if all(
            one.grad is None or one.grad is view for one, view in zip(self.tensors, self.views, strict=True)
        ):
            return
        if self._references() != self._own_references:  # kept, which the next values would overwrite
            self.__post_init__()
        moved = [
            (parameter, view, parameter.grad)
            for parameter, view in zip(self.tensors, self.views, strict=True)
            if parameter.grad is not None and parameter.grad is not view
        ]
        for _, _, gradient in moved:
            refuse_sparse(gradient)
        torch._foreach_copy_([view for _, view, _ in moved], [gradient for _, _, gradient in moved])
        for parameter, view, _ in moved:
            parameter.grad = view

    def pack(self, values: Sequence[Tensor]) -> Tensor:
        """The buffer, once it is the memory of the gradients, which ``values`` are."""
        self.adopt()
        return self.flat

    def unpack(self, into: Sequence[Tensor]) -> None:
        """Copy the buffer to gradients that have been replaced since."""
        others = [(one, view) for one, view in zip(into, self.views, strict=True) if one is not view]
        if others:
            torch._foreach_copy_([one for one, _ in others], [view for _, view in others])


class InPlaceAverager(GradientAverager):
    """Averager of uncompressed gradients, which lie in its buckets, as with torch's ``gradient_as_bucket_view``.

    A gradient that a backward pass makes elsewhere moves to its bucket once all of the bucket's are there, so that
    beside the buckets there are never more than those of the buckets that are not full yet.

    Args:
        parameters (iterable): parameters, of which those that require a gradient are averaged.
        channel (Channel): ranks to average over.
        keep_none (bool): the same as for ``GradientAverager``.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], channel: Channel, *, keep_none: bool) -> None:
        super().__init__(parameters, channel, keep_none=keep_none)
        self._buckets: list[GradientBucket] = [  # type: ignore[assignment]
            GradientBucket(bucket.tensors, bucket.wire_dtype, bucket.with_flags) for bucket in self._buckets
        ]
        self._made = [0] * len(self._buckets)
        """Gradients of each bucket that passes before a step's last have made."""

    def arm(self) -> None:
        self._adopt(range(len(self._buckets)))
        super().arm()

    def _adopt(self, indices: Iterable[int]) -> None:
        for index in indices:
            self._buckets[index].adopt()
            self._made[index] = 0

    def _ready_hook(self, index: int, parameter_id: int) -> Callable[[Tensor], None]:
        send = super()._ready_hook(index, parameter_id)

        def ready(parameter: Tensor) -> None:
            if self._armed:
                send(parameter)
                return
            self._made[index] += 1
            if self._made[index] >= len(self._buckets[index].tensors):
                self._adopt([index])

        return ready
