"""Last common average of parameters, from which ranks that train apart send their differences."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.arguments import check_argument
from trainers.communication.buckets import Bucket, each_bucket
from trainers.communication.communicator import Communicator
from trainers.communication.quantisation import BLOCK, BlockCodec, QuantisedSum
from trainers.communication.rank_consistency import shown
from trainers.methods.fragments import Tensors
from trainers.optim.composite import needs_closure

MakeOuter = Callable[[list[nn.Parameter]], Optimizer]
"""Function that makes the outer optimizer of a list of parameters."""
WireType = torch.dtype | BlockCodec | None
"""Form of floating-point numbers in messages; None: their own type."""
WIRE_DTYPES: dict[str | None, WireType] = {
    None: None,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "int8": BlockCodec(8),
    "int4": BlockCodec(4),
}
WIRE_RULE = f"{', '.join(json.dumps(name) for name in WIRE_DTYPES if name)} or None"


def settings_of_outer(make: MakeOuter | None) -> str | None:
    """Class and settings of the optimizer that ``make`` makes; ValueError if it makes none."""
    if make is None:
        return None
    rule = "a function that makes it, such as partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)"
    check_argument("outer_optimizer", make, callable(make), rule)
    try:
        made: object = make([nn.Parameter(torch.zeros(1, device="cpu"))])
    except Exception as error:  # of a function of the user's
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"outer_optimizer(parameters): it failed ({why}). Give {rule}.") from error
    allowed = isinstance(made, Optimizer) and not needs_closure(made)
    rule = "a torch.optim.Optimizer whose step needs no closure: return it"
    check_argument("outer_optimizer(parameters)", made, allowed, rule)
    assert isinstance(made, Optimizer)
    group = made.param_groups[0]
    settings = ", ".join(f"{name}={shown(value)}" for name, value in group.items() if name != "params")
    return f"{type(made).__name__}({settings})"


def warn_of_unused_outer(method: Any, communicator: Communicator) -> None:
    """Warn on rank 0 that all ranks of the run train together, if the ``method`` has an outer optimizer."""
    if method.outer_settings is not None and communicator.rank == 0:
        warnings.warn(
            f"{type(method).__name__}(outer_optimizer={method.outer_settings}): all ranks of this run average "
            "gradients at each step, and it is not used. Leave it out, or use several nodes.",
            stacklevel=2,
        )


class CommonBase:
    """*Base* of parameters, their last average over all ranks, in buckets, and their differences to it.

    All ranks have the same base, to the last bit. The base of bfloat16 or float16 parameters is in float32, as in their
    own precision an average would lose small steps of a single rank. With an outer optimizer, the base is what this
    makes of the mean difference, negated, as a gradient (DiLoCo, Douillard et al. 2023, arXiv 2311.08105).

    Args:
        parameters (Tensors): parameters, or a fragment of them, equal on all ranks now.
        bucket_bytes (int, bytes on the wire): size of a bucket.
        senders (int): number of senders whose differences are summed up.
        place (int): number of this rank's sender; None: this rank only gets the sums.
        shares (int): ranks of a sender, each of which sends a share.
        wire_dtype (dtype or BlockCodec): form of floating-point numbers in messages; None: their own type.
        outer_optimizer (callable): function that makes the outer optimizer of the base; None: there is none.
    """

    def __init__(
        self,
        parameters: Tensors,
        *,
        bucket_bytes: int,
        senders: int,
        place: int | None,
        shares: int = 1,
        wire_dtype: WireType = None,
        outer_optimizer: MakeOuter | None = None,
    ) -> None:
        tensors = list(parameters)
        self.wire = list(_buckets(tensors, wire_dtype, bucket_bytes, senders=senders, shares=shares))
        """Buckets of the parameters, whose buffers are messages or, with a codec, the numbers in them."""
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._parameters = parameters
        self._places = [[places[id(tensor)] for tensor in bucket.tensors] for bucket in self.wire]
        """Places in ``parameters`` of the tensors of each bucket."""
        self._base = [Bucket(bucket.tensors, _base_dtype(bucket.tensors[0].dtype)) for bucket in self.wire]
        for base in self._base:
            base.pack(base.tensors)
        self.quantised: list[QuantisedSum] = []
        """Sums of all buckets, with a codec."""
        if isinstance(wire_dtype, BlockCodec):
            made = partial(QuantisedSum, codec=wire_dtype, parts=senders, place=place, shares=shares)
            self.quantised = [made(bucket.flat) for bucket in self.wire]
        self._stepped = [nn.Parameter(base.flat) for base in self._base]
        """The base, in the same memory, as the parameters of the outer optimizer."""
        # One for each bucket, as an optimizer of all would look at all of them in each step.
        self._outer = [] if outer_optimizer is None else [outer_optimizer([part]) for part in self._stepped]

    def pack(self, index: int) -> Tensor:
        """Differences of the parameters in a bucket to the base, in the bucket's buffer."""
        return self.wire[index].pack(torch._foreach_sub(self._tensors(index), self._base[index].views))

    def merge(self, index: int, parts: int, *, weight: float, steps_outer: bool) -> None:
        """Renew the base by the sums in a bucket's buffer, over ``parts``, of their differences; and move the bucket's
        parameters by the fraction ``weight`` towards it.

        The base becomes the average of what was sent, or with ``steps_outer`` what the outer optimizer makes of it.
        """
        bucket, base, tensors = self.wire[index], self._base[index], self._tensors(index)
        # Converted as a whole, because adding a tensor of another type takes twice as long on the CPU.
        mean = bucket.flat[: len(base.flat)].to(base.flat.dtype) / parts
        if self._outer and steps_outer:
            self._stepped[index].grad = mean.neg_()
            self._outer[index].step()
            self._stepped[index].grad = None
        else:
            base.flat.add_(mean)
        if base.wire_dtype is tensors[0].dtype:
            torch._foreach_lerp_(tensors, base.views, weight)
            return
        # Computed in the base's precision, and rounded only once.
        precise = [tensor.to(base.wire_dtype) for tensor in tensors]
        torch._foreach_lerp_(precise, base.views, weight)
        torch._foreach_copy_(tensors, precise)

    def state(self) -> dict[str, Any]:
        """Base, flat, in any number of parts, which the next merge changes, outer optimizer's state, and residuals."""
        outer = [optimizer.state_dict() for optimizer in self._outer]
        residuals = self._residuals
        return {
            "base": [base.flat for base in self._base],
            **({"outer": outer} if outer else {}),
            **({"residuals": residuals} if residuals else {}),
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> bool:
        """Restore a saved ``state``; returns whether it fits the parameters."""
        if not self._load_base(state["base"]):
            return False
        saved = state.get("outer", [])
        # Momenta and residuals are as large as the buckets, which may be of another size.
        lengths = [[len(value) for value in _vectors(of_bucket)] for of_bucket in saved]
        if len(saved) != len(self._outer) or any(
            {*of_bucket} - {len(part)} for of_bucket, part in zip(lengths, self._stepped, strict=False)
        ):
            return False
        residuals = self._residuals
        if [each.shape for each in residuals] != [each.shape for each in state.get("residuals", [])]:
            return False
        for residual, values in zip(residuals, state.get("residuals", []), strict=True):
            residual.copy_(values)
        for optimizer, of_bucket in zip(self._outer, saved, strict=True):
            optimizer.load_state_dict(of_bucket)
        return True

    @property
    def _residuals(self) -> list[Tensor]:
        return [residual for each in self.quantised for residual in each.residuals]

    def _tensors(self, index: int) -> list[Tensor]:
        return [self._parameters[place] for place in self._places[index]]

    def _load_base(self, parts: Sequence[Tensor]) -> bool:
        parts = [part.cpu() for part in parts]
        types = {base.wire_dtype for base in self._base} | {part.dtype for part in parts}
        for dtype in types:
            own = [base.flat for base in self._base if base.wire_dtype is dtype]
            # Parameters of a type are in the same order, whatever the size of messages was.
            empty = torch.empty(0, dtype=dtype, device="cpu")
            saved = torch.cat([empty, *(part for part in parts if part.dtype is dtype)])
            if sum(map(len, own)) != len(saved):
                return False
            for flat, values in zip(own, torch.split(saved, [len(flat) for flat in own]), strict=True):
                flat.copy_(values)
        return True


def _vectors(state: Mapping[str, Any]) -> Iterator[Tensor]:
    """Tensors with a number for each parameter in the ``state`` of an optimizer of a flat tensor."""
    for entries in state["state"].values():
        yield from (value for value in entries.values() if isinstance(value, Tensor) and value.dim())


def _base_dtype(dtype: torch.dtype) -> torch.dtype:
    """Type of the base of parameters of type ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


def _buckets(
    parameters: Iterable[Tensor], wire_dtype: WireType, bucket_bytes: int, *, senders: int, shares: int
) -> Iterator[Bucket]:
    """Buckets of ``bucket_bytes`` in the form of ``wire_dtype``; with a codec, buffers have the base's precision."""
    if not isinstance(wire_dtype, BlockCodec):
        yield from each_bucket(
            parameters, wire_dtype=wire_dtype, bucket_bytes=bucket_bytes, multiple_of=shares
        )
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for parameter in parameters:
        by_dtype.setdefault(_base_dtype(parameter.dtype), []).append(parameter)
    for dtype, alike in by_dtype.items():
        length = bucket_bytes * 8 // wire_dtype.bits * dtype.itemsize
        multiple = senders * shares * BLOCK
        yield from each_bucket(alike, wire_dtype=dtype, bucket_bytes=length, multiple_of=multiple)
