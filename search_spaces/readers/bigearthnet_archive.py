"""Synthetic BigEarthNet of any size in the files of version 2, with classes that can be learnt.

python -m search_spaces.readers.bigearthnet_archive OUT --patches 2000
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.readers.bigearthnet_files.convert import convert
from search_spaces.readers.bigearthnet_files.format import (
    CLASSES,
    EXTRA,
    PARQUETS,
    SIDE,
    SIDES,
    Pixels,
    Split,
)
from search_spaces.readers.bigearthnet_files.lists import CLOUD, SNOW
from search_spaces.readers.bigearthnet_files.processes import in_processes, shown
from search_spaces.readers.bigearthnet_files.scenes import made_up_patch
from search_spaces.readers.bigearthnet_files.sources import V2_FOLDER
from search_spaces.readers.files import made_directory, made_once

# Satellite and day, orbit and tile, UTM zone, upper left corner in metres, country.
_SCENES = (
    ("S2A_MSIL2A_20170613T101031", "N9999_R022_T33UUP", 33, (300_000, 5_400_000), "Austria"),
    ("S2B_MSIL2A_20170924T093020", "N9999_R136_T35VNJ", 35, (500_000, 7_000_020), "Finland"),
    ("S2A_MSIL2A_20171221T112501", "N9999_R037_T29SNB", 29, (499_980, 4_400_040), "Portugal"),
    ("S2B_MSIL2A_20180204T094161", "N9999_R036_T34WFU", 34, (600_000, 7_600_020), "Finland"),
)
_ROW = 91  # patches along a tile of 109.8 km
_LEFT_OUT = 0.02  # ratio of additional patches with snow, and with clouds, to the other patches
_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Patch to make, with its place and split."""

    number: int
    split: Split
    left_out: str | None  # reason why it is not for training: SNOW or CLOUD
    scene: int
    column: int
    row: int

    @property
    def v1_name(self) -> str:
        return f"{_SCENES[self.scene][0]}_{self.column}_{self.row}"

    @property
    def v2_name(self) -> str:
        day, tile = _SCENES[self.scene][:2]
        return f"{day}_{tile}_{self.column:02d}_{self.row:02d}"


def make_archive(
    directory: str | Path,
    *,
    patches: int = 2000,
    seed: int = 0,
    processes: int | None = None,
    show: bool = True,
) -> None:
    """Write a synthetic archive, with half of the patches for training and a quarter each for validation and test.

    Args:
        directory (path): directory of the archive.
        patches (int, 4 to 30 000; default 2000): number of patches. Patches with snow and clouds, which are not for
            training, are added.
        seed (int; default 0): seed of pixels and labels.
        processes (int; default None): number of processes that write; None: one for each core.
        show (bool; default True): whether to show the progress.

    Raises:
        ValueError: a value is not allowed.
        FileExistsError: ``directory`` is not empty.
    """
    if not 4 <= patches <= 30_000:
        raise ValueError(f"patches = {patches}: must be from 4 to 30000. Correct it.")
    root = Path(directory)
    if root.is_dir() and any(root.iterdir()):
        raise FileExistsError(f"{root} is not empty. Name another directory, or empty it.")
    made_directory(root / V2_FOLDER)
    plans = _plans(patches, seed)
    labels: list[tuple[str, ...]] = []
    chunks = [plans[start : start + _CHUNK] for start in range(0, len(plans), _CHUNK)]
    with shown("made-up patches", len(plans), show=show) as advance:
        for found in in_processes(partial(_write_patches, root, seed), chunks, processes=processes):
            labels += found
            advance(len(found))
    _write_tables(root, plans, labels)


def made_up_store(
    directory: str | Path,
    *,
    patches: int = 2000,
    seed: int = 0,
    processes: int | None = None,
    show: bool = True,
) -> Path:
    """Path for ``load_bigearthnet`` of a synthetic data set, which is made if it is missing.

    Several processes may call this at the same time: the first makes the data set, and the others wait for it.

    Args:
        directory (path): directory in which data sets are kept.
        patches (int; default 2000): number of patches.
        seed (int; default 0): seed of pixels and labels.
        processes (int; default None): number of processes that write and read; None: one for each core.
        show (bool; default True): whether to show the progress.

    Raises:
        TimeoutError: another process takes longer than half an hour.
    """
    path = Path(directory) / f"made-up-patches-{patches}-seed-{seed}"

    def make(store: Path) -> None:
        archive = store.parent / "archive"
        make_archive(archive, patches=patches, seed=seed, processes=processes, show=show)
        convert(archive, store, processes=processes, show=show)

    return made_once(path, make)


def _plans(patches: int, seed: int) -> list[_Plan]:
    each = max(1, round(_LEFT_OUT * patches))
    left_out = [None] * patches + [SNOW] * each + [CLOUD] * each
    # Places are drawn without repetition, as the names of patches are made from them.
    places = np.random.default_rng((seed, 0)).permutation(len(_SCENES) * _ROW * _ROW).tolist()
    # Every other patch is for training.
    splits: tuple[Split, ...] = ("train", "validation", "train", "test")
    return [
        _Plan(
            number=number,
            split=splits[number % 4],
            left_out=reason,
            scene=place // _ROW**2,
            column=place // _ROW % _ROW,
            row=place % _ROW,
        )
        for number, (reason, place) in enumerate(zip(left_out, places))
    ]


def _write_patches(root: Path, seed: int, plans: Sequence[_Plan]) -> list[tuple[str, ...]]:
    """Write the folders of patches; returns their labels among the 19 classes."""
    found = []
    for plan in plans:
        classes, bands = made_up_patch(plan.number, seed=seed, veiled=plan.left_out is not None)
        folder = root / V2_FOLDER / plan.v2_name.rsplit("_", 2)[0] / plan.v2_name
        folder.mkdir(parents=True)
        _write_tiffs(folder, plan, bands)
        found.append(tuple(CLASSES[i] for i in classes))
    return found


@lru_cache(maxsize=len(_SCENES))
def _projection(scene: int) -> Any:
    try:
        from rasterio.crs import CRS
    except ImportError:
        raise ModuleNotFoundError(f"GeoTIFFs need the package rasterio. {EXTRA}") from None
    return CRS.from_epsg(32600 + _SCENES[scene][2])


def _write_tiffs(folder: Path, plan: _Plan, bands: dict[str, Pixels]) -> None:
    projection = _projection(plan.scene)
    # Upper left corner, in metres of the scene's UTM zone.
    east, north = _SCENES[plan.scene][3]
    east, north = east + 1200 * plan.column, north - 1200 * plan.row
    import rasterio

    for band, pixels in bands.items():
        side = SIDES[band]
        metres = 10 * SIDE // side
        with rasterio.open(
            folder / f"{folder.name}_{band}.tif",
            "w",
            driver="GTiff",
            width=side,
            height=side,
            count=1,
            dtype="uint16",
            crs=projection,
            transform=rasterio.Affine(metres, 0, east, 0, -metres, north),
        ) as file:
            file.write(pixels, 1)


def _write_tables(root: Path, plans: Sequence[_Plan], labels: Sequence[tuple[str, ...]]) -> None:
    try:
        from pyarrow import Table, parquet
    except ImportError:
        raise ModuleNotFoundError(f"{PARQUETS[0]} needs the package pyarrow. {EXTRA}") from None
    rows = [
        {
            "patch_id": plan.v2_name,
            "labels": list(names),
            "split": plan.split,
            "country": _SCENES[plan.scene][4],
            "s1_name": plan.v1_name.replace("S2", "S1").replace("MSIL2A", "IW_GRDH_1SDV"),
            "s2v1_name": plan.v1_name,
            "contains_seasonal_snow": plan.left_out == SNOW,
            "contains_cloud_or_shadow": plan.left_out == CLOUD,
        }
        for plan, names in zip(plans, labels, strict=True)
    ]
    for file, veiled in zip(PARQUETS, (False, True), strict=True):
        chosen = [row for row, plan in zip(rows, plans, strict=True) if (plan.left_out is not None) is veiled]
        parquet.write_table(Table.from_pylist(chosen), root / file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m search_spaces.readers.bigearthnet_archive",
        description="Write a made-up BigEarthNet in the real one's files.",
    )
    parser.add_argument("out", metavar="OUT", help="the directory to make: 250 kB a patch")
    parser.add_argument("--patches", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="other pixels and labels (default 0)")
    given = parser.parse_args(arguments)
    try:
        make_archive(given.out, patches=given.patches, seed=given.seed)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Next: python -m search_spaces.readers.bigearthnet {given.out} DIRECTORY")
    return 0


if __name__ == "__main__":
    sys.exit(main())
