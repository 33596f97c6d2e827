"""Campaigns on street scenes in Cityscapes' form: data, networks, sizes, and the mean intersection over union.

make_task, main = segmentation_campaign(space, default, recipe, options=MyOptions)     class MyOptions(SceneOptions)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import hpo
from search_spaces.building_blocks import sources
from search_spaces.building_blocks.campaign import Main, MakeTask, campaign
from search_spaces.building_blocks.recipes import RunSize, TrainingOptions
from search_spaces.building_blocks.training import TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, Share, as_usage, wrong
from search_spaces.readers.cityscapes import CLASSES
from search_spaces.readers.published import CITYSCAPES_LISTS

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from search_spaces.readers.cityscapes import Scenes
    from trainers.evaluation.metrics import Metric

_HOME = "runs/made-up"


@dataclass(frozen=True, kw_only=True)
class SceneSize(RunSize):
    """Size of a run: height and width of random crops, and part of the training scenes for validation."""

    crop: tuple[int, int] = (1024, 2048)
    validation_part: float = 0.1


# A crop has two pixels in the network's lowest resolution of half its size: batch norms need several values.
SMALL = SceneSize(epochs=12, batch_size=8, crop=(48, 96), validation_part=0.25)


class SceneOptions(TrainingOptions):
    """Without small, sizes are those of the source. The fitness is the mean IoU on scenes of training cities that are
    held out, or of a fold of the cities; the validation part of Cityscapes is the test part.
    """

    data: str = ""
    """A folder with Cityscapes: leftImg8bit, gtFine and, with coarse, gtCoarse. With small it may be left out: scenes
    are made up in runs/made-up.
    """
    small: bool = False
    """Crops of 48×96 pixels, a network of 286 000 parameters, 12 epochs of 8 scenes a step."""
    epochs: Count | None = None
    """Passes over the training set; left out: those of the source, or 12."""
    batch_size: Count | None = None
    """Scenes per step of all ranks together; left out: those of the source, or 8."""
    validation_part: Share | None = None
    """The part of the training scenes, in whole cities, that the fitness is measured on; else 0.1, with small 0.25."""
    coarse: bool = False
    """Whether to train with the coarsely annotated scenes, too."""
    evaluation_scales: Literal[1, 2] = 2
    """Scales of predictions in evaluation: 2: full and half resolution, as in training; 1: full alone, a fifth less
    time.
    """
    lists: str = CITYSCAPES_LISTS
    """A folder for the list of the data's scenes, which is made once."""

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        if self.coarse and (not self.data or self.folds):
            yield wrong(
                "coarse", self.coarse, "False without data or with folds, which are of fine annotations"
            )

    @property
    def size(self) -> SceneSize:
        return SMALL if self.small else self.source

    @property
    def source(self) -> SceneSize:
        """Size of the source's run: an image a GPU, as its network's authors, on eight nodes with four GPUs."""
        return SceneSize(epochs=175, batch_size=32)

    def check_data(self) -> None:
        if self.small and not self.data:
            from search_spaces.readers import made_up_scenes

            cities = np.repeat(np.arange(made_up_scenes.CITIES["train"]), made_up_scenes.SCENES)
        else:
            cities = self._listed()[0].cities
        if self.coarse:
            sources.scenes(self.data, "coarse", self.lists)
        if not self.folds:
            held_cities(cities, self._held)
        elif self.folds > len(np.unique(cities)):
            raise hpo.UsageError(
                f"folds = {self.folds}: each needs a city, and there are {len(np.unique(cities))}. Name fewer."
            )

    def parts(self) -> SceneParts:
        scenes, tested = self._listed()
        held = np.zeros(len(scenes), dtype=bool) if self.folds else held_cities(scenes.cities, self._held)
        train, held_places = np.flatnonzero(~held), np.flatnonzero(held)
        if self.coarse:
            coarse = sources.scenes(self.data, "coarse", self.lists)
            train = np.concatenate([train, np.arange(len(coarse)) + len(scenes)])
            scenes = scenes.with_others(coarse)
        return SceneParts(scenes=scenes, train=train, held=held_places, tested=tested)

    def training_set(self, parts: SceneParts, seed: int) -> Dataset[Any]:
        from search_spaces.building_blocks.data_sets.street_scenes import StreetScenes

        return StreetScenes(parts.scenes, parts.train, crop=self.size.crop, seed=seed)

    def of_fold(self, parts: SceneParts, fold: Fold) -> SceneParts:
        cities = parts.scenes.cities[parts.train]
        _, held = fold.split(len(np.unique(cities)))
        outside = np.isin(cities, np.unique(cities)[held])
        return replace(parts, train=parts.train[~outside], held=parts.train[outside])

    def input_facts(self, parts: SceneParts) -> dict[str, list[float]]:
        from search_spaces.building_blocks.data_sets.imagenet_images import INPUT_FACTS

        return INPUT_FACTS

    @property
    def _held(self) -> float:
        return self.size.validation_part if self.validation_part is None else self.validation_part

    def _listed(self) -> tuple[Scenes, Scenes]:
        """Scenes with fine annotations to train and to test with."""
        data = self.data
        if self.small and not data:
            from search_spaces.readers.files import made_once
            from search_spaces.readers.made_up_scenes import write_made_up

            with as_usage():
                data = str(made_once(Path(_HOME) / "scenes-seed-0", write_made_up))
        return sources.scenes(data, "train", self.lists), sources.scenes(data, "val", self.lists)


@dataclass(frozen=True, kw_only=True)
class SceneParts:
    """Data of a run. ``train`` and ``held``: places of training and validation scenes in ``scenes``."""

    scenes: Scenes
    train: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    tested: Scenes

    @property
    def validation(self) -> Dataset[Any] | None:
        return _whole(self.scenes, self.held) if len(self.held) else None

    @property
    def test(self) -> Dataset[Any]:
        return _whole(self.tested, np.arange(len(self.tested)))


def _whole(scenes: Scenes, places: npt.NDArray[np.int64]) -> Dataset[Any]:
    from search_spaces.building_blocks.data_sets.street_scenes import StreetScenes

    return StreetScenes(scenes, places)


def held_cities(cities: npt.NDArray[np.int64], part: float) -> npt.NDArray[np.bool_]:
    """Which scenes are of the cities held out for validation, always the same: scenes of one city are alike.

    Args:
        cities (array): number of the city of each scene.
        part (float): least part of the scenes; the last city may bring more.

    Raises:
        UsageError: no city is left to train with.
    """
    held = np.zeros(len(cities), dtype=bool)
    for city in np.random.default_rng(0).permutation(np.unique(cities)).tolist():
        if held.sum() >= part * len(cities):
            break
        held |= cities == city
    if held.all():
        raise hpo.UsageError(
            f"validation_part = {part}: leaves no city to train with, as whole cities are held out of the "
            f"{len(np.unique(cities))}. Choose less, or bring more cities."
        )
    return held


class SegmentationTask(TrainedTask):
    """A task judged by the mean intersection over union on the validation part."""

    score = "mean_iou"
    direction = "maximize"
    options: SceneOptions

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # Outputs of one scene of 1 024 × 2 048 pixels have 160 MB.
        self.samples_evaluated_at_once = 16 if self.options.small else 1
        self._tested = MeanIoU(len(CLASSES))

    def metrics(self) -> dict[str, Metric]:
        return {"mean_iou": MeanIoU(len(CLASSES))}

    def test_metric(self) -> Metric:
        return self._tested

    def test_metrics(self, parts: Any) -> dict[str, Metric]:
        """The intersection over union of each class; NaN for a class that is neither present nor predicted."""
        return {f"IoU {name}": ClassIoU(self._tested, number) for number, name in enumerate(CLASSES)}


def segmentation_campaign(space: Any, default: Any, recipe: Any, **others: Any) -> tuple[MakeTask, Main]:
    """``campaign``, whose keywords it takes, with ``SegmentationTask``; its ``options`` are ``SceneOptions``."""
    return campaign(space, default, recipe, task=SegmentationTask, **others)


class MeanIoU:
    """Mean over classes of the intersection over union of predicted and true pixels of all samples together.

    A streaming metric of logits (N, classes, H, W) and targets (N, H, W). Targets that are no class are left out, and
    so is a class that is neither present nor predicted, as in Cityscapes' benchmark.

    Args:
        classes (int): number of classes.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self.reset()

    def reset(self) -> None:
        import torch

        self._confusion = torch.zeros(self._classes, self._classes, dtype=torch.int64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        import torch

        counted = (targets >= 0) & (targets < self._classes)
        pairs = targets[counted].long() * self._classes + outputs.argmax(dim=1)[counted]
        found = torch.bincount(pairs, minlength=self._classes**2).view(self._classes, self._classes)
        self._confusion = self._confusion.to(found.device) + found

    def sums(self) -> list[Tensor]:
        return [self._confusion]

    def each(self) -> Tensor:
        """Intersection over union (classes) in double precision; NaN for a class that is nowhere."""
        both = self._confusion.diagonal().double()
        return both / (self._confusion.sum(0) + self._confusion.sum(1) - both)

    def compute(self) -> Tensor:
        return self.each().nanmean()


class ClassIoU:
    """Intersection over union of one class, from the counts of ``whole``, which must come before it in ``metrics``."""

    def __init__(self, whole: MeanIoU, number: int) -> None:
        self._whole, self._number = whole, number

    def reset(self) -> None:
        pass

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        pass

    def sums(self) -> list[Tensor]:
        return []

    def compute(self) -> Tensor:
        return self._whole.each()[self._number]


def make_network(options: SceneOptions) -> nn.Module:
    """The source's network, or with ``small`` a narrow one of 286 000 parameters."""
    from search_spaces.networks.hrnet_ocr import MultiScaleOCR

    small: dict[str, Any] = {}
    if options.small:
        small = {"width": 8, "modules": (1, 1, 1), "blocks": 1, "stem": 8, "middle": 32, "key": 16}
    return MultiScaleOCR(classes=len(CLASSES), evaluation_scales=options.evaluation_scales, **small)
