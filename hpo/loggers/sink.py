"""What a logger is to the rest: a sink that gets individuals, their curves and their ends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from hpo.individual import COMPLETED, PRUNED, Individual, Metric, Scalar
from hpo.journal.curves import Point, Sample
from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Parameter

RESULT = "result/"
"""How the names of final values begin; what a task reports meanwhile has its own names."""
SYSTEM = "system/"
"""How the names of what a host did begin."""

REPORTED = "reported/"
"""Prefix of the name of a reported metric that begins like one of these."""


@dataclass(frozen=True, kw_only=True)
class LoggedCampaign:
    """What is the same for all individuals. ``key``: of this campaign and no other; ``objectives``: directions by
    name; ``results``: names of the final numbers that are known by now; ``created``: Unix seconds."""

    name: str
    key: str
    task: str
    created: float
    parameters: Mapping[str, Parameter]
    objectives: Mapping[str, str]
    results: tuple[str, ...] = ()


class Sink(Protocol):
    """Where individuals are logged, each as a run of its own.

    What was logged since the last ``flush`` may come again, from another process too, where this one died meanwhile; it
    must not be there twice then for who looks at it. Any method may raise what its library raises, and is then called
    no more."""

    def started(self, one: Individual) -> None:
        """Its evaluation has begun, or begins anew."""

    def measured(self, one: Individual, points: Sequence[Point]) -> None:
        """It reported. Steps go back where another attempt at it began."""

    def sampled(self, one: Individual, samples: Sequence[Sample]) -> None:
        """What its host did meanwhile."""

    def finished(self, one: Individual) -> None:
        """It has ended, and may be started once more where it is reopened."""

    def flush(self) -> None:
        """What was logged is where it belongs on return."""

    def close(self) -> None:
        """Flush and end."""


def reported(point: Point) -> dict[str, float]:
    """The numbers of a report by name, the value first; none has a name of a final number or of a sample."""
    numbers = _numbers(point.metrics, "")
    taken = (RESULT, SYSTEM, REPORTED)
    return {"value": float(point.value)} | {
        REPORTED + name if name.startswith(taken) else name: value for name, value in numbers.items()
    }


def sampled(sample: Sample) -> dict[str, float]:
    """The numbers of a sample by name."""
    names = ("cpu", "memory", "gpu", "gpu_memory")
    return {SYSTEM + name: float(value) for name in names if (value := getattr(sample, name)) is not None}


def results(one: Individual) -> dict[str, float]:
    """The final numbers of an individual by name: objectives, where it completed, and metrics."""
    objectives = one.objectives if one.status == COMPLETED and one.objectives else {}
    return _numbers({**one.metrics, **objectives}, RESULT)


def distinct(name: str, legal: str, longest: int) -> str:
    """``name`` where it is ``legal`` in a sink, else that with a digest of the name: two names never become one,
    whichever process writes them and in whatever order."""
    if legal == name and len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{legal[: longest - len(digest) - 1]}-{digest}"


def choice_text(parameter: Parameter | None, value: Scalar) -> str:
    """A parameter's value as text, different for each of its choices."""
    return str(value) if parameter is None else LookAlikes(parameter).text(value)


def facts(one: Individual) -> dict[str, str]:
    """What is known of an individual besides its parameters and numbers."""
    found = {
        "id": one.id,
        "status": one.status,
        "island": str(one.island),
        "worker": str(one.worker),
        "operator": one.operator,
        "parents": " ".join(one.parents),
        "error": one.error or "",
    }
    return {name: value for name, value in found.items() if value}


def succeeded(one: Individual) -> bool:
    """Whether its evaluation did what it should."""
    return one.status in (COMPLETED, PRUNED)


def seconds_since_start(one: Individual, sample: Sample) -> int:
    return max(0, int(sample.time - (one.started or sample.time)))


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Without NaN and infinities, for a sink that has none."""
    return {name: value for name, value in values.items() if isfinite(value)}


def _numbers(values: Mapping[str, Metric], prefix: str) -> dict[str, float]:
    return {
        prefix + name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
