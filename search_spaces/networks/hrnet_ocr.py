"""Hierarchical multi-scale attention on HRNet-OCR for semantic segmentation. Imports torch.

HRNetV2 (Wang et al. 2020, arXiv 1908.07919) extracts features at a quarter of the resolution, object-contextual
representations (Yuan et al. 2020, arXiv 1909.11065) classify each pixel, and an attention head weighs predictions at
two scales (Tao et al. 2020, arXiv 2005.10821).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from search_spaces.networks.residual import conv

_LOW_SCALE = 0.5


class Predictions(NamedTuple):
    """Logits (N, classes, H, W) of a forward pass in training."""

    joint: Tensor
    """Prediction of both scales, weighted by the attention."""
    auxiliary: Tensor
    """Same of the auxiliary head."""
    low: Tensor
    """Prediction at half the resolution alone."""
    full: Tensor
    """Prediction at full resolution alone."""


class Block(nn.Module):
    """Residual block of convolutions ``kernels``, the last of which has ``outputs`` filters, the others ``filters``."""

    def __init__(self, inputs: int, filters: int, outputs: int, kernels: Sequence[int]) -> None:
        super().__init__()
        self._depth, before = len(kernels), inputs
        for number, kernel in enumerate(kernels, start=1):
            after = outputs if number == self._depth else filters
            self.add_module(f"conv{number}", conv(before, after, kernel=kernel))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
            before = after
        changed = [conv(inputs, outputs, kernel=1), nn.BatchNorm2d(outputs)] if inputs != outputs else []
        self.downsample = nn.Sequential(*changed)

    def forward(self, x: Tensor) -> Tensor:
        inner = x
        for number in range(1, self._depth + 1):
            inner = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(inner))
            if number == self._depth:
                inner = inner + self.downsample(x)
            inner = functional.relu(inner)
        return inner


class Exchange(nn.Module):
    """Module of parallel branches, branch b with ``filters[b]`` filters at 1/2^b of the first's resolution, whose
    outputs are sums over all branches.
    """

    def __init__(self, filters: Sequence[int], blocks: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(Block(width, width, width, (3, 3)) for _ in range(blocks))) for width in filters
        )
        self.fuse_layers = nn.ModuleList(
            nn.ModuleList(_resampling(filters, source, target) for source in range(len(filters)))
            for target in range(len(filters))
        )

    def forward(self, inputs: list[Tensor]) -> list[Tensor]:
        parts = [branch(x) for branch, x in zip(self.branches, inputs, strict=True)]
        outputs = []
        for own, layers in zip(parts, self.fuse_layers, strict=True):
            assert isinstance(layers, nn.ModuleList)
            total = torch.zeros_like(own)
            for layer, part in zip(layers, parts, strict=True):
                total = total + _resized(layer(part), own.shape[2:])
            outputs.append(functional.relu(total))
        return outputs


class HRNet(nn.Module):
    """HRNetV2 without a head; ``extracted`` turns images (N, 3, H, W) into features (N, 15 × width, H/4, W/4).

    Layers have the names of the authors' and of timm's published weights, for the option ``init`` of campaigns.

    Args:
        width (int; default 48): filters of the first of the four branches; each further branch has twice as many.
        modules (tuple of int; default (1, 4, 3)): modules of the stages with two, three and four branches.
        blocks (int; default 4): residual blocks of a branch in a module, and of the first stage.
        stem (int; default 64): filters of the two convolutions before the first stage.
    """

    def __init__(
        self, *, width: int = 48, modules: tuple[int, int, int] = (1, 4, 3), blocks: int = 4, stem: int = 64
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, stem, stride=2), nn.BatchNorm2d(stem)
        self.conv2, self.bn2 = conv(stem, stem, stride=2), nn.BatchNorm2d(stem)
        self.layer1 = nn.Sequential(
            *(Block(stem if i == 0 else 4 * stem, stem, 4 * stem, (1, 3, 1)) for i in range(blocks))
        )
        before = [4 * stem]
        for stage, count in enumerate(modules):
            filters = [width * 2**branch for branch in range(stage + 2)]
            setattr(self, f"transition{stage + 1}", _transition(before, filters))
            setattr(
                self, f"stage{stage + 2}", nn.Sequential(*(Exchange(filters, blocks) for _ in range(count)))
            )
            before = filters
        self.features = sum(before)
        """Number of features of a pixel."""

    def extracted(self, images: Tensor) -> Tensor:
        """Features (N, ``features``, H/4, W/4) of ``images``."""
        x = functional.relu(self.bn1(self.conv1(images)))
        branches = [self.layer1(functional.relu(self.bn2(self.conv2(x))))]
        for stage in (1, 2, 3):
            # A new branch begins from the last, those that are there go on.
            layers = getattr(self, f"transition{stage}")
            branches = [layer(branches[min(b, len(branches) - 1)]) for b, layer in enumerate(layers)]
            branches = getattr(self, f"stage{stage + 1}")(branches)
        size = branches[0].shape[2:]
        return torch.cat([_resized(branch, size) for branch in branches], dim=1)


class MultiScaleOCR(HRNet):
    """HRNet-OCR with hierarchical multi-scale attention, from images (N, 3, H, W) to logits (N, classes, H, W).

    In training it returns ``Predictions``.

    Args:
        classes (int, from 2; default 19): number of classes.
        middle (int; default 512): filters of the object-contextual representations.
        key (int; default 256): filters of their attention, and of the attention over scales.
        evaluation_scales (int, 1 or 2; default 2): scales of predictions in evaluation: full resolution, and half of it
            as in training.
        width, modules, blocks, stem: as of ``HRNet``.
    """

    def __init__(
        self,
        *,
        classes: int = 19,
        middle: int = 512,
        key: int = 256,
        evaluation_scales: Literal[1, 2] = 2,
        width: int = 48,
        modules: tuple[int, int, int] = (1, 4, 3),
        blocks: int = 4,
        stem: int = 64,
    ) -> None:
        super().__init__(width=width, modules=modules, blocks=blocks, stem=stem)
        self.evaluation_scales = evaluation_scales
        self.ocr = ObjectContext(self.features, classes, middle=middle, key=key)
        self.attention = nn.Sequential(
            *_normalised(conv(middle, key)),
            *_normalised(conv(key, key)),
            nn.Conv2d(key, 1, 1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor | Predictions:
        full, auxiliary, context = self._at_one_scale(images)
        if self.training:
            # Not used, but part of the statistics of its batch norms, as in the authors' code.
            self.attention(context)
        elif self.evaluation_scales == 1:
            return full
        size = images.shape[2:]
        # Images are halved as the authors do it: bilinearly, without antialiasing.
        half = functional.interpolate(images, scale_factor=_LOW_SCALE, mode="bilinear", align_corners=False)
        low, auxiliary_low, context = self._at_one_scale(half)
        weight = _resized(self.attention(context), half.shape[2:])
        # Equation 2 of the paper: the attention is that of the lower scale.
        rest = 1 - _resized(weight, size)
        joint = _resized(weight * low, size) + rest * full
        if not self.training:
            return joint
        return Predictions(
            joint=joint,
            auxiliary=_resized(weight * auxiliary_low, size) + rest * auxiliary,
            low=_resized(low, size),
            full=full,
        )

    def _at_one_scale(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and logits of the auxiliary head, at the resolution of ``images``, and representations of pixels."""
        logits, auxiliary, context = self.ocr(self.extracted(images))
        size = images.shape[2:]
        return _resized(logits, size), _resized(auxiliary, size), context


class ObjectContext(nn.Module):
    """Object-contextual representations: a pixel's features, and those of the classes that it resembles.

    Args:
        features (int): features of a pixel.
        classes (int): number of classes.
        middle (int): filters of the representations.
        key (int): filters of the attention of pixels on classes.
    """

    def __init__(self, features: int, classes: int, *, middle: int, key: int) -> None:
        super().__init__()
        self.pixels = nn.Sequential(*_normalised(conv(features, middle)))
        self.auxiliary = nn.Sequential(
            *_normalised(conv(features, features, kernel=1)), nn.Conv2d(features, classes, 1)
        )
        self.query = nn.Sequential(
            *_normalised(conv(middle, key, kernel=1)), *_normalised(conv(key, key, kernel=1))
        )
        self.keys = nn.Sequential(
            *_normalised(conv(middle, key, kernel=1)), *_normalised(conv(key, key, kernel=1))
        )
        self.values = nn.Sequential(*_normalised(conv(middle, key, kernel=1)))
        self.up = nn.Sequential(*_normalised(conv(key, middle, kernel=1)))
        self.joined = nn.Sequential(*_normalised(conv(2 * middle, middle, kernel=1)), nn.Dropout2d(0.05))
        self.classifier = nn.Conv2d(middle, classes, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, logits of the auxiliary head, and representations (N, middle, H, W)."""
        pixels, auxiliary = self.pixels(features), self.auxiliary(features)
        # A class's features are the mean of those of pixels, weighted by the auxiliary prediction over the image.
        shares = auxiliary.flatten(2).softmax(dim=2)
        objects = (shares @ pixels.flatten(2).mT).mT.unsqueeze(3)
        keys, values = self.keys(objects).flatten(2), self.values(objects).flatten(2)
        query = self.query(pixels)
        # Equations 3 and 4 of Yuan et al.
        similar = (query.flatten(2).mT @ keys * keys.shape[1] ** -0.5).softmax(dim=2)
        context = (similar @ values.mT).mT.reshape(query.shape)
        joined = self.joined(torch.cat([self.up(context), pixels], dim=1))
        return self.classifier(joined), auxiliary, joined


def _normalised(layer: nn.Conv2d) -> list[nn.Module]:
    return [layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()]


def _resized(x: Tensor, size: Sequence[int]) -> Tensor:
    if x.shape[2:] == torch.Size(size):
        return x
    return functional.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def _transition(before: Sequence[int], filters: Sequence[int]) -> nn.ModuleList:
    """Layers from the branches of a stage to those of the next."""
    layers: list[nn.Module] = []
    for branch, width in enumerate(filters):
        if branch >= len(before):
            layers.append(nn.Sequential(nn.Sequential(*_normalised(conv(before[-1], width, stride=2)))))
        else:
            changed = before[branch] != width
            layers.append(
                nn.Sequential(*_normalised(conv(before[branch], width))) if changed else nn.Identity()
            )
    return nn.ModuleList(layers)


def _resampling(filters: Sequence[int], source: int, target: int) -> nn.Module:
    """Layer from branch ``source`` to the filters of branch ``target``, and to its resolution where that is lower."""
    if source == target:
        return nn.Identity()
    inputs, outputs, halvings = filters[source], filters[target], max(0, target - source)
    last = conv(inputs, outputs, stride=2) if halvings else conv(inputs, outputs, kernel=1)
    changed = [last, nn.BatchNorm2d(outputs)]
    if not halvings:
        return nn.Sequential(*changed)
    steps = [nn.Sequential(*_normalised(conv(inputs, inputs, stride=2))) for _ in range(halvings - 1)]
    return nn.Sequential(*steps, nn.Sequential(*changed))
