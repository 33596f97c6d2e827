"""Campaigns on BigEarthNet's patches: the patches that a run reads, and F₁ scores, which are scikit-learn's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks import sources
from search_spaces.building_blocks.architecture_search.deep_network import ArchitectureOptions
from search_spaces.building_blocks.training import RECORDED, TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, as_usage, wrong
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES, checked_bands

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset

    from trainers.evaluation.metrics import Metric

# Bands of 10 and 20 m, as in the published baseline (dissertation, 6.1.2).
PUBLISHED_BANDS = tuple(band for band in BANDS if band not in ("B01", "B09"))

_IN_MEMORY_BYTES = 256 * 2**20
_MADE_UP_PATCHES = 1200
_HOME = "runs/made-up"


class PatchOptions(ArchitectureOptions):
    """Patches, and their bands."""

    data: str = ""
    """A folder that python -m search_spaces.readers.bigearthnet made. With small a folder for made-up patches; left
    out: runs/made-up.
    """
    small: bool = False
    """Images of 32×32 pixels, one block a stage, up to 16 filters, 6 epochs of 32 samples a step."""
    bands: str = "all"
    """all twelve; published: without 1 and 9, as the published baseline; or names with commas between: B02,B03,B04."""
    upsampling: Literal["nearest", "bilinear", "bicubic"] = "nearest"
    """Interpolation of bands of 20 and 60 m to 10 m: nearest, bilinear or bicubic."""
    patches: Count | None = None
    """Number of patches of the training part, and at most of the others; left out: all."""

    @property
    @abstractmethod
    def side(self) -> int:
        """Pixels along a side of the network's inputs."""

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        try:
            checked_bands(self.chosen_bands)
        except ValueError:
            yield wrong("bands", self.bands, f"all, published, or different bands among {', '.join(BANDS)}")

    @property
    def chosen_bands(self) -> tuple[str, ...]:
        """Bands in the order of the network's channels."""
        if self.bands in ("all", "published"):
            return BANDS if self.bands == "all" else PUBLISHED_BANDS
        return tuple(self.bands.split(","))

    def check_data(self) -> None:
        if self.small:
            sources.check_made_up_home(self.data or _HOME)
            available = _MADE_UP_PATCHES // 2
        else:
            available = sources.training_patches(self.data, self.chosen_bands)
        sources.check_samples("patches", self.patches, available)

    def parts(self) -> Patches:
        return Patches(self)

    def of_fold(self, parts: Patches, fold: Fold) -> Patches:
        return Patches(self, fold)


class Patches:
    """Parts of the patches, each read when it is used: a search reads no test part. With ``fold`` the training part is
    divided.
    """

    def __init__(self, options: PatchOptions, fold: Fold | None = None) -> None:
        self._options, self._fold = options, fold

    @property
    def train(self) -> Dataset[Any]:
        return self._divided("train", 0)

    @property
    def validation(self) -> Dataset[Any]:
        return self._divided("validation", 1)

    @property
    def test(self) -> Dataset[Any]:
        return self._part("test")

    def _divided(self, name: str, side: int) -> Dataset[Any]:
        if self._fold is None:
            return self._part(name)
        from torch.utils.data import Subset

        whole: Any = self._part("train")
        return Subset(whole, self._fold.split(len(whole))[side])

    def _part(self, name: str) -> Dataset[Any]:
        with as_usage():
            return _part(self._options, name)


class PatchTask(TrainedTask):
    """A task judged by the micro-averaged F₁ on the validation part."""

    score = "micro_f1"
    direction = "maximize"
    recorded = ("macro_f1", *(f"f1/{name}" for name in CLASSES), *RECORDED)
    options: PatchOptions

    def metrics(self) -> dict[str, Metric]:
        return f1_metrics(CLASSES)

    def test_metrics(self, parts: Any) -> dict[str, Metric]:
        return {"macro_f1": self.metrics()["macro_f1"]}


def f1_metrics(classes: Sequence[str]) -> dict[str, Metric]:
    """F₁ scores as functions of (logits, targets), both (n, classes): "micro_f1", "macro_f1", and "f1/NAME" by class.

    A class is predicted if its logit is above 0. "micro_f1" counts all samples and classes together, "macro_f1" is the
    mean over classes. The score of a class that is neither present nor predicted is 0.
    """

    def of_class(column: int) -> Metric:
        return lambda logits, targets: _f1(logits[:, column], targets[:, column])

    return {
        "micro_f1": lambda logits, targets: _f1(logits.flatten(), targets.flatten()),
        "macro_f1": lambda logits, targets: _f1(logits, targets).mean(),
        **{f"f1/{name}": of_class(column) for column, name in enumerate(classes)},
    }


def _f1(logits: Tensor, targets: Tensor) -> Tensor:
    """F₁ along the first axis, in double precision."""
    # 2 TP / (2 TP + FP + FN); without any prediction or target, both counts are 0 and so is the score.
    predicted, present = logits > 0, targets > 0
    hits, both = (predicted & present).sum(0), predicted.sum(0) + present.sum(0)
    return 2 * hits.double() / both.clamp(min=1)


@lru_cache(maxsize=4)
def _part(options: PatchOptions, name: str) -> Dataset[object]:
    """Part of the patches, in memory if it is small enough."""
    from torch.utils.data import TensorDataset

    from search_spaces.building_blocks.data_sets.patch_images import PatchImages
    from search_spaces.readers.bigearthnet import load_bigearthnet
    from search_spaces.readers.bigearthnet_archive import made_up_store

    path, bands, patches = Path(options.data), options.chosen_bands, options.patches
    if options.small:
        path = made_up_store(options.data or _HOME, patches=_MADE_UP_PATCHES, processes=1)
    found = load_bigearthnet(path, name, bands=bands)
    if patches is not None and (name == "train" or patches < len(found)):
        found = load_bigearthnet(path, name, bands=bands, patches=patches)
    samples = PatchImages(found, size=options.side, upsampling=options.upsampling)
    if 4 * len(samples) * len(bands) * options.side**2 <= _IN_MEMORY_BYTES:
        return TensorDataset(*samples.images(range(len(samples))))
    return samples
