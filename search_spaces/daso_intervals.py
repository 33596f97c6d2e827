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
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces.building_blocks.image_task import ImageOptions, ImageTask, Recipe, Run, untrained_of
from search_spaces.standalone import command_line

if TYPE_CHECKING:
    import trainers
    from hpo.individual import Scalar

space = hpo.SearchSpace(
    sync_every=hpo.Ordinal(1, 2, 4, 8, 16, 32),  # B
    sync_delay=hpo.Ordinal(0, 1, 2, 4, 8, 16, 32),  # S; 0 waits for the result
)

default: dict[str, Scalar] = {"sync_every": 1, "sync_delay": 0}
"""Synchronous training. The source's own choice after its grid was B = 4, S = 1."""

SOURCES_CHOICE: dict[str, Scalar] = {"sync_every": 4, "sync_delay": 1}

NETWORKS = ("resnet20", "perceptron")


def one_at_a_time(params: Mapping[str, Any]) -> bool:
    """S ≤ B: a result is merged before the next synchronisation begins."""
    return bool(params["sync_delay"] <= params["sync_every"])


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
    cools down, none are. How many synchronisations there were is counted by the run itself. ``accuracy``: validation,
    last epoch.
    """
    waited, before = 0.0, 0.0
    for entry in result.history:
        count, before = entry["synchronisations"] - before, entry["synchronisations"]
        waited += min(count, 1) * steps_on_link
        waited += max(count - 1, 0) * max(0.0, steps_on_link - entry["sync_delay"])
    return {"steps": steps + waited, "accuracy": result.metrics["accuracy"]}


def make_task(
    *,
    data: str = "digits",
    network: str = "perceptron",
    epochs: int = 8,
    batch_size: int = 8,
    validation_part: float = 0.5,
    folds: int = 0,
    augmentation: str = "none",
    precision: str = "fp32",
    loader_processes: int = 0,
    train_samples: int | None = None,
    lr: float = 0.005,
    warmup_epochs: int = 1,
    cooldown_epochs: int = 1,
    ranks_per_node: int | None = None,
    width: int = 32,
    steps_on_link: float = 8.0,
) -> ImageTask:
    """The task for these options, the ``[task_options]`` of a campaign file; see ``ImageOptions``.

    ``lr`` is for ``batch_size``; ``warmup_epochs`` and ``cooldown_epochs`` are DASO's, synchronous; ``ranks_per_node``:
    as if this many shared a node, None: as it is; ``network``: "resnet20" with ``width`` filters in its first stage, or
    "perceptron" with ``width`` units in its one hidden layer. ``steps_on_link``: 0, and time is measured; or how many
    steps a synchronisation takes on the link between the nodes, and time is counted in steps, see
    ``steps_and_accuracy``: for machines that do other things meanwhile, or where the nodes are made up. The defaults
    are a small run; jobs/daso_intervals.toml has the source's settings.
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
        check.one_of(NETWORKS, network=network)
        check.number("above 0", lambda value: value > 0, lr=lr)
        check.number("of steps, or 0 to measure time", lambda value: value >= 0, steps_on_link=steps_on_link)
        check.whole(1, width=width)
        check.whole(0, warmup_epochs=warmup_epochs, cooldown_epochs=cooldown_epochs)
        check.whole_or_none(1, ranks_per_node=ranks_per_node)
    if warmup_epochs + cooldown_epochs >= epochs:
        raise hpo.UsageError(
            f"warmup_epochs = {warmup_epochs} and cooldown_epochs = {cooldown_epochs}: must leave some of the run's "
            f"epochs = {epochs}, or B and S have no effect. Lower one of them, or raise epochs."
        )

    def recipe(p: dict[str, Any], run: Run) -> Recipe:
        import torch
        from torch import nn

        import trainers
        from search_spaces.networks.resnet import ResNet20

        model: nn.Module
        if network == "resnet20":
            model = ResNet20(classes=run.classes, width=width)
        else:
            model = nn.Sequential(
                nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.ReLU(), nn.Linear(width, run.classes)
            )
        return Recipe(
            network=model,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=1e-4),
            schedule=trainers.ReduceOnPlateau(warmup_epochs=warmup_epochs, patience=5, factor=0.5),
            method=trainers.DASO(
                sync_every=p["sync_every"],
                sync_delay=p["sync_delay"],
                warmup_epochs=warmup_epochs,
                cooldown_epochs=cooldown_epochs,
                adaptive=False,
            ),
            topology=trainers.Topology(ranks_per_node=ranks_per_node if run.ranks > 1 else None),
        )

    counted = functools.partial(steps_and_accuracy, steps_on_link=steps_on_link)
    return ImageTask(
        space,
        recipe,
        options,
        default=default,
        points=[SOURCES_CHOICE],
        constraints=[one_at_a_time],
        judge=counted if steps_on_link else time_and_accuracy,
        objectives={"steps" if steps_on_link else "seconds": "minimize", "accuracy": "maximize"},
    )


test_accuracy = command_line.tests_of(make_task)
"""As ``ImageTask.test``, with the keywords of ``make_task``."""


untrained = untrained_of(make_task)
"""untrained(params, classes=…, **keywords of make_task): the network of a configuration, untrained."""

task = make_task()

if __name__ == "__main__":
    sys.exit(command_line.main("search_spaces.daso_intervals", make_task, test_accuracy, network=untrained))
