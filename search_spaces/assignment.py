"""Which ranks train on which samples, and which average how often: data assignment, households, neighbourhoods and
L_W on ResNet-20, CIFAR-10 (the study of data assignment and communication, chapter 5).

    hpo run jobs/assignment_small.toml                      a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/assignment.toml           the source's, on CIFAR-10 with 16 ranks an individual
    torchrun --nproc-per-node 4 -m search_spaces.assignment --assignment fine-grained --copies 2

The study ran each configuration with five seeds; this search finds those that are worth it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks.image_task import ImageOptions, OwnMethod, Recipe, Run, image_campaign
from search_spaces.building_blocks.methods import MethodName
from search_spaces.options import Count, Positive

if TYPE_CHECKING:
    import trainers
    from hpo.task.task import Constraint
    from trainers.data.batches import SampleAssignment

_COPYING = ("coarse", "medium-coarse", "fine-grained")

space = hpo.SearchSpace(
    # New parts each epoch; a fixed shard for each rank; several copies of each sample; all samples on all ranks.
    assignment=hpo.Categorical("disjoint", "shards", *_COPYING, "full-overlap"),
    copies=hpo.Ordinal(2, 4, 6, 8, 10, 12, 14, when={"assignment": _COPYING}),  # C: ranks that have a sample
    # L_W. Not 1, which is method = "ddp": one end of the front, where households change nothing.
    world_every=hpo.Ordinal(2, 4, 8, 16, 32, 64, 128),
    # Ranks in a household, which average gradients at each step; 1: each trains on its own.
    household=hpo.Ordinal(1, 2, 4, 8),
    # Households in a neighbourhood; 1: there are none.
    neighbourhood=hpo.Ordinal(1, 2, 4, 8),
    neighbourhood_every=hpo.Ordinal(2, 4, 8, 16, 32, 64, when={"neighbourhood": (2, 4, 8)}),  # L_N
)

# Plain local SGD on new parts of the samples in each epoch.
default: dict[str, Any] = {
    "assignment": "disjoint",
    "world_every": 16,
    "household": 1,
    "neighbourhood": 1,
}


def neighbours_first(params: Mapping[str, Any]) -> bool:
    """L_N < L_W."""
    return bool(params.get("neighbourhood_every", 0) < params["world_every"])


class Options(ImageOptions):
    """The defaults are a small run; the source's are in jobs/assignment.toml."""

    epochs: Count = 8
    batch_size: Count = 32
    method: MethodName = "local-sgd"
    lr: Positive = 0.1
    batch_rule: Literal["global", "effective"] = "global"
    """global: batch_size counts the samples of all ranks; effective: those that a synchronisation joins (Eq. A.3)."""
    lr_rule: Literal["constant", "linear"] = "constant"
    """linear: lr grows as the batch by Eq. A.3, after five epochs of warm-up from lr (Goyal et al. 2017)."""
    ranks_per_worker: Count = 4
    """M: ranks per worker of the campaign, or ranks of torchrun."""
    width: Count = 4
    """Filters of the ResNet-20's first stage."""


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch

    import trainers
    from search_spaces.networks.resnet import ResNet20

    ranks, growth = options.ranks_per_worker, batch_growth(p, options.ranks_per_worker)
    at: tuple[float, ...] = (0.5, 0.75)
    lr, warmup = options.lr, 0.0
    if options.lr_rule == "linear":
        lr, warmup = lr * growth, min(5.0, options.epochs / 4)
        # These are parts of the run, and trainers.Drops counts from the warm-up's end.
        at = tuple((part * options.epochs - warmup) / (options.epochs - warmup) for part in at)
    each = options.batch_size / ranks * (growth if options.batch_rule == "effective" else 1.0)
    return Recipe(
        network=ResNet20(classes=run.classes, width=options.width),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=trainers.Drops(
            warmup_epochs=warmup, warmup_lr=options.lr if warmup else 0.0, at=at, factor=0.1
        ),
        assignment=_assignment(p, ranks),
        samples_a_step=ranks * max(1, round(each)) if options.batch_rule == "effective" else None,
    )


def batch_growth(p: Mapping[str, Any], ranks: int) -> float:
    """L_W H / (H + L_W - 1): factor of the local batch over B_e / M if a synchronisation of H households every L_W
    steps is to join B_e samples (the study's Eq. A.3); 1 for averaging at each step.
    """
    households, every = ranks // p.get("household", 1), p.get("world_every", 1)
    return float(every * households / (households + every - 1))


def _local_sgd(p: dict[str, Any], options: Options, run: Run) -> trainers.Method:
    import trainers

    several = p["neighbourhood"] > 1
    return trainers.LocalSGD(
        household_every=1,
        households=p["household"],
        neighbourhood_every=p["neighbourhood_every"] if several else None,
        neighbourhoods=p["household"] * p["neighbourhood"] if several else None,
        world_every=p["world_every"],
        average_at_epoch_end=False,
    )


def _assignment(p: dict[str, Any], ranks: int) -> SampleAssignment:
    import trainers

    name = p["assignment"]
    if name in ("disjoint", "full-overlap"):
        return trainers.Disjoint() if name == "disjoint" else trainers.FullOverlap()
    if name in ("shards", "coarse"):
        return trainers.Coarse(shards=ranks if name == "shards" else ranks // p["copies"])
    kind = trainers.MediumCoarse if name == "medium-coarse" else trainers.FineGrained
    return kind(copies=p["copies"])


def constraints(options: Options) -> Sequence[Constraint]:
    def fits(params: Mapping[str, Any]) -> bool:
        """Copies, households and neighbourhoods divide the worker's ranks."""
        ranks = options.ranks_per_worker
        household, neighbourhood = params.get("household", 1), params.get("neighbourhood", 1)
        together = household * neighbourhood
        parts = household == 1 or (household < ranks and ranks % household == 0)
        wider = neighbourhood == 1 or (together < ranks and ranks % together == 0)
        copies = params.get("copies", 1)
        divides = params["assignment"] != "coarse" or ranks % copies == 0
        return bool(parts and wider and copies < max(2, ranks) and divides)

    return [fits]


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OwnMethod(
        names=("local-sgd",),
        parameters=("world_every", "household", "neighbourhood", "neighbourhood_every"),
        make=_local_sgd,
        constraints=[neighbours_first],
    ),
    constraints=constraints,
    ranks=lambda options: options.ranks_per_worker,
)
task = make_task()
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
