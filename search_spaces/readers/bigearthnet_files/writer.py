"""Writing of the files for training, so that a conversion that was killed at any point continues."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from search_spaces.readers.bigearthnet_files.format import Version
from search_spaces.readers.bigearthnet_files.lists import Patch
from search_spaces.readers.bigearthnet_files.store import (
    INDEX,
    JOURNAL,
    PATCH,
    PIXELS,
    Patches,
    bands_of,
    patches_of,
    rebuild_hint,
    refused,
    row_of,
    write_header,
)


def begun(directory: Path, version: Version, wanted: list[Patch], bands: Sequence[str]) -> Patches:
    """Rows of patches.npy of an earlier run, or new rows; makes pixels.npy if it is missing.

    Raises:
        ValueError: the files are damaged, or have other patches or bands.
    """
    pixels, rows = directory / PIXELS, named(wanted, version)
    if (path := _index(directory)).exists():
        kept, given = patches_of(path), ["version", "name", "split"]
        if len(kept) != len(rows) or (kept[given] != rows[given]).any():
            raise ValueError(
                f"{directory} holds other patches than are asked for now. Go on with the archive, the lists and the "
                "--patches that it was begun with, or name another directory."
            )
        rows = kept
    elif pixels.exists():
        raise ValueError(
            f"{directory} has {PIXELS} without names: it is unknown of what. {rebuild_hint(directory)}"
        )
    else:
        keep(directory, rows)
    if not pixels.exists() and not rows["labels"].any():
        with _whole(pixels) as file:
            write_header(file, row_of(bands), len(rows))
            file.truncate(file.tell() + len(rows) * row_of(bands).itemsize)
    there, _ = bands_of(pixels, len(rows))
    if there != tuple(bands):
        raise ValueError(
            f"{directory} was begun with the bands {', '.join(there)}. Go on with the same, or name another directory."
        )
    return rows


def named(patches: list[Patch], version: Version) -> Patches:
    """Rows of patches.npy without labels."""
    rows = np.zeros(len(patches), PATCH)
    rows["version"] = version
    rows["name"], rows["split"] = [one.name.encode() for one in patches], [one.split for one in patches]
    return rows


def _index(directory: Path) -> Path:
    return directory / (INDEX if (directory / INDEX).exists() else JOURNAL)


def keep(directory: Path, rows: Patches) -> None:
    """Write the rows of patches that have been stored."""
    pixels = directory / PIXELS
    # Pixels first: rows must not name patches that a power cut loses.
    if pixels.exists():
        with refused(pixels, "written"), open(pixels, "rb") as file:
            os.fsync(file.fileno())
    with _whole(_index(directory)) as file:
        np.save(file, rows)


def finish(directory: Path) -> None:
    """Make the files readable, once all patches have been tried."""
    with refused(directory / INDEX, "written"):
        os.replace(_index(directory), directory / INDEX)


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """File to write, which replaces ``path`` when it is complete."""
    partial = path.with_name(f".{path.name}")
    with refused(path, "written"):
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock of a directory; ValueError if another process has it."""
    with refused(directory, "written to"):
        lock = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ValueError(f"Another process is writing {directory}. Wait for it, or end it.") from None
    # A file system without locks.
    except OSError:
        pass
    try:
        yield
    finally:
        os.close(lock)
