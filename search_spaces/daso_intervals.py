"""DASO's B and S, how often nodes synchronise and how late they merge, with two objectives: time and accuracy
(dissertation, section 3.3.1, tables 3.1 and 3.2; evolution in place of its grid is proposed in 6.5 and 7.1).

    hpo run jobs/daso_intervals_small.toml                  a small search on data that a package ships
    sbatch jobs/slurm.sbatch jobs/daso_intervals.toml       on CIFAR-10, four nodes an individual
    torchrun --nproc-per-node 2 -m search_spaces.daso_intervals --ranks-per-node 1 --sync-every 8

    hpo best DIR --top 10                                   the front of time and accuracy
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import hpo
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.daso_intervals import OWN_METHOD, IntervalOptions, directions, judge
from search_spaces.building_blocks.image_task import ImageOptions, Recipe, Run, image_campaign
from search_spaces.options import Count, NotNegative, Positive, wrong

if TYPE_CHECKING:
    from torch import nn

space = hpo.SearchSpace(methods.METHODS["daso"].parameters)

# Synchronous training. After its grid the source chose B = 4, S = 1.
default: dict[str, Any] = {"sync_every": 1, "sync_delay": 0}

SOURCES_CHOICE = methods.METHODS["daso"].default


class Options(ImageOptions, IntervalOptions):
    """The defaults are a small run; jobs/daso_intervals.toml has the source's optimizer, schedule and epochs."""

    network: Literal["resnet20", "resnet50", "vgg16", "perceptron"] = "perceptron"
    """resnet20, resnet50 or vgg16 with width filters in its first stage, or perceptron with width units in its one
    hidden layer. A ResNet-20 has 1 MB of gradients, a VGG16 59 MB, a ResNet-50 of width 64 94 MB.
    """
    epochs: Count = 8
    batch_size: Count = 8
    method: methods.MethodName = "daso"
    lr: Positive = 0.005
    """Learning rate for batch_size."""
    width: Count = 32
    steps_on_link: NotNegative = 8.0

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        perceptron = self.architecture == "source" and self.network == "perceptron"
        if perceptron and self.method in ("oialr", "ab", "ab-no-groups"):
            rule = f"resnet20, resnet50 or vgg16 with method = {self.method!r}, which factors no layer of a perceptron"
            yield wrong("network", self.network, rule)


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
    )


make_task, main = image_campaign(
    space,
    default,
    recipe,
    options=Options,
    own=OWN_METHOD,
    points=[SOURCES_CHOICE],
    judge=judge,
    objectives=directions,
)
task = make_task()
test_accuracy, untrained = make_task.test, make_task.untrained

if __name__ == "__main__":
    sys.exit(main())
