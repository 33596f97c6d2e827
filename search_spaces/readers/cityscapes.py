"""Cityscapes: street scenes with the class of each pixel (Cordts et al. 2016, arXiv 1604.01685). Imports no torch.

    scenes = list_scenes("data/cityscapes", "train", kept_in="runs/cityscapes-lists")
    image, mask = scenes.image(0), scenes.mask(0)

The folder has the published archives as they are unpacked: ``leftImg8bit/{train,val,train_extra}/CITY``,
``gtFine/{train,val}/CITY`` and, for coarse annotations, ``gtCoarse/train_extra/CITY``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from search_spaces.readers.files import content_of
from search_spaces.readers.kept_arrays import Arrays, kept
from search_spaces.readers.pictures import decoded

Part = Literal["train", "val", "coarse"]

CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
"""Names of the classes that the benchmark counts, in the order of their numbers."""
IGNORED = 255
"""Value of pixels in a mask that belong to none of ``CLASSES``."""

IMAGE_SUFFIX, FINE_SUFFIX = "_leftImg8bit.png", "_gtFine_labelIds.png"
# Ids in the published masks of the classes, in their order; all other ids up to 33 are ignored.
IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)

_FORMAT = 1
_FOLDERS: dict[Part, tuple[str, str, str]] = {
    "train": ("leftImg8bit/train", "gtFine/train", FINE_SUFFIX),
    "val": ("leftImg8bit/val", "gtFine/val", FINE_SUFFIX),
    "coarse": ("leftImg8bit/train_extra", "gtCoarse/train_extra", "_gtCoarse_labelIds.png"),
}
_MOST_IDS = 34
_CLASS_OF_ID = [IDS.index(number) if number in IDS else IGNORED for number in range(256)]
_PNG_BEGIN, _PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"


@dataclass(frozen=True, kw_only=True, eq=False)
class Scenes:
    """Images and masks of a part, sorted by city and name. Picklable."""

    root: Path
    images: npt.NDArray[np.bytes_]
    """Paths of the images below ``root``."""
    masks: npt.NDArray[np.bytes_]
    """Paths of their masks."""
    cities: npt.NDArray[np.int64]
    """Number of the city of each image."""
    centres: npt.NDArray[np.int64]
    """Image, class, row and column of the centre of each class in each square tile of the height of the images."""
    size: tuple[int, int]
    """Height and width in pixels, the same of all images."""

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> Image.Image:
        """Image in red, green and blue; ValueError, with its name, if it is damaged."""
        path = self.root / os.fsdecode(self.images[index])
        return decoded(content_of(path), lambda: str(path))

    def mask(self, index: int) -> Image.Image:
        """Grey image of the class of each pixel, or ``IGNORED``; ValueError, with its name, if it is damaged."""
        return _mask(self.root / os.fsdecode(self.masks[index]))

    def with_others(self, others: Scenes) -> Scenes:
        """These scenes and ``others`` of the same folder."""
        moved = others.centres + np.array([len(self), 0, 0, 0])
        return replace(
            self,
            images=np.concatenate([self.images, others.images]),
            masks=np.concatenate([self.masks, others.masks]),
            cities=np.concatenate([self.cities, others.cities + self.cities.max() + 1]),
            centres=np.concatenate([self.centres, moved]),
        )


@lru_cache(maxsize=4)
def list_scenes(path: str | Path, part: Part, kept_in: str | Path) -> Scenes:
    """List the scenes of a part, and decode their masks, once; the list is kept until files are added or removed.

    Args:
        path (path): folder of the data set.
        part (str): "train" or "val", with fine annotations, or "coarse".
        kept_in (path): folder of lists, which is made if it is missing.

    Raises:
        FileNotFoundError: a file or folder is missing.
        ValueError: an image or a mask is damaged, or of another form.
    """
    root = Path(path).resolve()
    images, masks, suffix = _FOLDERS[part]
    found = [(city, root / masks / city.name) for city in _subfolders(root / images)]
    if alone := {city.name for city, _ in found} ^ {city.name for city in _subfolders(root / masks)}:
        name = min(alone)
        one, other = sorted((root / images / name, root / masks / name), key=Path.is_dir)
        raise FileNotFoundError(f"{one} is missing, and {other} is there. Bring it, or remove the other.")
    stamps = [(str(folder), folder.stat().st_mtime_ns) for pair in found for folder in pair]
    return kept(
        root,
        kept_in,
        ("cityscapes", _FORMAT, part, str(root), stamps),
        make=lambda: _listed(root, found, suffix),
        take=lambda arrays: Scenes(
            root=root,
            images=arrays["images"],
            masks=arrays["masks"],
            cities=arrays["cities"],
            centres=arrays["centres"],
            size=(int(arrays["size"][0]), int(arrays["size"][1])),
        ),
    )


def _listed(root: Path, cities: list[tuple[Path, Path]], suffix: str) -> Arrays:
    """Arrays of ``Scenes``, by name."""
    pairs, numbers = [], []
    for number, (images, masks) in enumerate(cities):
        stems, masked = _stems(images, IMAGE_SUFFIX), _stems(masks, suffix)
        for folder, ending, absent in (
            (masks, suffix, sorted({*stems} - {*masked})),
            (images, IMAGE_SUFFIX, sorted({*masked} - {*stems})),
        ):
            if absent:
                raise FileNotFoundError(
                    f"{folder / absent[0]}{ending} is missing{f', and {len(absent) - 1} more' if absent[1:] else ''}. "
                    "Each image needs its mask: bring it, or remove the other."
                )
        pairs += [(images / (stem + IMAGE_SUFFIX), masks / (stem + suffix)) for stem in stems]
        numbers += [number] * len(stems)
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(_centres_of, pairs))
    sizes = [size for size, _ in found]
    for (image, _), size in zip(pairs, sizes):
        if size != sizes[0]:
            raise ValueError(
                f"{image} has {size[0]} × {size[1]} pixels, and {pairs[0][0]} {sizes[0][0]} × {sizes[0][1]}. All must "
                "have one size: bring it again, or remove it."
            )
    return {
        "images": np.array([os.fsencode(image.relative_to(root)) for image, _ in pairs]),
        "masks": np.array([os.fsencode(mask.relative_to(root)) for _, mask in pairs]),
        "cities": np.array(numbers, dtype=np.int64),
        "centres": np.array(
            [(place, *centre) for place, (_, centres) in enumerate(found) for centre in centres],
            dtype=np.int64,
        ).reshape(-1, 4),
        "size": np.array(sizes[0]),
    }


def _stems(folder: Path, suffix: str) -> list[str]:
    """Sorted names without ``suffix`` of the files that end with it; macOS' hidden copies are left out."""
    names = (name for name in os.listdir(folder) if name.endswith(suffix) and not name.startswith("."))
    if not (found := sorted(name.removesuffix(suffix) for name in names)):
        raise FileNotFoundError(f"{folder} has no files *{suffix}. Bring them, or remove the city's folders.")
    return found


def _centres_of(pair: tuple[Path, Path]) -> tuple[tuple[int, int], list[tuple[int, int, int]]]:
    """Height and width of an image and its mask, and class, row and column of the centres in the mask."""
    image, mask = pair
    size, other = _png_size(image), _png_size(mask)
    if size != other:
        raise ValueError(
            f"{mask} has {other[0]} × {other[1]} pixels, and {image} {size[0]} × {size[1]}. Bring both again."
        )
    return size, [*_centres(np.asarray(_mask(mask)))]


def _centres(mask: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int, int]]:
    height, width = mask.shape
    for left in range(0, width, height):
        tile = mask[:, left : left + height]
        rows, columns = np.indices(tile.shape)
        counts, *sums = (
            np.bincount(tile.ravel(), weights, minlength=256)[: len(CLASSES)]
            for weights in (None, rows.ravel(), columns.ravel())
        )
        for number in np.flatnonzero(counts).tolist():
            row, column = (int(total[number] / counts[number]) for total in sums)
            yield number, row, left + column


def _mask(path: Path) -> Image.Image:
    opened = decoded(content_of(path), lambda: str(path), mode=None)
    if opened.mode not in ("L", "P"):
        raise ValueError(
            f"{path} is an image of the mode {opened.mode}, and a mask has one byte for each pixel. Bring the "
            "published masks (…_labelIds.png)."
        )
    # The numbers of a palette count, not its colours.
    ids = np.asarray(opened)
    most = int(ids.max())
    if most >= _MOST_IDS:
        raise ValueError(
            f"{path} has the value {most}, and Cityscapes' ids are 0 to {_MOST_IDS - 1}. Bring the published masks "
            "(…_labelIds.png), not those with other numbers or colours."
        )
    return Image.fromarray(ids).point(_CLASS_OF_ID)


def _png_size(path: Path) -> tuple[int, int]:
    """Height and width of a PNG whose end is there; ValueError for another file. Decoding all would take minutes."""
    with open(path, "rb") as file:
        begin = file.read(24)
        file.seek(-min(len(_PNG_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
        end = file.read()
    if not begin.startswith(_PNG_BEGIN) or end != _PNG_END:
        raise ValueError(f"{path} is no whole PNG. Bring it again, or remove image and mask.")
    return int.from_bytes(begin[20:24], "big"), int.from_bytes(begin[16:20], "big")


def _subfolders(path: Path) -> list[Path]:
    try:
        found = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        found = []
    if not found:
        raise FileNotFoundError(
            f"{path} has no folders of cities. Unpack Cityscapes' archives in one folder."
        )
    return found
