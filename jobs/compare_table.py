"""The table that compare.py prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import hpo
from hpo.individual import COMPLETED, Individual
from hpo.search.models import pareto
from hpo.task.task import losses_of

# Measures from 0 to 1.
SHARES = ("accuracy", "top-5 accuracy", "micro-F1", "macro-F1", "mean IoU")

# Column of the baseline that others are compared with.
FULL_RANK = "full rank"

_NAMES = {"top5": "top-5 accuracy", "mae": "MAE", "macro_f1": "macro-F1"}
_BYTES = {"bytes_inside_nodes": "inside nodes", "bytes_between_nodes": "between nodes"}

# Metrics of each training of a column's test.
Trainings = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A configuration that the campaign has not evaluated, trained with other ``options`` of the task."""

    id: str
    params: Mapping[str, Any]
    options: Mapping[str, Any]


def dominates(one: Individual, other: Individual, objectives: Mapping[str, str]) -> bool:
    """Whether ``one`` is at least as good as ``other`` in all objectives, and better in one."""
    first, second = (losses_of(each.objectives or {}, objectives) for each in (one, other))
    return pareto.dominates(first, second)


def table(
    result: hpo.Result,
    columns: Mapping[str, Individual | Baseline],
    tests: Mapping[str, Any],
    what: str,
    measured: str = "value",
) -> str:
    """Configurations side by side. ``what``: name of the tested objective ``measured``. Tests of earlier versions may
    lack metrics.
    """
    counts = result.record.individuals
    completed = sum(individual.status == COMPLETED for individual in counts)
    rows = [["", *(name if one.id == name else f"{name} ({one.id})" for name, one in columns.items())]]
    names = dict.fromkeys(name for column in columns.values() for name in column.params)
    rows += [[name, *(_shown(column.params.get(name)) for column in columns.values())] for name in names]
    trainings = {name: tests[name].get("tests") or [{"test": tests[name]["test"]}] for name in columns}
    alone = result.best.value is not None
    rows += [
        _validation(name, columns, trainings, what if name == measured else None, alone=alone)
        for name in ([measured] if alone else result.best.objectives or {})
    ]
    each = [*trainings.values()]
    rows.append([f"test {what}", *(_mean(_of(one, "test"), partial(reached, what=what)) for one in each)])
    rows += _beside(each)
    full = trainings.get(FULL_RANK, ())
    rows += _difference(each, full, what)
    rows += _costs(each)
    rows += _saved(each, full)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{len(counts)} configurations evaluated, {completed} of them to the end:", ""]
    lines += ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
    times = sorted({len(test.get("tests", ())) for test in tests.values()} - {0}) or [3]
    of = "alone" if alone else _choice(result, columns["best"], columns.get("default"))
    notes = {
        f"test {what}": f"The best is chosen by validation {what} {of}; the test {what} is a mean of trainings "
        f"({' or '.join(map(str, times))}).",
        "±": "After ± stands the standard deviation over trainings; for a difference, of both sides.",
        ", all ranks": "Bytes are what all ranks together have sent in a training.",
        "traffic between": "Traffic is bytes between nodes by the seconds in training steps, not Eq. 5.9.",
        "bytes saved": "Bytes saved are 1 - bytes / bytes at full rank, measured; ECR (Eq. 5.10) estimates them.",
    }
    shown = "\n".join(lines)
    lines += ["", *(note for row, note in notes.items() if row in shown)]
    if "default" in columns and columns["best"].id == columns["default"].id:
        lines.append("The best is the default: no other configuration is chosen by that.")
    if any(isinstance(one, Baseline) and _of(trainings[name], "validation") for name, one in columns.items()):
        lines.append("A baseline's validation is that of the same trainings.")
    return "\n".join(lines)


def _choice(result: hpo.Result, best: Any, default: Any) -> str:
    """Configurations of which the best of several objectives was chosen."""
    if default is not None and dominates(best, default, result.record.objectives):
        return "among those that dominate the default there"
    return "of the whole front, of which nothing dominates a completed default there"


def _validation(
    name: str,
    columns: Mapping[str, Individual | Baseline],
    trainings: Mapping[str, Trainings],
    what: str | None,
    *,
    alone: bool,
) -> list[str]:
    """Row of an objective, from the campaign's evaluations, or from a baseline's trainings. ``what``: name of the
    objective that tests measure, else None.
    """

    def text(value: float) -> str:
        return _shown(value) if what is None else reached(value, what)

    row = [name if what is None else f"validation {what}"]
    for column, one in columns.items():
        if isinstance(one, Baseline):
            row.append(_mean(_of(trainings[column], name if what is None else "validation"), text))
        else:
            value = one.value if alone else (one.objectives or {}).get(name)
            row.append("-" if value is None else text(value))
    return row


def _beside(each: Sequence[Trainings]) -> list[list[str]]:
    """Rows of the metrics beside the score that tests measure."""
    keys = dict.fromkeys(key for one in each for training in one for key in training)
    rows = []
    for key in (key for key in keys if key.startswith("test_")):
        own = key.removeprefix("test_")
        name = _NAMES.get(own, own)
        text = partial(reached, what=name)
        rows.append([f"test {name}", *(_mean(_of(one, key), text) for one in each)])
    return rows


def _difference(each: Sequence[Trainings], full: Trainings, what: str) -> list[list[str]]:
    """Row of the test score less that of full rank, as in table 5.3; deviations of both sides add up in squares."""
    if not full:
        return []
    scale, unit = (100, " points") if what in SHARES else (1, "")

    def cell(one: Trainings) -> str:
        if one is full:
            return "-"
        own, others = _of(one, "test"), _of(full, "test")
        difference = scale * (statistics.fmean(own) - statistics.fmean(others))
        shown = f"{difference:+.2f}" if unit else f"{difference:+.4g}"
        if min(len(own), len(others)) > 1:
            deviation = scale * math.hypot(_deviation(own), _deviation(others))
            shown += f" ± {deviation:.2f}" if unit else f" ± {deviation:.4g}"
        return shown + unit

    return [[f"difference to {FULL_RANK}", *map(cell, each)]]


# Rows and columns are those of tables 4.3, 4.4, 5.1 and 5.3 of the dissertation.
def _costs(each: Sequence[Trainings]) -> list[list[str]]:
    """Rows of the costs of trainings that are not all 0, as in tables 4.3 and 5.1. The compression of AB is that of its
    last factors: the network that it leaves is whole.
    """
    ratio = ("factored_compression_ratio", "compression_ratio")
    rows = [
        ("compression", [_of(one, *ratio) for one in each], "{:.2f} : 1", False),
        ("trained parameters", [_of(one, "trainable_fraction") for one in each], "{:.2%}", False),
        *(
            (f"bytes {where}, all ranks", [_of(one, metric) for one in each], "{:.4g}", False)
            for metric, where in _BYTES.items()
        ),
        ("traffic between nodes, MB/s", [_traffic(one) for one in each], "{:.4g}", True),
        ("training, s", [_of(one, "train_s") for one in each], "{:.4g}", True),
    ]
    return [
        [name, *(_mean(one, text.format, deviation=deviation) for one in columns)]
        for name, columns, text, deviation in rows
        if any(map(any, columns))
    ]


def _traffic(trainings: Trainings) -> list[float]:
    """MB that all ranks together sent between nodes in a second of training steps. Eq. 5.9 is no rate: it divides the
    bytes of an epoch by the backward pass's part of the time.
    """
    timed = [one for one in trainings if "bytes_between_nodes" in one and one.get("train_s")]
    return [one["bytes_between_nodes"] / one["train_s"] / 1e6 for one in timed]


def _saved(each: Sequence[Trainings], full: Trainings) -> list[list[str]]:
    """Row of the saved part of the bytes that full rank sends, between nodes if it sends any there."""
    for metric in reversed(_BYTES):
        sent = _of(full, metric)
        if any(sent):
            whole = statistics.fmean(sent)
            shares = [
                [] if one is full else [1 - value / whole for value in _of(one, metric)] for one in each
            ]
            return [[f"bytes saved {_BYTES[metric]}", *(_mean(one, "{:.2%}".format) for one in shares)]]
    return []


def _of(trainings: Trainings, *metrics: str) -> list[float]:
    """First of ``metrics`` in each training that has any of them."""
    each = ([float(one[metric]) for metric in metrics if metric in one] for one in trainings)
    return [found[0] for found in each if found]


def _mean(values: Sequence[float], text: Callable[[float], str], *, deviation: bool = True) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "-"
    mean = text(statistics.fmean(values))
    return f"{mean} ± {text(_deviation(values))}" if deviation and len(values) > 1 else mean


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation; NaN if a training has diverged."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def reached(value: float, what: str) -> str:
    """A share in per cent, any other score as it is."""
    return f"{value:.2%}" if what in SHARES or what.startswith("IoU ") else f"{value:.4g}"


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
