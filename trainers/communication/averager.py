"""Averages gradients over ranks while the backward pass runs, bucket by bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trainers.communication.buckets import BUCKET_BYTES, Bucket, buckets
from trainers.communication.channel import Channel, Pending


class GradientAverager:
    """Average gradients over a channel's ranks while the backward pass still runs.

    Buckets are filled in the reverse order of the parameters, about the order in which gradients become
    ready, and are sent strictly one after the other: ranks whose gradients come in different orders would
    else wait for one another. A parameter without a gradient counts as zero, and has one afterwards; with
    ``keep_none`` only where some rank had one, so that optimizers skip what no rank uses, as on one rank. Without
    it, all ranks' optimizers have a state of the same parameters, whatever their groups use.

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
        # By their flags ranks tell a parameter that none of them uses from one with a gradient of zeros.
        self._buckets = buckets(
            reversed(trained), wire_dtype=wire_dtype, bucket_bytes=bucket_bytes, with_flags=keep_none
        )
        self._keep_none = keep_none
        # Of each bucket sent with flags, the places in it of parameters without a gradient on this rank.
        self._lacking: list[list[int]] = []
        # Parameters without a gradient that were frozen since: their zeros are not for the optimizer.
        self._frozen: list[Tensor] = []
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
        for bucket, pending in zip(self._buckets, self._under_way, strict=True):
            pending.wait()
            gradients = [gradient_of(parameter) for parameter in bucket.tensors]
            bucket.unpack(gradients)
            # Once the sum is back in the gradient's own precision: dividing on the wire would round again.
            torch._foreach_div_(gradients, self._channel.size)
        for parameter in (*_unused(self._buckets, self._lacking), *self._frozen):
            parameter.grad = None
        self._under_way, self._lacking, self._frozen = [], [], []

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
        if self._keep_none:
            _flag(bucket, lacking)
        else:
            self._frozen += [bucket.tensors[at] for at in lacking if not bucket.tensors[at].requires_grad]
        self._lacking.append(lacking if self._keep_none else [])
        self._under_way.append(self._channel.all_reduce(flat))


def _flag(bucket: Bucket, lacking: list[int]) -> None:
    """Fill in the bucket's flags: 1 for a tensor with a gradient on this rank, 0 for those that are ``lacking``."""
    bucket.flags.fill_(1)
    if lacking:
        # Not by a list of places: the host would wait until a GPU has that.
        torch._foreach_zero_([bucket.flags[place] for place in lacking])


def _unused(buckets: Sequence[Bucket], lacking: Sequence[list[int]]) -> list[Tensor]:
    """Of the tensors that ``lacking`` names in each bucket, those that no rank has a gradient of: their summed flag
    is 0.

    A sum of zeros and ones is 0 only where all are, in any precision and order of summation.
    """
    asked = [(bucket, places) for bucket, places in zip(buckets, lacking, strict=True) if places]
    if not asked:
        return []
    # At once: each reading has the host wait for the GPU.
    nowhere = iter(torch.cat([bucket.flags == 0 for bucket, _ in asked]).tolist())
    unused = []
    for bucket, places in asked:
        of_bucket = [next(nowhere) for _ in bucket.tensors]
        unused += [bucket.tensors[place] for place in places if of_bucket[place]]
    return unused


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
