"""BigEarthNet's patches in one flat file, which is read by ``preadv``: its form, and how it is read and verified.

pixels.bin      patch after patch, band after band, each in its own resolution: little-endian uint16
patches.jsonl   a header, then a line for each patch stored or skipped; appended to, what a resumed run goes by
index.npz       names, splits, classes and checksums as arrays; there once the file is complete
"""

from __future__ import annotations

import io
import json
import os
import struct
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
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

    def only(self, bands: Sequence[str]) -> Layout:
        """Of these bands, in this layout's order."""
        return Layout(version=self.version, bands=tuple(band for band in self.bands if band in bands))

    def spans(self, bands: Sequence[str]) -> list[slice]:
        """Where these bands lie among a patch's values, neighbours together, in this layout's order."""
        found: list[slice] = []
        for band, column in self.columns.items():
            if band in bands:
                if found and found[-1].stop == column.start:
                    found[-1] = slice(found[-1].start, column.stop)
                else:
                    found.append(column)
        return found

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


def anew(directory: str | Path) -> str:
    """The remedy for what is damaged in ``directory``."""
    return f"Remove {directory} and begin anew."


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
        header, self._splits, self._classes = self._index("header", "splits", "classes")
        try:
            line = json.loads(header.tobytes())
        except ValueError as error:
            raise self._damaged_index(error) from error
        self.layout = Layout.from_line(line, path, remedy=_AGAIN)
        if self._splits.ndim != 1 or self._classes.shape != (len(self._splits), len(CLASSES)):
            raise self._damaged_index(f"{self._splits.shape} splits, {self._classes.shape} classes")
        named = len(self) * self.layout.patch_bytes
        pixels = self.directory / PIXELS
        size = pixels.stat().st_size if pixels.is_file() else 0
        if size < named:
            raise ValueError(
                f"{pixels} has {size} bytes, and its index names {named}. {anew(self.directory)}"
            )
        self._file: int | None = None

    def __len__(self) -> int:
        return len(self._splits)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def rows(self, split: Split) -> Rows:
        return np.flatnonzero(self._splits == SPLITS.index(split))

    def classes(self, rows: Rows) -> npt.NDArray[np.uint8]:
        """(n, 19) of zeros and ones."""
        return cast("npt.NDArray[np.uint8]", self._classes[rows])

    def names(self, rows: Rows) -> list[str]:
        (names,) = self._index("names")
        return [name.decode() for name in names[rows]]

    def read(self, rows: Rows, bands: Sequence[str] | None = None) -> Pixels:
        """The values of these patches as they are stored, (n, values), of ``bands`` in the file's order; None: of all.

        OSError, as a sentence, for what the disk does not give.
        """
        file, patch_bytes = self._opened(), self.layout.patch_bytes
        starts = (rows * patch_bytes).tolist()
        # All are asked for before the first is waited for.
        for start in starts:
            os.posix_fadvise(file, start, patch_bytes, os.POSIX_FADV_WILLNEED)
        spans = self.layout.spans(self.layout.bands if bands is None else bands)
        found = np.empty((len(starts), sum(span.stop - span.start for span in spans)), "<u2")
        for patch, start in zip(found, starts, strict=True):
            at = 0
            for span in spans:
                end = at + span.stop - span.start
                self._fill(file, memoryview(patch[at:end]).cast("B"), start + 2 * span.start)
                at = end
        return found

    def damaged(self) -> Iterator[str | None]:
        """Reads each patch again: its name if it is not what was written, else None."""
        checksums, names = self._index("checksums", "names")
        for row, (name, checksum) in enumerate(zip(names, checksums, strict=True)):
            try:
                whole = zlib.crc32(self.read(np.array([row])).tobytes()) == int(checksum)
            except OSError:  # what the disk does not give
                whole = False
            yield None if whole else name.decode()

    def _fill(self, file: int, part: memoryview, start: int) -> None:
        while len(part):
            try:
                count = os.preadv(file, [part], start)
            except OSError as error:
                raise refused_by_system(self.directory / PIXELS, f"read at byte {start}", error) from error
            if not count:
                raise OSError(
                    f"{self.directory / PIXELS} ends at byte {start}, and was longer when it was opened. "
                    f"{anew(self.directory)}"
                )
            part, start = part[count:], start + count

    def _opened(self) -> int:
        if self._file is None:
            path = self.directory / PIXELS
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise refused_by_system(path, "read", error) from error
            weakref.finalize(self, os.close, self._file)
        return self._file

    def _index(self, *names: str) -> list[npt.NDArray[Any]]:
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
