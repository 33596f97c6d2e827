"""Projection of an optimizer's state when a parameter is replaced by another in other coordinates.

Adam's moments and SGD's momentum are averages of gradients over time. Gradients in the new coordinates are a linear map
of gradients in the old coordinates, so the same map is applied to a first moment. To a second moment, a mean of
squares, the map with squared coefficients is applied, which is exact for uncorrelated entries of the gradient. Setting
moments to zero and keeping the count of steps would make the next update several times too large.

Where a layer's inputs have a common direction, projected second moments are too small for the largest singular values.
Raising them to the squares of the first gradients was worse for models whose bases turn often, by 0.5 points.
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
"""Entries that depend on the number of steps alone; the last three belong to NAdam and ASGD."""
_MEAN_OF = {"square_avg": "grad_avg"}
"""First moment whose square an optimizer subtracts from a second moment; the difference must not be negative."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Map from gradients G of the old parameter, a matrix of its first dimension × all others, to those of the new
    parameter: ``left`` @ G @ ``right``, with the identity for None.
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
    """Let ``optimizer`` train ``new`` in the place of ``old``, which may be the same, with the same settings.

    Its state is that of ``old`` in the coordinates of ``projection``. It begins empty, including the count of steps,
    without a projection, or if the optimizer's state has other entries than moments and counts. ValueError if the
    optimizer does not train ``old``.
    """
    optimizer = part_of(optimizer, old)
    params, index = _place(optimizer, old)
    params[index] = new
    state = optimizer.state.pop(old, {})
    old.grad = None
    if isinstance(optimizer, Ftrl):
        # Ftrl computes the other tensor of its state from the weights and this sum.
        accumulated = state.get("sum") if projection is not None else None
        if projection is not None and accumulated is not None:
            accumulated = projection.second(accumulated).reshape(new.shape)
        optimizer.settle(new, accumulated)
        return
    # For complex gradients, torch keeps the squares of real and imaginary part apart, which a complex map would mix.
    if projection is None or old.is_complex() or not _understood(state, old):
        _begin(optimizer, new)
        return
    kept: dict[str, object] = dict(state)
    for name, value in state.items():
        if not isinstance(value, Tensor) or name not in _FIRST_MOMENTS | _SECOND_MOMENTS:
            continue
        if name in _FIRST_MOMENTS:
            moment = projection.first(value)
        else:
            moment = _second(value, state.get(_MEAN_OF.get(name, "")), projection)
        kept[name] = moment.reshape(new.shape).contiguous()
    if kept:
        optimizer.state[new] = kept


def _second(value: Tensor, mean: object, projection: Projection) -> Tensor:
    """Second moment in the new coordinates; with a ``mean``, the projected variance plus the square of the projected
    mean, so that their difference is not negative."""
    if not isinstance(mean, Tensor):
        return projection.second(value)
    variance = (value - mean.square()).clamp_min(0)
    return projection.second(variance) + projection.first(mean).square()


def moments_of(optimizer: Optimizer, parameter: nn.Parameter) -> tuple[list[Tensor], list[Tensor]]:
    """Moments of ``parameter`` in ``optimizer``, and its state tensors with a single number but known counts."""
    # Single numbers may be moments, such as NovoGrad's for a whole layer, or counts with unknown names.
    moments: list[Tensor] = []
    numbers: list[Tensor] = []
    for name, value in sorted(optimizer.state.get(parameter, {}).items()):
        if not isinstance(value, Tensor) or not _has_mean(value):
            continue
        # Moments of a parameter without dimensions have none either.
        if value.dim() > 0 or (parameter.dim() == 0 and name not in _COUNTS):
            moments.append(value)
        elif name not in _COUNTS and not value.is_complex():
            numbers.append(value)
    return moments, numbers


def holds_others(state: Mapping[str, object]) -> bool:
    """Whether an optimizer's ``state`` of a parameter has entries other than averageable tensors and single values,
    such as lists of tensors or quantised tensors."""
    return not all(
        value.dim() == 0 or _has_mean(value)
        if isinstance(value, Tensor)
        else isinstance(value, (int, float, str, NoneType))
        for value in state.values()
    )


def _has_mean(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def remove(optimizer: Optimizer, old: nn.Parameter) -> None:
    """Remove ``old`` and its state from ``optimizer``."""
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
    """Initialise the state of ``new`` for optimizers that do not do so at their next step."""
    # Adagrad makes states in its constructor.
    if isinstance(optimizer, torch.optim.Adagrad):
        start = optimizer.defaults["initial_accumulator_value"]
        device = new.device if optimizer.defaults["fused"] else None
        optimizer.state[new] = {
            "step": torch.tensor(0.0, device=device),
            "sum": torch.full_like(new, start),
        }


def _understood(state: dict[str, object], parameter: nn.Parameter) -> bool:
    """Whether all entries of ``state`` other than single numbers are known moments of the parameter's shape."""
    known = _FIRST_MOMENTS | _SECOND_MOMENTS
    return not holds_others(state) and all(
        name in known and value.shape == parameter.shape
        for name, value in state.items()
        if isinstance(value, Tensor) and (value.dim() > 0 or name in known)
    )
