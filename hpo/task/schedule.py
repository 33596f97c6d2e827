"""Training of a schedule, such as population-based training finds, in one evaluation: each interval begins from the
checkpoint of the interval before it."""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpo.errors import Interrupted, UsageError
from hpo.space.space import Params

if TYPE_CHECKING:
    from hpo.task.task import Task
    from hpo.task.trial import Trial

_PROGRESS = "schedule.json"


class _Progress(msgspec.Struct, frozen=True):
    """Intervals that an evaluation has behind it."""

    intervals: int = 0
    """Number of intervals that ended."""
    steps: int = 0
    """Last step that was reported in them."""


def scheduled(task: Task, schedule: Sequence[Mapping[str, object]]) -> Task:
    """``task`` whose evaluations train all intervals of ``schedule`` in turn; ``task`` itself without any.

    The first entry of ``schedule`` is the configuration that is evaluated first, each later entry what changes in its
    interval. UsageError where an interval has no allowed configuration.
    """
    if not schedule:
        return task
    own = copy.copy(task)
    vars(own).pop("first", None)
    if own.source is not None:
        own.source = replace(own.source, schedule=tuple(schedule))
    own.points, own.schedule = (), tuple(dict(changes) for changes in schedule)
    # As stated by the task, these are the steps of one interval.
    own.steps = None
    params: Params = {}
    for number in range(len(schedule)):
        params = _changed(own, params, number)
        if not task.allows(params):
            raise UsageError(
                f"schedule, interval {number + 1}: a constraint refuses {params}. Change one of them."
            )
        own.default = own.default if number else params
    return own


def train(task: Task, trial: Trial) -> object:
    """Evaluate ``trial`` by all intervals of the task's schedule; returns what the last one returns.

    The last interval saves into the trial's own directory, where whatever reads results looks for a model; each earlier
    interval into a directory ``interval-N`` in there, which is removed when it is needed no more. An interrupted
    evaluation goes on in the interval in which it was.
    """
    home, params = trial.directory, task.space.validate(trial.params)
    progress, seed, last = _progress(home), trial.seed, len(task.schedule)
    steps = progress.steps
    for number in range(last):
        params = _changed(task, params, number) if number else params
        if number < progress.intervals:
            continue
        # All ranks get the same answer, those too that read the progress later than others.
        if number and trial.should_checkpoint():
            raise Interrupted("between two intervals of a schedule")
        trial._begin_interval(
            task.space.as_given(params),
            directory=home if number + 1 == last else home / f"interval-{number + 1}",
            parent=home / f"interval-{number}" if number else None,
            seed=random.Random(f"{seed}/interval-{number + 1}").getrandbits(63),
            steps=steps,
            last=number + 1 == last,
        )
        returned = task.evaluate(trial)
        steps = max(steps, trial.last_report[0] if trial.last_report else 0)
        if trial.rank == 0 and number + 1 < last:
            _keep(home, _Progress(number + 1, steps))
            shutil.rmtree(home / f"interval-{number - 1}", ignore_errors=True)
    for done in home.glob("interval-*") if trial.rank == 0 else ():
        shutil.rmtree(done, ignore_errors=True)
    return returned


def _changed(task: Task, params: Params, number: int) -> Params:
    """Configuration of the interval ``number``, from 0, after one with ``params``; UsageError where it is not
    allowed."""
    space, changes = task.space, task.schedule[number]
    chosen: dict[str, object] = {}
    for name in space.order:
        if name in changes:
            with suppress(ValueError):
                chosen[name] = space.parameters[name].canonical(changes[name])
        # A parameter that the changes have ended is left out.
        elif name in params and space.exists(name, chosen):
            chosen[name] = params[name]
    try:
        return space.validate({**chosen, **changes})
    except UsageError as error:
        lines = str(error).splitlines()
        raise UsageError("\n".join(f"schedule, interval {number + 1}: {line}" for line in lines)) from None


def _progress(home: Path) -> _Progress:
    try:
        return msgspec.json.decode((home / _PROGRESS).read_bytes(), type=_Progress)
    except FileNotFoundError:
        return _Progress()


def _keep(home: Path, progress: _Progress) -> None:
    partial = home / f"{_PROGRESS}.partial"
    partial.write_bytes(msgspec.json.encode(progress))
    os.replace(partial, home / _PROGRESS)
