"""OIALR on a small vision transformer, CIFAR-10: the learning rate's course and when, how often and how much rank
is dropped (dissertation, section 4.4.4, tables A.2 and A.3).

    hpo run jobs/vit_oialr_small.toml                       a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/vit_oialr.toml            the source's, on CIFAR-10
    python -m search_spaces.vit_oialr --lr 2e-4             one configuration, the others as in ``default``

``default`` is the source's untuned run, ``TUNED`` what its search found; README.md has their results.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces.building_blocks.image_task import OwnMethod, Recipe, Run, ViTOptions, image_campaign
from search_spaces.building_blocks.methods import MethodName
from search_spaces.options import Count

if TYPE_CHECKING:
    import trainers

# Length of the source's run (Table A.1; 50 000 images in batches of 1 024). Parameters that count epochs or
# steps are scaled to the length of a run.
EPOCHS, STEPS = 125, 125 * 49

# Width that the learning rates are for, the source's.
DIM = 768

space = hpo.SearchSpace(
    lr=hpo.Float(5e-5, 1e-3, log=True),
    min_lr=hpo.Float(5e-6, 1e-3, log=True),  # may lie above lr: the source's best does, and rises to it
    warmup_lr=hpo.Float(5e-6, 2e-4, log=True),
    k_decay=hpo.Float(0.1, 2.0),
    warmup_epochs=hpo.Int(1, 20),
    sigma_cutoff=hpo.Float(0.01, 0.9),
    update_every=hpo.Int(200, 1000),  # the source's stability frequency
    delay=hpo.Int(1000, 10_000, log=True),
)

# The untuned run of Table A.2.
default: dict[str, Any] = {
    "lr": 1e-4,
    "min_lr": 1e-5,
    "warmup_lr": 1e-5,
    "k_decay": 1.0,
    "warmup_epochs": 10,
    "sigma_cutoff": 0.2,
    "update_every": 1000,
    "delay": 4000,
}

# The tuned run of Table A.2.
TUNED: dict[str, Any] = {
    **default, "lr": 2e-4, "min_lr": 8e-4, "warmup_lr": 8e-5, "k_decay": 0.4, "warmup_epochs": 17,
}  # fmt: skip


class Options(ViTOptions):
    """The defaults are a small run; the source's are in jobs/vit_oialr.toml."""

    epochs: Count = 16
    batch_size: Count = 32
    method: MethodName = "oialr"


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    from search_spaces.building_blocks.recipe_parts.schedules import searched_cosine

    width = (options.dim, DIM) if options.architecture == "source" else (1, 1)
    lr, schedule = searched_cosine(options.cosine, p, width=width, length=(options.epochs, EPOCHS))
    return Recipe(
        network=options.vit(classes=run.classes, qkv_bias=False, drop_path=0.2),
        optimizer=lambda weights: torch.optim.AdamW(weights, lr=lr, weight_decay=options.weight_decay),
        schedule=schedule,
        label_smoothing=0.1,
    )


def drops_rank(params: Mapping[str, Any]) -> bool:
    """The first update comes before the run ends."""
    return bool(params["delay"] + params["update_every"] < STEPS)


def _oialr(p: dict[str, Any], options: Options, run: Run) -> trainers.Method:
    import trainers

    delay = p["delay"] / STEPS
    return trainers.OIALR(
        # A delay near 1 would leave no step for the first update in a run of few steps.
        delay=min(delay, 1 - 1 / run.steps) if drops_rank(p) else delay,
        update_every=p["update_every"] / STEPS,
        sigma_cutoff=p["sigma_cutoff"],
        full_rank_first_layer=False,
        full_rank_last_layer=True,
    )


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OwnMethod(
        names=("oialr",),
        parameters=("sigma_cutoff", "update_every", "delay"),
        make=_oialr,
        constraints=[drops_rank],
    ),
)
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
