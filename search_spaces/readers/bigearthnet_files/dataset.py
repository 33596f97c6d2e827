"""Patches of a split of BigEarthNet, as they are stored: each band in its own resolution. Imports numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from search_spaces.readers.bigearthnet_files.format import CLASSES, Pixels
from search_spaces.readers.bigearthnet_files.store import Layout, Rows, Store


class BigEarthNet:
    """Patches by number. Pickles without its pixels; several processes may read the same file."""

    classes: tuple[str, ...] = CLASSES
    """Names of the targets' columns."""

    def __init__(self, store: Store, rows: Rows, bands: Sequence[str]) -> None:
        self.bands = tuple(bands)
        self.layout: Layout = store.layout.only(bands)
        """Places of the bands among the values of a patch."""
        self._store, self._rows = store, rows
        self._parts = store.layout.parts(bands)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Pixels:
        """Values, uint16 (n, ``layout.values``); OSError, with a remedy, if the disk returns an error."""
        return self._store.read(self._rows[np.asarray(indices, dtype=np.int64)], self._parts)

    def targets(
        self, indices: Sequence[int] | npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.float32]:
        """Labels as zeros and ones, float32 (n, 19); ``indices`` None: of all patches. Reads no pixels."""
        rows = self._rows if indices is None else self._rows[np.asarray(indices, dtype=np.int64)]
        return self._store.labels(rows).astype(np.float32)

    def names(self) -> list[str]:
        """Names of the patches, in order."""
        return self._store.names(self._rows)
