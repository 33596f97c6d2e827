"""DASO with constant B and S, judged by time and a score: options, method and objectives of the campaigns that search
them (dissertation, section 3.3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import hpo
from search_spaces.building_blocks.methods import METHODS
from search_spaces.building_blocks.recipes import OwnMethod, Run, TrainingOptions
from search_spaces.options import FromZero, NotNegative, wrong

if TYPE_CHECKING:
    import trainers


class IntervalOptions(TrainingOptions):
    """Options beside those of the data."""

    warmup_epochs: FromZero = 1
    """Synchronous epochs of DASO at the start, and warm-up of the learning rate."""
    cooldown_epochs: FromZero = 1
    """Synchronous epochs of DASO at the end."""
    steps_on_link: NotNegative = 0.0
    """0: time is measured. Else the steps that a synchronisation takes on the link between the nodes, and time is
    counted in steps: for machines that do other things meanwhile, or where the nodes are made up.
    """

    def rules(self) -> Iterator[hpo.UsageError]:
        yield from super().rules()
        synchronous = self.warmup_epochs + self.cooldown_epochs
        if synchronous >= self.most_epochs:
            yield hpo.UsageError(
                f"warmup_epochs = {self.warmup_epochs}, cooldown_epochs = {self.cooldown_epochs}: must leave some of "
                f"the run's epochs = {self.most_epochs}, or B and S have no effect. Lower one of them, or raise epochs."
            )
        if self.steps_on_link and self.method not in ("ddp", "daso", "local-sgd"):
            yield wrong(
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


OWN_METHOD = OwnMethod(
    names=("daso",),
    parameters=tuple(METHODS["daso"].parameters),
    make=constant_intervals,
    constraints=METHODS["daso"].constraints,
)


def measured_seconds(result: trainers.Result, steps: int) -> dict[str, float]:
    """``seconds`` in training steps: the lower quartile of the epochs' times, times the number of epochs, because other
    work on a machine or a network makes some epochs longer and none shorter.
    """
    totals = [0.0, *(entry["train_s"] for entry in result.history)]
    each = sorted(after - before for before, after in pairwise(totals))
    return {"seconds": each[len(each) // 4] * len(each)}


def counted_steps(result: trainers.Result, steps: int, steps_on_link: float) -> dict[str, float]:
    """``steps``: time of a run of this many steps, in steps, if a synchronisation takes ``steps_on_link`` of them on
    the link between nodes. S of these are hidden, except at the end of an epoch and while DASO warms up and cools down.
    The run counts its synchronisations; DDP has one per step.
    """
    waited, before = 0.0, 0.0
    for epoch, entry in enumerate(result.history, start=1):
        total = entry.get("synchronisations", steps * epoch / len(result.history))
        count, before = total - before, total
        waited += min(count, 1) * steps_on_link
        waited += max(count - 1, 0) * max(0.0, steps_on_link - entry.get("sync_delay", 0.0))
    return {"steps": steps + waited}


def judge(options: IntervalOptions) -> Any:
    """The time that is measured or, with ``steps_on_link``, counted."""
    link = options.steps_on_link
    return (lambda result, steps: counted_steps(result, steps, link)) if link else measured_seconds


def directions(options: IntervalOptions, score: str = "accuracy") -> dict[str, str]:
    """Directions of ``score`` and of the time; the first says which member of the front is the campaign's best."""
    return {score: "maximize", "steps" if options.steps_on_link else "seconds": "minimize"}
