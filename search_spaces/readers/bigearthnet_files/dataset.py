"""BigEarthNet's patches of one split, as they are stored: bands in resolutions of their own. Imports numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from search_spaces.readers.bigearthnet_files.format import CLASSES, Pixels
from search_spaces.readers.bigearthnet_files.store import Layout, Rows, Store


class BigEarthNet:
    """Patches by number, read together. Pickles without its pixels; several processes may read the same file.

    ``layout``: where each of the bands asked for lies among the values of a patch, in the file's order. ``classes``:
    the names of the targets' columns.
    """

    classes: tuple[str, ...] = CLASSES

    def __init__(self, store: Store, rows: Rows, bands: Sequence[str]) -> None:
        self.bands = tuple(bands)
        self.layout: Layout = store.layout.only(bands)
        self._store, self._rows = store, rows
        self._parts = store.layout.parts(bands)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Pixels:
        """Values, uint16 (n, ``layout.values``); OSError, as a sentence, for what the disk does not give."""
        return self._store.read(self._rows[np.asarray(indices, dtype=np.int64)], self._parts)

    def targets(
        self, indices: Sequence[int] | npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[np.float32]:
        """Float32 (n, 19) of zeros and ones, None: of all; reads no pixels."""
        rows = self._rows if indices is None else self._rows[np.asarray(indices, dtype=np.int64)]
        return self._store.labels(rows).astype(np.float32)

    def names(self) -> list[str]:
        """The patches' names, in order."""
        return self._store.names(self._rows)
