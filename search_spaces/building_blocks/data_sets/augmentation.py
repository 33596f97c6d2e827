"""Augmentation of training images on tensors: crops, flips, rand-augment and random erasing as defined by timm.

Neither timm nor torchvision is needed. Random numbers depend only on the run's seed, the epoch and the sample, so that
a resumed run, or a run on another number of ranks or loader processes, gets the same images. Importing this module
imports torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from search_spaces.building_blocks.data_sets.image_parts import Images
from trainers.randomness import derive

_LEVELS = 10.0
"""Largest magnitude."""


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """RandAugment (Cubuk et al. 2020, arXiv 1909.13719) in timm's form, with "rand-m9-mstd0.5-inc1" as the default.

    Each layer is one of 15 operations with equal probability, is skipped with probability one half, and has a normally
    distributed magnitude, clipped to 0 and 10; all operations become stronger with it. Rotations, shears and shifts
    interpolate linearly, where timm chooses between linear and cubic; new pixels get the colour ``fill``.
    """

    magnitude: float = 9.0
    """Mean of the magnitudes."""
    magnitude_deviation: float = 0.5
    """Standard deviation of the magnitudes."""
    layers: int = 2
    """Number of operations, including those skipped."""

    def __call__(self, pixels: Tensor, draw: random.Random, fill: Tensor) -> Tensor:
        for _ in range(self.layers):
            operation = draw.choice(_OPERATIONS)
            # timm applies each operation with probability one half.
            if draw.random() > 0.5:
                continue
            level = min(max(draw.gauss(self.magnitude, self.magnitude_deviation), 0.0), _LEVELS) / _LEVELS
            pixels = operation(pixels, level, -1.0 if draw.random() > 0.5 else 1.0, fill)
        return pixels


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of an image, by the following steps in this order; the image is normalised before ``erasing``."""

    padding: int = 0
    """Black pixels around the image, in which a window of the image's size is chosen at random; not with ``scale``."""
    scale: tuple[float, float] | None = None
    """Least and largest part of the area of a random window, with sides in a ratio of 3:4 to 4:3, that is enlarged to
    the image's size."""
    flip: bool = False
    """Whether to mirror the image horizontally with probability one half."""
    rand_augment: RandAugment | None = None
    erasing: float = 0.0
    """Probability that a rectangle, 2 to 33 % of the area with sides in a ratio of up to 1:3.3, becomes noise of mean 0
    and deviation 1 (Zhong et al. 2020, arXiv 1708.04896; timm's mode "pixel")."""


AUGMENTATIONS = {
    "none": Augmentation(),
    "crop": Augmentation(padding=4),
    "crop-flip": Augmentation(padding=4, flip=True),
    # Section 5.3.2 of the dissertation, with torchvision's default scale.
    "resized-crop-flip": Augmentation(scale=(0.08, 1.0), flip=True),
    # Table A.2 of the dissertation.
    "rand-augment": Augmentation(scale=(0.8, 1.0), flip=True, rand_augment=RandAugment(), erasing=0.25),
}
"""Augmentations by the names that campaigns use. "crop" is for images whose meaning a flip would change."""


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Augmented and normalised ``images``, which change in each epoch.

    The training loop calls ``set_epoch``. All ranks get the same image for a sample in an epoch.
    """

    def __init__(
        self, images: Images, *, mean: Tensor, deviation: Tensor, augmentation: Augmentation, seed: int
    ) -> None:
        self._images = images
        self._mean, self._deviation = mean, deviation
        self._augmentation = augmentation
        self._seed = seed
        self._epoch = 0
        # timm fills new pixels with the mean colour, too.
        self._fill = mean.round().to(torch.uint8)

    def __len__(self) -> int:
        return len(self._images)

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        how = self._augmentation
        draw = random.Random(derive(self._seed, "augmentation", self._epoch, index))
        pixels = self._images.pixels[index]
        if how.padding:
            pixels = padded_crop(pixels, how.padding, draw)
        if how.scale is not None:
            pixels = resized_crop(pixels, how.scale, draw)
        image = changed(pixels, how, draw, mean=self._mean, deviation=self._deviation, fill=self._fill)
        return image, self._images.classes[index]


def changed(
    pixels: Tensor, how: Augmentation, draw: random.Random, *, mean: Tensor, deviation: Tensor, fill: Tensor
) -> Tensor:
    """Image after the steps of an augmentation that follow cropping: flip, rand-augment, normalisation, erasing.

    Args:
        pixels (tensor): bytes (3, H, W).
        how (Augmentation): the augmentation.
        draw (Random): source of random numbers.
        mean (tensor): mean to subtract (3, 1, 1).
        deviation (tensor): deviation to divide by (3, 1, 1).
        fill (tensor): colour of new pixels, in bytes (3, 1, 1).
    """
    if how.flip and draw.random() < 0.5:
        pixels = pixels.flip(2)
    if how.rand_augment is not None:
        pixels = how.rand_augment(pixels, draw, fill)
    image = (pixels.float() - mean) / deviation
    if draw.random() < how.erasing:
        erase(image, draw)
    return image


def padded_crop(pixels: Tensor, padding: int, draw: random.Random) -> Tensor:
    """Random window of the size of ``pixels`` (3, H, W) in the image with ``padding`` black pixels on each side."""
    height, width = pixels.shape[1:]
    top, left = draw.randint(0, 2 * padding), draw.randint(0, 2 * padding)
    around = functional.pad(pixels, (padding,) * 4)
    return around[:, top : top + height, left : left + width]


def resized_crop(pixels: Tensor, scale: tuple[float, float], draw: random.Random) -> Tensor:
    """Random window of ``pixels``, enlarged to their size; all of ``pixels`` if ten windows in turn do not fit.

    ``scale``: least and largest part of the area.
    """
    height, width = pixels.shape[1:]
    found = drawn_window(height, width, scale, draw)
    if found is None:
        return pixels
    top, left, down, across = found
    window = pixels[None, :, top : top + down, left : left + across].float()
    return _bytes(functional.interpolate(window, size=(height, width), mode="bilinear")[0])


def drawn_window(
    height: int, width: int, scale: tuple[float, float], draw: random.Random
) -> tuple[int, int, int, int] | None:
    """Top, left, height and width of a random window with sides in a ratio of 3:4 to 4:3; None if ten do not fit.

    ``scale``: least and largest part of the area.
    """
    for _ in range(10):
        area = draw.uniform(*scale) * height * width
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            return draw.randint(0, height - down), draw.randint(0, width - across), down, across
    return None


def erase(image: Tensor, draw: random.Random) -> None:
    """Replace a random rectangle of ``image`` (3, H, W) by noise, in place; none if ten in turn do not fit."""
    height, width = image.shape[1:]
    for _ in range(10):
        area = draw.uniform(0.02, 1 / 3) * height * width
        ratio = math.exp(draw.uniform(math.log(0.3), math.log(1 / 0.3)))
        down, across = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < down < height and 0 < across < width:
            top, left = draw.randint(0, height - down), draw.randint(0, width - across)
            # torch's noise needs a generator of torch, which gets its seed from the sample's own numbers.
            generator = torch.Generator().manual_seed(draw.getrandbits(63))
            noise = torch.randn(len(image), down, across, generator=generator)
            image[:, top : top + down, left : left + across] = noise
            return


# Operations of rand-augment: functions of pixels (3, H, W) as bytes, a level from 0 to 1, a sign that some use as their
# direction, and the colour of new pixels. Results are those of Pillow, except for roundings.

Operation = Callable[[Tensor, float, float, Tensor], Tensor]


def auto_contrast(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Stretch the values of each colour to 0 to 255."""
    low, high = pixels.float().flatten(1).aminmax(dim=1)
    low, span = low.view(3, 1, 1), (high - low).view(3, 1, 1)
    spread = ((pixels - low) * (255.0 / span.clamp(min=1.0))).floor().to(torch.uint8)
    return torch.where(span > 0, spread, pixels)


def equalize(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Equalise the histogram of each colour."""
    result = []
    for channel in pixels:
        counts = torch.bincount(channel.flatten(), minlength=256)
        step = (channel.numel() - int(counts[int(channel.max())])) // 255
        # An image with almost a single value cannot be equalised, as in Pillow.
        if step == 0:
            result.append(channel)
            continue
        before = counts.cumsum(0) - counts
        table = ((before + step // 2) // step).clamp(max=255).to(torch.uint8)
        result.append(table[channel.long()])
    return torch.stack(result)


def invert(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Invert all values."""
    return 255 - pixels


def rotate(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Rotate by up to 30 degrees."""
    angle = -math.radians(sign * level * 30.0)
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = pixels.shape[2] / 2, pixels.shape[1] / 2
    return _transformed(
        pixels,
        (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y),
        fill,
    )


def posterize(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Keep only the highest 4 to 0 bits."""
    return pixels & (255 << (8 - (4 - int(level * 4))) & 255)


def solarize(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Invert values that are at least a threshold, which falls from 256 to 0."""
    return torch.where(pixels.short() < 256 - int(level * 256), pixels, 255 - pixels)


def solarize_add(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Add up to 110 to values below 128."""
    lighter = (pixels.short() + int(level * 110)).clamp(max=255).to(torch.uint8)
    return torch.where(pixels < 128, lighter, pixels)


def color(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Reduce or increase the saturation."""
    return _blended(pixels, _grey(pixels).expand(3, -1, -1), level, sign)


def contrast(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Reduce or increase the contrast to the mean of the grey image."""
    mean = math.floor(_grey(pixels).float().mean().item() + 0.5)
    return _blended(pixels, torch.full_like(pixels, mean), level, sign)


def brightness(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Reduce or increase the brightness."""
    return _blended(pixels, torch.zeros_like(pixels), level, sign)


def sharpness(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Reduce or increase the difference to the image smoothed by a 3×3 filter, except for pixels at the border."""
    # Pillow's filter SMOOTH.
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    smooth = pixels.clone()
    smooth[:, 1:-1, 1:-1] = _bytes(functional.conv2d(pixels[:, None].float(), kernel[None, None])[:, 0])
    return _blended(pixels, smooth, level, sign)


def shear_x(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Shift rows by up to 0.3 of their distance from the top."""
    return _transformed(pixels, (1.0, sign * level * 0.3, 0.0, 0.0, 1.0, 0.0), fill)


def shear_y(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Shift columns by up to 0.3 of their distance from the left."""
    return _transformed(pixels, (1.0, 0.0, 0.0, sign * level * 0.3, 1.0, 0.0), fill)


def translate_x(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Shift by up to 0.45 of the width."""
    return _transformed(pixels, (1.0, 0.0, sign * level * 0.45 * pixels.shape[2], 0.0, 1.0, 0.0), fill)


def translate_y(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Shift by up to 0.45 of the height."""
    return _transformed(pixels, (1.0, 0.0, 0.0, 0.0, 1.0, sign * level * 0.45 * pixels.shape[1]), fill)


_OPERATIONS: tuple[Operation, ...] = (
    auto_contrast, equalize, invert, rotate, posterize, solarize, solarize_add, color, contrast,
    brightness, sharpness, shear_x, shear_y, translate_x, translate_y,
)  # fmt: skip


def _bytes(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)


def _grey(pixels: Tensor) -> Tensor:
    """Luma (ITU-R 601-2) in Pillow's integer arithmetic."""
    red, green, blue = pixels.int()
    luma: Tensor = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16
    return luma.to(torch.uint8)


def _blended(pixels: Tensor, other: Tensor, level: float, sign: float) -> Tensor:
    """Extrapolation from ``other`` through ``pixels``, by a factor that is 1 at ``pixels``."""
    # At least 0.1, as in timm.
    factor = max(0.1, 1.0 + sign * level * 0.9)
    start = other.float()
    moved: Tensor = start + factor * (pixels.float() - start)
    return moved.clamp(0, 255).to(torch.uint8)


def _transformed(
    pixels: Tensor, matrix: tuple[float, float, float, float, float, float], fill: Tensor
) -> Tensor:
    """Image with the pixel of (ax + by + c, dx + ey + f) at (x, y), in pixels from the upper left corner."""
    height, width = pixels.shape[1:]
    a, b, c, d, e, f = matrix
    x, y = _centres(height, width)
    across, down = a * x + b * y + c, d * x + e * y + f
    grid = torch.stack((2 * across / width - 1, 2 * down / height - 1), dim=-1)
    found = functional.grid_sample(
        pixels[None].float(), grid[None], mode="bilinear", padding_mode="border", align_corners=False
    )[0]
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
    result: Tensor = torch.where(inside, _bytes(found), fill)
    return result


@lru_cache(maxsize=8)
def _centres(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Coordinates x and y of the centre of each pixel."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return x, y
