"""Who trains on which samples and who averages with whom how often: data assignment, households, neighbourhoods and
L_W on ResNet-20, CIFAR-10 (the study of data assignment and communication, chapter 5).

    hpo run jobs/assignment_small.toml                      a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/assignment.toml           the source's, on CIFAR-10 with 16 ranks an individual
    torchrun --nproc-per-node 4 -m search_spaces.assignment --assignment fine-grained --copies 2

There each configuration was run with five seeds; here search finds which are worth that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces.building_blocks.image_task import ImageOptions, ImageTask, Recipe, Run, untrained_of
from search_spaces.standalone import command_line

if TYPE_CHECKING:
    import trainers
    from hpo.individual import Scalar
    from trainers.data.batches import Assignment

_COPYING = ("coarse", "medium-coarse", "fine-grained")

space = hpo.SearchSpace(
    # Dealt anew each epoch; a shard of its own for each rank; several copies of each sample; all samples everywhere.
    assignment=hpo.Categorical("disjoint", "shards", *_COPYING, "full-overlap"),
    copies=hpo.Ordinal(2, 4, 8, when={"assignment": _COPYING}),  # C: ranks that have a sample
    # L_W. Not 1: accuracy alone would always choose gradients averaged at each step, whatever they cost to send.
    world_every=hpo.Ordinal(2, 4, 8, 16, 32, 64, 128),
    # Ranks in a household, which average gradients at each step; 1: each trains on its own.
    household=hpo.Ordinal(1, 2, 4, 8),
    # Households in a neighbourhood; 1: there are none.
    neighbourhood=hpo.Ordinal(1, 2, 4, 8),
    neighbourhood_every=hpo.Ordinal(2, 4, 8, 16, 32, 64, when={"neighbourhood": (2, 4, 8)}),  # L_N
)

default: dict[str, Scalar] = {
    "assignment": "disjoint",
    "world_every": 16,
    "household": 1,
    "neighbourhood": 1,
}
"""Plain local SGD on samples dealt anew in each epoch."""


def neighbours_first(params: Mapping[str, Any]) -> bool:
    """L_N < L_W."""
    return bool(params.get("neighbourhood_every", 0) < params["world_every"])


def make_task(
    *,
    data: str = "digits",
    epochs: int = 8,
    batch_size: int = 32,
    validation_part: float = 0.5,
    folds: int = 0,
    augmentation: str = "none",
    precision: str = "fp32",
    loader_processes: int = 0,
    train_samples: int | None = None,
    lr: float = 0.1,
    ranks_per_worker: int = 4,
    width: int = 4,
) -> ImageTask:
    """The task for these options, the ``[task_options]`` of a campaign file; see ``ImageOptions``.

    ``ranks_per_worker`` (M) is that of the campaign, or the number of torchrun's ranks; ``width``: filters of the
    ResNet-20's first stage. The defaults are a small run; the source's are in jobs/assignment.toml.
    """
    with check.together():
        options = ImageOptions(
            data=data,
            epochs=epochs,
            batch_size=batch_size,
            validation_part=validation_part,
            folds=folds,
            augmentation=augmentation,
            precision=precision,
            loader_processes=loader_processes,
            train_samples=train_samples,
        )
        check.number("above 0", lambda value: value > 0, lr=lr)
        check.whole(1, ranks_per_worker=ranks_per_worker, width=width)

    def fits(params: Mapping[str, Any]) -> bool:
        """Copies, households and neighbourhoods are of ranks that are there, and divide them."""
        ranks = ranks_per_worker
        household, neighbourhood = params.get("household", 1), params.get("neighbourhood", 1)
        together = household * neighbourhood
        parts = household == 1 or (household < ranks and ranks % household == 0)
        wider = neighbourhood == 1 or (together < ranks and ranks % together == 0)
        copies = params.get("copies", 1)
        return bool(parts and wider and copies < max(2, ranks) and ranks % copies == 0)

    def recipe(p: dict[str, Any], run: Run) -> Recipe:
        import torch

        import trainers
        from search_spaces.networks.resnet import ResNet20

        return Recipe(
            network=ResNet20(classes=run.classes, width=width),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4),
            schedule=trainers.Drops(at=(0.5, 0.75), factor=0.1),
            method=_method(p),
            assignment=_assignment(p, ranks_per_worker),
        )

    return ImageTask(
        space,
        recipe,
        options,
        default=default,
        constraints=[neighbours_first, fits],
        ranks=ranks_per_worker,
    )


def _method(p: dict[str, Any]) -> trainers.Method:
    import trainers

    several = p["neighbourhood"] > 1
    return trainers.LocalSGD(
        household_every=1,
        households=p["household"],
        neighbourhood_every=p["neighbourhood_every"] if several else None,
        neighbourhoods=p["household"] * p["neighbourhood"] if several else None,
        world_every=p["world_every"],
    )


def _assignment(p: dict[str, Any], ranks: int) -> Assignment:
    import trainers

    name = p["assignment"]
    if name == "disjoint":
        return trainers.Disjoint()
    if name == "shards":
        return trainers.Coarse(shards=ranks)
    if name == "full-overlap":
        return trainers.FullOverlap()
    if name == "coarse":
        return trainers.Coarse(shards=ranks // p["copies"])
    if name == "medium-coarse":
        return trainers.MediumCoarse(copies=p["copies"])
    return trainers.FineGrained(copies=p["copies"])


test_accuracy = command_line.tests_of(make_task)
"""As ``ImageTask.test``, with the keywords of ``make_task``."""


untrained = untrained_of(make_task)
"""untrained(params, classes=…, **keywords of make_task): the network of a configuration, untrained."""

task = make_task()

if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.assignment", make_task, test_accuracy, network=untrained))
