"""What residual networks are made of: activations, and blocks with their activation order. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Exponential(nn.Module):
    """exp(x), as Keras' "exponential"."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)


class HardSigmoid(nn.Module):
    """clip(0.2 x + 0.5, 0, 1), as "hard_sigmoid" of TensorFlow and of Keras 2; torch's and Keras 3's has a slope
    of 1/6.
    """

    def forward(self, x: Tensor) -> Tensor:
        return (0.2 * x + 0.5).clamp(0.0, 1.0)


class ChannelSoftmax(nn.Module):
    """Softmax over the channels of (N, C, …), at each pixel: Keras' last axis, where channels come last."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "exponential": Exponential,
    "hard-sigmoid": HardSigmoid,
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "softmax": ChannelSoftmax,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}
"""By name; each is what Keras calls so."""

ORDERS = (
    "original",
    "norm-after-addition",
    "activation-before-addition",
    "activation-only-pre-activation",
    "full-pre-activation",
)
"""Where a block normalises and activates: figure 4 (a) to (e) of He et al. 2016 (arXiv 1603.05027)."""

PRE_ACTIVATION = ("activation-only-pre-activation", "full-pre-activation")

# By order: what comes before the first convolution, after the last, and after the addition. Between two
# convolutions all orders normalise, then activate.
_PLACES = {
    "original": ("", "norm", "act"),
    "norm-after-addition": ("", "", "norm act"),
    "activation-before-addition": ("", "norm act", ""),
    "activation-only-pre-activation": ("act", "norm", ""),
    "full-pre-activation": ("norm act", "", ""),
}


def conv(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size but for ``stride``. It has no bias: the normalisation that
    follows has one.
    """
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)


def activation_of(name: str) -> Callable[[], nn.Module]:
    """The class of the activation; ValueError for an unknown name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation = {name!r}: must be one of {', '.join(ACTIVATIONS)}. Correct it.")
    return ACTIVATIONS[name]


class Residual(nn.Module):
    """A block of ``convolutions`` with a shortcut around them; what is between them ``order`` says.

    ``before`` is what a pre-activation block does before its first convolution. It is part of the branch, and
    of the shortcut too where that is a ``projection``, as in the authors' code; an identity shortcut (None)
    is left alone.
    """

    def __init__(
        self, convolutions: Sequence[nn.Conv2d], projection: nn.Module | None, *, activation: str, order: str
    ) -> None:
        super().__init__()
        if order not in ORDERS:
            raise ValueError(f"order = {order!r}: must be one of {', '.join(ORDERS)}. Correct it.")
        act = activation_of(activation)

        def layers(kinds: str, filters: int) -> list[nn.Module]:
            return [nn.BatchNorm2d(filters) if kind == "norm" else act() for kind in kinds.split()]

        before, behind, after = _PLACES[order]
        first, last = convolutions[0], convolutions[-1]
        branch: list[nn.Module] = []
        for convolution, _ in pairwise(convolutions):
            branch += [convolution, *layers("norm act", convolution.out_channels)]
        branch += [last, *layers(behind, last.out_channels)]
        self.before = nn.Sequential(*layers(before, first.in_channels))
        self.branch = nn.Sequential(*branch)
        self.after = nn.Sequential(*layers(after, last.out_channels))
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        ready: Tensor = self.before(x)
        shortcut = x if self.projection is None else self.projection(ready)
        result: Tensor = self.after(shortcut + self.branch(ready))
        return result


def around(
    body: Sequence[nn.Module], stem: nn.Conv2d, filters: int, *, activation: str, order: str
) -> nn.Sequential:
    """Stem, body and what ends it: the last addition of a pre-activation network, of ``filters``, has nothing
    after it yet, and the first of the others wants activated input.
    """
    act = activation_of(activation)
    begin: list[nn.Module] = [stem]
    end: list[nn.Module] = []
    if order not in PRE_ACTIVATION:
        begin += [nn.BatchNorm2d(stem.out_channels), act()]
    else:
        if order == "full-pre-activation":
            end.append(nn.BatchNorm2d(filters))
        end.append(act())
    return nn.Sequential(*begin, *body, *end)
