"""rico-hdl's LMDB of BigEarthNet v2: patch -> safetensors dictionary by band.

LMDB reads through a memory map. The length of the file is checked; other damage may still kill the process that reads
it (``LmdbReader.mapped``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from search_spaces.readers.bigearthnet_files.format import (
    BANDS,
    EXTRA,
    PatchError,
    Sample,
    Version,
    check_band,
    class_numbers,
)
from search_spaces.readers.bigearthnet_files.lists import Patch

if TYPE_CHECKING:
    import lmdb

FILE = "data.mdb"
# Bytes of a patch; twelve bands are 160 kB.
_LONGEST = 2**20


@dataclass(frozen=True)
class LmdbReader:
    """Reads the patches of ``root``/data.mdb."""

    root: Path
    version: Version = "v2"
    mapped: ClassVar[bool] = True

    def read(self, patch: Patch, bands: Sequence[str] = BANDS) -> Sample:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        value = self._value(patch.name)
        try:
            content = load(value)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise PatchError(
                patch.name, f"its value is no safetensors dictionary of numbers ({error!r})."
            ) from error
        lacking = [band for band in bands if band not in content]
        if lacking:
            raise PatchError(patch.name, f"{', '.join(lacking)} is missing in its value.")
        return Sample(
            bands={band: check_band(patch.name, band, content[band]) for band in bands},
            classes=class_numbers(patch.name, patch.labels or (), "v2"),
        )

    def present(self) -> set[str] | None:
        return None

    def check(self) -> None:
        """Raise ValueError if the file is no LMDB or is cut short. Keeps no file open."""
        if (self.root, os.getpid()) not in _opened_here:
            _opened(self.root).close()

    def _value(self, name: str) -> bytes:
        environment = _environment(self.root)
        import lmdb

        path = self.root / FILE
        try:
            with environment.begin(buffers=True) as transaction:
                value = transaction.get(name.encode())
                if value is None:
                    raise PatchError(name, f"it is not in {self.root}.")
                # Before it is copied: a damaged length reaches past the file's end.
                if len(value) > _LONGEST:
                    raise PatchError(
                        name, f"its value has {len(value)} bytes, more than {_LONGEST}: {path} is damaged."
                    )
                return bytes(value)
        except lmdb.Error as error:
            raise PatchError(name, f"{path} is damaged where it is kept ({error}).") from error


# Keyed by process, as a process may open a file only once, and never use it across a fork.
_opened_here: dict[tuple[Path, int], lmdb.Environment] = {}


def _environment(root: Path) -> lmdb.Environment:
    key = root, os.getpid()
    if key not in _opened_here:
        _opened_here[key] = _opened(root)
    return _opened_here[key]


def _opened(root: Path) -> lmdb.Environment:
    try:
        import lmdb
    except ImportError:
        raise ModuleNotFoundError(f"{root} needs the package lmdb. {EXTRA}") from None
    try:
        # Without readahead, reading at random would load far more than it uses; there is no writer: no lock.
        environment = lmdb.open(str(root), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        raise ValueError(f"{root} is no LMDB that can be opened ({error}). Bring it again, whole.") from error
    # Opening has read the first two pages, and these two calls read no other. Reading past the file's end would
    # kill the process.
    named = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = (root / FILE).stat().st_size
    if size < named:
        environment.close()
        raise ValueError(
            f"{root / FILE} has {size} bytes, and its first pages name {named}: it was not copied completely. "
            "Bring it again, whole."
        )
    return environment
