"""ResNet-RS (Bello et al. 2021, arXiv 2103.07579) as in timm, which the dissertation trained. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from search_spaces.networks.deep_resnet import DeepBlock
from search_spaces.networks.residual import blocks_of_stages, conv
from search_spaces.networks.resnet import EXPANSION, initialise


class ResNetRS(nn.Module):
    """ResNet-RS from images (N, channels, height, width) to logits (N, classes).

    The defaults make ResNet-RS 101, with 63 618 696 parameters: a ResNet of bottlenecks with squeeze-and-excitation of
    ratio 1/4 and, from ResNet-D (He et al. 2019, arXiv 1812.01187), a stem of three 3×3 convolutions and shortcuts that
    average before their convolution. A fourth 3×3 convolution replaces the stem's max pooling. Blocks first add zero.

    Args:
        channels (int): channels of the images.
        classes (int): number of classes.
        filters (int): filters of the stem, and a quarter of those of the first stage's output.
        blocks (sequence of int): number of blocks of each stage.
        dropout (float): probability of dropout before the last layer.
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 1000,
        filters: int = 64,
        blocks: Sequence[int] = (3, 4, 23, 3),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        half = filters // 2
        stem: list[nn.Module] = []
        for inputs, outputs, stride in (
            (channels, half, 2), (half, half, 1), (half, filters, 1), (filters, filters, 2)
        ):  # fmt: skip
            stem += [conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.stem = nn.Sequential(*stem)
        body: list[DeepBlock] = []
        width = filters
        for inner, stride in blocks_of_stages(filters, blocks):
            body.append(_block(width, inner, stride))
            width = EXPANSION * inner
        self.body = nn.Sequential(*body)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)
        initialise(self)
        for block in body:
            block.start_as_identity()

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(self.stem(images)).mean(dim=(2, 3))
        logits: Tensor = self.classifier(self.dropout(features))
        return logits


def _block(inputs: int, inner: int, stride: int) -> DeepBlock:
    outputs = EXPANSION * inner
    block = DeepBlock(
        inputs, inner, outputs, stride=stride, kernel=3, groups=1, squeeze=0.25, activation="relu", order="original"
    )  # fmt: skip
    if stride != 1:
        block.projection = nn.Sequential(
            # Odd sides are rounded up as in timm, and the missing pixels do not count in the average.
            nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False),
            conv(inputs, outputs, kernel=1),
            nn.BatchNorm2d(outputs),
        )
    return block
