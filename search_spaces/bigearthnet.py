"""A ResNet that names what is on satellite images: architecture, loss, optimizer and schedule.

BigEarthNet's patches of Sentinel-2 have twelve bands and any of 19 classes. The fitness is the micro-averaged
F₁ on the validation part; the macro-averaged one and each class's are recorded. The test part takes no part in
the search: ``test_f1`` alone reads it, for a configuration that has already been chosen.

    python -m search_spaces.readers.bigearthnet ARCHIVE data/bigearthnet    # once: files for fast reading
    mpirun -n 64 hpo run jobs/bigearthnet.toml                              # the search
    hpo run jobs/bigearthnet_small.toml                                     # the same, small, on made-up patches
    python -m search_spaces.bigearthnet --data data/bigearthnet --lr 0.01   # one configuration, else ``default``
    python -m search_spaces.bigearthnet --campaign runs/bigearthnet_small   # of its best the F₁ on the test part
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import hpo
from search_spaces import options as check
from search_spaces import sources
from search_spaces.building_blocks import optimizers
from search_spaces.building_blocks.architecture import ArchitectureOptions, Deep
from search_spaces.building_blocks.campaign import campaign
from search_spaces.building_blocks.f1 import f1_metrics
from search_spaces.building_blocks.recipes import Recipe, Run
from search_spaces.building_blocks.training import RECORDED as RECORDED_BY_ALL
from search_spaces.building_blocks.training import TrainedTask
from search_spaces.folds import Fold
from search_spaces.options import Count, Positive, Rule
from search_spaces.readers.bigearthnet_files.format import BANDS, CLASSES, checked_bands

# torch is imported by the functions that train: the ranks that search read this module for its space, and
# need no torch.
if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import Dataset

    from hpo.individual import Scalar
    from trainers.evaluation.metrics import Metric

PUBLISHED_BANDS = tuple(band for band in BANDS if band not in ("B01", "B09"))
"""Those of the published baseline (dissertation, 6.1.2): of 10 and 20 m."""

_ACTIVATIONS = (
    "elu", "exponential", "hard-sigmoid", "linear", "relu", "selu", "sigmoid", "softmax", "softplus", "softsign",
    "swish", "tanh",
)  # fmt: skip
_ORDERS = (
    "original", "norm-after-addition", "activation-before-addition", "activation-only-pre-activation",
    "full-pre-activation",
)  # fmt: skip
_LOSSES = (
    "binary-crossentropy", "categorical-crossentropy", "categorical-hinge", "hinge", "kl-divergence", "squared-hinge",
)  # fmt: skip

_IN_MEMORY_BYTES = 256 * 2**20
_MADE_UP_PATCHES = 1200
_HOME = "runs/made-up"


def make_space(most_filters: int = 256) -> hpo.SearchSpace:
    """The search space, with up to ``width`` filters in the first stage."""
    return hpo.SearchSpace(
        {
            # The network
            "filters": hpo.Int(2, most_filters, log=True),  # of the first stage
            "activation": hpo.Categorical(*_ACTIVATIONS),
            "order": hpo.Categorical(*_ORDERS),  # where a block normalises and activates, He et al. 2016
            "loss": hpo.Categorical(*_LOSSES),
            # Nine optimizers and three schedules, each with parameters of its own
            **optimizers.parameters(),
            **optimizers.schedules(),
        }
    )


def default_for(most_filters: int = 256) -> dict[str, Scalar]:
    """The published baseline: ResNet-50 with Adam at Keras' settings and a constant rate; with bands = "published" and
    upsampling = "bicubic" as published, but for its augmentation, and for early stopping, which is for all here.
    """
    return {
        "filters": min(64, most_filters), "activation": "relu", "order": "original", "loss": "binary-crossentropy",
        "optimizer": "adam", "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7,
        "schedule": "exponential", "final_fraction": 1.0,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Size:
    """How large everything is but the configuration itself."""

    most_filters: int
    blocks: tuple[int, ...]
    choices_of_blocks: tuple[tuple[int, ...], ...]
    side: int
    epochs: int
    batch_size: int


_FULL = _Size(
    most_filters=256,
    blocks=(3, 4, 6, 3),
    # With architecture = "deep"; 3, 8, 36, 3 are those of ResNet-152.
    choices_of_blocks=((1, 2, 3, 4), (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 9, 12, 18, 24, 36), (1, 2, 3, 4)),
    side=120,
    epochs=100,
    batch_size=512,
)
_SMALL = _Size(
    most_filters=16,
    blocks=(1, 1, 1, 1),
    choices_of_blocks=((1, 2),) * 4,
    side=32,
    epochs=6,
    batch_size=32,
)


class Options(ArchitectureOptions):
    """Without small, the source's sizes: ResNet-50, 120×120 pixels."""

    data: Annotated[str, Rule("a folder")] = ""
    """What python -m search_spaces.readers.bigearthnet made. With small the directory for a made-up archive, which is
    written there by who comes first; runs/made-up if it is not named.
    """
    small: bool = False
    """Images of 32×32 pixels, one block a stage, up to 16 filters, 6 epochs of 32 samples a step."""
    epochs: Count | None = None
    """At most this many, else 100, or 6; early stopping may end a training before."""
    batch_size: Count | None = None
    """Of all ranks together; else 512, or 32."""
    bands: str = "all"
    """all twelve; published: without 1 and 9, as the published baseline; or names with commas between: B02,B03,B04."""
    upsampling: Literal["nearest", "bilinear", "bicubic"] = "nearest"
    """How bands of 20 and 60 m come to 10 m: nearest, bilinear or bicubic."""
    batch_norm_eps: Positive = 1e-3
    """Added to the variance by batch normalisation: 0.001 as in Keras, torch's is 0.00001."""
    initialisation: Literal["keras", "he"] = "keras"
    """Of convolutions and the last layer: keras, Glorot's uniform with biases of 0; or he, He's normal."""
    patience: Count = 10
    """A training ends after this many epochs without a smaller validation loss; with as many epochs, never."""
    patches: Count | None = None
    """This many of the training part, and of the others as many at most; left out: all."""

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

    @property
    def size(self) -> _Size:
        """That small chooses."""
        return _SMALL if self.small else _FULL

    @property
    def most_epochs(self) -> int:
        return self.size.epochs if self.epochs is None else self.epochs

    @property
    def samples_a_step(self) -> int:
        return self.size.batch_size if self.batch_size is None else self.batch_size

    @property
    def deep(self) -> Deep:
        return Deep(
            inputs=(len(self.chosen_bands), self.size.side, self.size.side),
            classes=len(CLASSES),
            blocks=self.size.choices_of_blocks,
            default_blocks=self.size.blocks,
            reduction=4,
        )

    def finish(self, network: nn.Module) -> None:
        import torch

        from search_spaces.networks.keras import as_in_keras

        as_in_keras(network, epsilon=self.batch_norm_eps, initialised=self.initialisation == "keras")
        # Faster on CPUs and GPUs; images may come in any format.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def saves_each_epoch(self) -> bool:
        return not self.small

    def parts(self) -> Patches:
        return Patches(self)

    def of_fold(self, parts: Patches, fold: Fold) -> Patches:
        return Patches(self, fold)


class Patches:
    """The patches to train with, of the validation and of the test, each read when it is asked for: a search reads no
    test part. With ``fold`` the first two are of the training part.
    """

    def __init__(self, options: Options, fold: Fold | None = None) -> None:
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
                side=options.size.side,
                patches=options.patches,
                bands=options.chosen_bands,
                upsampling=options.upsampling,
            )


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import trainers
    from search_spaces.building_blocks.losses import LOSSES
    from search_spaces.networks.resnet import ResNet50

    network = ResNet50(
        channels=len(options.chosen_bands),
        classes=len(CLASSES),
        filters=p["filters"],
        activation=p["activation"],
        order=p["order"],
        blocks=options.size.blocks,
    )
    options.finish(network)
    return Recipe(
        network=network,
        optimizer=lambda weights: optimizers.make(weights, p),
        schedule=optimizers.make_schedule(p, epochs=options.most_epochs),
        loss=LOSSES[p["loss"]],
        # The network is left as it was at its best validation loss, and so are the metrics.
        early_stopping=trainers.EarlyStopping(patience=options.patience, restore_best=True),
    )


RECORDED = ("macro_f1", *(f"f1/{name}" for name in CLASSES), *RECORDED_BY_ALL)
"""Metrics of the trainer that a campaign keeps beside the fitness."""

MEASURE = "micro-F1"
"""What the fitness and ``test_f1`` are, for jobs/compare.py to say."""


class PatchTask(TrainedTask):
    """Judged by the micro-averaged F₁ on the validation part, to be maximised."""

    score = "micro_f1"
    direction = "maximize"
    recorded = RECORDED
    options: Options

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


def _judged(options: Options) -> Callable[..., dict[str, float]]:
    return lambda result, steps: {"value": result.metrics["micro_f1"], "epochs": len(result.history)}


make_task, main = campaign(
    lambda options: make_space(options.size.most_filters),
    lambda options: default_for(options.size.most_filters),
    recipe,
    options=Options,
    task=PatchTask,
    judge=_judged,
)
test_f1, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
