"""CIFAR-10 and CIFAR-100 in their published binary and Python forms, and other data sets in these forms.

python -m search_spaces.readers.cifar check data/cifar-10-binary.tar.gz     what is there, and is it whole?
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from search_spaces.readers.files import content_of, refused_by_system
from search_spaces.readers.pickled_data import read_pickled
from search_spaces.readers.published import (
    CIFAR_10_BINARY,
    CIFAR_10_PYTHON,
    CIFAR_100_BINARY,
    CIFAR_100_PYTHON,
    CifarFiles,
    cifar_files,
)
from search_spaces.readers.small_images import SETS, read_digits, read_fashion_mnist

SIDE = 32
_PIXELS = 3 * SIDE * SIDE

ARCHIVES = {
    "c32a1d4ab5d03f1284b67883e8d87530": "cifar-10-binary.tar.gz",
    "c58f30108f718f92721af3b95e74349a": "cifar-10-python.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8": "cifar-100-binary.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85": "cifar-100-python.tar.gz",
}
"""Published archives by their MD5 sums from www.cs.toronto.edu/~kriz/cifar.html."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images with their classes."""

    pixels: npt.NDArray[np.uint8]
    """Bytes from 0 to 255 (N, 3, 32, 32), in the order red, green, blue."""
    classes: npt.NDArray[np.int64]
    """Classes (N)."""

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True, kw_only=True)
class Cifar:
    """Data set as published, with the fine classes of CIFAR-100."""

    train: Images
    test: Images
    classes: int
    """Number of classes."""


# Kept in memory, because an evaluator process trains many configurations on the same data.
@lru_cache(maxsize=1)
def read_cifar(source: str) -> Cifar:
    """Read the data set at ``source``.

    This is one of the following; nothing is unpickled, as ``read_pickled`` reads the Python form.

    - The path of one of the four published archives, ``ARCHIVES``, whose MD5 sum is checked.
    - The path of a folder with the files of an archive, or with their folder. Sizes, labels and equal lengths of all
      training batches are checked, but no sums, as other data sets may have this form.
    - "digits" or "fashion-mnist": the result of ``as_cifar``, from the packages in ``load_images``.

    Raises:
        FileNotFoundError: a file is missing; the text names it.
        ValueError: a file is damaged, or of another data set; the text names it.
    """
    if source in SETS:
        written = as_cifar(source)
        return _read(_FORMS[0], source, written.__getitem__)
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is {'no file and no folder' if path.exists() else 'not there'}. Name a folder or an archive "
            f"with CIFAR-10 or CIFAR-100, {' or '.join(SETS)}."
        )
    return _read_archive(path)


def as_cifar(name: str) -> dict[str, bytes]:
    """Files of CIFAR-10's binary form with the data set "digits" or "fashion-mnist"; ValueError for another name.

    Grey becomes three equal colours. Each pixel of the digits becomes a square of 4×4; 900 of the 1 797 images,
    shuffled, are for training. Fashion-MNIST gets a border of two black pixels.
    """
    if name == "digits":
        images, classes = read_digits()
        # A constant seed, so that the split is always the same.
        order = np.random.default_rng(0).permutation(len(images))
        images, classes = images[order], classes[order]
        pixels = np.rint(np.kron(images, np.ones((1, 4, 4))) * (255 / 16)).astype(np.uint8)
        trained = 900
    elif name == "fashion-mnist":
        images, classes = read_fashion_mnist()
        pixels = np.pad(images.astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
        trained = 60_000
    else:
        raise ValueError(f"{name!r} is none of {', '.join(SETS)}. Correct it.")
    colours = np.repeat(pixels.reshape(len(pixels), -1), 3, axis=0).reshape(len(pixels), _PIXELS)
    records = np.concatenate([classes.astype(np.uint8)[:, None], colours], axis=1)
    batches = [*np.split(records[:trained], 5), records[trained:]]
    return {name: batch.tobytes() for name, batch in zip(CIFAR_10_BINARY.files, batches, strict=True)}


# The forms


Records = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""Pixels (N × 3072) and classes (N)."""


@dataclass(frozen=True, kw_only=True)
class _Form:
    names: CifarFiles
    classes: int
    read: Callable[[bytes, str], Records]


def _binary(label_bytes: int) -> Callable[[bytes, str], Records]:
    """Reader of a binary file whose records have ``label_bytes`` labels and the pixels."""
    # The last label counts, as CIFAR-100 has the coarse class before the fine class.
    size = label_bytes + _PIXELS

    def read(content: bytes, source: str) -> Records:
        if not content or len(content) % size:
            raise ValueError(
                f"{source} has {len(content)} bytes, and must consist of records of {size}, the class and 3 × 32 × 32 "
                "colours: it is cut short, or something else. Extract it again; your own images must have this form."
            )
        table = np.frombuffer(content, np.uint8).reshape(-1, size)
        return table[:, label_bytes:], table[:, label_bytes - 1].astype(np.int64)

    return read


def _python(key: bytes) -> Callable[[bytes, str], Records]:
    def read(content: bytes, source: str) -> Records:
        found = read_pickled(content, source=source)
        # Keys are bytes in files of Python 2, and may be strings in files written again by Python 3.
        entries = (
            {k.encode() if isinstance(k, str) else k: v for k, v in found.items()}
            if isinstance(found, dict)
            else {}
        )
        pixels, labels = entries.get(b"data"), entries.get(key)
        if (
            not isinstance(pixels, np.ndarray)
            or pixels.dtype != np.uint8
            or pixels.shape[1:] != (_PIXELS,)
            or not isinstance(labels, list)
            or len(labels) != len(pixels)
            or not all(type(label) is int and 0 <= label < 256 for label in labels)
        ):
            raise ValueError(
                f"{source} must be a dictionary with 'data', bytes of shape (N, {_PIXELS}), and "
                f"{key.decode()!r}, a list of N classes. Extract it again."
            )
        return pixels, np.array(labels, dtype=np.int64)

    return read


_FORMS = (
    _Form(names=CIFAR_10_BINARY, classes=10, read=_binary(1)),
    _Form(names=CIFAR_100_BINARY, classes=100, read=_binary(2)),
    _Form(names=CIFAR_10_PYTHON, classes=10, read=_python(b"labels")),
    _Form(names=CIFAR_100_PYTHON, classes=100, read=_python(b"fine_labels")),
)


def _read(form: _Form, source: str, content_of: Callable[[str], bytes]) -> Cifar:
    parts: dict[str, Images] = {}
    for name in form.names.files:
        pixels, classes = form.read(content_of(name), f"{source}: {name}")
        wrong = classes[classes >= form.classes]
        if len(wrong):
            raise ValueError(
                f"{source}: {name} has the class {wrong[0]}, and there are {form.classes}, from 0 on: it is damaged, "
                "or something else. Extract it again; count classes of your own from 0."
            )
        # A copy, as the pixels are a read-only view of the whole file.
        parts[name] = Images(
            pixels=pixels.reshape(-1, 3, SIDE, SIDE).copy(),
            classes=classes,
        )
    lengths = {name: len(parts[name]) for name in form.names.train}
    # The most frequent length is taken as right, so that the error names the batch that differs.
    usual = Counter(lengths.values()).most_common(1)[0][0]
    for name, length in lengths.items():
        if length != usual:
            raise ValueError(
                f"{source}: {name} has {length} images, and other batches have {usual}. Extract it again; batches of "
                "your own must be equally long."
            )
    trained = [parts[name] for name in form.names.train]
    return Cifar(
        train=Images(
            pixels=np.concatenate([part.pixels for part in trained]),
            classes=np.concatenate([part.classes for part in trained]),
        ),
        test=parts[form.names.test],
        classes=form.classes,
    )


def _read_folder(path: Path) -> Cifar:
    names, folder = cifar_files(path)
    form = next(form for form in _FORMS if form.names is names)
    return _read(form, str(folder), lambda name: content_of(folder / name))


def _read_archive(path: Path) -> Cifar:
    # The published sums are MD5; they find damaged downloads, and protect against nothing else.
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with open(path, "rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    except OSError as error:
        raise refused_by_system(path, "read", error) from error
    if digest.hexdigest() not in ARCHIVES:
        raise ValueError(
            f"{path} has the MD5 sum {digest.hexdigest()}, which is none of the published archives "
            f"{', '.join(ARCHIVES.values())}. Download it again; a set of your own, extract, and name its folder."
        )
    # Contents are read into memory by the names of files alone, so that no path of an archive is ever written to.
    contents: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                contents[Path(member.name).name] = content.read()
    form = next(form for form in _FORMS if set(form.names.files) <= contents.keys())
    return _read(form, str(path), contents.__getitem__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command ``check``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m search_spaces.readers.cifar")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="read a folder or an archive and say what it holds")
    check.add_argument("source", help="its path")
    source = parser.parse_args(arguments).source
    try:
        found = read_cifar(source)
    except (OSError, ValueError) as error:
        print(f"cifar: {error}", file=sys.stderr)
        return 1
    print(
        f"{source}: {len(found.train)} images to train with, {len(found.test)} to test with, "
        f"{found.classes} classes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
