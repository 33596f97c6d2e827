"""BigEarthNet's patches as two .npy files, which numpy alone opens.

pixels.npy      a row a patch, with a field a band in its own resolution: B02 is uint16 (120, 120), B05 (60, 60)
patches.npy     a row a patch: version (of the archive), name, split, labels (of the 19 classes) and crc32 (of what is
                before it in the row, and of the pixels); without a label: the patch could not be read. Until all have
                been tried it is patches.partial.npy
"""

from __future__ import annotations

import io
import os
import tokenize
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from search_spaces.readers.bigearthnet_files.format import (
    CLASSES,
    SIDES,
    SPLITS,
    VERSIONS,
    Pixels,
    Split,
    Version,
)
from search_spaces.readers.files import content_of, refused_by_system

PIXELS, INDEX, JOURNAL = "pixels.npy", "patches.npy", "patches.partial.npy"

NAME_BYTES = 64
PATCH = np.dtype(
    [
        ("version", "S2"),
        ("name", f"S{NAME_BYTES}"),
        ("split", "S10"),
        ("labels", "?", (len(CLASSES),)),
        ("crc32", "<u4"),
    ]
)
"""A row of patches.npy."""

Patches = npt.NDArray[np.void]
"""Rows of patches.npy."""
Rows = npt.NDArray[np.int64]

_npy: Any = np.lib.format  # without types before numpy 2


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Version and bands of a file's patches."""

    version: Version
    bands: tuple[str, ...]

    @property
    def columns(self) -> dict[str, slice]:
        """Place of each band among the values of a patch."""
        ends = list(accumulate(SIDES[band] ** 2 for band in self.bands))
        return {band: slice(*ends) for band, ends in zip(self.bands, pairwise([0, *ends]))}

    @property
    def values(self) -> int:
        """Number of pixels of a patch, over all bands."""
        return sum(SIDES[band] ** 2 for band in self.bands)

    def only(self, bands: Sequence[str]) -> Layout:
        """Layout with some of the bands, in the same order."""
        return Layout(version=self.version, bands=tuple(band for band in self.bands if band in bands))

    def parts(self, bands: Sequence[str]) -> list[tuple[int, int]]:
        """First value and number of values of the bands, with neighbouring bands joined."""
        found: list[tuple[int, int]] = []
        for column in (column for band, column in self.columns.items() if band in bands):
            start = found.pop()[0] if found and sum(found[-1]) == column.start else column.start
            found.append((start, column.stop - start))
        return found


def row_of(bands: Sequence[str]) -> np.dtype[np.void]:
    """A row of pixels.npy."""
    return np.dtype([(band, "<u2", (SIDES[band],) * 2) for band in bands])


def write_header(file: IO[bytes], row: np.dtype[np.void], count: int) -> None:
    """Write the header of a .npy file with ``count`` rows."""
    form = {"descr": _npy.dtype_to_descr(row), "fortran_order": False, "shape": (count,)}
    _npy.write_array_header_1_0(file, form)


def bands_of(path: Path, patches: int) -> tuple[tuple[str, ...], int]:
    """Bands of pixels.npy in order, and the byte at which its first row begins; ValueError if it is cut short."""
    with refused(path, "read"), _damaged(path):
        if not path.is_file():
            raise ValueError("there is no such file")
        with open(path, "rb") as file:
            if _npy.read_magic(file) != (1, 0):
                raise ValueError("it is of another version of npy")
            shape, _, row = _npy.read_array_header_1_0(file)
            begin, size = file.tell(), os.fstat(file.fileno()).st_size
        bands = row.names or ()
        if not set(bands) <= set(SIDES) or row != row_of(bands) or shape != (patches,):
            raise ValueError(f"it holds {shape} of {row}, and {patches} patches are named")
        if size != begin + patches * row.itemsize:
            raise ValueError(f"it has {size} bytes, and must have {begin + patches * row.itemsize}")
    return bands, begin


def patches_of(path: Path) -> Patches:
    """The rows of patches.npy; ValueError for another file."""
    content = io.BytesIO(content_of(path))
    with _damaged(path):
        found: Patches = _npy.read_array(content, allow_pickle=False)
        if found.dtype != PATCH or found.ndim != 1 or content.read():
            raise ValueError("its rows are not those of patches")
        if not len(found) or found["version"][0].decode(errors="replace") not in VERSIONS:
            raise ValueError(f"it names no patch of {' or '.join(VERSIONS)}")
    return found


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    try:
        yield
    # numpy raises errors of all these classes for bytes that are no .npy file.
    except (
        ValueError, TypeError, LookupError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError,
    ) as error:  # fmt: skip
        raise ValueError(f"{path} is damaged: {error}. {rebuild_hint(path.parent)}") from error


@contextmanager
def refused(path: Path, what: str) -> Iterator[None]:
    """Replace an OSError by an OSError with a remedy, which says that ``path`` cannot be ``what``."""
    try:
        yield
    except OSError as error:
        raise refused_by_system(path, what, error) from error


def checksum(patch: np.void, pixels: bytes | memoryview) -> int:
    """CRC-32 of the labels and pixels of a patch."""
    return zlib.crc32(pixels, zlib.crc32(patch.tobytes()[: -PATCH["crc32"].itemsize]))


def rebuild_hint(directory: str | Path) -> str:
    """Remedy for damaged files in ``directory``."""
    return f"Remove {directory} and begin again."


class Store:
    """Complete files for reading, by any number of processes; pickles as its path."""

    def __init__(self, directory: str | Path) -> None:
        """Raise FileNotFoundError if ``directory`` has no store, ValueError if it is incomplete or damaged."""
        self.directory = Path(directory)
        path = self.directory / INDEX
        if not path.is_file():
            if (self.directory / JOURNAL).is_file():
                raise ValueError(
                    f"{self.directory} is not complete. Start the command that makes it again: it goes on."
                )
            raise FileNotFoundError(
                f"{self.directory} holds no BigEarthNet for training. Make it: python -m "
                f"search_spaces.readers.bigearthnet ARCHIVE {self.directory}"
            )
        patches = patches_of(path)
        self._labels = patches["labels"].copy()
        stored = self._labels.any(axis=1)
        self._rows = {
            split: np.flatnonzero(stored & (patches["split"] == split.encode())) for split in SPLITS
        }
        bands, self._begin = bands_of(self.directory / PIXELS, len(patches))
        self.layout = Layout(version=patches["version"][0].decode(), bands=bands)
        self._file: int | None = None

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def rows(self, split: Split) -> Rows:
        return self._rows[split]

    def labels(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Whether each class applies (n, 19)."""
        return cast("npt.NDArray[np.bool_]", self._labels[rows])

    def names(self, rows: Rows) -> list[str]:
        return [
            name.decode(errors="replace")
            for name in patches_of(self.directory / INDEX)["name"][rows].tolist()
        ]

    def read(self, rows: Rows, parts: Sequence[tuple[int, int]]) -> Pixels:
        """Stored values (n, values) of the ``parts``, pairs of first value and number, of the patches ``rows``.

        Raises:
            OSError: the disk returns an error; the text has a remedy.
        """
        file = self._opened()
        found = np.empty((len(rows), sum(count for _, count in parts)), "<u2")
        view, at = found.view(np.uint8).reshape(-1).data, 0
        waited_for = []
        for begin in (self._begin + rows * (2 * self.layout.values)).tolist():
            for offset, values in parts:
                start, size = begin + 2 * offset, 2 * values
                part, at = view[at : at + size], at + size
                try:
                    count = os.preadv(file, [part], start, os.RWF_NOWAIT)
                # A file system without this flag; any other error comes again below.
                except OSError:
                    count = 0
                if count < size:
                    # The disk gets all requests before the first is waited for.
                    os.posix_fadvise(file, start + count, size - count, os.POSIX_FADV_WILLNEED)
                    waited_for.append((part[count:], start + count))
        for part, start in waited_for:
            self._fill(file, part, start)
        return found

    def damaged(self) -> Iterator[str | None]:
        """Read each patch again; yields its name if its checksum is wrong, else None."""
        everything, patches = [(0, self.layout.values)], patches_of(self.directory / INDEX)
        for row in np.concatenate([*self._rows.values()]):
            try:
                whole = checksum(patches[row], self.read(row[None], everything).data) == patches[row]["crc32"]
            # A bad sector is damage, too.
            except OSError:
                whole = False
            yield None if whole else patches[row]["name"].decode(errors="replace")

    def _fill(self, file: int, part: memoryview, start: int) -> None:
        while len(part):
            with refused(self.directory / PIXELS, f"read at byte {start}"):
                count = os.preadv(file, [part], start)
            if not count:
                raise OSError(
                    f"{self.directory / PIXELS} ends at byte {start}, and was longer when it was opened. "
                    f"{rebuild_hint(self.directory)}"
                )
            part, start = part[count:], start + count

    def _opened(self) -> int:
        if self._file is None:
            with refused(self.directory / PIXELS, "read"):
                self._file = os.open(self.directory / PIXELS, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)
        return self._file
