"""A small residual network on small images, trained data-parallel: optimizer, learning rate, schedule and
architecture.

    hpo run jobs/digits.toml                                            # the search
    python -m search_spaces.digits --lr 0.1                             # one configuration, else ``default``
    torchrun --nproc-per-node 2 -m search_spaces.digits --lr 0.1        # the same on two ranks
    python -m search_spaces.digits --campaign runs/digits               # the test accuracy of what was found
    python -m search_spaces.digits --campaign runs/digits --export best.safetensors     # its model
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks import sources
from search_spaces.building_blocks.architecture_search.deep_network import (
    ACTIVATIONS,
    ORDERS,
    Deep,
    SmallArchitectureOptions,
)
from search_spaces.building_blocks.campaign import campaign
from search_spaces.building_blocks.image_task import ImageTask
from search_spaces.building_blocks.recipes import Recipe, Run
from search_spaces.folds import Fold
from search_spaces.options import Count, as_usage

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    import trainers
    from search_spaces.readers.small_images import ImageData

space = hpo.SearchSpace(
    # The network
    width=hpo.Ordinal(4, 8, 12, 16, 24, 32),  # filters of the first block
    activation=hpo.Categorical(*ACTIVATIONS),
    order=hpo.Categorical(*ORDERS),  # where a block normalises and activates, He et al. 2016
    # The optimizer, and parameters that only some have
    optimizer=hpo.Categorical("sgd", "rmsprop", "adagrad", "adam", "adamw"),
    lr=hpo.Float(1e-4, 1.0, log=True),
    momentum=hpo.Float(0.5, 0.99, when={"optimizer": "sgd"}),
    nesterov=hpo.Categorical(False, True, when={"optimizer": "sgd"}),
    smoothing=hpo.Float(0.8, 0.999, when={"optimizer": "rmsprop"}),
    beta1=hpo.Float(0.8, 0.98, when={"optimizer": ("adam", "adamw")}),
    beta2=hpo.Float(0.9, 0.9999, when={"optimizer": ("adam", "adamw")}),
    weight_decay=hpo.Float(1e-6, 1e-1, log=True, when={"optimizer": ("sgd", "adamw")}),
    # The learning rate's schedule
    schedule=hpo.Categorical("constant", "cosine", "exponential", "inverse-time", "polynomial"),
    warmup_epochs=hpo.Int(0, 4),
    k_decay=hpo.Float(0.2, 5.0, log=True, when={"schedule": "cosine"}),
    final_fraction=hpo.Float(1e-3, 0.5, log=True, when={"schedule": ("exponential", "inverse-time")}),
    power=hpo.Float(0.5, 4.0, when={"schedule": "polynomial"}),
)

# The original network with torch's own choices for Adam.
default: dict[str, Any] = {
    "width": 16,
    "activation": "relu",
    "order": "original",
    "optimizer": "adam",
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "schedule": "constant",
    "warmup_epochs": 0,
}


# Sizes of the training parts that ``readers.small_images.load_images`` makes.
TRAINING_IMAGES = {"digits": 224, "fashion-mnist": 50_000}
CHANNELS, CLASSES = 1, 10


class Options(SmallArchitectureOptions):
    """Options; epochs count one interval with kind = "pbt". There an individual begins with the weights and the
    optimizer's state of its parent, so perturb = ["lr", …] must not name parameters of the network.
    """

    data: Literal["digits", "fashion-mnist"] = "digits"
    """scikit-learn's digits, or fashion-mnist of Debian's package."""
    epochs: Count = 24
    batch_size: Count = 32
    train_samples: Count | None = None
    """How many images to train with; left out: all of the training part."""

    def check_data(self) -> None:
        sources.packaged_images(self.data)
        sources.check_samples("train_samples", self.train_samples, TRAINING_IMAGES[self.data])

    @property
    def deep(self) -> Deep:
        side = 8 if self.data == "digits" else 28
        inputs = (CHANNELS, side, side)
        return Deep.small(inputs, CLASSES) if self.small else Deep(inputs=inputs, classes=CLASSES)

    @property
    def saves_each_epoch(self) -> bool:
        return False

    def parts(self) -> ImageData:
        from search_spaces.readers.small_images import load_images

        with as_usage():
            images = load_images(self.data, train_samples=self.train_samples)
        return images.joined() if self.folds else images

    def of_fold(self, parts: ImageData, fold: Fold) -> ImageData:
        return parts.divided(*fold.split(len(parts.train), classes=parts.train.tensors[1].tolist()))


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    from search_spaces.networks.small_resnet import ResNet

    return Recipe(
        network=ResNet(
            channels=CHANNELS, classes=CLASSES, width=p["width"], activation=p["activation"], order=p["order"]
        ),
        optimizer=lambda weights: _optimizer(weights, p),
        schedule=_schedule(p, options.epochs),
    )


def _optimizer(parameters: Iterable[nn.Parameter], p: dict[str, Any]) -> Optimizer:
    from torch import optim

    kinds = {"sgd": optim.SGD, "rmsprop": optim.RMSprop, "adagrad": optim.Adagrad, "adam": optim.Adam}
    own: dict[str, Any] = {name: p[name] for name in ("momentum", "nesterov", "weight_decay") if name in p}
    if "beta1" in p:
        own["betas"] = p["beta1"], p["beta2"]
    if "smoothing" in p:
        own["alpha"] = p["smoothing"]
    made: Optimizer = kinds.get(p["optimizer"], optim.AdamW)(parameters, lr=p["lr"], **own)
    return made


def _schedule(p: dict[str, Any], epochs: int) -> trainers.Schedule:
    import trainers

    # A run shorter than its warm-up would never get to the schedule.
    warmup: dict[str, Any] = {"warmup_epochs": min(p["warmup_epochs"], epochs / 2)}
    if p["schedule"] == "cosine":
        return trainers.Cosine(**warmup, k_decay=p["k_decay"])
    if p["schedule"] == "polynomial":
        return trainers.Polynomial(**warmup, power=p["power"])
    decay = {**warmup, "every_epochs": epochs - warmup["warmup_epochs"]}
    if p["schedule"] == "exponential":
        return trainers.Exponential(**decay, rate_factor=p["final_fraction"])
    if p["schedule"] == "inverse-time":
        return trainers.InverseTime(**decay, decay=1 / p["final_fraction"] - 1)
    return trainers.Constant(**warmup)


make_task, main = campaign(space, default, recipe, options=Options, task=ImageTask)
test_accuracy, untrained = make_task.test, make_task.untrained
task = make_task()

if __name__ == "__main__":
    sys.exit(main())
