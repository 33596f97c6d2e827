"""Campaigns on ImageNet, or on images in its forms: data, networks and sizes.

make_task, main = image_campaign(space, default, recipe, options=MyOptions)     class MyOptions(ImageNetOptions)
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import hpo
from search_spaces.building_blocks import sources
from search_spaces.building_blocks.architecture_search.deep_network import ArchitectureOptions, Deep
from search_spaces.building_blocks.recipes import RunSize
from search_spaces.folds import Fold
from search_spaces.options import Count, Share, as_usage
from search_spaces.readers.published import IMAGENET_LISTS

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import nn
    from torch.utils.data import Dataset

    from search_spaces.readers.imagenet import ImageFiles, Listing

Network = Literal["vit-b-16", "resnet-50", "resnet-rs-101"]
Augmentation = Literal["none", "resized-crop-flip", "rand-augment"]

CLASSES = 1000
_HOME = "runs/made-up"


@dataclass(frozen=True, kw_only=True)
class Size(RunSize):
    """Size of a run: pixels along a side of images to train and to evaluate with, the part of the shorter side that
    the latter show, the part of the images for validation, and the augmentation.
    """

    side: int = 224
    evaluation_side: int = 224
    crop_fraction: float = 0.875
    validation_part: float = 0.02
    augmentation: Augmentation = "resized-crop-flip"


# Width of the ViT with ``small``.
SMALL_DIM = 48

# The class of a made-up image is a direction: flipped or turned it would be of another class.
SMALL = Size(epochs=6, batch_size=32, side=32, evaluation_side=32, validation_part=0.25, augmentation="none")


class ImageNetOptions(ArchitectureOptions):
    """Sizes are those of the source without small. The fitness is the accuracy on a part of the training images; the
    validation part of ImageNet is the test part.
    """

    data: str = ""
    """A folder with ImageNet: train/CLASS/*.JPEG and val, or shards train/*.tar and val/*.tar; see
    search_spaces.readers.imagenet. With small it may be left out: images are made up in runs/made-up.
    """
    small: bool = False
    """Images of 32×32 pixels, networks of up to 70 000 parameters, 6 epochs of 32 samples a step."""
    epochs: Count | None = None
    """Passes over the training set; left out: those of the source, or 6."""
    batch_size: Count | None = None
    """Samples per step of all ranks together; left out: those of the source, or 32."""
    classes: Count | None = None
    """How many the data must have; else 1000, or with small whatever they have."""
    validation_part: Share | None = None
    """The part of the training images that the fitness is measured on; else 0.02, with small 0.25."""
    augmentation: Augmentation | None = None
    """Augmentation of training images: none, resized-crop-flip or rand-augment; left out: the source's, or none."""
    train_samples: Count | None = None
    """How many images to train with; left out: all."""
    lists: str = IMAGENET_LISTS
    """A folder for the list of the data's images, which is made once."""

    @property
    @abstractmethod
    def source(self) -> Size:
        """Size of the source's run."""

    @property
    def size(self) -> Size:
        return SMALL if self.small else self.source

    @property
    def _held(self) -> float:
        return self.size.validation_part if self.validation_part is None else self.validation_part

    @property
    def deep(self) -> Deep:
        inputs = (3, self.size.side, self.size.side)
        if self.small:
            return Deep.small(inputs)
        return Deep(
            inputs=inputs,
            blocks=((1, 2, 3, 4), (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 12, 23), (1, 2, 3)),
            default_blocks=(3, 4, 6, 3),
            filters=(64, 16, 32, 96, 128),
            reduction=4,
        )

    @property
    def used_augmentation(self) -> Augmentation:
        return self.size.augmentation if self.augmentation is None else self.augmentation

    def check_data(self) -> None:
        from search_spaces.readers.imagenet_files import made_up

        if self.small and not self.data:
            classes, found = made_up.CLASSES, made_up.CLASSES * made_up.TRAINED
        else:
            listing = sources.imagenet(self.data, self.lists)
            classes, found = listing.classes, len(listing.train)
        expected = self.classes or (classes if self.small else CLASSES)
        if classes != expected:
            raise hpo.UsageError(
                f"data = {self.data!r}: has {classes} classes, and there must be {expected}. Bring the folders or "
                f"shards that are missing; for another set than ImageNet give classes = {classes}."
            )
        left = found if self.folds else found - round(self._held * found)
        sources.check_samples("train_samples", self.train_samples, left)
        if not self.folds and not 0 < left < found:
            raise hpo.UsageError(
                f"validation_part = {self._held}: must leave some of the {found} training images on either side. "
                "Choose 0.1, say."
            )

    def parts(self) -> ImageNetParts:
        data = self.data
        with as_usage():
            if self.small and not data:
                from search_spaces.readers.files import made_once
                from search_spaces.readers.imagenet_files import made_up

                # The number of images is in the name: earlier versions made up others.
                name = f"imagenet-{made_up.TRAINED}-seed-0"
                data = str(made_once(Path(_HOME) / name, made_up.write_made_up))
            listing = sources.imagenet(data, self.lists)
        count = len(listing.train)
        order = np.random.default_rng(0).permutation(count)
        held = 0 if self.folds else round(self._held * count)
        train = order[held:][: self.train_samples]
        return ImageNetParts(options=self, listing=listing, train=train, held=order[:held])

    def training_set(self, parts: ImageNetParts, seed: int) -> Dataset[Any]:
        from search_spaces.building_blocks.data_sets.imagenet_images import AUGMENTATIONS, ImageNet

        return ImageNet(
            parts.listing.train,
            parts.train,
            side=self.size.side,
            augmentation=AUGMENTATIONS.get(self.used_augmentation),
            crop_fraction=self.size.crop_fraction,
            random_interpolation=self.used_augmentation == "rand-augment",
            seed=seed,
        )

    def of_fold(self, parts: ImageNetParts, fold: Fold) -> ImageNetParts:
        classes = parts.listing.train.classes[parts.train].tolist()
        train, held = (parts.train[places] for places in fold.split(len(parts.train), classes=classes))
        return replace(parts, train=train, held=held)

    def network_facts(self, parts: ImageNetParts) -> dict[str, int]:
        return {"classes": parts.listing.classes}

    def input_facts(self, parts: ImageNetParts) -> dict[str, list[float]]:
        from search_spaces.building_blocks.data_sets.imagenet_images import INPUT_FACTS

        return INPUT_FACTS


@dataclass(frozen=True, kw_only=True)
class ImageNetParts:
    """Data of a run. ``train`` and ``held``: indices of training and validation images in the training list."""

    options: ImageNetOptions
    listing: Listing
    train: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]

    @cached_property
    def validation(self) -> Dataset[Any] | None:
        return self._evaluated(self.listing.train, self.held) if len(self.held) else None

    @cached_property
    def test(self) -> Dataset[Any]:
        return self._evaluated(self.listing.validation, np.arange(len(self.listing.validation)))

    def _evaluated(self, files: ImageFiles, places: npt.NDArray[np.int64]) -> Dataset[Any]:
        from search_spaces.building_blocks.data_sets.imagenet_images import ImageNet

        size = self.options.size
        return ImageNet(files, places, side=size.evaluation_side, crop_fraction=size.crop_fraction)


def make_network(
    name: Network, options: ImageNetOptions, *, classes: int, dropout: float = 0.0, drop_path: float = 0.0
) -> nn.Module:
    """The network of this name, or with ``small`` one of its kind with up to 70 000 parameters. A ViT has ``dropout``
    after embedding, attention and linear layers, the others before the last layer; they have no ``drop_path``.
    """
    from search_spaces.networks.resnet import ResNet50
    from search_spaces.networks.resnet_rs import ResNetRS
    from search_spaces.networks.vit import ViT

    small: dict[str, Any] = {}
    if name == "vit-b-16":
        if options.small:
            small = {"patch": 8, "dim": SMALL_DIM, "depth": 2, "heads": 6}
        return ViT(side=options.size.side, classes=classes, dropout=dropout, drop_path=drop_path, **small)
    if options.small:
        small = {"filters": 8, "blocks": (1, 1, 1)}
    if name == "resnet-50":
        return ResNet50(channels=3, classes=classes, dropout=dropout, **small)
    return ResNetRS(classes=classes, dropout=dropout, **small)
