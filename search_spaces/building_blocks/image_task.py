"""Campaigns on images: their scores, and options for data in the form of CIFAR.

    make_task, main = image_campaign(space, default, recipe, options=MyOptions)

A campaign's module defines parameters and, in its *recipe*, the network, optimizer and schedule that they mean;
``search_spaces.vit_ab`` is an example.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import hpo
from search_spaces.building_blocks import sources
from search_spaces.building_blocks.architecture_search.deep_network import Deep, SmallArchitectureOptions
from search_spaces.building_blocks.campaign import Main, MakeTask, campaign
from search_spaces.building_blocks.recipes import OwnMethod, Recipe, Run
from search_spaces.building_blocks.training import TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import CosineForm, Count, NotNegative, Share, as_usage, divisor

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from search_spaces.building_blocks.data_sets.image_parts import Parts
    from search_spaces.networks.vit import ViT
    from trainers.evaluation.metrics import Metric

__all__ = ["AUGMENTATIONS", "ImageOptions", "ImageTask", "OwnMethod", "Recipe", "Run", "image_campaign"]

Augmentation = Literal["none", "crop", "crop-flip", "resized-crop-flip", "rand-augment"]
# Same as ``data_sets.augmentation.AUGMENTATIONS``, whose import would import torch.
AUGMENTATIONS = get_args(Augmentation)


class ImageOptions(SmallArchitectureOptions):
    """Options of all campaigns on images in the form of CIFAR."""

    data: str = "digits"
    """A folder or an archive with CIFAR-10 or CIFAR-100, or digits or fashion-mnist, as for ``read_cifar``."""
    epochs: Count
    batch_size: Count
    validation_part: Share = 0.5
    """The part of the training images that the fitness is measured on."""
    augmentation: Augmentation = "none"
    """Augmentation of training images: none, crop, crop-flip, resized-crop-flip or rand-augment."""
    train_samples: Count | None = None
    """How many images to train with; left out: all."""

    def check_data(self) -> None:
        found = sources.training_images(self.data)
        if found is None:
            return
        left = found if self.folds else found - round(self.validation_part * found)
        sources.check_samples("train_samples", self.train_samples, left)
        samples = left if self.train_samples is None else self.train_samples
        if self.folds > samples:
            raise hpo.UsageError(
                f"folds = {self.folds}: each needs a sample, and there are {samples}. Name fewer."
            )

    def parts(self) -> Parts:
        from search_spaces.building_blocks.data_sets.image_parts import load_parts

        part = None if self.folds else self.validation_part
        with as_usage():
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


class ViTOptions(ImageOptions):
    """Options of a campaign with a vision transformer; the defaults are a small network."""

    cosine: CosineForm = "after-warm-up"
    """Start of the cosine: after-warm-up, or timm: at the run's start, as the source's."""
    dim: Count = 48
    depth: Count = 2
    heads: Count = 6
    weight_decay: NotNegative = 0.01
    """Decay of all weights, decoupled from the gradient (AdamW)."""

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        yield from divisor("dim", self.dim, heads=self.heads)

    def vit(self, **others: Any) -> ViT:
        """A ViT of patches of 8 × 8 pixels; ``others``: further keywords of ``ViT``."""
        from search_spaces.networks.vit import ViT

        return ViT(side=32, patch=8, dim=self.dim, depth=self.depth, heads=self.heads, **others)


class ImageTask(TrainedTask):
    """A task judged by the accuracy on the validation part."""

    score = "accuracy"
    direction = "maximize"

    def metrics(self) -> dict[str, Metric]:
        return {"accuracy": accuracy}

    def test_metrics(self, parts: Any) -> dict[str, Metric]:
        """The loss, without label smoothing, and the top-5 accuracy if there are more classes."""
        import torch

        found: dict[str, Metric] = {"loss": torch.nn.functional.cross_entropy}
        # Data that decide nothing about the network leave its classes to the campaign.
        if self.options.network_facts(parts).get("classes", math.inf) > 5:
            found["top5"] = top5_accuracy
        return found


def image_campaign(space: Any, default: Any, recipe: Any, **others: Any) -> tuple[MakeTask, Main]:
    """``campaign``, whose keywords it takes, with ``ImageTask``; its ``options`` are ``ImageOptions`` or
    ``ImageNetOptions``.
    """
    return campaign(space, default, recipe, task=ImageTask, facts=("classes",), **others)


def accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> float:
    """Fraction of samples whose class has the largest output."""
    return (outputs.argmax(dim=1) == classes).double().mean().item()


def top5_accuracy(outputs: torch.Tensor, classes: torch.Tensor) -> float:
    """Fraction of samples whose class has one of the five largest outputs."""
    largest = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return (largest == classes[:, None]).any(dim=1).double().mean().item()
