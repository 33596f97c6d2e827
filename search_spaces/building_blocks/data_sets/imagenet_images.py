"""Data set of ImageNet's images, decoded by Pillow, cropped, augmented and normalised.

Importing this module imports torch.
"""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from search_spaces.building_blocks.data_sets.augmentation import (
    Augmentation,
    RandAugment,
    changed,
    drawn_window,
)
from search_spaces.readers.imagenet_files.listing import ImageFiles
from search_spaces.readers.pictures import decoded
from trainers.randomness import derive

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Usual mean and standard deviation of ImageNet's red, green and blue, in values from 0 to 1."""

INPUT_FACTS = {"mean": [255 * mean for mean in MEAN], "deviation": [255 * part for part in DEVIATION]}
"""Both on the scale from 0 to 255, for exported models."""

AUGMENTATIONS = {
    # Section 5.3.2 of the dissertation, with torchvision's and timm's default scale.
    "resized-crop-flip": Augmentation(scale=(0.08, 1.0), flip=True),
    # Table A.1 of the dissertation. timm clips magnitudes at 10 too, unless another end is given.
    "rand-augment": Augmentation(
        scale=(0.08, 1.0), flip=True, rand_augment=RandAugment(magnitude=15.0), erasing=0.25
    ),
}
"""Augmentations by the names that campaigns use."""


class ImageNet(Dataset[tuple[Tensor, Tensor]]):
    """Data set of (float32 (3, side, side), class).

    With an augmentation, random windows of an image are resized, which differ in each epoch and depend only on the
    seed, the epoch and the place. Without, the middle of the image is used.

    Args:
        files (ImageFiles): files of images.
        places (array): places in ``files`` of the data set's images, in its order.
        side (int): height and width in pixels.
        augmentation (Augmentation; default None): augmentation; None: none.
        crop_fraction (float; default 0.875): ratio of ``side`` to the length of the image's shorter side, without
            augmentation.
        random_interpolation (bool; default False): whether half of the augmented images are resized cubically, as with
            timm's "random"; all others are resized linearly.
        seed (int; default 0): seed of the run.

    Raises:
        ValueError: an image is damaged; the text has its name.
    """

    def __init__(
        self,
        files: ImageFiles,
        places: npt.NDArray[np.int64],
        *,
        side: int,
        augmentation: Augmentation | None = None,
        crop_fraction: float = 0.875,
        random_interpolation: bool = False,
        seed: int = 0,
    ) -> None:
        self._files, self._places = files, places
        self._side = side
        self._augmentation = augmentation
        self._crop_fraction = crop_fraction
        self._random_interpolation = random_interpolation
        self._seed = seed
        self._epoch = 0
        self._mean, self._deviation = (torch.tensor(one).view(3, 1, 1) * 255 for one in (MEAN, DEVIATION))
        self._fill = self._mean.round().to(torch.uint8)

    def __len__(self) -> int:
        return len(self._places)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place = int(self._places[index])
        how = self._augmentation
        image = decoded(self._files.read(place), lambda: self._files.describe(place))
        label = torch.tensor(self._files.classes[place])
        if how is None:
            pixels = _bytes(centred(image, self._side, self._crop_fraction))
            return (pixels.float() - self._mean) / self._deviation, label
        draw = random.Random(derive(self._seed, "augmentation", self._epoch, place))
        cubic = self._random_interpolation and draw.random() < 0.5
        pixels = _bytes(
            cropped(
                image,
                self._side,
                (1.0, 1.0) if how.scale is None else how.scale,
                draw,
                Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR,
            )
        )
        return changed(pixels, how, draw, mean=self._mean, deviation=self._deviation, fill=self._fill), label


def cropped(
    image: Image.Image,
    side: int,
    scale: tuple[float, float],
    draw: random.Random,
    interpolation: Image.Resampling,
) -> Image.Image:
    """Random window, resized to side × side pixels; the middle, with sides in a ratio of up to 3:4, if none fits.

    ``scale``: least and largest part of the area.
    """
    width, height = image.size
    window = drawn_window(height, width, scale, draw)
    if window is None:
        across, down = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        window = (height - down) // 2, (width - across) // 2, down, across
    top, left, down, across = window
    return image.resize((side, side), interpolation, box=(left, top, left + across, top + down))


def centred(image: Image.Image, side: int, crop_fraction: float) -> Image.Image:
    """Middle (side × side pixels) of the image, resized to a shorter side of ``side`` / ``crop_fraction``."""
    shorter = math.floor(side / crop_fraction)
    width, height = image.size
    if width <= height:
        size = shorter, max(shorter, int(shorter * height / width))
    else:
        size = max(shorter, int(shorter * width / height)), shorter
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    return image.crop((left, top, left + side, top + side))


def _bytes(image: Image.Image) -> Tensor:
    """Bytes of the image (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
