"""BigEarthNet for training: a memory-mapped file, made once from the archive, and a data set that reads it.

    python -m search_spaces.readers.bigearthnet ARCHIVE OUT     # made once: v1, v2 or its LMDB; resumable
    python -m search_spaces.readers.bigearthnet --verify OUT    # every patch against its checksum

    train = load_bigearthnet(OUT, "train")                      # 120×120, all bands, normalised
    small = load_bigearthnet(OUT, "train", size=60, patches=1000)

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from search_spaces.readers.bigearthnet_format import BANDS, CLASSES, SIDE

__all__ = ["BANDS", "CLASSES", "BigEarthNet", "load_bigearthnet"]


class BigEarthNet(Dataset[tuple[Tensor, Tensor]]):
    """Items are (float32 (bands, size, size), float32 (19,) of zeros and ones).

    ``classes``: the names of the target's columns. ``bands``: those of the image's first axis.
    ``__getitems__`` reads a whole batch at once, as DataLoader and torch.utils.data.Subset ask for it.
    """

    classes: tuple[str, ...] = CLASSES
    bands: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int] | Tensor) -> list[tuple[Tensor, Tensor]]:
        raise NotImplementedError

    def batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Images (n, bands, size, size) and targets (n, 19)."""
        raise NotImplementedError

    def names(self) -> list[str]:
        """The patches' names, in the order of the items."""
        raise NotImplementedError

    def targets(self) -> Tensor:
        """All targets, float32 (len(self), 19); reads no pixels."""
        raise NotImplementedError


def load_bigearthnet(
    path: str | Path,
    split: str,
    *,
    bands: Sequence[str] | None = None,
    size: int = SIDE,
    upsampling: str = "nearest",
    normalise: bool = True,
    patches: int | None = None,
) -> BigEarthNet:
    """A part of what ``python -m search_spaces.readers.bigearthnet ARCHIVE path`` made.

    ``split``: "train", "validation" or "test". ``bands``: which, in this order (default: all twelve).
    ``size``: pixels along a side; finer bands are averaged, coarser ones upsampled ("nearest" or "bilinear").
    ``normalise``: to mean 0 and deviation 1 a band, by the version's statistics. ``patches``: so many of the
    split, always the same ones, drawn from all of it. Several processes may open the same path.

    FileNotFoundError if nothing was made there, ValueError for another value or an unfinished file.
    """
    del path, split, bands, size, upsampling, normalise, patches
    raise NotImplementedError
