"""A ResNet that classifies land use on satellite images: architecture, loss, optimizer and schedule.

BigEarthNet's patches of Sentinel-2 have twelve bands and any of 19 classes. The fitness is the micro-averaged F₁ on the
validation part; the macro-averaged F₁ and each class's are recorded.

    python -m search_spaces.readers.bigearthnet ARCHIVE data/bigearthnet    # once: files for fast reading
    mpirun -n 64 hpo run jobs/bigearthnet.toml                              # the search
    hpo run jobs/bigearthnet_small.toml                                     # the same, small, on made-up patches
    python -m search_spaces.bigearthnet --data data/bigearthnet --lr 0.01   # one configuration, else ``default``
    python -m search_spaces.bigearthnet --campaign runs/bigearthnet_small   # its best, with F₁ on the test part
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks.architecture_search.deep_network import ORDERS, Deep
from search_spaces.building_blocks.campaign import campaign
from search_spaces.building_blocks.patch_task import PatchOptions, PatchTask
from search_spaces.building_blocks.recipe_parts import optimizers
from search_spaces.building_blocks.recipes import Recipe, Run, RunSize
from search_spaces.options import Count, Positive
from search_spaces.readers.bigearthnet_files.format import CLASSES

if TYPE_CHECKING:
    from torch import nn

_ACTIVATIONS = (
    "elu", "exponential", "hard-sigmoid", "linear", "relu", "selu", "sigmoid", "softmax", "softplus", "softsign",
    "swish", "tanh",
)  # fmt: skip
_LOSSES = (
    "binary-crossentropy", "categorical-crossentropy", "categorical-hinge", "hinge", "kl-divergence", "squared-hinge",
)  # fmt: skip


def make_space(most_filters: int = 256) -> hpo.SearchSpace:
    """The search space, with up to ``most_filters`` filters in the first stage."""
    return hpo.SearchSpace(
        {
            # The network
            "filters": hpo.Int(2, most_filters, log=True),  # of the first stage
            "activation": hpo.Categorical(*_ACTIVATIONS),
            "order": hpo.Categorical(*ORDERS),  # where a block normalises and activates, He et al. 2016
            "loss": hpo.Categorical(*_LOSSES),
            # Nine optimizers and three schedules, each with parameters of its own
            **optimizers.parameters(),
            **optimizers.schedules(),
        }
    )


def default_for(most_filters: int = 256) -> dict[str, Any]:
    """The published baseline, ResNet-50 with Adam at Keras' settings and a constant rate, without its augmentation and
    with early stopping; its bands = "published" and upsampling = "bicubic" are options.
    """
    return {
        "filters": min(64, most_filters), "activation": "relu", "order": "original", "loss": "binary-crossentropy",
        "optimizer": "adam", "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7,
        "schedule": "exponential", "final_fraction": 1.0,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PatchRunSize(RunSize):
    """Size of a run, its images, and its networks."""

    most_filters: int
    blocks: tuple[int, ...]
    choices_of_blocks: tuple[tuple[int, ...], ...]
    side: int


_FULL = PatchRunSize(
    most_filters=256,
    blocks=(3, 4, 6, 3),
    # Choices with architecture = "deep"; 3, 8, 36, 3 is ResNet-152.
    choices_of_blocks=((1, 2, 3, 4), (1, 2, 3, 4, 6, 8), (1, 2, 3, 4, 6, 9, 12, 18, 24, 36), (1, 2, 3, 4)),
    side=120,
    epochs=100,
    batch_size=512,
)
_SMALL = PatchRunSize(
    most_filters=16,
    blocks=(1, 1, 1, 1),
    choices_of_blocks=((1, 2),) * 4,
    side=32,
    epochs=6,
    batch_size=32,
)


class Options(PatchOptions):
    """Sizes are the source's without small: ResNet-50, 120×120 pixels."""

    epochs: Count | None = None
    """Most passes over the training set; left out: 100, or 6."""
    batch_size: Count | None = None
    """Samples per step of all ranks together; left out: 512, or 32."""
    batch_norm_eps: Positive = 1e-3
    """Constant that batch normalisation adds to the variance: 0.001 as in Keras; torch's is 0.00001."""
    initialisation: Literal["keras", "he"] = "keras"
    """First weights of convolutions and the last layer: keras, Glorot's uniform with biases of 0; or he, He's
    normal."""
    patience: Count = 10
    """A training ends after this many epochs without a smaller validation loss; with as many epochs, never."""

    @property
    def size(self) -> PatchRunSize:
        return _SMALL if self.small else _FULL

    @property
    def side(self) -> int:
        return self.size.side

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


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import trainers
    from search_spaces.building_blocks.recipe_parts.losses import LOSSES
    from search_spaces.networks.resnet import ResNet50

    return Recipe(
        network=ResNet50(
            channels=len(options.chosen_bands),
            classes=len(CLASSES),
            filters=p["filters"],
            activation=p["activation"],
            order=p["order"],
            blocks=options.size.blocks,
        ),
        optimizer=lambda weights: optimizers.make(weights, p),
        schedule=optimizers.make_schedule(p, epochs=options.most_epochs),
        loss=LOSSES[p["loss"]],
        early_stopping=trainers.EarlyStopping(patience=options.patience, restore_best=True),
    )


# Name of the score in jobs/compare.py.
MEASURE = "micro-F1"

make_task, main = campaign(
    lambda options: make_space(options.size.most_filters),
    lambda options: default_for(options.size.most_filters),
    recipe,
    options=Options,
    task=PatchTask,
    judge=lambda options: lambda result, steps: {"epochs": len(result.history)},
)
test_f1, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
