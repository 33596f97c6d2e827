"""Synthetic images in the forms of ImageNet, with classes that can be learnt: gratings of a colour and a direction, in
noise. Imports no torch."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from search_spaces.readers.files import made_directory

CLASSES, TRAINED, TESTED = 8, 96, 96
"""Defaults: number of classes, and of training and test images of each."""
Form = Literal["folders", "shards"]
_IMAGES_IN_SHARD = 100


def write_made_up(
    path: str | Path,
    *,
    form: Form = "folders",
    classes: int = CLASSES,
    trained: int = TRAINED,
    tested: int = TESTED,
    seed: int = 0,
) -> None:
    """Write a synthetic data set; its images are the same in both forms.

    Args:
        path (path): folder of the data set.
        form (str; default "folders"): "folders", one for each class, or "shards".
        classes (int; default 8): number of classes.
        trained (int; default 96): training images of each class.
        tested (int; default 96): test images of each class.
        seed (int; default 0): seed of the images.

    Raises:
        FileExistsError: ``path`` is not empty.
    """
    root = Path(path)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f"{root} is not empty. Name another folder, or empty it.")
    for part, count in (("train", trained), ("val", tested)):
        made_directory(root / part)
        images = _made(part, classes, count, seed)
        if form == "folders":
            for wnid, name, content, _ in images:
                (root / part / wnid).mkdir(exist_ok=True)
                (root / part / wnid / f"{name}.JPEG").write_bytes(content)
        else:
            _write_shards(root / part, part, list(images))


def _made(part: str, classes: int, count: int, seed: int) -> Iterator[tuple[str, str, bytes, int]]:
    """Name of the class, name, bytes and number of the class of each image."""
    for number in range(classes):
        wnid = f"n{1_440_764 + 10 * number:08d}"
        for image in range(count):
            rng = np.random.default_rng((seed, part == "val", number, image))
            yield wnid, f"{wnid}_{part}_{image:05d}", _jpeg(number, classes, rng), number


def _jpeg(number: int, classes: int, rng: np.random.Generator) -> bytes:
    width, height = (int(side) for side in rng.integers(40, 72, 2))
    y, x = np.mgrid[:height, :width].astype(np.float64)
    # The direction tells more about the class than the colour; both are noisy.
    angle = np.pi * (number + rng.normal(0, 0.15)) / classes
    wave = np.sin(
        (x * np.cos(angle) + y * np.sin(angle)) * rng.uniform(0.35, 0.7) + rng.uniform(0, 2 * np.pi)
    )
    hue = 2 * np.pi * (number * 3 % classes + rng.normal(0, 0.8)) / classes
    colour = 0.5 + 0.3 * np.cos(hue + 2 * np.pi * np.arange(3) / 3)
    pixels = (0.6 + 0.4 * wave)[..., None] * colour + rng.normal(0, 0.1, (height, width, 3))
    made = io.BytesIO()
    Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8)).save(made, "JPEG", quality=90)
    return made.getvalue()


def _write_shards(folder: Path, part: str, images: list[tuple[str, str, bytes, int]]) -> None:
    # Shuffled, as shards are for programs that read them in sequence.
    order = np.random.default_rng(0).permutation(len(images)).tolist()
    for shard, first in enumerate(range(0, len(order), _IMAGES_IN_SHARD)):
        with tarfile.open(folder / f"imagenet-{part}-{shard:06d}.tar", "w") as archive:
            for _, name, content, number in (images[at] for at in order[first : first + _IMAGES_IN_SHARD]):
                for suffix, one in (("jpg", content), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{name}.{suffix}")
                    member.size = len(one)
                    archive.addfile(member, io.BytesIO(one))
