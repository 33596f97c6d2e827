"""DASO with constant B and S, judged by time and accuracy: options, method and objectives of the campaigns that search
them (dissertation, section 3.3.1). torch is imported by what trains.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces import options as check
from search_spaces.building_blocks import methods
from search_spaces.building_blocks.architecture_search.deep_network import ArchitectureOptions
from search_spaces.building_blocks.recipes import OwnMethod, Run
from search_spaces.options import FromZero, NotNegative

if TYPE_CHECKING:
    import trainers
    from search_spaces.building_blocks.campaign import Judge


class IntervalOptions(ArchitectureOptions):
    """Beside the options of the data."""

    warmup_epochs: FromZero = 1
    """DASO's, synchronous, and the learning rate's."""
    cooldown_epochs: FromZero = 1
    """DASO's, synchronous."""
    steps_on_link: NotNegative = 0.0
    """0, and time is measured; or how many steps a synchronisation takes on the link between the nodes, and time is
    counted in steps: for machines that do other things meanwhile, or where the nodes are made up.
    """

    def rules(self) -> None:
        super().rules()
        if self.warmup_epochs + self.cooldown_epochs >= self.most_epochs:
            raise hpo.UsageError(
                f"warmup_epochs = {self.warmup_epochs} and cooldown_epochs = {self.cooldown_epochs}: must leave some "
                f"of the run's epochs = {self.most_epochs}, or B and S have no effect. Lower one of "
                "them, or raise epochs."
            )
        if self.steps_on_link and self.method not in ("ddp", "daso", "local-sgd"):
            check.refuse(
                "steps_on_link", self.steps_on_link, f"0, to measure time, with method = {self.method!r}"
            )


def constant_intervals(p: dict[str, Any], options: IntervalOptions, run: Run) -> trainers.Method:
    """DASO whose B and S stay as they are between warm-up and cool-down."""
    import trainers

    return trainers.DASO(
        sync_every=p["sync_every"],
        sync_delay=p["sync_delay"],
        warmup_epochs=options.warmup_epochs,
        cooldown_epochs=options.cooldown_epochs,
        adaptive=False,
    )


def searched() -> OwnMethod[Any]:
    """The method of a campaign whose parameters are those of ``constant_intervals``."""
    return OwnMethod(
        names=("daso",),
        parameters=tuple(methods.parameters("daso")),
        make=constant_intervals,
        constraints=[methods.one_at_a_time],
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


def time_and_score(options: IntervalOptions) -> Judge:
    """What of a result counts."""
    if options.steps_on_link:
        return functools.partial(steps_and_accuracy, steps_on_link=options.steps_on_link)
    return time_and_accuracy


def directions(options: IntervalOptions) -> dict[str, str]:
    """The two objectives, and their directions; the first says which of the front is the campaign's best."""
    return {"accuracy": "maximize", "steps" if options.steps_on_link else "seconds": "minimize"}
