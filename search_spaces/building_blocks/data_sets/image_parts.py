"""Sets of images in CIFAR's form, divided and normalised. Importing this module imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from search_spaces.readers.cifar import read_cifar


@dataclass(frozen=True, kw_only=True)
class Images:
    """Pixels (N, 3, 32, 32), bytes from 0 to 255 in the order red, green, blue; classes (N), int64."""

    pixels: Tensor
    classes: Tensor

    def __len__(self) -> int:
        return len(self.classes)

    def at(self, places: Tensor | Sequence[int]) -> Images:
        """Those at these places."""
        chosen = torch.as_tensor(places)
        return Images(pixels=self.pixels[chosen], classes=self.classes[chosen])

    def normalised(self, mean: Tensor, deviation: Tensor) -> TensorDataset:
        """As numbers, of which ``mean`` is subtracted, in units of ``deviation``; both (3, 1, 1)."""
        return TensorDataset((self.pixels.float() - mean) / deviation, self.classes)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A set ready for use. ``train`` holds bytes, which augmentation works on; ``validation`` (None: nothing is set
    apart) and ``test`` are normalised by ``mean`` and ``deviation`` (3, 1, 1), those of the bytes in ``train``.
    """

    train: Images
    validation: TensorDataset | None
    test: TensorDataset
    mean: Tensor
    deviation: Tensor
    classes: int

    def divided(self, training: Sequence[int], held: Sequence[int]) -> Parts:
        """Of ``train`` the images of these places to train with, and of those to validate with; all normalised as
        before.
        """
        return replace(
            self,
            train=self.train.at(training),
            validation=self.train.at(held).normalised(self.mean, self.deviation),
        )


@lru_cache(maxsize=1)
def load_parts(
    source: str, *, validation_part: float | None = 0.1, train_samples: int | None = None
) -> Parts:
    """The set at ``source``, see ``read_cifar``; ``validation_part`` of its training images, always the same
    ones, are set apart: none if it is None. ``train_samples`` keeps this many of the first of the others.

    ValueError for numbers that leave a part empty.
    """
    cifar = read_cifar(source)
    held = round((validation_part or 0.0) * len(cifar.train))
    left = len(cifar.train) - held
    if validation_part is not None and not 0 < held < len(cifar.train):
        raise ValueError(
            f"validation_part = {validation_part}: must leave some of the {len(cifar.train)} training images of "
            f"{source} on either side. Choose 0.1, say."
        )
    if train_samples is not None and not 1 <= train_samples <= left:
        raise ValueError(
            f"train_samples = {train_samples}: {source} has {left} to train with. Name fewer, or none."
        )
    images = Images(
        pixels=torch.from_numpy(cifar.train.pixels), classes=torch.from_numpy(cifar.train.classes)
    )
    tested = Images(pixels=torch.from_numpy(cifar.test.pixels), classes=torch.from_numpy(cifar.test.classes))
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(cifar.train)))
    train, validation = images.at(order[held:][:train_samples]), images.at(order[:held])
    # By counting bytes: as floats the set would take four times its size.
    counts = torch.stack([torch.bincount(train.pixels[:, c].flatten(), minlength=256) for c in range(3)])
    shares, values = counts.double() / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64)
    mean = (shares * values).sum(1, keepdim=True)
    deviation = (shares * (values - mean) ** 2).sum(1).sqrt()
    mean, deviation = mean.view(3, 1, 1).float(), deviation.view(3, 1, 1).clamp(min=1.0).float()
    return Parts(
        train=train,
        validation=validation.normalised(mean, deviation) if held else None,
        test=tested.normalised(mean, deviation),
        mean=mean,
        deviation=deviation,
        classes=cifar.classes,
    )
