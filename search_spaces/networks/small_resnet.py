"""Small residual network, which several search spaces share. Imports torch."""

from __future__ import annotations

from torch import Tensor, nn

from search_spaces.networks.residual import ACTIVATIONS as ALL_ACTIVATIONS
from search_spaces.networks.residual import ORDERS, Residual, around, blocks_of_stages, conv

__all__ = ["ACTIVATIONS", "ORDERS", "Block", "ResNet"]

ACTIVATIONS = {name: ALL_ACTIVATIONS[name] for name in ("relu", "elu", "selu", "swish", "softplus", "tanh")}


class Block(Residual):
    """Residual block of two 3×3 convolutions; where the shape changes, the shortcut is a 1×1 convolution."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, activation: str, order: str) -> None:
        changes_shape = stride != 1 or inputs != outputs
        super().__init__(
            [conv(inputs, outputs, stride=stride), conv(outputs, outputs)],
            conv(inputs, outputs, kernel=1, stride=stride) if changes_shape else None,
            activation=activation,
            order=order,
        )


class ResNet(nn.Module):
    """Small residual network for small images, from (N, channels, height, width) to (N, classes).

    It has a stem of ``width`` filters and ``stages`` stages of ``blocks`` blocks, with 1, 2, 4, … times as many
    filters; each stage but the first halves height and width. The mean over the remaining pixels is classified.
    """

    def __init__(
        self,
        *,
        channels: int,
        classes: int,
        width: int,
        activation: str,
        order: str,
        stages: int = 2,
        blocks: int = 1,
    ) -> None:
        super().__init__()
        # Made before the blocks, as the initial weights of a seed depend on the order of the layers.
        stem = conv(channels, width)
        body: list[nn.Module] = []
        filters = width
        for outputs, stride in blocks_of_stages(width, [blocks] * stages):
            body.append(Block(filters, outputs, stride=stride, activation=activation, order=order))
            filters = outputs
        self.features = around(body, stem, filters, activation=activation, order=order)
        self.classifier = nn.Linear(filters, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images).mean(dim=(2, 3)))
        return logits
