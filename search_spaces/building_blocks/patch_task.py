"""Campaigns on BigEarthNet's patches: which of them a run reads and as what, and how it is judged. torch is imported by
what trains.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.building_blocks.architecture_search.deep_network import ArchitectureOptions
from search_spaces.building_blocks.recipe_parts.f1 import f1_metrics
from search_spaces.building_blocks.training import RECORDED as RECORDED_BY_ALL
from search_spaces.building_blocks.training import TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, Rule
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES, checked_bands

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from trainers.evaluation.metrics import Metric

PUBLISHED_BANDS = tuple(band for band in BANDS if band not in ("B01", "B09"))
"""Those of the published baseline (dissertation, 6.1.2): of 10 and 20 m."""

_IN_MEMORY_BYTES = 256 * 2**20
_MADE_UP_PATCHES = 1200
_HOME = "runs/made-up"


class PatchOptions(ArchitectureOptions):
    """Which patches, and which of their bands."""

    data: Annotated[str, Rule("a folder")] = ""
    """What python -m search_spaces.readers.bigearthnet made. With small the directory for a made-up archive, which is
    written there by who comes first; runs/made-up if it is not named.
    """
    small: bool = False
    """Images of 32×32 pixels, one block a stage, up to 16 filters, 6 epochs of 32 samples a step."""
    bands: str = "all"
    """all twelve; published: without 1 and 9, as the published baseline; or names with commas between: B02,B03,B04."""
    upsampling: Literal["nearest", "bilinear", "bicubic"] = "nearest"
    """How bands of 20 and 60 m come to 10 m: nearest, bilinear or bicubic."""
    patches: Count | None = None
    """This many of the training part, and of the others as many at most; left out: all."""

    @property
    @abstractmethod
    def side(self) -> int:
        """Pixels along a side of an image, as the network gets it."""

    def rules(self) -> None:
        super().rules()
        try:
            checked_bands(self.chosen_bands)
        except ValueError:
            check.refuse("bands", self.bands, f"all, published, or different ones of {', '.join(BANDS)}")

    @property
    def chosen_bands(self) -> tuple[str, ...]:
        """In the order of the network's channels."""
        if self.bands in ("all", "published"):
            return BANDS if self.bands == "all" else PUBLISHED_BANDS
        return tuple(self.bands.split(","))

    def check_data(self) -> None:
        if self.small:
            sources.check_made_up_home(self.data or _HOME)
            available = _MADE_UP_PATCHES // 2
        else:
            available = sources.training_patches(self.data, self.chosen_bands)
        if self.patches is not None and self.patches > available:
            raise hpo.UsageError(
                f"patches = {self.patches}: there are {available} to train with. Name fewer, or none."
            )

    def parts(self) -> Patches:
        return Patches(self)

    def of_fold(self, parts: Patches, fold: Fold) -> Patches:
        return Patches(self, fold)


class Patches:
    """The patches to train with, of the validation and of the test, each read when it is asked for: a search reads no
    test part. With ``fold`` the first two are of the training part.
    """

    def __init__(self, options: PatchOptions, fold: Fold | None = None) -> None:
        self._options, self._fold = options, fold

    @property
    def train(self) -> Dataset[Any]:
        return self._part("train") if self._fold is None else self._of_fold(0)

    @property
    def validation(self) -> Dataset[Any]:
        return self._part("validation") if self._fold is None else self._of_fold(1)

    @property
    def test(self) -> Dataset[Any]:
        return self._part("test")

    def _of_fold(self, which: int) -> Dataset[Any]:
        from torch.utils.data import Subset

        assert self._fold is not None
        whole: Any = self._part("train")
        return Subset(whole, self._fold.split(len(whole))[which])

    def _part(self, name: str) -> Dataset[Any]:
        """UsageError, with what to do, where the patches are not what they should be."""
        options = self._options
        with check.as_usage():
            return _part(
                options.data,
                name,
                small=options.small,
                side=options.side,
                patches=options.patches,
                bands=options.chosen_bands,
                upsampling=options.upsampling,
            )


RECORDED = ("macro_f1", *(f"f1/{name}" for name in CLASSES), *RECORDED_BY_ALL)
"""Metrics of the trainer that a campaign keeps beside the fitness."""


class PatchTask(TrainedTask):
    """Judged by the micro-averaged F₁ on the validation part, to be maximised."""

    score = "micro_f1"
    direction = "maximize"
    recorded = RECORDED
    options: PatchOptions

    def metrics(self) -> dict[str, Metric]:
        return f1_metrics(CLASSES)

    def test_metrics(self, parts: Any) -> dict[str, Metric]:
        return {"macro_f1": self.metrics()["macro_f1"]}


@lru_cache(maxsize=4)
def _part(
    data: str,
    name: str,
    *,
    small: bool,
    side: int,
    patches: int | None,
    bands: tuple[str, ...] = BANDS,
    upsampling: str = "nearest",
) -> Dataset[object]:
    """A part of the patches; one that is small enough is held in memory."""
    from torch.utils.data import TensorDataset

    from search_spaces.building_blocks.data_sets.patch_images import PatchImages
    from search_spaces.readers.bigearthnet import load_bigearthnet
    from search_spaces.readers.bigearthnet_archive import made_up_store

    path = made_up_store(data or _HOME, patches=_MADE_UP_PATCHES, processes=1) if small else Path(data)
    found = load_bigearthnet(path, name, bands=bands)
    if patches is not None and (name == "train" or patches < len(found)):
        found = load_bigearthnet(path, name, bands=bands, patches=patches)
    samples = PatchImages(found, size=side, upsampling=upsampling)
    if 4 * len(samples) * len(bands) * side**2 <= _IN_MEMORY_BYTES:
        return TensorDataset(*samples.images(range(len(samples))))
    return samples
