"""Splits of data sets in CIFAR's form, with normalised images. Importing this module imports torch."""

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
    """Images with their classes."""

    pixels: Tensor
    """Bytes from 0 to 255 (N, 3, 32, 32), in the order red, green, blue."""
    classes: Tensor
    """Classes (N), int64."""

    def __len__(self) -> int:
        return len(self.classes)

    def at(self, places: Tensor | Sequence[int]) -> Images:
        """Images at the given places."""
        chosen = torch.as_tensor(places)
        return Images(pixels=self.pixels[chosen], classes=self.classes[chosen])

    def normalised(self, mean: Tensor, deviation: Tensor) -> TensorDataset:
        """Images as numbers, minus ``mean`` and divided by ``deviation``, both (3, 1, 1)."""
        return TensorDataset((self.pixels.float() - mean) / deviation, self.classes)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Splits of a data set."""

    train: Images
    """Training images as bytes, for augmentation."""
    validation: TensorDataset | None
    """Normalised validation images; None without any."""
    test: TensorDataset
    """Normalised test images."""
    mean: Tensor
    """Mean of the training images' bytes (3, 1, 1)."""
    deviation: Tensor
    """Standard deviation of the training images' bytes (3, 1, 1)."""
    classes: int
    """Number of classes."""

    def divided(self, training: Sequence[int], held: Sequence[int]) -> Parts:
        """Splits with the images of ``train`` at the places ``training`` for training, and at ``held`` for validation.

        The normalisation stays the same.
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
    """Splits of the data set at ``source`` (see ``read_cifar``).

    Args:
        source (str): path of the data set.
        validation_part (float; default 0.1): share of the training images for validation, always the same images;
            None: no validation images.
        train_samples (int; default None): number of the remaining images that are used; None: all.

    Raises:
        ValueError: a split would be empty.
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
    # A constant seed, so that all runs validate on the same images.
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(cifar.train)))
    train, validation = images.at(order[held:][:train_samples]), images.at(order[:held])
    # Computed from a histogram of bytes, as the set would need four times the memory as floats.
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
