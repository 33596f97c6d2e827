"""BigEarthNet's archives as they are published: v1 and v2 in GeoTIFFs, and rico-hdl's LMDB of v2.

    v1    ARCHIVE/<patch>/<patch>_B01.tif …, <patch>_labels_metadata.json; the official split lists
          train.csv, val.csv, test.csv, and patches_with_seasonal_snow.csv, patches_with_cloud_and_shadow.csv
          (a patch a line; .txt and .bz2 too)
    v2    ARCHIVE/BigEarthNet-S2/<tile>/<patch>/<patch>_B01.tif …; metadata.parquet and
          metadata_for_patches_with_snow_cloud_or_shadow.parquet
    LMDB  ARCHIVE/data.mdb: patch -> safetensors dictionary by band; v2's two parquet files

Lists and parquet files lie in the archive, or beside it, or where ``lists`` says.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from search_spaces.readers.bigearthnet_files.format import (
    BANDS,
    EXTRA,
    PARQUETS,
    PatchError,
    Sample,
    Version,
    check_band,
    check_side,
    class_numbers,
)
from search_spaces.readers.bigearthnet_files.lists import Patch, first_in, v1_lists, v2_lists
from search_spaces.readers.bigearthnet_files.lmdb_reader import FILE, LmdbReader
from search_spaces.readers.files import refused_by_system

V2_FOLDER = "BigEarthNet-S2"
UNLISTED = "in no split list"


class Reader(Protocol):
    """Reads patches; pickles, for the processes that share the work."""

    @property
    def version(self) -> Version: ...

    @property
    def mapped(self) -> bool:
        """Whether damaged data may kill the process, as the file is a memory map."""
        ...

    def read(self, patch: Patch, bands: Sequence[str] = BANDS) -> Sample:
        """Content of a patch; PatchError if a file is missing or damaged."""
        ...

    def present(self) -> set[str] | None:
        """Names of the folders of patches; None if listing them would be slow."""
        ...


@dataclass(frozen=True, kw_only=True)
class Archive:
    """Archive with its lists."""

    path: Path
    reader: Reader
    patches: list[Patch]
    """Patches for training, validation and test, in the order of the lists."""
    left_out: dict[str, int]
    """Number of other patches by reason."""
    missing: list[str]
    """Names of patches without a folder."""


def open_archive(path: str | Path, *, lists: str | Path | None = None) -> Archive:
    """Open an archive of any of the three forms; reads its lists but no pixels.

    Raises:
        FileNotFoundError: there is no archive, or a list is missing.
        ValueError: lists are damaged or contradict themselves, or an LMDB is cut short.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is no directory. Name the one that holds BigEarthNet's patches.")
    beside = [Path(lists)] if lists is not None else [path, path.parent]
    reader: Reader
    if (path / FILE).is_file():
        reader = LmdbReader(path)
        reader.check()
    elif (path / V2_FOLDER).is_dir():
        reader = FoldersV2(path / V2_FOLDER)
    # Not beside it: v1 may lie in one folder with v2's tables.
    elif path.name == V2_FOLDER or first_in(beside[:1], PARQUETS[0]) is not None:
        reader = FoldersV2(path)
    else:
        reader = FoldersV1(path)
    found = v1_lists(beside) if reader.version == "v1" else v2_lists(beside)
    left_out = Counter(found.left_out.values())
    missing = []
    present = reader.present()
    if present is not None:
        missing = [patch.name for patch in found.patches if patch.name not in present]
        patches = {patch.name for patch in found.patches}
        # Folders of patches only: the lists' own may lie among them.
        unlisted = {name for name in present if name.startswith("S2")} - patches - found.left_out.keys()
        if unlisted:
            left_out[UNLISTED] = len(unlisted)
    return Archive(path=path, reader=reader, patches=found.patches, left_out=dict(left_out), missing=missing)


@dataclass(frozen=True)
class FoldersV1:
    """``root``/<patch>/<patch>_B01.tif and so on."""

    root: Path
    version: Version = "v1"
    mapped: ClassVar[bool] = False

    def read(self, patch: Patch, bands: Sequence[str] = BANDS) -> Sample:
        folder = _folder(patch.name, self.root / patch.name)
        path = folder / f"{patch.name}_labels_metadata.json"
        try:
            labels = json.loads(path.read_bytes())["labels"]
        except FileNotFoundError:
            raise PatchError(patch.name, f"{path.name} is missing.") from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise PatchError(patch.name, f"{path.name} is damaged ({error!r}).") from error
        if not isinstance(labels, list):
            raise PatchError(patch.name, f"{path.name}: labels is no list.")
        classes = class_numbers(patch.name, labels, "v1")
        return Sample(bands=_read_tiffs(patch.name, folder, bands), classes=classes)

    def present(self) -> set[str] | None:
        return _folders(self.root)


@dataclass(frozen=True)
class FoldersV2:
    """``root``/<tile>/<patch>/<patch>_B01.tif and so on; a tile is the patch without its last two fields."""

    root: Path
    version: Version = "v2"
    mapped: ClassVar[bool] = False

    def read(self, patch: Patch, bands: Sequence[str] = BANDS) -> Sample:
        folder = _folder(patch.name, self.root / patch.name.rsplit("_", 2)[0] / patch.name)
        classes = class_numbers(patch.name, patch.labels or (), "v2")
        return Sample(bands=_read_tiffs(patch.name, folder, bands), classes=classes)

    def present(self) -> set[str] | None:
        return {name for tile in _folders(self.root) for name in _folders(self.root / tile)}


def _folder(patch: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise PatchError(patch, f"{folder} is missing: the archive is not completely extracted.")
    return folder


def _folders(root: Path) -> set[str]:
    try:
        with os.scandir(root) as entries:
            return {entry.name for entry in entries if entry.is_dir()}
    except OSError as error:
        raise refused_by_system(root, "listed", error) from error


def _read_tiffs(patch: str, folder: Path, bands: Sequence[str]) -> dict[str, Any]:
    try:
        import rasterio
        from rasterio.errors import RasterioError
    except ImportError:
        raise ModuleNotFoundError(f"GeoTIFFs need the package rasterio. {EXTRA}") from None
    found = {}
    # GDAL would list the folder for each file that it opens, to find others that belong to it.
    with rasterio.Env(GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR"):
        for band in bands:
            path = folder / f"{patch}_{band}.tif"
            try:
                with rasterio.open(path, driver="GTiff") as file:
                    if file.count != 1:
                        raise PatchError(patch, f"{path.name} holds {file.count} bands, not one.")
                    # Before it is read: a damaged size may be one that no memory can hold.
                    check_side(patch, band, (file.height, file.width))
                    pixels = file.read(1)
            except (RasterioError, OSError) as error:
                if not path.exists():
                    raise PatchError(patch, f"{path.name} is missing.") from None
                # rasterio's own words for what GDAL found are "see previous exception".
                raise PatchError(patch, f"{path.name} is damaged ({error.__cause__ or error}).") from error
            found[band] = check_band(patch, band, pixels)
    return found
