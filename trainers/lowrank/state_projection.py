"""Projects an optimizer's state of a parameter when that is exchanged for one in other coordinates.

Adam's moments and SGD's momentum are gradients averaged over time. Gradients in the new coordinates are a
linear map of those in the old ones, so a first moment goes through that map. A second moment, a mean of
squares, goes through the map with its coefficients squared, which is exact where entries of the gradient are
uncorrelated. Where inputs of a layer have a direction in common it is too small for the largest singular values: of
a layer of 512 x 512 single entries of the first steps were 16 times the rate, their root mean square the usual, and
losses not worse than without. Raising it to the squares of the first gradients made these entries ordinary, and
models that turn their bases often worse (digits' ViT by 0.5 points): luck adds up. Setting moments to zero and
keeping the count of steps would make the next update several times too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.optim.composite import part_of
from trainers.optim.ftrl import Ftrl
from trainers.precision import full_precision

_FIRST_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "grad_avg"})
_SECOND_MOMENTS = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})
_COUNTS = frozenset({"step", "mu_product", "eta", "mu"})
"""What follows from the number of steps alone; of NAdam and ASGD the latter three."""
_MEAN_OF = {"square_avg": "grad_avg"}
"""The first moment whose square an optimizer takes off the second: what is left must not be negative."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """How gradients G of the old parameter become those of the new one: ``left`` @ G @ ``right``.

    None is the identity. The old parameter is taken as a matrix of (first dimension, all the others).
    """

    left: Tensor | None = None
    right: Tensor | None = None

    def first(self, moment: Tensor) -> Tensor:
        return self._apply(moment, lambda factor: factor)

    def second(self, moment: Tensor) -> Tensor:
        return self._apply(moment, torch.square)

    def _apply(self, moment: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
        matrix = moment.reshape(moment.shape[0], -1)
        if self.left is not None:
            matrix = of(self.left.to(matrix.dtype)) @ matrix
        if self.right is not None:
            matrix = matrix @ of(self.right.to(matrix.dtype))
        return matrix


@torch.no_grad()
@full_precision()
def exchange(
    optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, projection: Projection | None = None
) -> None:
    """Let ``optimizer`` train ``new`` in the place of ``old``, with its settings; it may be the same one.

    Without a ``projection``, or for an optimizer whose state is of other kinds than moments and counts, the
    state starts anew, the count of steps with it. ValueError if the optimizer does not train ``old``.
    """
    optimizer = part_of(optimizer, old)
    params, index = _place(optimizer, old)
    params[index] = new
    state = optimizer.state.pop(old, {})
    old.grad = None
    if isinstance(optimizer, Ftrl):
        # Its other tensor follows from the weights and this one.
        accumulated = state.get("sum") if projection is not None else None
        if projection is not None and accumulated is not None:
            accumulated = projection.second(accumulated).reshape(new.shape)
        optimizer.settle(new, accumulated)
        return
    # torch keeps the squares of a complex gradient's two parts, which no map mixes as it mixes the gradient's.
    if projection is None or old.is_complex() or not _understood(state, old):
        _begin(optimizer, new)
        return
    kept: dict[str, object] = {}
    for name, value in state.items():
        if name in _FIRST_MOMENTS and isinstance(value, Tensor):
            kept[name] = projection.first(value).reshape(new.shape).contiguous()
        elif name in _SECOND_MOMENTS and isinstance(value, Tensor):
            moment = _second(value, state.get(_MEAN_OF.get(name, "")), projection)
            kept[name] = moment.reshape(new.shape).contiguous()
        else:
            kept[name] = value
    if kept:
        optimizer.state[new] = kept


def _second(value: Tensor, mean: object, projection: Projection) -> Tensor:
    """A second moment in the new coordinates; beside a ``mean`` the variance as such, and the mean's square."""
    if not isinstance(mean, Tensor):
        return projection.second(value)
    variance = (value - mean.square()).clamp_min(0)
    return projection.second(variance) + projection.first(mean).square()


def moments_of(optimizer: Optimizer, parameter: nn.Parameter) -> tuple[list[Tensor], list[Tensor]]:
    """What ``optimizer`` keeps of ``parameter`` in tensors that have a mean, but for counts of steps: its moments, and
    what it has in single numbers, as NovoGrad has a moment for the whole of a layer. Those may be counts, if of names
    of their own.
    """
    moments: list[Tensor] = []
    numbers: list[Tensor] = []
    for name, value in sorted(optimizer.state.get(parameter, {}).items()):
        if not isinstance(value, Tensor) or not _has_mean(value):
            continue
        # A parameter without dimensions has moments without them.
        if value.dim() > 0 or (parameter.dim() == 0 and name not in _COUNTS):
            moments.append(value)
        elif name not in _COUNTS and not value.is_complex():
            numbers.append(value)
    return moments, numbers


def holds_others(state: Mapping[str, object]) -> bool:
    """Whether ``state``, an optimizer's of a parameter, has more than tensors that have a mean and single values: lists
    of tensors, say, or codes of eight bits.
    """
    return not all(
        value.dim() == 0 or _has_mean(value)
        if isinstance(value, Tensor)
        else isinstance(value, (int, float, str, NoneType))
        for value in state.values()
    )


def _has_mean(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def insert(optimizer: Optimizer, beside: nn.Parameter, new: nn.Parameter) -> None:
    """Let ``optimizer`` train ``new`` as well, after ``beside`` and with its settings."""
    optimizer = part_of(optimizer, beside)
    params, index = _place(optimizer, beside)
    params.insert(index + 1, new)
    _begin(optimizer, new)


def remove(optimizer: Optimizer, old: nn.Parameter) -> None:
    """Let ``optimizer`` train ``old`` no more, and forget its state."""
    params, index = _place(optimizer, old)
    del params[index]
    optimizer.state.pop(old, None)


def _place(optimizer: Optimizer, parameter: nn.Parameter) -> tuple[list[nn.Parameter], int]:
    for group in optimizer.param_groups:
        for index, other in enumerate(group["params"]):
            if other is parameter:
                return group["params"], index
    raise ValueError(
        f"The optimizer does not train a parameter of shape {tuple(parameter.shape)} that requires a "
        "gradient. Give it all parameters that it was passed."
    )


def _begin(optimizer: Optimizer, new: nn.Parameter) -> None:
    """Give ``new`` the state that Adagrad makes when it is itself made, and Ftrl must have to begin where ``new``
    is; others make theirs at their next step.
    """
    if isinstance(optimizer, torch.optim.Adagrad):
        start = optimizer.defaults["initial_accumulator_value"]
        device = new.device if optimizer.defaults["fused"] else None
        optimizer.state[new] = {
            "step": torch.tensor(0.0, device=device),
            "sum": torch.full_like(new, start),
        }
    elif isinstance(optimizer, Ftrl):
        optimizer.settle(new)


def _understood(state: dict[str, object], parameter: nn.Parameter) -> bool:
    """Whether all that is no single number is a moment of the parameter's shape."""
    known = _FIRST_MOMENTS | _SECOND_MOMENTS
    return not holds_others(state) and all(
        name in known and value.shape == parameter.shape
        for name, value in state.items()
        if isinstance(value, Tensor) and (value.dim() > 0 or name in known)
    )
