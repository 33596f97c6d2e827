"""Shards of ImageNet: tar files in webdataset's form, with KEY.jpg and KEY.cls, the number of its class, for an image.
Imports no torch.

webdataset reads such files in sequence and shuffles a buffer, which allows neither an exact order nor an exact
resumption, and its random access (wids) unpickles. Here headers are read once, and images by their place in the file.
"""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import refused_by_system

IMAGES = ("jpg", "jpeg", "png")
CLASS = "cls"
AGAIN = "Copy or download it again."


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Shards of each split, sorted by name."""

    train: list[Path]
    validation: list[Path]


def find(root: Path) -> Shards:
    """Find the shards in ``root`` or in its folders train and val; FileNotFoundError for a split without shards,
    ValueError for a shard of both."""
    found: dict[str, list[Path]] = {}
    for part, folders in (("train", ("train",)), ("val", ("val", "validation"))):
        here = [path for path in _tars(root) if part in path.name]
        places = [here, *(_tars(root / folder) for folder in folders)]
        shards = next((one for one in places if one), [])
        if not shards:
            raise FileNotFoundError(
                f"{root} has neither folders of classes in {root / 'train'} nor shards for {part}: files *.tar in "
                f"{root / folders[0]}, or *{part}*.tar in {root}. Name a folder that has; ImageNet as it is published "
                "extract first, a folder for each class."
            )
        found[part] = shards
    if both := set(found["train"]) & set(found["val"]):
        raise ValueError(
            f"{min(both)} has both train and val in its name. Rename it, or put shards into folders train and val."
        )
    return Shards(train=found["train"], validation=found["val"])


def stamps(parts: Shards) -> list[tuple[str, int, int]]:
    """Size and time of the last change of each shard."""
    states = [(path, path.stat()) for path in (*parts.train, *parts.validation)]
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states]


def listed(root: Path, parts: Shards) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a ``Listing``, by name; ValueError for a file that is no shard, or a class without images."""
    found: dict[str, npt.NDArray[Any]] = {"class_names": np.array([], dtype=np.bytes_)}
    for part, shards in (("train", parts.train), ("validation", parts.validation)):
        images = [
            (number, key, shard, start, length)
            for shard, path in enumerate(shards)
            for key, (number, start, length) in _in_shard(path).items()
        ]
        images.sort()
        found[f"{part}_names"] = np.array([os.fsencode(os.path.relpath(path, root)) for path in shards])
        found[f"{part}_classes"] = np.array([one[0] for one in images], dtype=np.int64)
        found[f"{part}_places"] = np.array([one[2:] for one in images], dtype=np.int64).reshape(-1, 3)
        if not images:
            raise ValueError(f"{shards[0]}, and what there is besides, has no images. {AGAIN}")
    there = {part: set(found[f"{part}_classes"].tolist()) for part in ("train", "validation")}
    for part, numbers in there.items():
        missing = [
            str(number) for number in range(max(map(max, there.values())) + 1) if number not in numbers
        ]
        if missing:
            raise ValueError(
                f"{root}: the shards for {part} have no images of class {', '.join(missing[:3])}"
                f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}, and classes are numbered without "
                "gaps. Bring the shards that are missing."
            )
    return found


def _in_shard(path: Path) -> dict[str, tuple[int, int, int]]:
    """Class, first byte and length of each image, by key."""
    images: dict[str, tuple[int, int]] = {}
    classes: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                folder, _, name = member.name.rpartition("/")
                stem, _, kind = name.partition(".")
                key = f"{folder}/{stem}"
                if not member.isreg() or not stem:
                    continue
                if kind.lower() in IMAGES:
                    images[key] = member.offset_data, member.size
                elif kind.lower() == CLASS:
                    content = shard.extractfile(member)
                    classes[key] = _number(path, member.name, b"" if content is None else content.read(32))
                # tarfile would keep all headers in memory.
                shard.members = []  # type: ignore[attr-defined]
            end = shard.offset
    except tarfile.TarError as error:
        raise ValueError(f"{path} is no whole tar file ({error}). {AGAIN}") from error
    except OSError as error:
        raise refused_by_system(path, "read", error) from error
    for key in images.keys() ^ classes:
        there, lacks = (IMAGES[0], CLASS) if key in images else (CLASS, IMAGES[0])
        raise ValueError(
            f"{path}: has {key.lstrip('/')}.{there}, and no {lacks} of that name beside it. Shards are of webdataset's "
            "form; tar files of a class, as ImageNet is published, extract."
        )
    _check_end(path, end)
    return {key: (classes[key], *place) for key, place in images.items()}


def _check_end(path: Path, end: int) -> None:
    # tarfile reports no error for a file that is cut short or has a damaged header: a whole file has zeros there.
    with open(path, "rb") as file:
        file.seek(end)
        block = file.read(tarfile.BLOCKSIZE)
    if block != b"\0" * tarfile.BLOCKSIZE:
        raise ValueError(f"{path} is damaged, or cut short, at byte {end}. {AGAIN}")


def _number(path: Path, name: str, content: bytes) -> int:
    text = content.decode("ascii", "replace").strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 6:
        raise ValueError(
            f"{path}: {name} must be the number of a class, from 0, and is {text[:20]!r}. {AGAIN}"
        )
    return int(text)


def _tars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar")) if folder.is_dir() else []
