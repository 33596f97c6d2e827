"""Which images a folder holds and of which class, in either form, as arrays that are kept in a file: 1.3 million names
are looked up once, not by each rank at each start. It imports no torch.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of, made_once, refused_by_system
from search_spaces.readers.imagenet_files import folders, shards

FORMAT = 1
_MOST_OPEN = 64
"""Shards that a process keeps open: it may have 1 024 files, and ImageNet is often cut into more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """The images of a part, sorted by class and then by name, whichever form they come in.

    ``names`` (files): paths below ``root``, as bytes. ``classes`` (images,): int64. ``places`` (images, 3): the number
    of the file, the first byte and the length of each image, int64; (0, 3) where each has a file of its own. Picklable;
    files are opened by each process for itself.
    """

    root: Path
    names: npt.NDArray[np.bytes_]
    classes: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    _opened: OrderedDict[int, int] = field(default_factory=OrderedDict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.classes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": OrderedDict()}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Kept as a default: where Python ends, the module's names may be gone.
        for descriptor in self._opened.values():
            close(descriptor)

    def read(self, image: int) -> bytes:
        """Its bytes. OSError, as a sentence, where its file cannot be read; ValueError where that is cut short."""
        if not len(self.places):
            return content_of(self._path(image))
        file, start, length = self.places[image].tolist()
        try:
            content = os.pread(self._descriptor(file), length, start)
        except OSError as error:
            raise refused_by_system(self._path(file), "read", error) from error
        if len(content) != length:
            raise ValueError(f"{self._path(file)} is cut short, or not what it was. {shards.AGAIN}")
        return content

    def describe(self, image: int) -> str:
        """Where it lies, for messages."""
        if not len(self.places):
            return str(self._path(image))
        file, start, _ = self.places[image].tolist()
        try:
            header = os.pread(self._descriptor(file), tarfile.BLOCKSIZE, start - tarfile.BLOCKSIZE)
            name = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").name
        except (OSError, tarfile.TarError):
            name = f"byte {start}"
        return f"{self._path(file)}: {name}"

    def _path(self, file: int) -> Path:
        return self.root / os.fsdecode(self.names[file])

    def _descriptor(self, file: int) -> int:
        # Processes forked with it share it: pread has no position that they could move for one another.
        descriptor = self._opened.pop(file, None)
        if descriptor is None:
            if len(self._opened) >= _MOST_OPEN:
                os.close(self._opened.popitem(last=False)[1])
            descriptor = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC)
        self._opened[file] = descriptor
        return descriptor


@dataclass(frozen=True, kw_only=True, eq=False)
class Listing:
    """What a folder holds. ``class_names``: those of the folders, sorted; empty for shards, which have numbers."""

    class_names: tuple[str, ...]
    classes: int
    train: ImageFiles
    validation: ImageFiles


@lru_cache(maxsize=2)
def list_images(path: str | Path, kept_in: str | Path) -> Listing:
    """The images of the folder ``path``: see ``search_spaces.readers.imagenet`` for what is accepted.

    The list is kept in the folder ``kept_in``, which is made; who comes first makes it, the others wait. It is made
    anew where files have been added, taken away or renamed since, or a shard was written. FileNotFoundError for what is
    not there, ValueError for what is not as it must be; both name the place and the remedy.
    """
    root = Path(path).resolve()
    form = folders if folders.is_there(root) else shards
    parts = form.find(root)
    digest = hashlib.sha256(repr((FORMAT, str(root), form.stamps(parts))).encode()).hexdigest()
    kept = Path(kept_in) / f"{root.name}-{digest[:16]}.npz"
    if not kept.exists():
        print(f"{root}: listing its images, once; the list is kept in {kept}", file=sys.stderr)
        made_once(kept, lambda elsewhere: _write(elsewhere, form.listed(root, parts)))
    return _read(kept, root)


def _write(path: Path, found: dict[str, npt.NDArray[Any]]) -> None:
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, **found)
    except OSError as error:
        raise refused_by_system(path, "written", error) from error


def _read(path: Path, root: Path) -> Listing:
    try:
        with np.load(io.BytesIO(content_of(path)), allow_pickle=False) as found:
            return Listing(
                class_names=tuple(os.fsdecode(name) for name in found["class_names"].tolist()),
                classes=1 + int(found["train_classes"].max()),
                train=_part(found, "train", root),
                validation=_part(found, "validation", root),
            )
    # What zipfile and numpy raise for bytes that are none of theirs.
    except (
        KeyError, EOFError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError,
        SyntaxError, zipfile.BadZipFile, zlib.error, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"{path} is damaged ({error!r}). Remove it: it is made again.") from error


def _part(found: Any, name: str, root: Path) -> ImageFiles:
    return ImageFiles(
        root=root,
        names=found[f"{name}_names"],
        classes=found[f"{name}_classes"],
        places=found[f"{name}_places"],
    )
