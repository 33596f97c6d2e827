"""A run that goes on for more epochs, or steps, than the run that was saved had."""

from __future__ import annotations

import math

from torch.optim import Optimizer

from trainers.checkpoints.contents import REMEDY, Saved
from trainers.methods.strategy import Strategy
from trainers.run.position import Length
from trainers.run.settings import Settings

_POSITIONS = 1000
"""The most steps at which learning rates are compared."""


def may_be_longer(
    saved: Saved, settings: Settings, length: Length, *, optimizer: Optimizer, strategy: Strategy, where: str
) -> tuple[str, ...]:
    """The setting, ``epochs`` or ``steps``, that may be larger than that of the ``saved`` run; none where it is not
    larger. ValueError where the steps that were taken would be others in a longer run.
    """
    name = "steps" if settings.epochs is None else "epochs"
    was, now = saved["identity"].get(name, ""), getattr(settings, name)
    if not was.isdecimal() or int(was) >= now:
        return ()
    shorter = Length(
        steps_per_epoch=length.steps_per_epoch,
        steps=int(was) * (1 if name == "steps" else length.steps_per_epoch),
        evaluate_every=length.evaluate_every,
    )
    done = saved["epoch"] * length.steps_per_epoch + saved["step"]
    why = ""
    if not _same_rates(settings, shorter, length, saved, optimizer=optimizer, done=done):
        why = f"its schedule, {type(settings.schedule).__name__}, follows the run's length"
    elif strategy.plans_ahead:
        why = "its method plans its phases over the run's length"
    elif isinstance(settings.evaluate_every, float):
        why = f"evaluate_every = {settings.evaluate_every!r} is a fraction of the run"
    elif settings.ema_decay is not None and saved["reason"]:
        why = "its weights have been replaced by their moving average (ema_decay)"
    if why:
        raise ValueError(
            f"The checkpoint in {where} is of a run of {was} {name}, which cannot go on to {now}: {why}. {REMEDY}"
        )
    return (name,)


def _same_rates(
    settings: Settings, shorter: Length, longer: Length, saved: Saved, *, optimizer: Optimizer, done: int
) -> bool:
    """Whether the schedule has the same learning rates in both runs at the steps that were taken."""
    rates = {float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups}
    for step in range(0, done, max(1, done // _POSITIONS)):
        for lr in rates:
            one, other = (
                settings.schedule.rate(
                    lr, epoch=step / run.steps_per_epoch, epochs=run.epochs, history=saved["history"]
                )
                for run in (shorter, longer)
            )
            if not math.isclose(one, other, rel_tol=1e-9):
                return False
    return True
