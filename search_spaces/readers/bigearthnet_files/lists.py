"""The lists that come with BigEarthNet's archives: which patches there are, in which split, and which are left out."""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.readers.bigearthnet_files.format import EXTRA, PARQUETS, SPLITS, Split
from search_spaces.readers.files import content_of

SNOW, CLOUD = "seasonal snow", "cloud or shadow"
_V1_SPLITS: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("val", "validation"),
    "test": ("test",),
}
_V1_LEFT_OUT = {SNOW: "patches_with_seasonal_snow", CLOUD: "patches_with_cloud_and_shadow"}
# Names become paths: nothing else is admitted.
_NAME = re.compile(r"S2[A-Z]_\w+_\d+_\d+")
_EXAMPLE = "S2A_MSIL2A_20170613T101031_87_48"
_COLUMNS = ("patch_id", "labels", "split", "contains_seasonal_snow", "contains_cloud_or_shadow")


@dataclass(frozen=True)
class Patch:
    """Patch that the lists name."""

    name: str
    split: Split
    labels: tuple[str, ...] | None = None
    """Labels of v2; None for v1, which has them in a file of each patch."""


@dataclass(frozen=True, kw_only=True)
class Lists:
    """Content of an archive's lists."""

    patches: list[Patch]
    left_out: dict[str, str]
    """Reasons not to use patches, by name."""


def first_in(folders: Iterable[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def v1_lists(folders: Sequence[Path]) -> Lists:
    """Official split lists of v1, without the patches in its lists of snow and clouds.

    Raises:
        FileNotFoundError: a split list is missing; lists of snow and clouds may be.
        ValueError: a list is damaged or names no patch, or a patch is in two splits.
    """
    left_out: dict[str, str] = {}
    for reason, name in _V1_LEFT_OUT.items():
        left_out.update(dict.fromkeys(_names(_listed((name,), folders)), reason))
    split_of: dict[str, Split] = {}
    for split, names in _V1_SPLITS.items():
        path = _listed(names, folders)
        if path is None:
            raise FileNotFoundError(
                f"{names[0]}.csv is not in {' or '.join(map(str, folders))}. Bring the official split lists "
                "(train.csv, val.csv, test.csv) or say with --lists where they are."
            )
        listed = _names(path)
        if not listed:
            raise ValueError(
                f"{path} names no patch for {split}: each of its lines must begin with a name such as {_EXAMPLE}. "
                "Bring the official list, or name at least one patch."
            )
        for patch in listed:
            if patch in split_of:
                raise ValueError(
                    f"{path}: {patch} is in {split_of[patch]} too. A patch belongs to one split: correct the lists."
                )
            split_of[patch] = split
    return Lists(
        patches=[Patch(name, split) for name, split in split_of.items() if name not in left_out],
        left_out=left_out,
    )


def _listed(names: Iterable[str], folders: Sequence[Path]) -> Path | None:
    """First file with one of the ``names`` and any suffix."""
    # Some archives have the lists in a folder "splits".
    places = [place for folder in folders for place in (folder, folder / "splits")]
    files = (f"{name}{suffix}" for name in names for suffix in (".csv", ".txt", ".csv.bz2", ".txt.bz2"))
    return next((found for file in files if (found := first_in(places, file)) is not None), None)


def _names(path: Path | None) -> dict[str, None]:
    """Names of a list, in order; ValueError for any other line but a header, and for a repeated name."""
    if path is None:
        return {}
    names: dict[str, None] = {}
    for number, line in enumerate(_text(path).splitlines(), start=1):
        name = line.split(",")[0].strip().strip('"')
        if not name or (number == 1 and not name.startswith("S2")):
            continue
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{path}, line {number}: {name[:80]!r} is no patch's name. Correct the list: a name is such as "
                f"{_EXAMPLE}."
            )
        if name in names:
            raise ValueError(f"{path}, line {number}: {name} is listed twice. Correct the list.")
        names[name] = None
    return names


def _text(path: Path) -> str:
    content = content_of(path)
    if path.suffix == ".bz2":
        try:
            content = bz2.decompress(content)
        except (OSError, EOFError, ValueError) as error:
            raise ValueError(
                f"{path} is no whole bz2 file ({error}). Bring the official list again."
            ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}). Bring the official list again, a "
            "patch's name a line."
        ) from error


def v2_lists(folders: Sequence[Path]) -> Lists:
    """Patches in v2's metadata.parquet, without those in its table of snow, clouds and shadows.

    Raises:
        FileNotFoundError: metadata.parquet is missing; the other table may be.
        ValueError: a table is damaged or has other columns or values.
    """
    path, path_left_out = (first_in(folders, name) for name in PARQUETS)
    if path is None:
        raise FileNotFoundError(
            f"{PARQUETS[0]} is not in {' or '.join(map(str, folders))}. Bring it or say with --lists where it is."
        )
    left_out: dict[str, str] = {}
    if path_left_out is not None:
        left_out = {row["patch_id"]: _reason(row) or SNOW for row in _rows(path_left_out)}
    patches: dict[str, Patch] = {}
    rows = _rows(path)
    if not rows:
        raise ValueError(f"{path} names no patch. Bring the published file.")
    for row in rows:
        name, split, reason = row["patch_id"], row["split"], _reason(row)
        if name in patches:
            raise ValueError(f"{path}: {name} is listed twice. Bring the published file.")
        if split not in SPLITS:
            raise ValueError(
                f"{path}: {name} has split {split!r}: must be {', '.join(SPLITS)}. Bring the published file."
            )
        if reason is not None:
            left_out[name] = reason
        if name in left_out:
            continue
        if not isinstance(row["labels"] or [], list):
            raise ValueError(
                f"{path}: {name} has labels {row['labels']!r}: must be a list of names. Bring the published file."
            )
        patches[name] = Patch(name, split, tuple(row["labels"] or ()))
    return Lists(patches=list(patches.values()), left_out=left_out)


def _reason(row: dict[str, Any]) -> str | None:
    if row["contains_seasonal_snow"]:
        return SNOW
    return CLOUD if row["contains_cloud_or_shadow"] else None


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, BufferReader, parquet
    except ImportError:
        raise ModuleNotFoundError(f"{path} needs the package pyarrow. {EXTRA}") from None
    content = content_of(path)
    try:
        names = parquet.read_schema(BufferReader(content)).names
        lacking = set(_COLUMNS) - set(names)
        rows: list[dict[str, Any]] = []
        if not lacking:
            rows = parquet.read_table(BufferReader(content), columns=list(_COLUMNS)).to_pylist()
    except (ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: what is damaged inside
        raise ValueError(
            f"{path} is no parquet file, or a damaged one ({error}). Bring the published file."
        ) from error
    if lacking:
        raise ValueError(f"{path} lacks the column {', '.join(sorted(lacking))}. Bring the published file.")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row["patch_id"], str) or not row["patch_id"]:
            raise ValueError(
                f"{path}: row {number} of {len(rows)} has patch_id {row['patch_id']!r}, and must have a patch's "
                "name. Bring the published file."
            )
    return rows
