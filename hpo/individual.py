"""One individual: a configuration, where it came from and how its evaluation ended."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_STEPS = 2**53
"""The largest number of steps that a task may report: all libraries that read a journal keep it exactly."""

CURVE_COLUMNS = ("id", "step", "value", "time")
"""Of a table of learning curves, before those of the metrics, which are called otherwise."""

Scalar = str | int | float | bool | None

Metric = Scalar | list[int | float]
"""What a task may log beside its objectives (see ``hpo.task.metrics``)."""

RUNNING = "running"
COMPLETED = "completed"
PRUNED = "pruned"
FAILED = "failed"
INVALID = "invalid"
TIMEOUT = "timeout"
CRASHED = "crashed"
LOST = "lost"
INTERRUPTED = "interrupted"

FINAL = frozenset({COMPLETED, PRUNED, FAILED, INVALID, TIMEOUT, CRASHED})
"""Statuses after which an individual is not evaluated again unless it is reopened; the others go on when the campaign
is resumed."""

FAULTS = frozenset({FAILED, INVALID, TIMEOUT})
"""Statuses that are the configuration's doing, as far as is known: its machine did not die."""

STATUSES = (COMPLETED, PRUNED, FAILED, INVALID, TIMEOUT, CRASHED, LOST, INTERRUPTED, RUNNING)

REEVALUATION = "reevaluation"
"""The operator of an individual whose configuration was evaluated before, on purpose (``[search] reevaluate``)."""

ENQUEUED = "enqueued"
"""The operator of an individual whose configuration was given by ``hpo enqueue``."""


def make_id(island: int, worker: int, sequence: int) -> str:
    """``island-worker-sequence``: where an individual was bred, unique in its campaign and usable as a file
    name."""
    return f"{island}-{worker}-{sequence}"


KNOWN = "known"
"""The operator of a known point, which was evaluated elsewhere."""


def known_id(number: int) -> str:
    """The id of the campaign's known point of this number, from 1; no evaluation has such an id."""
    return f"{KNOWN}-{number}"


def is_known(identity: str) -> bool:
    """Whether the id is that of a known point."""
    return identity.startswith(f"{KNOWN}-")


@dataclass
class Individual:
    """One row of a campaign's results. Times are Unix seconds; ``objectives`` is None unless completed (or
    pruned). ``inherits``: the individual from whose checkpoint it went on, if from any; ``launch``: the number of the
    launch in which it was last evaluated, 0 for a known point."""

    id: str
    island: int
    worker: int
    sequence: int
    params: dict[str, Scalar]
    status: str = RUNNING
    objectives: dict[str, float] | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    started: float | None = None
    finished: float | None = None
    operator: str = "random"
    parents: tuple[str, ...] = ()
    migrations: tuple[tuple[int, int], ...] = ()
    retries: int = 0
    error: str | None = None
    inherits: str = ""
    launch: int = 0

    @property
    def value(self) -> float | None:
        """The only objective's value; None when there is none yet or when there are several."""
        if self.objectives is None or len(self.objectives) != 1:
            return None
        return next(iter(self.objectives.values()))

    @property
    def seconds(self) -> float | None:
        """Wall-clock seconds of the evaluation, None until it has finished."""
        return None if self.started is None or self.finished is None else self.finished - self.started
