"""Images of a folder and their classes, as arrays in a file, so that 1.3 million names are looked up once and not by
each rank at each start. Imports no torch."""

from __future__ import annotations

import os
import tarfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of, refused_by_system
from search_spaces.readers.imagenet_files import folders, shards
from search_spaces.readers.kept_arrays import Arrays, kept

FORMAT = 1
# Open shards of a process, which may have 1 024 files; ImageNet often has more shards.
_MOST_OPEN = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Images of a split, sorted by class and then by name. Picklable; each process opens the files for itself."""

    root: Path
    names: npt.NDArray[np.bytes_]
    """Paths of the files below ``root``."""
    classes: npt.NDArray[np.int64]
    """Class of each image."""
    places: npt.NDArray[np.int64]
    """Number of the file, first byte and length of each image in a shard (images, 3); (0, 3) for images in files."""
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
        """Bytes of an image; OSError, with a remedy, if its file cannot be read, ValueError if it is cut short."""
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
        """File and name of an image, for errors."""
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
    """Images of a folder."""

    class_names: tuple[str, ...]
    """Sorted names of the classes; empty for shards, which have numbers."""
    classes: int
    train: ImageFiles
    validation: ImageFiles


@lru_cache(maxsize=2)
def list_images(path: str | Path, kept_in: str | Path) -> Listing:
    """List the images of a folder in one of the forms of ``search_spaces.readers.imagenet``.

    The list is kept, and made again if files were added, removed or renamed, or a shard was written. The first process
    makes it while others wait.

    Args:
        path (path): folder of the data set.
        kept_in (path): folder of lists, which is made if it is missing.

    Raises:
        FileNotFoundError: a file or folder is missing.
        ValueError: a file has another form.
    """
    root = Path(path).resolve()
    form = folders if folders.is_there(root) else shards
    parts = form.find(root)
    return kept(
        root,
        kept_in,
        (FORMAT, str(root), form.stamps(parts)),
        make=lambda: form.listed(root, parts),
        take=lambda found: Listing(
            class_names=tuple(os.fsdecode(name) for name in found["class_names"].tolist()),
            classes=1 + int(found["train_classes"].max()),
            train=_part(found, "train", root),
            validation=_part(found, "validation", root),
        ),
    )


def _part(found: Arrays, name: str, root: Path) -> ImageFiles:
    return ImageFiles(
        root=root,
        names=found[f"{name}_names"],
        classes=found[f"{name}_classes"],
        places=found[f"{name}_places"],
    )
