"""DASO's B and S on semantic segmentation of Cityscapes, with two objectives: time and mean IoU (dissertation, section
3.3.2.2, table 3.3).

    hpo run jobs/cityscapes_daso_small.toml                 a small search on made-up scenes
    sbatch jobs/slurm.sbatch jobs/cityscapes_daso.toml      eight nodes with 4 GPUs an individual
    torchrun … -m search_spaces.cityscapes_daso --data DATA --sync-every 4 --sync-delay 1

The network is Tao et al.'s (2020, arXiv 2005.10821). The source names a largest learning rate alone: below it, rates
are in proportion to the samples a step (Goyal et al. 2017, arXiv 1706.02677), from the authors' 5e-3 for eight.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from search_spaces import daso_intervals
from search_spaces.building_blocks.daso_intervals import OWN_METHOD, IntervalOptions, directions, judge
from search_spaces.building_blocks.methods import MethodName
from search_spaces.building_blocks.recipes import Recipe, Run
from search_spaces.building_blocks.segmentation_task import SceneOptions, make_network, segmentation_campaign
from search_spaces.options import FromZero, Positive

space, default = daso_intervals.space, daso_intervals.default

# For jobs/compare.py.
MEASURE = "mean IoU"
PUBLISHED = (
    "Published (3.3.2.2): mean IoU 82.58 % by DDP on 4 GPUs, less on 16 to 256, where DASO is better than Horovod "
    "and takes some 35 % less time up to 128."
)

_AUTHORS_LR, _MOST_LR = 5e-3 / 8, 0.4


class Options(SceneOptions, IntervalOptions):
    """Defaults are those of Table 3.3 without small."""

    method: MethodName = "daso"
    lr: Positive | None = None
    """Learning rate for batch_size; left out: 5e-3 for 8, in proportion, 0.4 at most; with small 0.05."""
    warmup_epochs: FromZero = 5
    cooldown_epochs: FromZero = 4


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    import trainers
    from search_spaces.building_blocks.recipe_parts.region_mutual_information import segmentation_loss

    lr = options.lr
    if lr is None:
        lr = 0.05 if options.small else min(_MOST_LR, _AUTHORS_LR * options.samples_a_step)
    return Recipe(
        network=make_network(options),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=trainers.ReduceOnPlateau(
            warmup_epochs=options.warmup_epochs, warmup_lr=min(lr, 8 * _AUTHORS_LR), patience=5, factor=0.75
        ),
        loss=segmentation_loss,
        synchronise_batch_norms=True,
    )


make_task, main = segmentation_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OWN_METHOD,
    points=[daso_intervals.SOURCES_CHOICE],
    judge=judge,
    objectives=partial(directions, score="mean_iou"),
)
test_mean_iou, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
