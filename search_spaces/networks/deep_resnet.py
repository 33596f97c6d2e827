"""Residual network whose parts can all be searched, and which can grow without changing its function. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from search_spaces.networks.residual import PRE_ACTIVATION, Residual, activation_of, conv
from search_spaces.networks.resnet import BARE, EXPANSION, initialise

STEMS = ("convolution", "deep", "patches")
"""Layers before the first stage: a convolution (He et al. 2015), three 3×3 convolutions (He et al. 2019, arXiv
1812.01187, ResNet-C), or a convolution that divides the image into patches (ConvNeXt, arXiv 2201.03545)."""


class SqueezeExcitation(nn.Module):
    """Scales each channel of (N, channels, height, width) by a function of all channels' means (Hu et al. 2018, arXiv
    1709.01507). ``ratio``: units of the function's hidden layer, relative to ``channels``.
    """

    def __init__(self, channels: int, ratio: float) -> None:
        super().__init__()
        units = max(1, round(ratio * channels))
        self.gates = nn.Sequential(
            nn.Linear(channels, units), nn.ReLU(), nn.Linear(units, channels), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = x * self.gates(x.mean(dim=(2, 3)))[:, :, None, None]
        return scaled


class DeepBlock(Residual):
    """Block of 1×1, ``kernel`` × ``kernel`` and 1×1 convolutions with ``inner``, ``inner`` and ``outputs`` filters.

    The middle convolution has the stride, and ``groups`` groups (Xie et al. 2017, arXiv 1611.05431), or the greatest
    common divisor of ``groups`` and ``inner``. ``squeeze``: ratio of a squeeze-and-excitation before the addition; 0:
    none.
    """

    def __init__(
        self,
        inputs: int,
        inner: int,
        outputs: int,
        *,
        stride: int,
        kernel: int,
        groups: int,
        squeeze: float,
        activation: str,
        order: str,
    ) -> None:
        projection: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            projection = conv(inputs, outputs, kernel=1, stride=stride)
            if order not in BARE:
                projection = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        middle = conv(inner, inner, kernel=kernel, stride=stride, groups=math.gcd(groups, inner))
        super().__init__(
            [conv(inputs, inner, kernel=1), middle, conv(inner, outputs, kernel=1)],
            projection,
            activation=activation,
            order=order,
        )
        # A ReLU after the last normalisation has no gradient at a scale of 0, see ``start_as_identity``.
        self._activates_last = order == "activation-before-addition"
        if squeeze:
            self.branch.append(SqueezeExcitation(outputs, squeeze))

    def start_as_identity(self) -> None:
        """Initialise the branch so that it adds zero, from where training changes it.

        The scale of the last normalisation, or without any the weight of the last convolution, is set to 0 (Goyal et
        al. 2017, arXiv 1706.02677, section 5.1). The block then is the identity if it has no projection, and ``order``
        is a pre-activation order, or "original" with an idempotent activation (ReLU, linear). It nearly is with
        "activation-before-addition" and an activation that is 0 at 0, with a scale of 1e-4, as ReLU has no gradient at
        0. With other orders, the normalisation or activation after the addition remains.
        """
        last = next(one for one in reversed(self.branch) if isinstance(one, (_BatchNorm, nn.Conv2d)))
        if isinstance(last, _BatchNorm):  # the base class of all kinds, the synchronised kind included
            nn.init.constant_(last.weight, 1e-4 if self._activates_last else 0.0)
            nn.init.zeros_(last.bias)
        else:
            nn.init.zeros_(last.weight)


class DeepResNet(nn.Module):
    """Residual network from images (N, channels, height, width) to logits (N, classes).

    The defaults make ResNet-50 (He et al. 2015, table 1), parameter for parameter.

    Args:
        channels (int): channels of the images.
        classes (int): number of classes.
        filters (int): a quarter of the filters of the first stage's output; each later stage doubles them.
        blocks (sequence of int): number of blocks of each stage.
        bottleneck (int): ratio of a block's output filters to its inner filters.
        kernel (int): side of the middle convolutions.
        stem (str): layers before the first stage, a name in ``STEMS``.
        groups (int): groups of the middle convolutions, see ``DeepBlock``.
        squeeze (float): ratio of the squeeze-and-excitation of each block; 0: none.
        activation (str): name of the activation.
        order (str): order of normalisation and activation, a name in ``ORDERS``.
        reduction (int): factor by which the stem reduces height and width: 1 or 4, with "patches" 2 or 4. Each stage
            but the first halves them.
    """

    def __init__(
        self,
        *,
        channels: int,
        classes: int,
        filters: int = 64,
        blocks: Sequence[int] = (3, 4, 6, 3),
        bottleneck: int = EXPANSION,
        kernel: int = 3,
        stem: str = "convolution",
        groups: int = 1,
        squeeze: float = 0.0,
        activation: str = "relu",
        order: str = "original",
        reduction: int = 4,
    ) -> None:
        super().__init__()
        self.stem = _stem(stem, channels, filters, activation=activation, order=order, reduction=reduction)
        self.stages = nn.ModuleList()
        width = filters
        for number, count in enumerate(blocks):
            outputs = EXPANSION * filters * 2**number
            stage = nn.ModuleList()
            for index in range(count):
                stage.append(
                    DeepBlock(
                        width,
                        max(1, outputs // bottleneck),
                        outputs,
                        stride=2 if number > 0 and index == 0 else 1,
                        kernel=kernel,
                        groups=groups,
                        squeeze=squeeze,
                        activation=activation,
                        order=order,
                    )
                )
                width = outputs
            self.stages.append(stage)
        # The sum of the last block of a pre-activation network is neither normalised nor activated yet.
        self.end = nn.Sequential()
        if order == "full-pre-activation":
            self.end.append(nn.BatchNorm2d(width))
        if order in PRE_ACTIVATION:
            self.end.append(activation_of(activation)())
        self.classifier = nn.Linear(width, classes)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x)
        logits: Tensor = self.classifier(self.end(x).mean(dim=(2, 3)))
        return logits


def _stem(
    kind: str, channels: int, filters: int, *, activation: str, order: str, reduction: int
) -> nn.Sequential:
    act = activation_of(activation)
    if kind not in STEMS:
        raise ValueError(f"stem = {kind!r}: must be one of {', '.join(STEMS)}. Correct it.")
    stride = 2 if reduction > 1 else 1
    if kind == "patches":
        side = max(2, reduction)
        layers: list[nn.Module] = [
            nn.Conv2d(channels, filters, side, stride=side, bias=False)  # patches do not overlap
        ]
    elif kind == "deep":
        half = max(1, filters // 2)
        layers = [conv(channels, half, stride=stride), nn.BatchNorm2d(half), act()]
        layers += [conv(half, half), nn.BatchNorm2d(half), act(), conv(half, filters)]
    else:
        layers = [conv(channels, filters, kernel=7 if reduction > 1 else 3, stride=stride)]
    if order not in PRE_ACTIVATION:  # the first block expects activated inputs
        layers += [nn.BatchNorm2d(filters), act()]
    if reduction > 1 and kind != "patches":
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(*layers)


def start_new_blocks_as_identity(network: nn.Module, known: Mapping[str, Tensor]) -> list[str]:
    """Initialise blocks of ``network`` without tensors in ``known`` as identities; returns their names.

    A network that is deeper than the network of ``known``, tensors by name, so computes the same function
    (``DeepBlock.start_as_identity``).
    """
    names = [
        name
        for name, module in network.named_modules()
        if isinstance(module, DeepBlock) and not any(one.startswith(f"{name}.") for one in known)
    ]
    with torch.no_grad():
        for name in names:
            block = network.get_submodule(name)
            assert isinstance(block, DeepBlock)
            block.start_as_identity()
    return names
