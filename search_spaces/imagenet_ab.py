"""AB training on ResNet-50 or ViT-B/16, ImageNet-2012: how long the phases are and how much rank is dropped
(dissertation, sections 5.3.4 and 5.3.5, tables A.6, A.7 and A.8).

    hpo run jobs/imagenet_ab_small.toml                     a small search on made-up images
    sbatch jobs/slurm.sbatch jobs/imagenet_ab.toml          the source's size
    torchrun --nproc-per-node 16 -m search_spaces.imagenet_ab --data DATA --network resnet-50 --batch-size 4096

The default is what tables A.7 and A.8 have for the batch size; the search is that of ``search_spaces.vit_ab``.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.image_task import OwnMethod, Recipe, Run, image_campaign
from search_spaces.building_blocks.imagenet_task import ImageNetOptions, Size, make_network
from search_spaces.options import Count, Positive

if TYPE_CHECKING:
    from torch import nn

# Table A.6.
EPOCHS = 150

# Rows by global batch size: warmupSteps, numABSteps, fullRankReboundSteps, learning-rate rebound steps, steps an epoch.
STEPS = {
    "resnet-50": {  # Table A.7
        2048: (24_000, 6000, 600, 1500, 600),
        4096: (9300, 3000, 300, 750, 300),
        8192: (6150, 1500, 150, 325, 150),
        16_384: (3750, 600, 75, 188, 75),
        32_768: (1900, 400, 38, 94, 38),
    },
    "vit-b-16": {  # Table A.8
        2048: (24_000, 4360, 600, 1500, 600),
        4096: (12_300, 2180, 300, 750, 300),
        8192: (6150, 1500, 150, 325, 150),
        16_384: (3750, 750, 75, 188, 75),
        32_768: (1520, 270, 38, 94, 38),
    },
}

space = hpo.SearchSpace(methods.METHODS["ab"].parameters)


class Options(ImageNetOptions):
    """Defaults are those of tables A.6 to A.8 without small; these have precision = "bf16", too."""

    network: Literal["resnet-50", "vit-b-16"] = "vit-b-16"
    method: methods.MethodName = "ab"
    lr: Positive = 0.0035
    group_size: Count | None = None
    """Ranks of a group; left out: 4, or 1. A single rank trains without groups."""

    def finish(self, network: nn.Module) -> None:
        from search_spaces.building_blocks.initial_weights import make_orthogonal

        make_orthogonal(network)

    @property
    def ranks_of_a_group(self) -> int:
        return self.group_size or (1 if self.small else 4)

    @property
    def source(self) -> Size:
        return Size(epochs=EPOCHS, batch_size=4096)


def default(options: Options) -> dict[str, Any]:
    """The tables' entries for the network and the batch size, as parts of the run; for other sizes those of 4 096."""
    rows = STEPS[options.network]
    warmup, ab, rebound, lr_rebound, per_epoch = rows.get(options.samples_a_step, rows[4096])
    return {
        **methods.METHODS["ab"].default,
        "warmup": warmup / (EPOCHS * per_epoch),
        "ab": ab / (EPOCHS * per_epoch),
        "rebound": rebound / ab,
        "lr_rebound": lr_rebound / ab,
    }


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    from search_spaces.building_blocks.recipe_parts.schedules import cosine

    vit = options.network == "vit-b-16"
    rates = {"drop_path": 0.1} if vit else {"dropout": 0.1}
    return Recipe(
        network=make_network(options.network, options, classes=run.classes, **rates),
        optimizer=lambda weights: torch.optim.AdamW(
            weights, lr=options.lr, weight_decay=0.1 if vit else 0.01
        ),
        schedule=cosine(
            "after-warm-up" if options.small else "timm", warmup_epochs=10 * options.most_epochs / EPOCHS
        ),
        clip_norm=1.0,
        label_smoothing=0.1,
    )


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OwnMethod(names=("ab", "ab-no-groups"), parameters=tuple(space.parameters)),
)
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
