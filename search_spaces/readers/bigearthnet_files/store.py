"""BigEarthNet's patches in one memory-mapped file: its form, and how it is read and verified.

pixels.bin      patch after patch, band after band, each in its own resolution: little-endian uint16
patches.jsonl   a header, then a line for each patch stored or skipped; appended to, what a resumed run goes by
index.npz       names, splits, classes and checksums as arrays; there once the file is complete

A patch whose pixels were damaged, and could not be read anew, keeps its place in all three, and has no split.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from search_spaces.readers.bigearthnet_files.format import (
    BANDS,
    CLASSES,
    SIDES,
    SPLITS,
    VERSIONS,
    Pixels,
    Split,
    Version,
)
from search_spaces.readers.files import content_of, refused_by_system

FORMAT = 1
PIXELS, JOURNAL, INDEX = "pixels.bin", "patches.jsonl", "index.npz"
NO_SPLIT = 255
"""In the index, of a patch whose pixels are lost."""
REPAIR = "Start the command that made it again, with --repair: what is damaged is read anew."

_AGAIN = "Start the command that makes it again."

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which version's patches a file holds, and which bands, in this order."""

    version: Version
    bands: tuple[str, ...]

    @property
    def columns(self) -> dict[str, slice]:
        """Where each band lies among a patch's values."""
        ends = np.cumsum([SIDES[band] ** 2 for band in self.bands]).tolist()
        return {band: slice(end - SIDES[band] ** 2, end) for band, end in zip(self.bands, ends, strict=True)}

    @property
    def values(self) -> int:
        """Pixels a patch, of all bands together."""
        return sum(SIDES[band] ** 2 for band in self.bands)

    @property
    def patch_bytes(self) -> int:
        return 2 * self.values

    def pack(self, bands: Mapping[str, Pixels]) -> bytes:
        return b"".join(np.ascontiguousarray(bands[band], dtype="<u2").tobytes() for band in self.bands)

    def line(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": self.version, "bands": list(self.bands)}

    @staticmethod
    def from_line(line: object, path: Path, *, remedy: str) -> Layout:
        """ValueError if another program, or a later form of this one, wrote it, or if it is damaged."""
        if not isinstance(line, dict) or line.get("format") != FORMAT:
            raise ValueError(f"{path} is not of format {FORMAT}. {remedy}")
        version, bands = line.get("version"), line.get("bands")
        if version not in VERSIONS or not isinstance(bands, list) or any(band not in BANDS for band in bands):
            raise ValueError(
                f"{path} is damaged: its version is {version!r}, its bands are {bands!r}. {remedy}"
            )
        return Layout(version=version, bands=tuple(bands))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A patch whose pixels are in the file."""

    name: str
    split: Split
    classes: tuple[int, ...]
    checksum: int  # zlib.crc32 of its bytes


def are_whole(file: int, layout: Layout, checksums: Iterable[int | None]) -> Iterator[bool]:
    """Of each patch in ``file``, a descriptor, whether it is what its checksum was taken of; None: it has none.

    What the disk does not give counts as damaged: it is not read through a map, where that would kill the process.
    """
    for row, expected in enumerate(checksums):
        if expected is None:
            yield True
            continue
        try:
            content = os.pread(file, layout.patch_bytes, row * layout.patch_bytes)
        except OSError:
            yield False
            continue
        yield zlib.crc32(content) == expected


def _opened(path: Path) -> io.BufferedReader:
    try:
        return open(path, "rb")
    except OSError as error:
        raise refused_by_system(path, "read", error) from error


class Store:
    """A complete file, for reading, by any number of processes; pickles as its path."""

    def __init__(self, directory: str | Path) -> None:
        """FileNotFoundError if nothing was made there, ValueError if it is incomplete or damaged."""
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
        header, self._splits, self._classes = self._read("header", "splits", "classes")
        try:
            line = json.loads(header.tobytes())
        except ValueError as error:
            raise self._damaged_index(error) from error
        self.layout = Layout.from_line(line, path, remedy=_AGAIN)
        if self._splits.ndim != 1 or self._classes.shape != (len(self._splits), len(CLASSES)):
            raise self._damaged_index(f"{self._splits.shape} splits, {self._classes.shape} classes")
        named = len(self) * self.layout.patch_bytes
        # Reading past a file's end would kill the process.
        pixels = self.directory / PIXELS
        size = pixels.stat().st_size if pixels.is_file() else 0
        if size < named:
            raise ValueError(f"{pixels} has {size} bytes, and its index names {named}. {REPAIR}")
        self._mapped: tuple[mmap.mmap, Pixels] | None = None

    def __len__(self) -> int:
        return len(self._splits)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}  # a map would be pickled as all that it maps

    def rows(self, split: Split) -> Rows:
        return np.flatnonzero(self._splits == SPLITS.index(split))

    def classes(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """(n, 19) of zeros and ones."""
        return cast("npt.NDArray[np.uint8]", self._classes[rows])

    def names(self, rows: Rows) -> list[str]:
        (names,) = self._read("names")
        return [name.decode() for name in names[rows]]

    def read(self, rows: Rows) -> Pixels:
        """The values of these patches, (n, values), as a copy.

        Resident memory stays flat: the pages read are given back, and stay in the system's cache alone.
        """
        mapped, pixels = self._map()
        for row in rows.tolist():
            # All are asked for before the first is waited for, and no more than them.
            mapped.madvise(mmap.MADV_WILLNEED, *self._span(row, mmap.PAGESIZE))
        found: Pixels = pixels[rows]
        for row in rows.tolist():
            # With a page come those around it, 64 KiB as Linux is set up.
            mapped.madvise(mmap.MADV_DONTNEED, *self._span(row, 2**20))
        return found

    def damaged(self) -> Iterator[str | None]:
        """Reads each patch again: its name if it is not what was written, else None."""
        checksums, names = self._read("checksums", "names")
        expected = (
            None if split == NO_SPLIT else int(checksum)
            for split, checksum in zip(self._splits, checksums, strict=True)
        )
        with _opened(self.directory / PIXELS) as file:
            for name, whole in zip(names, are_whole(file.fileno(), self.layout, expected), strict=True):
                yield None if whole else name.decode()

    def _read(self, *names: str) -> list[npt.NDArray[Any]]:
        content = content_of(self.directory / INDEX)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as index:
                return [index[name] for name in names]
        # What zipfile and numpy raise for bytes that are none of theirs.
        except (
            KeyError, EOFError, ValueError, TypeError, AttributeError, OSError, RuntimeError, OverflowError,
            MemoryError, SyntaxError, zipfile.BadZipFile, zlib.error, struct.error,
        ) as error:  # fmt: skip
            raise self._damaged_index(error) from error

    def _damaged_index(self, found: object) -> ValueError:
        return ValueError(f"{self.directory / INDEX} is damaged ({found!r}). {_AGAIN}")

    def _span(self, row: int, unit: int) -> tuple[int, int]:
        """(start, length) of the whole units of ``size`` bytes that hold a patch; the file's end ends them too."""
        size = self.layout.patch_bytes
        start, end = row * size // unit * unit, -(-(row + 1) * size // unit) * unit
        return start, min(end, len(self) * size) - start

    def _map(self) -> tuple[mmap.mmap, Pixels]:
        if self._mapped is None:
            with _opened(self.directory / PIXELS) as file:
                mapped = mmap.mmap(
                    file.fileno(), len(self) * self.layout.patch_bytes, access=mmap.ACCESS_READ
                )
            pixels = np.frombuffer(mapped, dtype="<u2").reshape(len(self), self.layout.values)
            self._mapped = mapped, pixels
        return self._mapped
