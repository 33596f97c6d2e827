"""ResNet-50 with any first width, activation and activation order, and ResNet-20. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from search_spaces.networks.residual import Residual, around, blocks_of_stages, conv

__all__ = ["Bottleneck", "ResNet20", "ResNet50"]

EXPANSION = 4
"""Ratio of a bottleneck's output filters to its inner filters."""
BARE = ("norm-after-addition", "full-pre-activation")
"""Orders whose branch ends with a convolution; the projection then has no normalisation either."""


class Bottleneck(Residual):
    """Block of 1×1, 3×3 and 1×1 convolutions of ``filters``, ``filters`` and 4 ``filters`` (He et al. 2015, figure 5).

    The 3×3 convolution has the stride, as in current implementations. Where the shape changes, the shortcut is a 1×1
    convolution, normalised if the last convolution of the branch is.
    """

    def __init__(self, inputs: int, filters: int, *, stride: int, activation: str, order: str) -> None:
        outputs = EXPANSION * filters
        projection: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            projection = conv(inputs, outputs, kernel=1, stride=stride)
            if order not in BARE:
                projection = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        super().__init__(
            [
                conv(inputs, filters, kernel=1),
                conv(filters, filters, stride=stride),
                conv(filters, outputs, kernel=1),
            ],
            projection,
            activation=activation,
            order=order,
        )


class ResNet50(nn.Module):
    """ResNet of bottlenecks (He et al. 2015, table 1) from images (N, channels, height, width) to logits (N, classes).

    The defaults make ResNet-50. The stem halves the image twice, each stage but the first once.

    Args:
        channels (int): channels of the images.
        classes (int): number of classes.
        filters (int): inner filters of the first stage's blocks; each later stage doubles them.
        activation (str): name of the activation.
        order (str): order of normalisation and activation, a name in ``ORDERS``.
        blocks (sequence of int): number of blocks of each stage.
        dropout (float): probability of dropout before the last layer.
    """

    def __init__(
        self,
        *,
        channels: int,
        classes: int,
        filters: int = 64,
        activation: str = "relu",
        order: str = "original",
        blocks: Sequence[int] = (3, 4, 6, 3),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        stem = conv(channels, filters, kernel=7, stride=2)
        # The stem's second halving is in the body, so that it comes after the stem's normalisation and activation,
        # which ``around`` adds.
        body: list[nn.Module] = [nn.MaxPool2d(3, stride=2, padding=1)]
        width = filters
        for inner, stride in blocks_of_stages(filters, blocks):
            body.append(Bottleneck(width, inner, stride=stride, activation=activation, order=order))
            width = EXPANSION * inner
        self.features = around(body, stem, width, activation=activation, order=order)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.features(images).mean(dim=(2, 3))))
        return logits


class _Padding(nn.Module):
    """Shortcut of every second pixel with zeros for the added channels: option A of He et al. 2015, section 4.2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self._channels))


class ResNet20(nn.Module):
    """ResNet-20 for CIFAR (He et al. 2015, section 4.2): images (N, channels, 32, 32) to logits (N, classes).

    Three stages of three blocks of two 3×3 convolutions with ``width``, 2 and 4 times as many filters. Its shortcuts
    have no parameters (option A): there are 269 722 in total for 3 channels and 10 classes.
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 10,
        width: int = 16,
        activation: str = "relu",
        order: str = "original",
    ) -> None:
        super().__init__()
        stem = conv(channels, width)
        body: list[nn.Module] = []
        filters = width
        for outputs, stride in blocks_of_stages(width, (3, 3, 3)):
            convolutions = [conv(filters, outputs, stride=stride), conv(outputs, outputs)]
            shortcut = _Padding(outputs - filters) if stride > 1 else None
            body.append(Residual(convolutions, shortcut, activation=activation, order=order))
            filters = outputs
        self.features = around(body, stem, filters, activation=activation, order=order)
        self.classifier = nn.Linear(filters, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return logits


def initialise(network: nn.Module) -> None:
    """Draw the weights of convolutions as in He et al. 2015 (arXiv 1502.01852), equation 14."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
