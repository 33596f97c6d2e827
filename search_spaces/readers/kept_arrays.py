"""Arrays about a data set, such as the list of its files, computed once and kept in a file. Imports no torch."""

from __future__ import annotations

import hashlib
import io
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of, made_once, refused_by_system

Arrays = Mapping[str, npt.NDArray[Any]]
T = TypeVar("T")


def kept(
    root: Path, kept_in: str | Path, key: object, *, make: Callable[[], Arrays], take: Callable[[Arrays], T]
) -> T:
    """Result of ``take`` for the arrays of ``make``, which the first process computes while others wait.

    Args:
        root (path): folder of the data set.
        kept_in (path): folder of such files, which is made if it is missing.
        key (object): what the arrays depend on; with another key they are computed again.
        make (callable): computes the arrays, by name.
        take (callable): makes the result of the arrays.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be written or read.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    path = Path(kept_in) / f"{root.name}-{digest[:16]}.npz"
    if not path.exists():
        print(f"{root}: listing its images, once; the list is kept in {path}", file=sys.stderr)
        made_once(path, lambda elsewhere: _write(elsewhere, make()))
    try:
        with np.load(io.BytesIO(content_of(path)), allow_pickle=False) as found:
            return take(found)
    # zipfile and numpy raise errors of all these classes for damaged files.
    except (
        KeyError, EOFError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError,
        SyntaxError, zipfile.BadZipFile, zlib.error, struct.error,
    ) as error:  # fmt: skip
        raise ValueError(f"{path} is damaged ({error!r}). Remove it: it is made again.") from error


def _write(path: Path, found: Arrays) -> None:
    try:
        with open(path, "wb") as file:
            np.savez_compressed(file, **found)
    except OSError as error:
        raise refused_by_system(path, "written", error) from error
