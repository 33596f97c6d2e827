"""VGG16 (Simonyan and Zisserman 2015, arXiv 1409.1556, configuration D), for ImageNet and for CIFAR. Imports torch."""

from __future__ import annotations

from torch import Tensor, nn

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Filters of each stage as multiples of the first stage's, and its number of 3×3 convolutions."""


class VGG16(nn.Module):
    """Images (N, channels, side, side) to logits (N, classes).

    The defaults make the published network for 224×224 pixels, with 138 357 544 parameters. ``cifar_vgg16`` makes the
    usual form for CIFAR.

    Args:
        channels (int): channels of the images.
        classes (int): number of classes.
        width (int): filters of the first stage.
        norm (bool): whether convolutions are followed by batch normalisation.
        hidden (tuple of int): widths of the linear layers before the last.
        pooled (int): side to which the outputs of the convolutions are averaged.
        dropout (float): probability of dropout after hidden linear layers.
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        classes: int = 1000,
        width: int = 64,
        norm: bool = False,
        hidden: tuple[int, ...] = (4096, 4096),
        pooled: int = 7,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for times, count in _STAGES:
            for _ in range(count):
                layers.append(nn.Conv2d(inputs, width * times, 3, padding=1))
                inputs = width * times
                if norm:
                    layers.append(nn.BatchNorm2d(inputs))
                layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(pooled)
        inputs *= pooled**2
        linear: list[nn.Module] = []
        for outputs in hidden:
            linear += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
            inputs = outputs
        self.classifier = nn.Sequential(*linear, nn.Linear(inputs, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits


def cifar_vgg16(*, classes: int = 10, width: int = 64) -> VGG16:
    """VGG16 for 32×32 pixels, with batch normalisation and a single linear layer; 14 728 266 parameters for ten
    classes."""
    return VGG16(classes=classes, width=width, norm=True, hidden=(), pooled=1)
