"""DASO's B and S on ResNet-50, ImageNet-2012, with two objectives: time and accuracy (dissertation, section 3.3, tables
3.1 and 3.2).

    hpo run jobs/imagenet_daso_small.toml                   a small search on made-up images
    sbatch jobs/slurm.sbatch jobs/imagenet_daso.toml        eight nodes with 4 GPUs an individual, as Table 3.1
    torchrun … -m search_spaces.imagenet_daso --data DATA --sync-every 4 --sync-delay 1

The source follows Goyal et al. 2017 (arXiv 1706.02677) and names neither batch nor rate: here they are that work's, 32
images a GPU and 0.1 for 256, after a warm-up from 0.1.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from search_spaces import daso_intervals
from search_spaces.building_blocks.daso_intervals import OWN_METHOD, IntervalOptions, directions, judge
from search_spaces.building_blocks.image_task import Recipe, Run, image_campaign
from search_spaces.building_blocks.imagenet_task import SMALL, ImageNetOptions, Size, make_network
from search_spaces.building_blocks.methods import MethodName
from search_spaces.options import FromZero, Positive

space, default = daso_intervals.space, daso_intervals.default

# Learning rate per sample.
_GOYAL = 0.1 / 256


class Options(ImageNetOptions, IntervalOptions):
    """Defaults are those of Table 3.2 without small."""

    method: MethodName = "daso"
    lr: Positive | None = None
    """Learning rate for batch_size; left out: 0.1 for 256, in proportion."""
    warmup_epochs: FromZero = 5
    cooldown_epochs: FromZero = 4

    @property
    def source(self) -> Size:
        return Size(epochs=90, batch_size=32 * 32)

    @property
    def size(self) -> Size:
        # Long enough for warm-up and cool-down.
        return replace(SMALL, epochs=12) if self.small else self.source


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    import trainers

    lr = options.samples_a_step * _GOYAL if options.lr is None else options.lr
    return Recipe(
        network=make_network("resnet-50", options, classes=run.classes),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=trainers.ReduceOnPlateau(
            warmup_epochs=options.warmup_epochs, warmup_lr=min(lr, 256 * _GOYAL), patience=5, factor=0.5
        ),
    )


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OWN_METHOD,
    points=[daso_intervals.SOURCES_CHOICE],
    judge=judge,
    objectives=directions,
)
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
