"""The data set of ImageNet's images: decoded by Pillow, cropped, augmented and normalised.

Importing this module imports torch.
"""

from __future__ import annotations

import io
import math
import random
import struct
import warnings

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
from trainers.randomness import derive

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of red, green and blue from 0 to 1, as in use for ImageNet."""

AUGMENTATIONS = {
    # Section 5.3.2 of the dissertation, with torchvision's and timm's default scale.
    "resized-crop-flip": Augmentation(scale=(0.08, 1.0), flip=True),
    # Table A.1. Magnitudes end at 10 in timm, too, where no other end is named.
    "rand-augment": Augmentation(
        scale=(0.08, 1.0), flip=True, rand_augment=RandAugment(magnitude=15.0), erasing=0.25
    ),
}
"""By the names that campaigns know them by."""


class ImageNet(Dataset[tuple[Tensor, Tensor]]):
    """Items are (float32 (3, side, side), class): those of ``files`` at these ``places``, in this order.

    With ``augmentation`` a window of the size that its ``scale`` says becomes the image, changed anew in each epoch:
    what is drawn depends on ``seed``, epoch and ``places`` only. Without, the shorter side becomes ``side`` /
    ``crop_fraction`` pixels long, and the middle is the image. Resized linearly, with ``random_interpolation`` one time
    in two cubically while augmenting (timm's "random"). ValueError, with its name, for an image that is damaged.
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
        image, how = decoded(self._files, place), self._augmentation
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


def decoded(files: ImageFiles, image: int) -> Image.Image:
    """An image in red, green and blue. ValueError, with its name, if it is damaged."""
    content = files.read(image)
    try:
        with warnings.catch_warnings():
            # A few images of ImageNet have such comments, and pixels that are whole.
            warnings.filterwarnings("ignore", message=".*(EXIF|Palette images with Transparency)")
            # No other decoder gets to see a file from elsewhere (that of EPS starts Ghostscript), nor a picture that
            # takes half a GB.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as opened:
                return opened.convert("RGB")
    # What Pillow raises for bytes that are no image.
    except (
        OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, struct.error, Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:  # fmt: skip
        raise ValueError(
            f"{files.describe(image)} is no whole image ({error}). Bring it again, or remove it."
        ) from error


def cropped(
    image: Image.Image,
    side: int,
    scale: tuple[float, float],
    draw: random.Random,
    interpolation: Image.Resampling,
) -> Image.Image:
    """A window anywhere of the area ``scale`` (from, to), as side × side pixels; if none fits, the middle, with sides
    that are not more than 3:4 apart.
    """
    width, height = image.size
    window = drawn_window(height, width, scale, draw)
    if window is None:
        across, down = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
        window = (height - down) // 2, (width - across) // 2, down, across
    top, left, down, across = window
    return image.resize((side, side), interpolation, box=(left, top, left + across, top + down))


def centred(image: Image.Image, side: int, crop_fraction: float) -> Image.Image:
    """The middle, side × side pixels, of the image with a shorter side of ``side`` / ``crop_fraction``."""
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
    """(3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
