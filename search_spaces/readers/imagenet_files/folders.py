"""ImageNet as folders: one for each class, or for the validation part one folder with a list of classes. Imports no
torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of

SUFFIXES = (".jpeg", ".jpg", ".png")
"""Suffixes of images, in upper or lower case."""
VALIDATION = ("val", "validation")
DEVKIT = "ILSVRC2012_devkit_t12/data"
DEVKIT_LIST, DEVKIT_CLASSES = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
LISTS = ("LOC_val_solution.csv", "val.txt")
"""Lists of the validation part, with a line for each image: its name, its class and ignored words."""


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """Folders of the classes, by name, for each split."""

    train: dict[str, Path]
    validation: dict[str, Path] | None
    """None: ``flat`` has the images themselves."""
    flat: Path
    """Folder of the validation part."""


def is_there(root: Path) -> bool:
    """Whether ``root`` has folders in a folder train."""
    try:
        with os.scandir(root / "train") as entries:
            return any(entry.is_dir() for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def find(root: Path) -> ClassFolders:
    """Find the folders of the classes; FileNotFoundError for a missing split, ValueError if it has other classes."""
    flat = next((root / name for name in VALIDATION if (root / name).is_dir()), None)
    if flat is None:
        raise FileNotFoundError(
            f"{root} has a folder train, and no folder {' or '.join(VALIDATION)}. Bring it: the images to test with."
        )
    train, validation = _subfolders(root / "train"), _subfolders(flat)
    if validation:
        for lacks, missing in (
            (flat, sorted(train.keys() - validation)),
            (root / "train", sorted(validation.keys() - train)),
        ):
            if missing:
                raise ValueError(
                    f"{lacks} has no folder {_some(missing)}, and the other part has. Both must have the same "
                    "classes: bring it, or remove it there."
                )
    return ClassFolders(train=train, validation=validation or None, flat=flat)


def stamps(parts: ClassFolders) -> list[tuple[str, int]]:
    """Times of the last change of each folder and list."""
    found = [*parts.train.values(), parts.flat, *(parts.validation or {}).values()]
    if parts.validation is None:
        places = (parts.flat.parent, parts.flat, parts.flat.parent / DEVKIT)
        lists = [place / name for place in places for name in (*LISTS, DEVKIT_LIST, DEVKIT_CLASSES)]
        found += [path for path in lists if path.is_file()]
    return [(str(path), path.stat().st_mtime_ns) for path in found]


def listed(root: Path, parts: ClassFolders) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a ``Listing``, by name; ValueError for a class without images, or a list that does not fit."""
    names = sorted(parts.train)
    train = _in_classes(root, parts.train, names)
    if parts.validation is not None:
        validation = _in_classes(root, parts.validation, names)
    else:
        validation = _flat(root, parts.flat, names)
    found: dict[str, npt.NDArray[Any]] = {"class_names": np.array([os.fsencode(name) for name in names])}
    for part, images in (("train", train), ("validation", validation)):
        found[f"{part}_names"] = np.array([os.fsencode(name) for name, _ in images])
        found[f"{part}_classes"] = np.array([number for _, number in images], dtype=np.int64)
        found[f"{part}_places"] = np.empty((0, 3), dtype=np.int64)
    return found


def _in_classes(root: Path, folders: dict[str, Path], names: list[str]) -> list[tuple[str, int]]:
    found = []
    for number, name in enumerate(names):
        images = _images(folders[name])
        if not images:
            raise ValueError(
                f"{folders[name]} has no images ({', '.join(SUFFIXES)}). Bring them, or remove the class from "
                "both parts."
            )
        place = os.path.relpath(folders[name], root)
        found += [(f"{place}/{image}", number) for image in images]
    return found


def _flat(root: Path, folder: Path, names: list[str]) -> list[tuple[str, int]]:
    images = _images(folder)
    if not images:
        raise ValueError(f"{folder} has neither images nor folders of classes. Bring them.")
    source, said = _ground_truth(root, folder, images)
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for image in images:
        name = said.get(image, said.get(Path(image).stem))
        if name is None:
            raise ValueError(f"{source} does not say of which class {folder / image} is. Complete it.")
        if name not in numbers:
            raise ValueError(f"{source}: {image} is of the class {name}, and train has no such folder.")
        found.append((f"{os.path.relpath(folder, root)}/{image}", numbers[name]))
    return sorted(found, key=lambda one: (one[1], one[0]))


def _ground_truth(root: Path, folder: Path, images: list[str]) -> tuple[Path, dict[str, str]]:
    """The list, and the name of the class by image, with or without its suffix."""
    for place in (root, folder):
        for name in LISTS:
            if (place / name).is_file():
                return place / name, _named(place / name)
    for place in (root, folder, root / DEVKIT):
        if (place / DEVKIT_LIST).is_file():
            return place / DEVKIT_LIST, _of_devkit(place, images)
    raise FileNotFoundError(
        f"{folder} has no folders of classes, and there is no list that says what its images are: {', '.join(LISTS)} "
        f"or {DEVKIT_LIST} with {DEVKIT_CLASSES} beside it, in {root}, {folder} or {root / DEVKIT}. Bring one."
    )


def _named(path: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(content_of(path).decode("utf-8", "replace").splitlines(), start=1):
        words = line.replace(",", " ").split()
        # "ImageId" begins the header of Kaggle's list.
        if not words or words[0] == "ImageId":
            continue
        if len(words) < 2:
            raise ValueError(f"{path}: line {number} must be an image and its class, and is {line[:60]!r}.")
        found[words[0]] = words[1]
    return found


def _of_devkit(place: Path, images: list[str]) -> dict[str, str]:
    """Classes by image, from the devkit's list of class numbers in the order of the images' names."""
    lines = content_of(place / DEVKIT_LIST).decode("ascii", "replace").split()
    if len(lines) != len(images):
        raise ValueError(
            f"{place / DEVKIT_LIST} has {len(lines)} lines, and there are {len(images)} images to validate with. Bring "
            "what is missing."
        )
    names = _devkit_classes(place / DEVKIT_CLASSES)
    found = {}
    for number, (image, line) in enumerate(zip(images, lines), start=1):
        if line not in names:
            raise ValueError(
                f"{place / DEVKIT_LIST}: line {number} is {line!r}, which is no class of meta.mat."
            )
        found[image] = names[line]
    return found


def _devkit_classes(path: Path) -> dict[str, str]:
    from scipy.io import loadmat

    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: it says what the numbers in {DEVKIT_LIST} mean. Bring it."
        )
    try:
        synsets = loadmat(str(path), squeeze_me=True, variable_names=["synsets"])["synsets"]
        pairs = zip(synsets["ILSVRC2012_ID"].tolist(), synsets["WNID"].tolist(), strict=True)
        return {str(int(number)): str(name) for number, name in pairs}
    # scipy raises errors of all these classes for other files.
    except (
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        NotImplementedError,
        OSError,
    ) as error:
        raise ValueError(f"{path} is not the file of the devkit ({error!r}). Extract it again.") from error


def _subfolders(path: Path) -> dict[str, Path]:
    with os.scandir(path) as entries:
        return {
            entry.name: Path(entry.path)
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir()
        }


def _images(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(
            entry.name
            for entry in entries
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
