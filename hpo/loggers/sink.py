"""Protocol of sinks, which get a campaign's individuals with their curves and ends, and functions that they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from hpo.individual import COMPLETED, PRUNED, Individual, Metric, Scalar
from hpo.journal.curves import Point, Sample
from hpo.space.look_alikes import LookAlikes
from hpo.space.parameters import Parameter

# Prefixes of final values, of the host's processor, memory and GPU use, and of facts such as the status.
RESULT, SYSTEM, FACT = "result/", "system/", "hpo/"
# Metrics that a task reports keep their own names, unless these would be confused with the names above.
REPORTED = "reported/"

Rows = Iterable[tuple[dict[str, float], int, float]]
"""Numbers by name, their step, and the time in Unix seconds."""


@dataclass(frozen=True, kw_only=True)
class LoggedCampaign:
    """Facts of a campaign that a sink shows beside its individuals."""

    name: str
    key: str
    task: str
    created: float
    """Unix seconds of the campaign's beginning."""
    parameters: Mapping[str, Parameter]
    objectives: Mapping[str, str]
    """Directions by name."""
    results: tuple[str, ...] = ()
    """Names of the final numbers of all individuals so far."""


class Sink:
    """Logger with a run for each individual.

    A process may die between two calls of ``flush``; the next process then logs the same records again, and a sink must
    not show them twice. Methods may raise any exception of the sink's library; no method is called after that.
    """

    def started(self, individual: Individual) -> None:
        """Begin the run of an individual, or continue it where another attempt begins."""
        raise NotImplementedError

    def measured(self, individual: Individual, points: Sequence[Point]) -> None:
        """Log reports of an individual; with another attempt, steps begin again at a lower number."""
        self._log(individual, ((reported(point), point.step, point.time) for point in points))

    def sampled(self, individual: Individual, samples: Sequence[Sample]) -> None:
        """Log samples of processor, memory and GPU use of the individual's host."""
        began = individual.started
        self._log(
            individual,
            (
                (sampled(sample), max(0, int(sample.time - (began or sample.time))), sample.time)
                for sample in samples
            ),
        )

    def finished(self, individual: Individual) -> None:
        """End the run of an individual, which may be started again where the individual is reopened."""
        raise NotImplementedError

    def flush(self) -> None:
        """Save all that was logged, in a sink with a buffer."""

    def close(self) -> None:
        """Save all that was logged, and release files and connections."""

    def _log(self, individual: Individual, rows: Rows) -> None:
        raise NotImplementedError


def reported(point: Point) -> dict[str, float]:
    """Numbers of a report by name, the value first; no name equals that of a final number or of a sample."""
    numbers = _numbers(point.metrics, "")
    taken = (RESULT, SYSTEM, FACT, REPORTED)
    return {"value": float(point.value)} | {
        REPORTED + name if name.startswith(taken) else name: value for name, value in numbers.items()
    }


def sampled(sample: Sample) -> dict[str, float]:
    """Numbers of a sample by name."""
    names = ("cpu", "memory", "gpu", "gpu_memory")
    return {SYSTEM + name: float(value) for name in names if (value := getattr(sample, name)) is not None}


def results(individual: Individual) -> dict[str, float]:
    """Final numbers of an individual by name: metrics, and the objectives of a completed individual."""
    objectives = individual.objectives if individual.status == COMPLETED and individual.objectives else {}
    return _numbers({**individual.metrics, **objectives}, RESULT)


def distinct(name: str, legal: str, longest: int) -> str:
    """Name of at most ``longest`` characters for a sink, different for different names; ``legal``: ``name`` with the
    characters replaced that the sink does not accept."""
    # A digest of the whole name depends on nothing else, so that every process makes the same legal name.
    if legal == name and len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{legal[: longest - len(digest) - 1]}-{digest}"


def choice_text(parameter: Parameter | None, value: Scalar) -> str:
    """Value of a parameter as text that is different for each of its choices."""
    return str(value) if parameter is None else LookAlikes(parameter).text(value)


def facts(individual: Individual) -> dict[str, str]:
    """Facts of an individual, other than its parameters and numbers, as text by name; empty facts are left out."""
    found = {
        "id": individual.id,
        "status": individual.status,
        "island": str(individual.island),
        "worker": str(individual.worker),
        "operator": individual.operator,
        "parents": " ".join(individual.parents),
        "error": individual.error or "",
        "breaks": ", ".join(individual.breaks),
    }
    return {name: value for name, value in found.items() if value}


def succeeded(individual: Individual) -> bool:
    """Whether an individual completed or was pruned."""
    return individual.status in (COMPLETED, PRUNED)


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """``values`` without NaN and infinities, for sinks that cannot store them."""
    return {name: value for name, value in values.items() if isfinite(value)}


def _numbers(values: Mapping[str, Metric], prefix: str) -> dict[str, float]:
    return {
        prefix + name: float(value)
        for name, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
