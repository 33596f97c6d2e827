"""Campaigns as text for a person to read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.individual import Individual

if TYPE_CHECKING:
    from hpo.results import CampaignRecord


def status(record: CampaignRecord, status: Mapping[str, Any]) -> str:
    """What ``hpo status`` prints: ``status``, as ``hpo status --json`` has it, and whether somebody is at work."""
    counts = {name: count for name, count in status["evaluations"].items() if count}
    lines = [
        ("directory", str(record.directory)),
        ("state", _state(record)),
        ("evaluations", ", ".join(f"{count} {name}" for name, count in counts.items()) or "none yet"),
        ("running", str(status["running"])),
        ("budget", _budget(status["budget"])),
        ("islands, workers", f"{status['islands']}, {status['workers']}"),
        ("best", _best(status["best"])),
        ("started", _when(status["started"])),
        ("last record", _when(status["updated"])),
    ]
    if not record.alive:  # else it is being written
        lines += [
            ("torn", f"the last line of {path.name} was cut off and is left out") for path in record.torn
        ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _state(record: CampaignRecord) -> str:
    if record.alive:
        return "at work"
    if record.ended is None:
        return "cut off: its processes ended before the campaign did. The same `hpo run` goes on"
    reason, code = record.ended
    return f"{reason}. The same `hpo run` goes on" if code else reason


def _budget(budget: Mapping[str, Any]) -> str:
    parts = []
    if budget.get("evaluations") is not None:
        parts.append(f"{budget['evaluations']} evaluations")
    if budget.get("deadline") is not None:
        parts.append(f"deadline {budget['deadline']}")
    return ", ".join(parts) or "unknown"


def _best(best: Mapping[str, Any] | None) -> str:
    return "none yet" if not best else f"{best['value']} by {best['id']}: {params(best['params'])}"


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def params(values: Mapping[str, object]) -> str:
    """A configuration on one line."""
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def best(directory: Path, individuals: Sequence[Individual]) -> str:
    """One block an individual: its value and its parameters in full."""
    if not individuals:
        return f"{directory}: no evaluation has completed yet"
    blocks = []
    for one in individuals:
        values = ", ".join(f"{name} = {value!r}" for name, value in (one.objectives or {}).items())
        rows = [f"{one.id}: {values}"]
        width = max((len(name) for name in one.params), default=0)
        rows += [f"    {name:<{width}} = {value!r}" for name, value in one.params.items()]
        blocks.append("\n".join(rows))
    return "\n".join(blocks)
