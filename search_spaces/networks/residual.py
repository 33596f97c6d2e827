"""Parts of residual networks: activations, and blocks with any activation order. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Exponential(nn.Module):
    """exp(x), the same as Keras' "exponential"."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)


class HardSigmoid(nn.Module):
    """clip(0.2 x + 0.5, 0, 1), the same as "hard_sigmoid" in TensorFlow and Keras 2; in torch and Keras 3, the slope is
    1/6.
    """

    def forward(self, x: Tensor) -> Tensor:
        return (0.2 * x + 0.5).clamp(0.0, 1.0)


class ChannelSoftmax(nn.Module):
    """Softmax over the channels of (N, C, …) at each pixel, as in Keras, where the channels are the last axis."""

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
"""Activations by name; each is the same function as in Keras."""

ORDERS = (
    "original",
    "norm-after-addition",
    "activation-before-addition",
    "activation-only-pre-activation",
    "full-pre-activation",
)
"""Orders of normalisation and activation in a block: figure 4 (a) to (e) of He et al. 2016 (arXiv 1603.05027)."""

PRE_ACTIVATION = ("activation-only-pre-activation", "full-pre-activation")

# Layers before the first convolution, after the last convolution, and after the addition. Between two convolutions, all
# orders normalise and then activate.
_PLACES = {
    "original": ("", "norm", "act"),
    "norm-after-addition": ("", "", "norm act"),
    "activation-before-addition": ("", "norm act", ""),
    "activation-only-pre-activation": ("act", "norm", ""),
    "full-pre-activation": ("norm act", "", ""),
}


def conv(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Convolution that reduces the image's size by ``stride`` only, without a bias, as a normalisation follows."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)


def activation_of(name: str) -> Callable[[], nn.Module]:
    """Class of the activation ``name``; ValueError for an unknown name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation = {name!r}: must be one of {', '.join(ACTIVATIONS)}. Correct it.")
    return ACTIVATIONS[name]


class Residual(nn.Module):
    """Block of convolutions with a shortcut around them.

    The layers of a pre-activation block before its first convolution are part of the branch, and also of the shortcut
    if that is a projection, as in the authors' code.

    Args:
        convolutions (sequence of Conv2d): convolutions of the branch.
        projection (Module): shortcut where the shape changes; None: the identity.
        activation (str): name of the activation.
        order (str): order of normalisation and activation, a name in ``ORDERS``.
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


def blocks_of_stages(width: int, blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Filters and stride of each block, for these numbers of ``blocks``: each stage but the first doubles the filters
    and halves the image.
    """
    for stage, count in enumerate(blocks):
        for index in range(count):
            yield width * 2**stage, 2 if stage > 0 and index == 0 else 1


def around(
    body: Sequence[nn.Module], stem: nn.Conv2d, filters: int, *, activation: str, order: str
) -> nn.Sequential:
    """Stem and body with the normalisations and activations that ``order`` needs before and after the body."""
    # The first block of other orders expects activated inputs. The sum of the last block of a pre-activation network,
    # with ``filters`` channels, is neither normalised nor activated yet.
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
