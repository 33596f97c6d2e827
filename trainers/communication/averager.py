"""Average of gradients over ranks, bucket by bucket while the backward pass runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from trainers.communication.buckets import BUCKET_BYTES, each_bucket
from trainers.communication.channel import Channel, Pending


class GradientAverager:
    """Averages gradients over a channel's ranks while the backward pass still runs.

    Buckets are filled in the reverse order of the parameters, about the order in which gradients become ready, and are
    sent strictly one after the other: ranks whose gradients become ready in different orders would otherwise wait for
    each other. A parameter without a gradient counts as zero and has a gradient afterwards. RuntimeError if a gradient
    changes after it was sent, as with reentrant checkpoints of a layer used several times.

    Args:
        parameters (iterable): parameters, of which those that require a gradient are averaged.
        channel (Channel): ranks to average over.
        wire_dtype (dtype): type of floating-point gradients in messages; None: their own.
        bucket_bytes (int): size of a message at which it is sent.
        keep_none (bool): whether a gradient that all ranks lack stays None, so that optimizers skip parameters that no
            rank uses, as on a single rank. Otherwise, all ranks' optimizers have a state for the same parameters.
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
        # The flags distinguish a parameter that no rank uses from a parameter whose gradient is zero.
        self._buckets = list(
            each_bucket(
                reversed(trained), wire_dtype=wire_dtype, bucket_bytes=bucket_bytes, with_flags=keep_none
            )
        )
        self._keep_none = keep_none
        self._lacking: list[list[int]] = []
        """Places of the parameters without a gradient on this rank, for each bucket sent with flags."""
        # An optimizer must not get the zeros that stand for the gradients of frozen parameters.
        self._frozen: list[Tensor] = []
        """Parameters without a gradient that were frozen since the averager was made."""
        self._missing: list[set[int]] = []
        """Ids of the parameters whose gradients are not ready yet, for each bucket."""
        self._under_way: list[Pending] = []
        """Messages of the buckets that have been sent, in order."""
        self._armed = False
        """Whether the backward pass sends buckets."""
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._ready_hook(index, id(parameter)))  # type: ignore[no-untyped-call]
            for index, bucket in enumerate(self._buckets)
            for parameter in bucket.tensors
        ]

    def arm(self) -> None:
        """Let the next backward pass, which completes the gradients, send each bucket as soon as it is full."""
        self._missing = [{id(parameter) for parameter in bucket.tensors} for bucket in self._buckets]
        self._under_way, self._lacking = [], []
        self._armed = True

    def send(self) -> None:
        """Send the remaining buckets; must come before any other operation on the channel."""
        # Ranks without some gradients have more buckets left, and operations must have the same order on all ranks.
        self._armed = False
        while len(self._under_way) < len(self._buckets):
            self._send_next()

    def finish(self) -> None:
        """Send the remaining buckets, wait for all, and write the means to the parameters' ``grad``."""
        self.send()
        for bucket, pending in zip(self._buckets, self._under_way, strict=True):
            pending.wait()
            gradients = [gradient_of(parameter) for parameter in bucket.tensors]
            bucket.unpack(gradients)
            # Divided in the gradient's own precision: in that of the message, the division would round again.
            torch._foreach_div_(gradients, self._channel.size)
        for parameter in (*self._unused(), *self._frozen):
            parameter.grad = None
        self._under_way, self._lacking, self._frozen = [], [], []

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

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
            bucket.flags.fill_(1)
            if lacking:
                # An index with a list of places would be copied to the GPU, and the host would wait for that.
                torch._foreach_zero_([bucket.flags[place] for place in lacking])
        else:
            self._frozen += [bucket.tensors[at] for at in lacking if not bucket.tensors[at].requires_grad]
        self._lacking.append(lacking if self._keep_none else [])
        self._under_way.append(self._channel.all_reduce(flat))

    def _unused(self) -> list[Tensor]:
        """Tensors that no rank has a gradient of, by their summed flags."""
        # The sum of flags is 0 only if all flags are, in any precision and order of summation.
        asked = [bucket for bucket, places in zip(self._buckets, self._lacking, strict=True) if places]
        if not asked:
            return []
        # All flags are read at once, because the host waits for the GPU at each reading.
        nowhere = torch.cat([bucket.flags == 0 for bucket in asked]).tolist()
        tensors = [tensor for bucket in asked for tensor in bucket.tensors]
        return [tensor for tensor, unused in zip(tensors, nowhere, strict=True) if unused]


def gradient_of(parameter: Tensor) -> Tensor:
    """Gradient of the parameter, set to zeros where it is None; ValueError for a sparse gradient."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    refuse_sparse(parameter.grad)
    return parameter.grad


def refuse_sparse(gradient: Tensor | None) -> None:
    """Raise ValueError if ``gradient`` is sparse."""
    if gradient is not None and gradient.is_sparse:
        raise ValueError(
            "A sparse gradient can be neither averaged nor clipped. Create the embedding with sparse=False."
        )
