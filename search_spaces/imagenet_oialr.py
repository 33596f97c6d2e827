"""OIALR on ViT-B/16 or ResNet-RS 101, ImageNet-2012: the learning rate's course and when, how often and how much rank
is dropped (dissertation, section 4.4.2, tables 4.1 and A.1).

    hpo run jobs/imagenet_oialr_small.toml                  a small search on made-up images
    sbatch jobs/slurm.sbatch jobs/imagenet_oialr.toml       the source's size
    torchrun --nproc-per-node 8 -m search_spaces.imagenet_oialr --data DATA --network resnet-rs-101

The source has no search on ImageNet: the ranges of schedule and cutoff are those of Table A.3, a search on CIFAR-10;
learning rate, frequency and delay reach further, so that Table A.1's point is inside and not at a border.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import hpo
from search_spaces import vit_oialr
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.image_task import OwnMethod, Recipe, Run, image_campaign
from search_spaces.building_blocks.imagenet_task import SMALL_DIM, ImageNetOptions, Size, make_network

# Length of the source's run (1 281 167 images in batches of 1 024); numbers of epochs and steps are parts of
# it.
EPOCHS, STEPS = 125, 125 * 1252

_SCHEDULE = ("min_lr", "warmup_lr", "k_decay", "warmup_epochs")
_RANK = methods.METHODS["oialr"].parameters

space = hpo.SearchSpace(
    {
        "lr": hpo.Float(5e-5, 1e-2, log=True),
        **{name: vit_oialr.space.parameters[name] for name in _SCHEDULE},
        **_RANK,
    }
)

# Table A.1.
default: dict[str, Any] = {
    "lr": 1e-3,
    "min_lr": 1e-5,
    "warmup_lr": 1e-5,
    "k_decay": 1.0,
    "warmup_epochs": 10,
    "sigma_cutoff": 0.1,
    "update_every": 1000 / STEPS,
    "delay": 25_000 / STEPS,
}

DROPOUT = {"vit-b-16": 0.1, "resnet-rs-101": 0.25}


class Options(ImageNetOptions):
    """Defaults are those of Table A.1 without small; it has precision = "bf16", too."""

    network: Literal["vit-b-16", "resnet-rs-101"] = "vit-b-16"
    method: methods.MethodName = "oialr"

    @property
    def source(self) -> Size:
        return Size(
            epochs=EPOCHS,
            batch_size=1024,
            side=160,
            evaluation_side=224 if self.network == "resnet-rs-101" else 160,
            crop_fraction=0.9,
            augmentation="rand-augment",
        )


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    from search_spaces.building_blocks.recipe_parts.schedules import searched_cosine

    small_vit = options.small and options.network == "vit-b-16" and options.architecture == "source"
    lr, schedule = searched_cosine(
        "after-warm-up" if options.small else "timm",
        p,
        width=(SMALL_DIM, vit_oialr.DIM) if small_vit else (1, 1),
        length=(options.most_epochs, EPOCHS),
    )
    return Recipe(
        network=make_network(options.network, options, classes=run.classes, dropout=DROPOUT[options.network]),
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=lr),
        schedule=schedule,
        label_smoothing=0.1,
        synchronise_batch_norms=True,
    )


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OwnMethod(names=("oialr",), parameters=tuple(_RANK)),
)
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
