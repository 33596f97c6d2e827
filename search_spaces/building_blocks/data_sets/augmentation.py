"""Random changes to training images, on tensors: crops, flips, rand-augment and random erasing as timm defines them.

Neither timm nor torchvision is needed. What is drawn depends on the run's seed, the epoch and the sample, and on
nothing else: a resumed run sees the same images, and so does one on another number of ranks or loader processes.
Importing this module imports torch.
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
"""Magnitudes go from 0 to this."""


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Some of 15 changes, one after the other (Cubuk et al. 2020, arXiv 1909.13719), in timm's form: each of
    ``layers`` is chosen evenly, is skipped with probability one half, and gets a magnitude from a normal
    distribution, cut off at 0 and 10. All become stronger as it grows. The defaults are "rand-m9-mstd0.5-inc1".

    What turns, shears and shifts interpolates linearly; timm chooses between linear and cubic. What comes into view
    gets the colour ``fill``.
    """

    magnitude: float = 9.0
    magnitude_deviation: float = 0.5
    layers: int = 2

    def __call__(self, pixels: Tensor, draw: random.Random, fill: Tensor) -> Tensor:
        for _ in range(self.layers):
            operation = draw.choice(_OPERATIONS)
            if draw.random() > 0.5:
                continue
            level = min(max(draw.gauss(self.magnitude, self.magnitude_deviation), 0.0), _LEVELS) / _LEVELS
            pixels = operation(pixels, level, -1.0 if draw.random() > 0.5 else 1.0, fill)
        return pixels


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """What happens to an image, in this order.

    - ``padding``: a window of the image's size anywhere in the image with this many black pixels around it.
    - ``scale``: a window of such a part of the area, with sides in a ratio of 3:4 to 4:3, enlarged to the image's
      size. Of this and ``padding`` at most one.
    - ``flip``: left becomes right, one time in two.
    - ``rand_augment``, then normalisation.
    - ``erasing``: with this probability a rectangle, 2 to 33 % of the area with sides in a ratio of up to 1:3.3,
      becomes noise of mean 0 and deviation 1 (Zhong et al. 2020, arXiv 1708.04896; timm's mode "pixel").
    """

    padding: int = 0
    scale: tuple[float, float] | None = None
    flip: bool = False
    rand_augment: RandAugment | None = None
    erasing: float = 0.0


AUGMENTATIONS = {
    "none": Augmentation(),
    "crop": Augmentation(padding=4),
    "crop-flip": Augmentation(padding=4, flip=True),
    # Section 5.3.2 of the dissertation, with torchvision's default scale.
    "resized-crop-flip": Augmentation(scale=(0.08, 1.0), flip=True),
    # Table A.2 of the dissertation.
    "rand-augment": Augmentation(scale=(0.8, 1.0), flip=True, rand_augment=RandAugment(), erasing=0.25),
}
"""By the names that campaigns know them by. "crop" is for images that mean something else when flipped."""


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """``images``, changed anew in each epoch and normalised.

    The training loop calls ``set_epoch``. A sample that several ranks see in one epoch looks the same to them.
    """

    def __init__(
        self, images: Images, *, mean: Tensor, deviation: Tensor, augmentation: Augmentation, seed: int
    ) -> None:
        self._images = images
        self._mean, self._deviation = mean, deviation
        self._augmentation = augmentation
        self._seed = seed
        self._epoch = 0
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
    """``pixels`` (3, H, W), bytes, after what ``how`` says comes after cropping: flipped, changed by rand-augment,
    normalised and partly erased. ``mean`` and ``deviation`` (3, 1, 1), ``fill``: as ``mean``, in bytes.
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
    """A window of the size of ``pixels`` (3, H, W) in what they are with ``padding`` on each side."""
    height, width = pixels.shape[1:]
    top, left = draw.randint(0, 2 * padding), draw.randint(0, 2 * padding)
    around = functional.pad(pixels, (padding,) * 4)
    return around[:, top : top + height, left : left + width]


def resized_crop(pixels: Tensor, scale: tuple[float, float], draw: random.Random) -> Tensor:
    """A window of the area ``scale`` (from, to) of ``pixels``, enlarged to their size; all of them if ten windows in
    turn do not fit.
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
    """Top, left, height and width of a window of an area ``scale`` (from, to), with sides in a ratio of 3:4 to 4:3;
    None if ten in turn do not fit.
    """
    for _ in range(10):
        area = draw.uniform(*scale) * height * width
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            return draw.randint(0, height - down), draw.randint(0, width - across), down, across
    return None


def erase(image: Tensor, draw: random.Random) -> None:
    """Put noise into a rectangle of ``image`` (3, H, W), in place; into none if ten in turn do not fit."""
    height, width = image.shape[1:]
    for _ in range(10):
        area = draw.uniform(0.02, 1 / 3) * height * width
        ratio = math.exp(draw.uniform(math.log(0.3), math.log(1 / 0.3)))
        down, across = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < down < height and 0 < across < width:
            top, left = draw.randint(0, height - down), draw.randint(0, width - across)
            generator = torch.Generator().manual_seed(draw.getrandbits(63))
            noise = torch.randn(len(image), down, across, generator=generator)
            image[:, top : top + down, left : left + across] = noise
            return


# The operations of rand-augment: of pixels (3, H, W) as bytes, a level from 0 to 1, a sign that some take as
# their direction, and the colour for what comes into view. Values are Pillow's, to a rounding.

Operation = Callable[[Tensor, float, float, Tensor], Tensor]


def auto_contrast(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Each colour's values spread over 0 to 255."""
    low, high = pixels.float().flatten(1).aminmax(dim=1)
    low, span = low.view(3, 1, 1), (high - low).view(3, 1, 1)
    spread = ((pixels - low) * (255.0 / span.clamp(min=1.0))).floor().to(torch.uint8)
    return torch.where(span > 0, spread, pixels)


def equalize(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Each colour's values replaced so that they are used about equally often."""
    result = []
    for channel in pixels:
        counts = torch.bincount(channel.flatten(), minlength=256)
        step = (channel.numel() - int(counts[int(channel.max())])) // 255
        if step == 0:
            result.append(channel)
            continue
        before = counts.cumsum(0) - counts
        table = ((before + step // 2) // step).clamp(max=255).to(torch.uint8)
        result.append(table[channel.long()])
    return torch.stack(result)


def invert(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Dark becomes light."""
    return 255 - pixels


def rotate(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Turned by up to 30 degrees."""
    angle = -math.radians(sign * level * 30.0)
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = pixels.shape[2] / 2, pixels.shape[1] / 2
    return _transformed(
        pixels,
        (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y),
        fill,
    )


def posterize(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Only the highest 4 to 0 bits stay."""
    return pixels & (255 << (8 - (4 - int(level * 4))) & 255)


def solarize(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """What is at least as light as a threshold, 256 falling to 0, is inverted."""
    return torch.where(pixels.short() < 256 - int(level * 256), pixels, 255 - pixels)


def solarize_add(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """The darker half becomes lighter by up to 110."""
    lighter = (pixels.short() + int(level * 110)).clamp(max=255).to(torch.uint8)
    return torch.where(pixels < 128, lighter, pixels)


def color(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Nearer to grey, or further from it."""
    return _blended(pixels, _grey(pixels).expand(3, -1, -1), level, sign)


def contrast(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Nearer to the mean of grey, or further from it."""
    mean = math.floor(_grey(pixels).float().mean().item() + 0.5)
    return _blended(pixels, torch.full_like(pixels, mean), level, sign)


def brightness(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Nearer to black, or further from it."""
    return _blended(pixels, torch.zeros_like(pixels), level, sign)


def sharpness(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Nearer to what a 3×3 filter makes of it, or further from it. Pixels at the border stay."""
    kernel = torch.tensor([[1.0, 1.0, 1.0], [1.0, 5.0, 1.0], [1.0, 1.0, 1.0]]) / 13
    smooth = pixels.clone()
    smooth[:, 1:-1, 1:-1] = _bytes(functional.conv2d(pixels[:, None].float(), kernel[None, None])[:, 0])
    return _blended(pixels, smooth, level, sign)


def shear_x(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Rows shifted by up to 0.3 of their distance from the top."""
    return _transformed(pixels, (1.0, sign * level * 0.3, 0.0, 0.0, 1.0, 0.0), fill)


def shear_y(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Columns shifted by up to 0.3 of their distance from the left."""
    return _transformed(pixels, (1.0, 0.0, 0.0, sign * level * 0.3, 1.0, 0.0), fill)


def translate_x(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Shifted by up to 0.45 of the width."""
    return _transformed(pixels, (1.0, 0.0, sign * level * 0.45 * pixels.shape[2], 0.0, 1.0, 0.0), fill)


def translate_y(pixels: Tensor, level: float, sign: float, fill: Tensor) -> Tensor:
    """Shifted by up to 0.45 of the height."""
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
    """``other`` moved towards ``pixels``, and past them, by a factor that is 1 where nothing changes."""
    factor = max(0.1, 1.0 + sign * level * 0.9)
    start = other.float()
    moved: Tensor = start + factor * (pixels.float() - start)
    return moved.clamp(0, 255).to(torch.uint8)


def _transformed(
    pixels: Tensor, matrix: tuple[float, float, float, float, float, float], fill: Tensor
) -> Tensor:
    """At (x, y) what was at (ax + by + c, dx + ey + f), in pixels from the upper left corner."""
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
    """x and y of each pixel's centre."""
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    return x, y
