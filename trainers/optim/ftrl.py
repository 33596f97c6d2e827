"""FTRL-Proximal optimizer, which torch does not have, for parameters that should become sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Ftrl(Optimizer):
    """FTRL-Proximal: follow the regularised leader for each coordinate (McMahan et al. 2013, algorithm 1).

    Settings are those of TensorFlow.

    With n the sum of squared gradients, which begins at ``initial_accumulator``, and p = ``lr_power``::

        rate(n) = lr / (beta + n^-p)
        n' = n + g²;  σ = 1/rate(n') - 1/rate(n);  z' = z + g - σ w
        w' = 0 if |z'| ≤ l1, else -(z' - sign(z') l1) / (1/rate(n') + 2 l2)

    The paper's λ₁ is ``l1``, and its λ₂ is 2 ``l2``, as in TensorFlow, whose penalty is l2 w². If a schedule changes
    lr, 1/rate(n) is that of the step before, so that the σ sum up to 1/rate as in the paper; in TensorFlow they do not,
    and weights shrink with the rate. A step with a rate of 0 does nothing.

    The leader begins at 0: the first step removes most of a weight whose gradient is large compared to the square root
    of ``initial_accumulator``. With ``settle``, the leader begins at the weight's value.

    Args:
        params (iterable): parameters or groups of parameters, as for all torch optimizers.
        lr (float, from 0; default 1e-3): learning rate.
        lr_power (float, to 0; default -0.5): exponent p.
        initial_accumulator (float, from 0; default 0.1): n at the start.
        l1 (float, from 0; default 0.0): strength of the penalty that makes weights exactly 0.
        l2 (float, from 0; default 0.0): strength of the penalty that shrinks weights.
        beta (float, from 0; default 0.0): summand in the denominator of the rate.

    Raises:
        ValueError: a setting is out of range.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        lr_power: float = -0.5,
        initial_accumulator: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        settings = {
            "lr": lr,
            "lr_power": lr_power,
            "initial_accumulator": initial_accumulator,
            "l1": l1,
            "l2": l2,
            "beta": beta,
        }
        for name, value in settings.items():
            most = name == "lr_power"
            if not (value <= 0 if most else value >= 0):
                rule = "at most 0" if most else "at least 0"
                raise ValueError(f"Ftrl({name}={value!r}): {name} must be {rule}. Correct it.")
        # The rate of the last step is in the settings, so that torch saves it with the state.
        super().__init__(params, {**settings, "last_lr": None})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr = float(group["lr"])
            weights: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not weights or lr == 0.0:
                continue
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            if any(gradient.is_sparse for gradient in gradients):
                raise RuntimeError("Ftrl takes dense gradients. Make the embedding with sparse=False.")
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight] = self._start(weight, group)
            self._update(group, weights, gradients, lr)
            group["last_lr"] = lr
        return loss

    @torch.no_grad()
    def settle(self, parameter: nn.Parameter, accumulated: Tensor | None = None) -> None:
        """Set the state of ``parameter`` as if earlier steps had led to its present value.

        ``accumulated``: sum of its squared gradients so far; None: ``initial_accumulator``.
        """
        group = next(g for g in self.param_groups if any(one is parameter for one in g["params"]))
        state = self._start(parameter, group)
        if accumulated is not None:
            state["sum"].copy_(accumulated)
        lr = float(group["lr"] if group["last_lr"] is None else group["last_lr"])
        if lr > 0.0:
            quadratic = (_powers(group, [state["sum"]])[0] + group["beta"]) / lr + 2 * group["l2"]
            state["linear"] = -(parameter * quadratic + parameter.sign() * group["l1"])
        self.state[parameter] = state

    @staticmethod
    def _start(weight: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        return {
            "sum": torch.full_like(weight, group["initial_accumulator"], memory_format=torch.preserve_format),
            "linear": torch.zeros_like(weight, memory_format=torch.preserve_format),
        }

    def _update(
        self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor], lr: float
    ) -> None:
        last_lr = lr if group["last_lr"] is None else group["last_lr"]
        sums = [self.state[weight]["sum"] for weight in weights]
        linears = [self.state[weight]["linear"] for weight in weights]
        before = _powers(group, sums)
        torch._foreach_addcmul_(sums, gradients, gradients)
        after = _powers(group, sums)
        # 1/rate(n') and 1/rate(n)
        inverse = torch._foreach_div(torch._foreach_add(after, group["beta"]), lr)
        torch._foreach_add_(before, group["beta"])
        torch._foreach_div_(before, last_lr)
        sigma = torch._foreach_sub(inverse, before)
        torch._foreach_add_(linears, gradients)
        torch._foreach_addcmul_(linears, sigma, weights, value=-1.0)
        torch._foreach_add_(inverse, 2 * group["l2"])
        for weight, linear, quadratic in zip(weights, linears, inverse, strict=True):
            # (clip(z, -l1, l1) - z) is 0 where |z| ≤ l1.
            shrunk = linear.clamp(-group["l1"], group["l1"]) - linear
            # Before the first gradient, initial_accumulator = 0 gives 0 / 0: such a weight stays.
            weight.copy_(torch.where(quadratic > 0, shrunk / quadratic, weight))


def _powers(group: dict[str, Any], sums: list[Tensor]) -> list[Tensor]:
    """n^-p for each n in ``sums``, as new tensors."""
    # A square root is faster than a general power.
    if group["lr_power"] == -0.5:
        return list(torch._foreach_sqrt(sums))
    return list(torch._foreach_pow(sums, -group["lr_power"]))
