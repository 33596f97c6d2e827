"""What an optimizer knows of a parameter, kept when the parameter is exchanged for one in other coordinates.

Adam's moments and SGD's momentum are gradients averaged over time. Gradients in the new coordinates are a
linear map of those in the old ones, so a first moment goes through that map. Of a second moment, a mean of
squares, the square of the mean does so too, and what is left, the variance, goes through the map with its
coefficients squared: that is exact where entries of the gradient vary apart. They do not where inputs of a layer
have a direction in common, which is that of the largest singular values: there it is too small by up to the
number of entries. So at the first three steps in the new coordinates no entry's gradient counts as more than three
standard deviations: where it is more, the second moment is set to what makes it three. (To one, it would grow with
each luck, and slow the training down where bases turn often.) Setting moments to zero and keeping the count of steps
would make the next update several times too large.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainers.decomposition import full_precision
from trainers.ftrl import Ftrl

_FIRST_MOMENTS = frozenset({"exp_avg", "momentum_buffer", "grad_avg"})
_SECOND_MOMENTS = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})
_MEANS = {"exp_avg_sq": "exp_avg", "max_exp_avg_sq": "exp_avg", "square_avg": "grad_avg"}
"""The first moment of the same gradients."""

_UNSETTLED = "unsettled"
"""In the state of a parameter: how many of its first steps in new coordinates are to come."""
_FIRST_STEPS = 3
"""A single gradient may be small by chance."""
_DEVIATIONS = 3
_settling: weakref.WeakSet[Optimizer] = weakref.WeakSet()


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
    params, index = _place(optimizer, old)
    _watch(optimizer)
    params[index] = new
    state = optimizer.state.pop(old, {})
    state.pop(_UNSETTLED, None)
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
    group = _group(optimizer, new)
    for name, value in state.items():
        if name in _FIRST_MOMENTS and isinstance(value, Tensor):
            kept[name] = projection.first(value).reshape(new.shape).contiguous()
        elif name in _SECOND_MOMENTS and isinstance(value, Tensor):
            kept[name] = _projected(name, value, state, group, projection).reshape(new.shape).contiguous()
            kept[_UNSETTLED] = _FIRST_STEPS
        else:
            kept[name] = value
    if kept:
        optimizer.state[new] = kept


def _projected(
    name: str, value: Tensor, state: dict[str, Any], group: dict[str, Any], projection: Projection
) -> Tensor:
    """A second moment in the new coordinates."""
    mean = state.get(_MEANS.get(name, ""))
    if not isinstance(mean, Tensor):
        return projection.second(value)
    of_mean, of_square = _filled(name, state, group)
    mean = mean / of_mean
    variance = (value / of_square - mean.square()).clamp_min(0)
    return of_square * (projection.second(variance) + projection.first(mean).square())


def _filled(name: str, state: dict[str, Any], group: dict[str, Any]) -> tuple[float, float]:
    """What part of the averages, of gradients and of their squares, is not the zero that they began with."""
    betas, step = group.get("betas"), state.get("step", group.get("step"))
    if name not in ("exp_avg_sq", "max_exp_avg_sq") or betas is None or not step:
        return 1.0, 1.0
    first, second = (1 - float(beta) ** float(step) for beta in betas[:2])
    return first, second


def _watch(optimizer: Optimizer) -> None:
    """Settle parameters at their first steps; also those that a checkpoint brings."""
    if optimizer not in _settling:
        _settling.add(optimizer)
        optimizer.register_step_pre_hook(_settle)


@torch.no_grad()
def _settle(optimizer: Optimizer, *_: object) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if parameter.grad is None or not (left := state.pop(_UNSETTLED, 0)):
                continue
            if left > 1:
                state[_UNSETTLED] = left - 1
            square = (parameter.grad / _DEVIATIONS).square()
            for name in _SECOND_MOMENTS & state.keys():
                moment = state[name]
                moment.copy_(torch.maximum(moment, square.to(moment.dtype) * _filled(name, state, group)[1]))


def insert(optimizer: Optimizer, beside: nn.Parameter, new: nn.Parameter) -> None:
    """Let ``optimizer`` train ``new`` as well, after ``beside`` and with its settings."""
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


def _group(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(one is parameter for one in group["params"]))


def _begin(optimizer: Optimizer, new: nn.Parameter) -> None:
    """Give ``new`` the state that Adagrad makes when it is itself made, and Ftrl must have to begin where ``new``
    is; others make theirs at their next step.
    """
    if isinstance(optimizer, torch.optim.Adagrad):
        start = optimizer.defaults["initial_accumulator_value"]
        optimizer.state[new] = {"step": torch.tensor(0.0), "sum": torch.full_like(new, start)}
    elif isinstance(optimizer, Ftrl):
        optimizer.settle(new)


def _understood(state: dict[str, object], parameter: nn.Parameter) -> bool:
    """Whether all that is no single number is a moment of the parameter's shape."""
    return all(
        name in _FIRST_MOMENTS | _SECOND_MOMENTS and value.shape == parameter.shape
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0
    )
