"""Averages gradients over ranks while the backward pass runs, bucket by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from trainers.communication.buckets import BUCKET_BYTES, Bucket, buckets
from trainers.communication.channel import Channel, Pending


class GradientAverager:
    """Average gradients over a channel's ranks while the backward pass still runs.

    Buckets are filled in the reverse order of the parameters, about the order in which gradients become
    ready, and are sent strictly one after the other: ranks whose gradients come in different orders would
    else wait for one another. A parameter without a gradient counts as zero, and has one afterwards; with
    ``keep_none`` only where some rank had one, so that optimizers skip what no rank uses, as on one rank.

    A gradient that changes after it was sent, as reentrant checkpoints of a layer that is used several times
    make it, is a RuntimeError.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        channel: Channel,
        *,
        wire_dtype: torch.dtype | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        keep_none: bool = False,
    ) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._channel = channel
        self._buckets = buckets(reversed(trained), wire_dtype=wire_dtype, bucket_bytes=bucket_bytes)
        self._keep_none = keep_none
        # Of each bucket sent, where parameters without a gradient lie: their place in it, and in the buffer.
        self._lacking: list[list[tuple[int, int]]] = []
        # Of each bucket, the parameters that have no gradient yet.
        self._missing: list[set[int]] = []
        self._under_way: list[Pending] = []
        self._armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._ready_hook(index, id(parameter)))  # type: ignore[no-untyped-call]
            for index, bucket in enumerate(self._buckets)
            for parameter in bucket.tensors
        ]

    def arm(self) -> None:
        """The next backward pass completes the gradients: send each bucket as soon as it is full."""
        self._missing = [{id(parameter) for parameter in bucket.tensors} for bucket in self._buckets]
        self._under_way, self._lacking = [], []
        self._armed = True

    def send(self) -> None:
        """Send what is left. Before anything else on the channel: ranks that lack a gradient have more left."""
        self._armed = False
        while len(self._under_way) < len(self._buckets):
            self._send_next()

    def finish(self) -> None:
        """Send what is left, wait for all, and put the means into the parameters' ``grad``."""
        self.send()
        for bucket, pending, lacking in zip(self._buckets, self._under_way, self._lacking, strict=True):
            pending.wait()
            unused = _unmarked(bucket.flat, lacking)
            gradients = [gradient_of(parameter) for parameter in bucket.tensors]
            bucket.unpack(gradients)
            # Once the sum is back in the gradient's own precision: dividing on the wire would round again.
            torch._foreach_div_(gradients, self._channel.size)
            for place in unused:
                bucket.tensors[place].grad = None
        self._under_way, self._lacking = [], []

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def state(self) -> Mapping[str, object]:
        """Nothing goes on from one step to the next."""
        return {}

    def load(self, state: Mapping[str, object]) -> None:
        """Nothing is to be taken up."""

    def _ready_hook(self, index: int, parameter_id: int) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if not self._armed:
                return
            if index < len(self._under_way):
                raise RuntimeError(
                    "A gradient changed after it was sent to the other ranks: within one backward pass, that "
                    f"of a parameter of shape {tuple(parameter.shape)} came in several parts. Give "
                    "torch.utils.checkpoint use_reentrant=False."
                )
            self._missing[index].discard(parameter_id)
            while len(self._under_way) < len(self._buckets) and not self._missing[len(self._under_way)]:
                self._send_next()

        return ready

    def _send_next(self) -> None:
        bucket = self._buckets[len(self._under_way)]
        lacking = [place for place, parameter in enumerate(bucket.tensors) if parameter.grad is None]
        flat = bucket.pack([gradient_of(parameter) for parameter in bucket.tensors])
        self._lacking.append(_mark(bucket, lacking) if self._keep_none else [])
        self._under_way.append(self._channel.all_reduce(flat))


def _mark(bucket: Bucket, lacking: list[int]) -> list[tuple[int, int]]:
    """Mark in the buffer, at no bytes of its own, which tensors have no gradient: by a zero's sign.

    A sum is -0.0 only where all its summands are. So each gradient's first number is made anything else, and
    -0.0 where it is ``lacking``; the places of these, and where in the buffer they begin.
    """
    begins = [int(view.storage_offset()) for view in bucket.views]
    if bucket.firsts is None:
        filled = [begin for begin, view in zip(begins, bucket.views, strict=True) if view.numel()]
        bucket.firsts = torch.tensor(filled, dtype=torch.int64, device=bucket.flat.device)
    bucket.flat[bucket.firsts] += 0.0
    marked = [(place, begins[place]) for place in lacking if bucket.views[place].numel()]
    if marked:
        bucket.flat[[begin for _, begin in marked]] = -0.0
    return marked


def _unmarked(flat: Tensor, lacking: list[tuple[int, int]]) -> list[int]:
    """Of the tensors that ``lacking`` names, which the summed buffer shows no rank to have a gradient of."""
    if not lacking:
        return []
    sums = flat[[begin for _, begin in lacking]]
    # Of a complex number the real part has the sign.
    nowhere = ((sums == 0) & torch.signbit(sums.real)).tolist()
    return [place for (place, _), nobody in zip(lacking, nowhere, strict=True) if nobody]


def gradient_of(parameter: Tensor) -> Tensor:
    """The parameter's gradient, made of zeros where there is none. ValueError for a sparse one."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    refuse_sparse(parameter.grad)
    return parameter.grad


def refuse_sparse(gradient: Tensor | None) -> None:
    """ValueError if ``gradient`` is sparse."""
    if gradient is not None and gradient.is_sparse:
        raise ValueError(
            "A sparse gradient can be neither averaged nor clipped. Create the embedding with sparse=False."
        )
