"""Data set of street scenes and their masks, decoded, scaled, cropped and flipped. Importing this module imports torch.

Augmentation and class-uniform sampling are those of Tao et al. 2020 (arXiv 2005.10821, section 4). They depend on seed,
epoch and place alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from search_spaces.building_blocks.data_sets.imagenet_images import DEVIATION, MEAN
from search_spaces.readers.cityscapes import CLASSES, IGNORED, Scenes
from trainers.randomness import derive

_SCALES = (0.5, 2.0)
_CLASS_UNIFORM = 0.5
"""Share of crops around the centre of a class, as many of each class, so that rare classes are seen as often."""
_FILL = tuple(round(255 * part) for part in MEAN)

Centre = tuple[int, int]
"""Row and column."""


class StreetScenes(Dataset[tuple[Tensor, Tensor]]):
    """Data set for the trainers: ``read_batch`` gives bytes, ``on_device`` makes normalised images of them.

    Images are (n, 3, H, W), float32 on the device; masks (n, H, W), uint8, with 255 for ignored pixels.

    Args:
        scenes (Scenes): scenes of a part.
        places (array): places in ``scenes`` of the data set's scenes, in its order.
        crop (tuple of int; default None): height and width of random crops; None: whole scenes without augmentation.
        seed (int; default 0): seed of the run.

    Raises:
        ValueError: an image or a mask is damaged; the text has its name.
    """

    def __init__(
        self,
        scenes: Scenes,
        places: npt.NDArray[np.int64],
        *,
        crop: tuple[int, int] | None = None,
        seed: int = 0,
    ) -> None:
        self._scenes, self._places = scenes, places
        self._crop, self._seed = crop, seed
        self._epoch = 0
        self._centres = scenes.centres[np.isin(scenes.centres[:, 0], places)]
        self._drawn: list[tuple[int, Centre | None]] = [(place, None) for place in places.tolist()]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def fixed_items(self) -> bool:
        """Whether a place always gives the same scene, without augmentation."""
        return self._crop is None

    def set_epoch(self, epoch: int) -> None:
        """Choose the scenes of an epoch, and the centres of crops."""
        self._epoch = epoch
        if self._crop is None:
            return
        rng = np.random.default_rng(derive(self._seed, "scenes", epoch, 0))
        by_class = [self._centres[self._centres[:, 1] == number] for number in range(len(CLASSES))]
        by_class = [found for found in by_class if len(found)]
        each = int(_CLASS_UNIFORM * len(self) / max(1, len(by_class)))
        around = [
            (scene, (row, column))
            for found in by_class
            for scene, _, row, column in found[np.resize(rng.permutation(len(found)), each)].tolist()
        ]
        others = rng.permutation(self._places)[: len(self) - len(around)].tolist()
        self._drawn = [*around, *((place, None) for place in others)]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Normalised image and mask at a place."""
        images, masks = self.on_device(*self.read_batch([range(len(self))[index]]))
        return images[0], masks[0]

    def read_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Images and masks in bytes."""
        pairs = [self._read(index) for index in np.asarray(indices).tolist()]
        images = np.stack([np.asarray(image) for image, _ in pairs])
        masks = np.stack([np.asarray(mask) for _, mask in pairs])
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(masks)

    def on_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Images normalised by ImageNet's mean and deviation, with their masks."""
        mean, deviation = (
            255 * torch.tensor(part, device=inputs.device).view(3, 1, 1) for part in (MEAN, DEVIATION)
        )
        return (inputs.float() - mean) / deviation, targets

    def _read(self, index: int) -> tuple[Image.Image, Image.Image]:
        scene, centre = self._drawn[index]
        # PNG has no parts that could be decoded alone.
        image, mask = self._scenes.image(scene), self._scenes.mask(scene)
        if self._crop is None:
            return image, mask
        draw = random.Random(derive(self._seed, "augmentation", self._epoch, index))
        return cropped(image, mask, self._crop, centre, draw)


def cropped(
    image: Image.Image, mask: Image.Image, size: tuple[int, int], centre: Centre | None, draw: random.Random
) -> tuple[Image.Image, Image.Image]:
    """Random crop of a scaled and perhaps mirrored scene; where the scaled scene is smaller, the rest is ignored.

    Args:
        image, mask (Image): scene and its classes.
        size (tuple of int): height and width of the crop.
        centre (tuple of int): row and column in the scene that the crop shows; None: any.
        draw (Random): source of random numbers.
    """
    factor = draw.uniform(*_SCALES)
    down, across = (
        min(side, round(whole * factor)) for side, whole in zip(size, (image.height, image.width))
    )
    height, width = min(image.height, down / factor), min(image.width, across / factor)
    rows, columns = image.height - height, image.width - width
    if centre is None:
        top, left = draw.uniform(0, rows), draw.uniform(0, columns)
    else:
        top = min(max(centre[0] - draw.uniform(0, height), 0), rows)
        left = min(max(centre[1] - draw.uniform(0, width), 0), columns)
    # Only the crop is resized, not all of the scene.
    box = (left, top, left + width, top + height)
    image = image.resize((across, down), Image.Resampling.BICUBIC, box=box)
    mask = mask.resize((across, down), Image.Resampling.NEAREST, box=box)
    if draw.random() < 0.5:
        image, mask = (one.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for one in (image, mask))
    if (down, across) != size:
        corner = (draw.randint(0, size[1] - across), draw.randint(0, size[0] - down))
        image, mask = (_pasted(one, size, corner, fill) for one, fill in ((image, _FILL), (mask, IGNORED)))
    return image, mask


def _pasted(
    image: Image.Image, size: tuple[int, int], corner: tuple[int, int], fill: int | tuple[int, ...]
) -> Image.Image:
    whole = Image.new(image.mode, (size[1], size[0]), fill)
    whole.paste(image, corner)
    return whole
