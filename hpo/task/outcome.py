"""How an evaluation ended: what a task returns or raises, as the search sees it. No NaN gets past it."""

from __future__ import annotations

import math
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from msgspec import field
from msgspec.structs import replace

from hpo.individual import COMPLETED, FAILED, INVALID, PRUNED, STATUSES, Metric, Outcome
from hpo.task.limits import OutcomeLimits
from hpo.task.metrics import as_number, keep
from hpo.text import excerpt

_PACKAGE = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_TRAINERS = f"{Path(_PACKAGE).with_name('trainers')}{os.sep}"
_LIBRARY = re.compile(r"python3\.\d+")
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
JOULES = "joules"
"""Name of a metric that hpo measures, and of an objective that the task need not return then."""
_WIDEST = 300
"""Characters of an error's summary."""
_TRACEBACK_LIMIT = 12_000
"""Characters of a traceback that are kept: its end, where the cause stands."""


class TaskOutcome(Outcome, frozen=True, kw_only=True, array_like=True):
    """The end of one evaluation, with what the running launch alone needs to know. ValueError where a field is not what
    the end of an evaluation can hold."""

    remarks: dict[str, str] = field(default_factory=dict)
    """Sentences on metrics that are not kept whole, by name."""
    storage: bool = False
    """Whether it failed because the individual's directory could not be made or emptied, or its output file opened:
    this says nothing of the individual, which is tried again."""
    no_value: bool = False
    """Whether the task returned what is no value: however well it trained, it fails for each configuration."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"{self.status!r} is no status of an evaluation")
        if self.objectives is not None and not all(map(math.isfinite, self.objectives.values())):
            raise ValueError(f"an objective that is not finite in {self.objectives!r}")


def pruned_outcome(
    last: tuple[int, float] | None, objective: str | None, metrics: Mapping[str, Metric] = {}
) -> TaskOutcome:
    """The outcome of an evaluation that was stopped after its report ``last`` of step and value. ``objective``: name of
    the only objective, whose value a finite report is; None: there are several, and the value is a metric."""
    if last is None:
        return TaskOutcome(status=PRUNED)
    step, value = last
    kept = {**metrics, "pruned_step": step}
    if not math.isfinite(value):
        return TaskOutcome(status=PRUNED, metrics=kept)
    if objective is None:
        return TaskOutcome(status=PRUNED, metrics={**kept, "pruned_value": value})
    return TaskOutcome(status=PRUNED, objectives={objective: value}, metrics=kept)


def brief_outcome(outcome: Outcome, *, objectives: bool) -> Outcome:
    """``outcome`` without metrics, with one line of its error, and on request without ``objectives``."""
    return Outcome(
        status=outcome.status,
        objectives=outcome.objectives if objectives else None,
        error=None if outcome.status == COMPLETED else summary_line(outcome.error or ""),
        seconds=outcome.seconds,
        steps=outcome.steps,
    )


def judge(returned: object, objectives: Sequence[str]) -> TaskOutcome:
    """The outcome of a task that returned this: completed, invalid (NaN or infinite) or failed (not a fitness).

    Numbers, NumPy scalars and tensors of one element are values. A dictionary holds every objective by name;
    its other entries are metrics.
    """
    if isinstance(returned, Mapping):
        metrics: dict[str, Metric] = {}
        remarks: dict[str, str] = {}
        for name, entry in returned.items():
            if name not in objectives:
                keep(str(name), entry, metrics, remarks)
        return replace(_judge_objectives(returned, objectives), metrics=metrics, remarks=remarks)
    value = as_number(returned)
    if value is None:
        return _no_value("the task returned", returned, objectives)
    if len(objectives) > 1:
        return _no_value("the task returned the number", returned, objectives)
    return _judge_values({objectives[0]: value})


def with_limits(outcome: TaskOutcome, limits: OutcomeLimits) -> TaskOutcome:
    """``outcome``; invalid if it completed without a number that ``limits`` are about."""
    if outcome.status != COMPLETED or not (missing := limits.missing(outcome.objectives, outcome.metrics)):
        return outcome
    metrics = outcome.metrics
    given = [f"{name!r} is {excerpt(metrics[name])}" for name in missing if name in metrics]
    what = " and ".join(given) or f"the result is without {_listed(missing)}"
    error = (
        f"{what}: the task limits {'them' if len(missing) > 1 else 'it'} ({limits}). Return or log a number."
    )
    return replace(outcome, status=INVALID, objectives=None, error=_encodable(error), no_value=True)


def _judge_objectives(returned: Mapping[object, object], objectives: Sequence[str]) -> TaskOutcome:
    values: dict[str, float] = {}
    for name in objectives:
        if name not in returned:
            names = [str(key) for key in returned]
            near = get_close_matches(name, names, n=1)
            hint = f"Rename {near[0]!r} to {name!r}." if near else "Return it by that name."
            if name == JOULES:
                hint = "hpo fills it in where it can read counters that count this evaluation alone: return it here."
            error = f"the task returned a dictionary without objective {name!r} (it holds {_listed(names)}). {hint}"
            return TaskOutcome(status=FAILED, error=error, no_value=True)
        value = as_number(returned[name])
        if value is None:
            return _no_value(f"objective {name!r} is", returned[name], (name,))
        values[name] = value
    return _judge_values(values)


def _judge_values(values: dict[str, float]) -> TaskOutcome:
    bad = [f"{name!r} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if bad:
        error = (
            f"objective {' and '.join(bad)}: only finite values can be compared. The evaluation counts as invalid; "
            "return a number where it should not."
        )
        return TaskOutcome(status=INVALID, error=error)
    return TaskOutcome(status=COMPLETED, objectives=values)


def _no_value(what: str, value: object, objectives: Sequence[str]) -> TaskOutcome:
    shown = "None" if value is None else f"{_encodable(excerpt(value))} of type {type(value).__name__}"
    rule = (
        "one real number, or a dictionary that holds"
        if len(objectives) == 1
        else "a dictionary that holds all of"
    )
    error = f"{what} {shown}: return {rule} {_listed(objectives)}."
    return TaskOutcome(status=FAILED, error=error, no_value=True)


def describe_exception(error: BaseException) -> str:
    """The traceback of ``error`` without its outermost frames in this package, which do not help the user."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    frames = error.__traceback__ if frames is None else frames
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    if len(text) > _TRACEBACK_LIMIT:
        text = f"… {text[-_TRACEBACK_LIMIT:]}"
    return _encodable(text)


def summary_line(error: str) -> str:
    """The line that says what went wrong: a traceback's first line of the exception, with the place in the user's
    files; else the first line. The middle of a long line is left out: remedies stand at the end."""
    _, header, last = error.rpartition("Traceback (most recent call last):")
    lines = last.splitlines()
    found = next((line.strip() for line in lines if line.strip() and not line.startswith(" ")), "no message")
    if len(found) > _WIDEST:
        found = f"{found[: _WIDEST // 2]} … {found[3 - _WIDEST // 2 :]}"
    places = [place for place in _FRAME.findall(last) if is_users_file(place[0])] if header else []
    if places:
        path, line = places[-1]
        found += f" ({os.path.basename(path)}, line {line})"
    return _encodable(found)


def alike(line: str) -> str:
    """``line`` of an error without its numbers, which differ where the cause is the same: shapes, say."""
    return _NUMBER.sub("#", line)


def is_users_file(path: str) -> bool:
    """Whether a frame's file belongs neither to Python, nor to an installed package, nor to hpo or trainers."""
    parts = Path(path).parts
    return not (
        path.startswith((_PACKAGE, _TRAINERS, "<"))
        or {"site-packages", "dist-packages"} & {*parts}
        or any(_LIBRARY.fullmatch(part) for part in parts)
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) if names else "nothing"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates would stop the journal
