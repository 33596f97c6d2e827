"""BigEarthNet's patches as images: read as stored, 160 kB of uint16 each, and converted to images on the device.

    train = PatchImages(load_bigearthnet(OUT, "train"))         # 120×120, normalised
    images, targets = train.images([0, 1, 2])

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from search_spaces.readers.bigearthnet_files.dataset import BigEarthNet
from search_spaces.readers.bigearthnet_files.format import MEAN_AND_DEVIATION, SIDE, SIDES
from search_spaces.readers.bigearthnet_files.store import Layout

UPSAMPLING = ("nearest", "bilinear", "bicubic")


class Grid:
    """Conversion of bands with different resolutions to images on a common grid, on the values' device. Each band is
    normalised to mean 0 and deviation 1, by the statistics of the data set's version.

    Args:
        layout (Layout): layout of the stored values.
        bands (sequence of str): bands of the images, in order.
        size (int; default 120): pixels along a side.
        upsampling (str; default "nearest"): upsampling of coarser bands, the same as for ``PatchImages``.

    Raises:
        ValueError: ``size`` or ``upsampling`` is not allowed.
    """

    def __init__(
        self, layout: Layout, bands: Sequence[str], *, size: int = SIDE, upsampling: str = "nearest"
    ) -> None:
        if not 1 <= size <= SIDE:
            raise ValueError(f"size = {size}: must be from 1 to {SIDE} pixels. Correct it.")
        if upsampling not in UPSAMPLING:
            raise ValueError(f"upsampling = {upsampling!r}: must be {' or '.join(UPSAMPLING)}. Correct it.")
        self.size, self.upsampling = size, upsampling
        scales = MEAN_AND_DEVIATION[layout.version]
        self._bands = [(SIDES[band], layout.columns[band], scales[band]) for band in bands]

    def __call__(self, values: Tensor) -> Tensor:
        """Images (n, bands, size, size), float32, from stored values (n, …), uint16."""
        shape = len(values), len(self._bands), self.size, self.size
        if values.is_cpu:
            # NumPy's memory is used because it asks for huge pages; getting torch's takes longer than filling it.
            images = torch.from_numpy(np.empty(shape, np.float32))
        else:
            images = torch.empty(shape, device=values.device)
        for position, (side, column, (mean, deviation)) in enumerate(self._bands):
            native = values[:, column].to(torch.float32).view(-1, side, side)
            # Normalised before upsampling, where there are the fewest pixels.
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


class PatchImages(Dataset[tuple[Tensor, Tensor]]):
    """Data set of patches for the trainers.

    ``read_batch`` reads patches as they are stored; ``on_device`` converts them to images (n, bands, size, size),
    float32, with targets (n, 19), float32.

    Args:
        patches (BigEarthNet): result of ``load_bigearthnet``, with the bands of the images.
        size (int; default 120): pixels along a side; finer bands are averaged, and coarser bands upsampled.
        upsampling (str; default "nearest"): "nearest", "bilinear" or "bicubic".

    Raises:
        ValueError: ``size`` or ``upsampling`` is not allowed.
    """

    fixed_items = True

    def __init__(self, patches: BigEarthNet, *, size: int = SIDE, upsampling: str = "nearest") -> None:
        self.patches = patches
        self._grid = Grid(patches.layout, patches.bands, size=size, upsampling=upsampling)

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Image and target at a place."""
        images, targets = self.images([range(len(self))[index]])
        return images[0], targets[0]

    def images(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets at ``indices``, on the CPU."""
        return self.on_device(*self.read_batch(indices))

    def read_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Stored values, uint16, and targets at ``indices``."""
        chosen = np.asarray(indices, dtype=np.int64)
        return torch.from_numpy(self.patches.read(chosen)), torch.from_numpy(self.patches.targets(chosen))

    def on_device(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Images of the stored values ``inputs``, on their device, with the targets."""
        return self._grid(inputs), targets
