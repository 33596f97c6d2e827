"""Campaigns on images: how they are judged, and what is trained on in the form of CIFAR.

    make_task, main = image_campaign(space, default, recipe, options=MyOptions)

A campaign's module says which parameters there are and, in its *recipe*, which network, optimizer and schedule they
mean; ``search_spaces.vit_ab`` is one. torch is imported by what trains: the ranks that search need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.building_blocks.architecture_search.deep_network import Deep, SmallArchitectureOptions
from search_spaces.building_blocks.campaign import Main, MakeTask, campaign
from search_spaces.building_blocks.recipes import MakeRecipe, OwnMethod, Recipe, Run, TrainingOptions
from search_spaces.building_blocks.training import TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, Rule, Share

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from hpo.individual import Scalar
    from search_spaces.building_blocks.data_sets.image_parts import Parts
    from trainers.evaluation.metrics import Metric

__all__ = [
    "AUGMENTATIONS",
    "ImageOptions",
    "ImageTask",
    "OwnMethod",
    "Recipe",
    "Run",
    "accuracy",
    "image_campaign",
    "top5_accuracy",
]

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip", "rand-augment"]
AUGMENTATIONS = get_args(Augmentation)
"""The names in ``search_spaces.building_blocks.data_sets.augmentation.AUGMENTATIONS``, which comes with torch."""


class ImageOptions(SmallArchitectureOptions):
    """Options of all campaigns on images in the form of CIFAR."""

    data: Annotated[str, Rule(sources.IMAGES)] = "digits"
    """A folder or an archive with CIFAR-10 or CIFAR-100, or digits or fashion-mnist, as for ``read_cifar``."""
    epochs: Count
    batch_size: Count
    validation_part: Share = 0.5
    """The part of the training images that the fitness is measured on."""
    augmentation: Augmentation = "none"
    """What happens to training images: none, crop, crop-flip, resized-crop-flip or rand-augment."""
    train_samples: Count | None = None
    """How many images to train with; left out: all."""

    def check_data(self) -> None:
        found = sources.training_images(self.data)
        if found is None:
            return
        left = found if self.folds else found - round(self.validation_part * found)
        if self.train_samples is not None and self.train_samples > left:
            raise hpo.UsageError(
                f"train_samples = {self.train_samples}: {self.data} has {left} to train with. Name fewer, or none."
            )
        samples = left if self.train_samples is None else self.train_samples
        if self.folds > samples:
            raise hpo.UsageError(
                f"folds = {self.folds}: each needs a sample, and there are {samples}. Name fewer."
            )

    def parts(self) -> Parts:
        from search_spaces.building_blocks.data_sets.image_parts import load_parts

        part = None if self.folds else self.validation_part
        with check.as_usage():
            return load_parts(self.data, validation_part=part, train_samples=self.train_samples)

    def training_set(self, parts: Parts, seed: int) -> Dataset[Any]:
        from search_spaces.building_blocks.data_sets.augmentation import AUGMENTATIONS, Augmented

        return Augmented(
            parts.train,
            mean=parts.mean,
            deviation=parts.deviation,
            augmentation=AUGMENTATIONS[self.augmentation],
            seed=seed,
        )

    def of_fold(self, parts: Parts, fold: Fold) -> Parts:
        return parts.divided(*fold.split(len(parts.train), classes=parts.train.classes.tolist()))

    @property
    def deep(self) -> Deep:
        return Deep.small((3, 32, 32)) if self.small else Deep(inputs=(3, 32, 32))

    def network_facts(self, parts: Parts) -> dict[str, int]:
        return {"classes": parts.classes}

    def input_facts(self, parts: Parts) -> dict[str, list[float]]:
        return {"mean": parts.mean.flatten().tolist(), "deviation": parts.deviation.flatten().tolist()}


class ImageTask(TrainedTask):
    """Judged by the accuracy on the validation part, to be maximised."""

    score = "accuracy"
    direction = "maximize"

    def metrics(self) -> dict[str, Metric]:
        return {"accuracy": accuracy}

    def test_metrics(self, parts: Any) -> dict[str, Metric]:
        """The loss, without label smoothing, and "top5", the top-5 accuracy, unless there are no more classes."""
        import torch

        found: dict[str, Metric] = {"loss": torch.nn.functional.cross_entropy}
        # Data that decide nothing about the network leave its classes to the campaign.
        if self.options.network_facts(parts).get("classes", math.inf) > 5:
            found["top5"] = top5_accuracy
        return found


O = TypeVar("O", bound=TrainingOptions)  # noqa: E741


def image_campaign(
    space: hpo.SearchSpace | Callable[[O], hpo.SearchSpace],
    default: Mapping[str, Scalar] | Callable[[O], Mapping[str, Scalar]],
    recipe: MakeRecipe[O],
    *,
    options: type[O],
    points: Sequence[Mapping[str, Scalar]] | Callable[[O], Sequence[Mapping[str, Scalar]]] = (),
    **others: Any,
) -> tuple[MakeTask[O, ImageTask], Main]:
    """As ``campaign``, whose other keywords it takes, with ``ImageTask``; ``options``: of ``ImageOptions`` or
    ``ImageNetOptions``.
    """
    return campaign(
        space, default, recipe, options=options, task=ImageTask, points=points, facts=("classes",), **others
    )


def accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> float:
    """The part of ``classes`` that are the largest of their ``outputs``."""
    return (outputs.argmax(dim=1) == classes).double().mean().item()


def top5_accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> float:
    """The part of ``classes`` that are among the five largest of their ``outputs``."""
    largest = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return (largest == classes[:, None]).any(dim=1).double().mean().item()
