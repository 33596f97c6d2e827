"""DASO's B and S, how often nodes synchronise and how late they merge, with two objectives: time and accuracy
(dissertation, section 3.3.1, tables 3.1 to 3.3; evolution in place of its grid is proposed in 6.5 and 7.1).

    hpo run jobs/daso_intervals_small.toml                  a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/daso_intervals.toml       on CIFAR-10, four nodes an individual
    torchrun --nproc-per-node 2 -m search_spaces.daso_intervals --ranks-per-node 1 --sync-every 8

    hpo best DIR --top 10                                   the front: what no other is better than in both
"""

from __future__ import annotations

import functools
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces import options as check
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.image_task import ImageOptions, OwnMethod, Recipe, Run, image_campaign
from search_spaces.options import Count, FromZero, NotNegative, Positive

if TYPE_CHECKING:
    from torch import nn

    import trainers
    from hpo.individual import Scalar
    from search_spaces.building_blocks.campaign import Judge

space = hpo.SearchSpace(methods.parameters("daso"))

default: dict[str, Scalar] = {"sync_every": 1, "sync_delay": 0}
"""Synchronous training. The source's own choice after its grid was B = 4, S = 1."""

SOURCES_CHOICE: dict[str, Scalar] = methods.default("daso")


class Options(ImageOptions):
    """The defaults are a small run; jobs/daso_intervals.toml has the source's settings."""

    network: Literal["resnet20", "resnet50", "vgg16", "perceptron"] = "perceptron"
    """resnet20, resnet50 or vgg16 with width filters in its first stage, or perceptron with width units in its one
    hidden layer. A ResNet-20 has 1 MB of gradients, a VGG16 59 MB, a ResNet-50 of width 64 94 MB.
    """
    epochs: Count = 8
    batch_size: Count = 8
    method: methods.MethodName = "daso"
    lr: Positive = 0.005
    """For batch_size."""
    warmup_epochs: FromZero = 1
    """DASO's, synchronous, and the learning rate's."""
    cooldown_epochs: FromZero = 1
    """DASO's, synchronous."""
    ranks_per_node: Count | None = None
    """As if this many shared a node; left out: as it is."""
    width: Count = 32
    steps_on_link: NotNegative = 8.0
    """0, and time is measured; or how many steps a synchronisation takes on the link between the nodes, and time is
    counted in steps: for machines that do other things meanwhile, or where the nodes are made up.
    """

    def rules(self) -> None:
        if self.warmup_epochs + self.cooldown_epochs >= self.epochs:
            raise hpo.UsageError(
                f"warmup_epochs = {self.warmup_epochs} and cooldown_epochs = {self.cooldown_epochs}: must leave some "
                f"of the run's epochs = {self.epochs}, or B and S have no effect. Lower one of them, or raise epochs."
            )
        if self.steps_on_link and self.method not in ("ddp", "daso", "local-sgd"):
            check.refuse(
                "steps_on_link", self.steps_on_link, f"0, to measure time, with method = {self.method!r}"
            )


def recipe(p: dict[str, Any], options: Options, run: Run) -> Recipe:
    import torch
    from torch import nn

    import trainers
    from search_spaces.networks.resnet import ResNet20, ResNet50
    from search_spaces.networks.vgg import cifar_vgg16

    model: nn.Module
    width = options.width
    if options.network == "resnet20":
        model = ResNet20(classes=run.classes, width=width)
    elif options.network == "resnet50":
        model = ResNet50(channels=3, classes=run.classes, filters=width)
    elif options.network == "vgg16":
        model = cifar_vgg16(classes=run.classes, width=width)
    else:
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.ReLU(), nn.Linear(width, run.classes)
        )
    return Recipe(
        network=model,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=options.lr, momentum=0.9, weight_decay=1e-4),
        schedule=trainers.ReduceOnPlateau(warmup_epochs=options.warmup_epochs, patience=5, factor=0.5),
        topology=trainers.Topology(ranks_per_node=options.ranks_per_node if run.ranks > 1 else None),
    )


def _daso(p: dict[str, Any], options: Options, run: Run) -> trainers.Method:
    import trainers

    return trainers.DASO(
        sync_every=p["sync_every"],
        sync_delay=p["sync_delay"],
        warmup_epochs=options.warmup_epochs,
        cooldown_epochs=options.cooldown_epochs,
        adaptive=False,
    )


def time_and_accuracy(result: trainers.Result, steps: int) -> dict[str, float]:
    """``seconds``: those in training steps, as the lower quartile of the epochs' times their number: what else goes on
    on a machine or a network makes some epochs longer and none shorter. ``accuracy``: validation, last epoch.
    """
    totals = [0.0, *(entry["train_s"] for entry in result.history)]
    each = sorted(after - before for before, after in pairwise(totals))
    return {"seconds": each[len(each) // 4] * len(each), "accuracy": result.metrics["accuracy"]}


def steps_and_accuracy(result: trainers.Result, steps: int, *, steps_on_link: float) -> dict[str, float]:
    """``steps``: the time of a run of this many steps, in steps, where one synchronisation takes ``steps_on_link`` of
    them on the link between the nodes. S of these are hidden; at the end of an epoch, and while DASO warms up and
    cools down, none are. How many synchronisations there were is counted by the run itself; DDP has one a step.
    ``accuracy``: validation, last epoch.
    """
    waited, before = 0.0, 0.0
    for epoch, entry in enumerate(result.history, start=1):
        total = entry.get("synchronisations", steps * epoch / len(result.history))
        count, before = total - before, total
        waited += min(count, 1) * steps_on_link
        waited += max(count - 1, 0) * max(0.0, steps_on_link - entry.get("sync_delay", 0.0))
    return {"steps": steps + waited, "accuracy": result.metrics["accuracy"]}


def _judge(options: Options) -> Judge:
    if options.steps_on_link:
        return functools.partial(steps_and_accuracy, steps_on_link=options.steps_on_link)
    return time_and_accuracy


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OwnMethod(
        names=("daso",),
        parameters=tuple(space.parameters),
        make=_daso,
        constraints=[methods.one_at_a_time],
    ),
    points=[SOURCES_CHOICE],
    judge=_judge,
    objectives=lambda options: {
        "steps" if options.steps_on_link else "seconds": "minimize",
        "accuracy": "maximize",
    },
)
test_accuracy, untrained = make_task.test, make_task.untrained
task = make_task()

if __name__ == "__main__":
    sys.exit(main())
