"""Data sets of BigEarthNet's patches: from the file made for training, and from the archive itself.

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from search_spaces.readers.bigearthnet_files.format import (
    CLASSES,
    MEAN_AND_DEVIATION,
    SIDE,
    SIDES,
    Pixels,
    Version,
    checked_bands,
)
from search_spaces.readers.bigearthnet_files.lists import Patch
from search_spaces.readers.bigearthnet_files.sources import Reader
from search_spaces.readers.bigearthnet_files.store import Rows, Store

UPSAMPLING = ("nearest", "bilinear", "bicubic")


class Grid:
    """Bands of different resolutions brought to one grid, and normalised."""

    def __init__(
        self, version: Version, *, bands: Sequence[str], size: int, upsampling: str, normalise: bool
    ) -> None:
        """``size``: pixels along a side; finer bands are averaged, coarser ones upsampled. ValueError for
        settings that do not exist.
        """
        if not 1 <= size <= SIDE:
            raise ValueError(f"size = {size}: must be from 1 to {SIDE} pixels. Correct it.")
        if upsampling not in UPSAMPLING:
            raise ValueError(f"upsampling = {upsampling!r}: must be {' or '.join(UPSAMPLING)}. Correct it.")
        self.bands = checked_bands(bands)
        self.size = size
        self.upsampling = upsampling
        self._scales = [MEAN_AND_DEVIATION[version][band] if normalise else (0.0, 1.0) for band in self.bands]

    def __call__(self, pixels: Mapping[str, Pixels]) -> Tensor:
        """Images (n, bands, size, size), float32, of the bands' (n, side, side) or flat pixels."""
        count = len(pixels[self.bands[0]])
        # numpy asks for huge pages: torch's own memory takes longer to get than to fill.
        images = torch.from_numpy(np.empty((count, len(self.bands), self.size, self.size), np.float32))
        for position, (band, (mean, deviation)) in enumerate(zip(self.bands, self._scales, strict=True)):
            side = SIDES[band]
            native = torch.from_numpy(pixels[band].astype(np.float32)).view(count, side, side)
            # Before upsampling, where there are fewest pixels.
            native.sub_(mean).div_(deviation)
            self._place(native, images[:, position])
        return images

    def _place(self, native: Tensor, image: Tensor) -> None:
        side, size = native.shape[-1], self.size
        if side % size == 0:  # means of blocks
            times = side // size
            image.copy_(native[:, ::times, ::times])
            for i in range(1, times * times):
                image.add_(native[:, i // times :: times, i % times :: times])
            image.div_(times * times)
        elif side > size:
            image.copy_(functional.adaptive_avg_pool2d(native, size))
        elif self.upsampling == "nearest" and size % side == 0:
            times = size // side
            rows = native.repeat_interleave(times, dim=2).unsqueeze(2)
            image.view(-1, side, times, size).copy_(rows.expand(-1, -1, times, -1))
        else:
            mode = "nearest-exact" if self.upsampling == "nearest" else self.upsampling
            image.copy_(functional.interpolate(native.unsqueeze(1), size=size, mode=mode).squeeze(1))


class BigEarthNet(Dataset[tuple[Tensor, Tensor]]):
    """Items are (float32 (bands, size, size), float32 (19,) of zeros and ones).

    ``classes``: the names of the target's columns. ``bands``: those of the image's first axis.
    Reads a whole batch at once, as the trainers ask for it, and DataLoader and torch.utils.data.Subset by
    ``__getitems__``.
    Pickles without its pixels; several processes may read the same file.
    """

    classes: tuple[str, ...] = CLASSES

    def __init__(self, store: Store, rows: Rows, grid: Grid) -> None:
        self._store, self._rows, self._grid = store, rows, grid
        self._targets = store.classes(rows)
        self._columns = store.layout.columns

    @property
    def bands(self) -> tuple[str, ...]:
        return self._grid.bands

    @property
    def size(self) -> int:
        return self._grid.size

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)  # as iterating over a sequence ends
        images, targets = self.read_batch([index])
        return images[0], targets[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        images, targets = self.read_batch(indices)
        return list(zip(images, targets, strict=True))

    def read_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Images (n, bands, size, size) and targets (n, 19)."""
        chosen = np.asarray(indices, dtype=np.int64)
        values = self._store.read(self._rows[chosen])
        images = self._grid({band: values[:, self._columns[band]] for band in self.bands})
        return images, _float(self._targets[chosen])

    def names(self) -> list[str]:
        """The patches' names, in the order of the items."""
        return self._store.names(self._rows)

    def targets(self) -> Tensor:
        """All targets, float32 (len(self), 19); reads no pixels."""
        return _float(self._targets)


class RawBigEarthNet(Dataset[tuple[Tensor, Tensor]]):
    """The same items read from the archive, a dozen files each: to compare with, and for a glance at an archive.

    PatchError for a patch that cannot be read.
    """

    def __init__(self, reader: Reader, patches: Sequence[Patch], grid: Grid) -> None:
        self._reader, self._patches, self._grid = reader, patches, grid

    def __len__(self) -> int:
        return len(self._patches)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sample = self._reader.read(self._patches[index], self._grid.bands)
        target = torch.zeros(len(CLASSES))
        target[list(sample.classes)] = 1.0
        return self._grid({band: pixels[None] for band, pixels in sample.bands.items()})[0], target


def _float(classes: npt.NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(classes.astype(np.float32))
