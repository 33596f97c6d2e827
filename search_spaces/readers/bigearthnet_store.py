"""BigEarthNet's patches in one memory-mapped file: how it is written, resumed after any death, read and verified.

pixels.bin      patch after patch, band after band, each in its own resolution: little-endian uint16
patches.jsonl   a header, then a line for each patch stored or skipped; appended to, what a resumed run goes by
index.npz       names, splits, classes and checksums as arrays; there once the file is complete
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from search_spaces.readers.bigearthnet_format import CLASSES, SIDES, SPLITS, Pixels, Split, Version

FORMAT = 1
PIXELS, JOURNAL, INDEX = "pixels.bin", "patches.jsonl", "index.npz"

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
    def from_line(line: Mapping[str, Any], path: Path) -> Layout:
        """ValueError if another program, or a later form of this one, wrote it."""
        if line.get("format") != FORMAT:
            raise ValueError(f"{path} is not of format {FORMAT}. Make it anew from the archive.")
        return Layout(version=line["version"], bands=tuple(line["bands"]))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A patch whose pixels are in the file."""

    name: str
    split: Split
    classes: tuple[int, ...]
    checksum: int  # zlib.crc32 of its bytes


@dataclass
class Writer:
    """Appends patches to the file in ``directory``, beginning it or going on where the last run ended.

    One process a directory: another is refused. ValueError if what is there is another archive's or damaged.
    """

    directory: Path
    layout: Layout
    stored: list[Stored] = field(default_factory=list, init=False)
    skipped: dict[str, str] = field(default_factory=dict, init=False)  # name -> why

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            self._journal = files.enter_context(open(self.directory / JOURNAL, "a+b"))
            _lock(self._journal.fileno(), self.directory)
            self._replay()
            self._pixels = files.enter_context(open(self.directory / PIXELS, "ab"))
            self._cut()
            self._files = files.pop_all()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def append(self, read: Sequence[tuple[Stored, bytes]], skipped: Mapping[str, str]) -> None:
        """Add patches and the reasons of those that are none; when it returns, they are kept whatever happens."""
        for _, content in read:
            self._pixels.write(content)
        self._sync(self._pixels)
        # Only now: what the journal names, the file holds.
        lines: list[dict[str, Any]] = [
            {"patch": of.name, "split": of.split, "classes": of.classes, "crc32": of.checksum}
            for of, _ in read
        ]
        lines += [{"patch": name, "skipped": reason} for name, reason in skipped.items()]
        self._write(lines)
        self.stored += [of for of, _ in read]
        for of, _ in read:
            self.skipped.pop(of.name, None)
        self.skipped.update(skipped)

    def finish(self) -> None:
        """Write the index, at once and whole: from now on the file can be read."""
        classes = np.zeros((len(self.stored), len(CLASSES)), np.uint8)
        for row, patch in enumerate(self.stored):
            classes[row, list(patch.classes)] = 1
        partial = self.directory / f".{INDEX}"
        with open(partial, "wb") as file:
            np.savez(
                file,
                header=np.frombuffer(json.dumps(self.layout.line()).encode(), np.uint8),
                names=np.array([patch.name.encode() for patch in self.stored], dtype=np.bytes_),
                splits=np.array([SPLITS.index(patch.split) for patch in self.stored], np.uint8),
                classes=classes,
                checksums=np.array([patch.checksum for patch in self.stored], np.uint32),
            )
            self._sync(file)
        os.replace(partial, self.directory / INDEX)

    def _replay(self) -> None:
        path = self.directory / JOURNAL
        self._journal.seek(0)
        content = self._journal.read()
        whole = content.rfind(b"\n") + 1  # a torn last line counts for nothing
        lines = content[:whole].splitlines()
        if not lines:
            self._journal.truncate(0)
            self._write([self.layout.line()])
            return
        self._journal.truncate(whole)
        found = None
        for number, text in enumerate(lines, start=1):
            try:
                line = json.loads(text)
                if number == 1:
                    found = Layout.from_line(line, path)
                else:
                    self._take(line)
            except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}, line {number} is damaged ({error!r}). Remove {self.directory} and begin anew."
                ) from error
        assert found is not None
        if found != self.layout:
            raise ValueError(
                f"{self.directory} was begun with {found.version} and the bands {', '.join(found.bands)}. Go on "
                "with the same, or name another directory."
            )

    def _take(self, line: Mapping[str, Any]) -> None:
        name = line["patch"]
        if "skipped" in line:
            self.skipped[name] = line["skipped"]
            return
        self.stored.append(
            Stored(name=name, split=line["split"], classes=tuple(line["classes"]), checksum=line["crc32"])
        )
        self.skipped.pop(name, None)

    def _cut(self) -> None:
        """Drop pixels that were written, but not yet named, when the last run died."""
        size, named = self._pixels.tell(), len(self.stored) * self.layout.patch_bytes
        if size < named:
            raise ValueError(
                f"{self._pixels.name} has {size} bytes, and {JOURNAL} names {named}. Remove {self.directory} and "
                "begin anew."
            )
        self._pixels.truncate(named)
        self._pixels.seek(named)

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._journal.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self._sync(self._journal)

    def _sync(self, file: Any) -> None:
        file.flush()
        os.fsync(file.fileno())


def _lock(file: int, directory: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"Another process is writing {directory}. Wait for it, or end it.") from None
    except OSError:  # a file system without locks
        pass


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
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as index:
                self.layout = Layout.from_line(json.loads(index["header"].tobytes()), path)
                self._splits, self._classes = index["splits"], index["classes"]
        except (KeyError, zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is damaged ({error!r}). Start the command that makes it again."
            ) from error
        named = len(self) * self.layout.patch_bytes
        # Reading past a file's end would kill the process.
        size = (self.directory / PIXELS).stat().st_size
        if size < named:
            raise ValueError(
                f"{self.directory / PIXELS} has {size} bytes, and its index names {named}. Make it anew."
            )
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
        return [name.decode() for name in self._read("names")[rows]]

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
        checksums, names = self._read("checksums"), self._read("names")
        for row in range(len(self)):
            found = zlib.crc32(self.read(np.array([row])).tobytes())
            yield names[row].decode() if found != int(checksums[row]) else None

    def _read(self, name: str) -> npt.NDArray[Any]:
        with np.load(self.directory / INDEX, allow_pickle=False) as index:
            return cast("npt.NDArray[Any]", index[name])

    def _span(self, row: int, unit: int) -> tuple[int, int]:
        """(start, length) of the whole units of so many bytes that hold a patch; the file's end ends them too."""
        size = self.layout.patch_bytes
        start, end = row * size // unit * unit, -(-(row + 1) * size // unit) * unit
        return start, min(end, len(self) * size) - start

    def _map(self) -> tuple[mmap.mmap, Pixels]:
        if self._mapped is None:
            with open(self.directory / PIXELS, "rb") as file:
                mapped = mmap.mmap(
                    file.fileno(), len(self) * self.layout.patch_bytes, access=mmap.ACCESS_READ
                )
            pixels = np.frombuffer(mapped, dtype="<u2").reshape(len(self), self.layout.values)
            self._mapped = mapped, pixels
        return self._mapped
