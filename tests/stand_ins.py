"""Data that pass for real ones as long as nobody reads the pixels."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np

from search_spaces.readers import published
from search_spaces.readers.bigearthnet_files.format import BANDS, SPLITS
from search_spaces.readers.bigearthnet_files.store import PATCH, row_of


def cifar_archive(path: Path) -> Path:
    """A file of the size of a published archive, which takes no space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, published.CIFAR_ARCHIVES_BYTES[0])
    return path


def cifar_folder(path: Path, form: int = 0, images: int = 4) -> Path:
    """A folder of one of the forms, with so many images a file."""
    path.mkdir(parents=True, exist_ok=True)
    for name in published.CIFAR_FORMS[form].files:
        (path / name).write_bytes(b"\0" * (published.CIFAR_FORMS[form].record_bytes or 1) * images)
    return path


def bigearthnet(
    path: Path, *, bands: tuple[str, ...] = BANDS, patches: tuple[int, int, int] = (2, 1, 1)
) -> Path:
    """A store of dark patches, so many in each split."""
    rows = np.zeros(sum(patches), PATCH)
    rows["version"], rows["labels"][:, 0] = "v2", True
    rows["name"], rows["split"] = [str(row) for row in range(len(rows))], np.repeat(SPLITS, patches)
    path.mkdir(parents=True)
    np.save(path / "pixels.npy", np.zeros(len(rows), row_of(bands)))
    np.save(path / "patches.npy", rows)
    return path


def imagenet(path: Path, classes: int = 1000, trained: int = 2) -> Path:
    """Shards of empty images: the given number to train with, and one to test with, of each class."""
    for part, count in (("train", trained), ("val", 1)):
        (path / part).mkdir(parents=True)
        with tarfile.open(path / part / "0.tar", "w") as shard:
            for number in range(classes * count):
                for suffix, content in (("jpg", b""), ("cls", str(number % classes).encode())):
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    return path


def series(path: Path) -> Path:
    """A csv of nothing but its first line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n")
    return path
