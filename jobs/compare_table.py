"""The table that compare.py prints."""

from __future__ import annotations

import os
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpo
from hpo.individual import COMPLETED, Individual

SHARES = ("accuracy", "micro-F1")
"""Measures from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A configuration that the campaign has not evaluated, trained by another method."""

    id: str
    params: Mapping[str, Any]
    value: float | None = None
    objectives: Mapping[str, float] | None = None


def table(
    result: hpo.Result, columns: Mapping[str, Individual | Baseline], tests: Mapping[str, Any], what: str
) -> str:
    """The configurations side by side, with ``what`` they reach, as ``measure`` names it."""
    counts = result.record.individuals
    completed = sum(one.status == COMPLETED for one in counts)
    rows = [
        ["", *(name if isinstance(one, Baseline) else f"{name} ({one.id})" for name, one in columns.items())]
    ]
    names = dict.fromkeys(name for one in columns.values() for name in one.params)
    rows += [[name, *(_shown(one.params.get(name)) for one in columns.values())] for name in names]
    if result.best.value is None:
        for name in result.best.objectives or {}:
            rows.append([name, *(_shown((one.objectives or {}).get(name)) for one in columns.values())])
    else:
        rows.append(
            [
                f"validation {what}",
                *("-" if one.value is None else reached(one.value, what) for one in columns.values()),
            ]
        )
    rows.append([f"test {what}", *(_mean_and_deviation(tests[name], what) for name in columns)])
    rows += _costs([tests[name] for name in columns])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"{len(counts)} configurations evaluated, {completed} of them to the end:", ""]
    lines += ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.append("")
    by = "alone" if result.best.value is not None else "among those that dominate the default there"
    times = {len(one.get("tests", ())) for one in tests.values()} - {0}
    trainings = "three" if times <= {3} else " or ".join(map(str, sorted(times)))
    lines.append(
        f"The best is chosen by validation {what} {by}; the test {what} is the mean of {trainings} "
        f"training{'' if trainings == '1' else 's'}."
    )
    return "\n".join(lines)


def _mean_and_deviation(found: Mapping[str, Any], what: str) -> str:
    each = [float(one["test"]) for one in found.get("tests", ())]
    mean = reached(float(found["test"]), what)
    return f"{mean} ± {reached(statistics.stdev(each), what)}" if len(each) > 1 else mean


def _costs(tests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows of what the test's trainings took, in the mean, as tables 4.3 and 5.1 of the dissertation have them; those
    that say something of all columns. The compression of AB is that of its last factors: the network that it leaves
    is whole.
    """
    shown = {
        "compression": (("factored_compression_ratio", "compression_ratio"), "{:.2f} : 1"),
        "trained parameters": (("trainable_fraction",), "{:.2%}"),
        "bytes a rank, in nodes": (("bytes_inside_nodes",), "{:.4g}"),
        "bytes a rank, between": (("bytes_between_nodes",), "{:.4g}"),
        "training, s": (("train_s",), "{:.4g}"),
    }
    rows = []
    for name, (metrics, text) in shown.items():
        each = [_first_of(metrics, found.get("tests", ())) for found in tests]
        if all(each) and any(any(one) for one in each):
            rows.append([name, *(text.format(statistics.fmean(one)) for one in each)])
    return rows


def _first_of(metrics: Sequence[str], trainings: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each training the first of ``metrics`` that it has, if it has one."""
    each = ([float(one[metric]) for metric in metrics if metric in one] for one in trainings)
    return [found[0] for found in each if found]


def reached(value: float, what: str) -> str:
    """A share of what is right in per cent; all else as it is."""
    return f"{value:.2%}" if what in SHARES else f"{value:.4g}"


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def places(file: Path, directory: Path) -> str:
    """Where the campaign's files lie, and how to look further."""
    hpo_command = shlex.quote(os.path.relpath(Path(sys.executable).with_name("hpo")))
    entries = [
        (f"{directory}/", "the campaign"),
        (f"{directory}/journal/", "every evaluation, one JSON line a record"),
        (f"{directory}/evaluations/", "checkpoints of the best, and what evaluations printed, if they did"),
        (f"{directory}/test/", "the test results above"),
        (f"{hpo_command} status {directory}", "how it stands; --json for programs"),
        (f"{hpo_command} best {directory} --top 5", "the best five"),
        (f"{hpo_command} export {directory} {directory}.csv", "all as a table; .parquet and .json too"),
        (f"{hpo_command} run {file}", "goes on, once evaluations = … in the file is larger"),
    ]
    width = max(len(place) for place, _ in entries)
    return "\n".join(f"{place:<{width}}  {what}" for place, what in entries)
