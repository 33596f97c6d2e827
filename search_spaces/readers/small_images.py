"""Small image data sets from installed packages, without a download. torch is imported by ``load_images``."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of
from search_spaces.readers.published import FASHION_MNIST, PACKAGED_IMAGES

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

SETS = tuple(PACKAGED_IMAGES)


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """Disjoint splits of (image, class), with images (channels, height, width) of mean 0 and standard deviation 1."""

    train: TensorDataset
    validation: TensorDataset | None
    """Validation split; None without any."""
    test: TensorDataset
    channels: int
    """Channels of an image."""
    classes: int
    """Number of classes."""

    def joined(self) -> ImageData:
        """Splits with the validation images added to the training images."""
        if self.validation is None:
            return self
        import torch
        from torch.utils.data import TensorDataset

        pairs = zip(self.train.tensors, self.validation.tensors, strict=True)
        return replace(self, train=TensorDataset(*(torch.cat(pair) for pair in pairs)), validation=None)

    def divided(self, training: Sequence[int], held: Sequence[int]) -> ImageData:
        """Splits with the images of ``train`` at the places ``training`` for training, and at ``held`` for
        validation."""
        from torch.utils.data import TensorDataset

        parts = [
            TensorDataset(*(tensor[list(places)] for tensor in self.train.tensors))
            for places in (training, held)
        ]
        return replace(self, train=parts[0], validation=parts[1])


# Kept in memory, because an evaluator process trains many configurations on the same data.
@lru_cache(maxsize=1)
def load_images(name: str, *, train_samples: int | None = None) -> ImageData:
    """Splits of a data set, which are always the same.

    - "digits": 1 797 images of 8×8 from scikit-learn, an eighth for training, three eighths for validation, half for
      the test. With more training images, nearly all configurations would be right for 98 %; with fewer validation
      images, chance would choose among configurations.
    - "fashion-mnist": 60 000 images of 28×28 from Debian's package, of which 10 000 are for validation, and its 10 000
      test images.

    Args:
        name (str): name of the data set.
        train_samples (int; default None): number of training images, the first of the split; None: all.

    Raises:
        ValueError: the name or number is not allowed.
        FileNotFoundError: the package is not installed.
    """
    import torch
    from torch.utils.data import TensorDataset

    if name == "digits":
        images, classes = read_digits()
        order = np.random.default_rng(0).permutation(len(images))
        cuts = [len(images) // 8, len(images) // 2]
    elif name == "fashion-mnist":
        images, classes = read_fashion_mnist()
        order = np.concatenate([np.random.default_rng(0).permutation(60_000), np.arange(60_000, 70_000)])
        cuts = [50_000, 60_000]
    else:
        raise ValueError(f"data = {name!r}: must be {' or '.join(map(repr, SETS))}. Correct it.")
    if train_samples is not None and not 1 <= train_samples <= cuts[0]:
        raise ValueError(
            f"train_samples = {train_samples}: {name} has {cuts[0]} to train with. Name fewer, or none."
        )
    train, validation, test = np.split(order, cuts)
    train = train[:train_samples]
    # Statistics of the training images alone, as the others must not influence the training.
    mean, deviation = images[train].mean(), images[train].std()
    normalised = torch.from_numpy((images - mean) / deviation).unsqueeze(1)
    labels = torch.from_numpy(classes)
    parts = [TensorDataset(normalised[part], labels[part]) for part in (train, validation, test)]
    return ImageData(train=parts[0], validation=parts[1], test=parts[2], channels=1, classes=10)


Images = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int64]


def read_digits() -> tuple[Images, Classes]:
    """Images (1797 × 8 × 8) with values from 0 to 16, and their classes, from scikit-learn's files."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError(
            "The digits are in scikit-learn, which is not installed. Run: pip install scikit-learn"
        )
    # Read as a file, because importing scikit-learn takes two seconds in each process that evaluates.
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)


def read_fashion_mnist() -> tuple[Images, Classes]:
    """Images (70 000 × 28 × 28) with values from 0 to 255, of which the last 10 000 are for the test, and classes."""
    if not FASHION_MNIST.is_dir():
        raise FileNotFoundError(f"{FASHION_MNIST} is not there. Run: apt-get install dataset-fashion-mnist")
    images = [_idx(FASHION_MNIST / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k")]
    classes = [_idx(FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k")]
    return np.concatenate(images).astype(np.float32), np.concatenate(classes).astype(np.int64)


def _idx(path: Path) -> npt.NDArray[np.uint8]:
    """Array of bytes from a file in the idx format."""
    # The format has two zero bytes, the type (8 for bytes), the number of dimensions, and then their sizes.
    packed = content_of(path)
    remedy = "Install the package dataset-fashion-mnist again."
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise ValueError(f"{path} is no whole gzip file ({error}). {remedy}") from error
    if content[:3] != b"\0\0\x08" or len(content) < 4:
        raise ValueError(f"{path} is no idx file of bytes. {remedy}")
    begin = 4 + 4 * content[3]
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, begin, 4)]
    if len(content) != begin + math.prod(sizes):
        raise ValueError(f"{path} has {len(content)} bytes, and names {begin + math.prod(sizes)}. {remedy}")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(sizes)
