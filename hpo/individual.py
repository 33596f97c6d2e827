"""One individual: a configuration, which run of its evaluation counts, and how that ended.

Whatever carries an individual, from its proposal to the table of results, nests these three structs. A further fact of
it is a field here, and of ``hpo.journal.records`` where the journal keeps it."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

MOST_STEPS = 2**53
"""The largest number of steps that a task may report: all libraries that read a journal keep it exactly."""

CURVE_COLUMNS = ("id", "step", "value", "time")
"""First columns of a table of learning curves; one for each metric follows."""

Plain = str | int | float | bool | None
Scalar = Plain | tuple[Plain | tuple[Plain | tuple[Plain, ...], ...], ...]
"""Value of a parameter. Tuples have at most three levels, as msgspec has no recursive types."""

if TYPE_CHECKING:
    # Whoever wrote the space knows the type of each parameter: float(trial.params["lr"]) needs no cast.
    Params = dict[str, Any]
else:
    Params = dict[str, Scalar]

Metric = Plain | list[int | float]
"""Value that a task may log beside its objectives (see ``hpo.task.metrics``)."""

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
"""Statuses after which an individual is evaluated again only if it is reopened; others go on when the campaign does."""

FAILURES = FINAL - {COMPLETED, PRUNED}
"""Statuses of individuals that have ended without a result."""

FAULTS = frozenset({FAILED, INVALID, TIMEOUT})
"""Statuses that are the configuration's doing, as far as is known: its machine did not die."""

STATUSES = (COMPLETED, PRUNED, FAILED, INVALID, TIMEOUT, CRASHED, LOST, INTERRUPTED, RUNNING)

GRID = "grid"
"""The operator of an individual whose configuration is a point of a grid."""

REEVALUATION = "reevaluation"
"""The operator of an individual whose configuration was evaluated before, on purpose (``[search] reevaluate``)."""

DEFAULT, GIVEN, ENQUEUED = "default", "given", "enqueued"
"""Operators of individuals whose configuration is the task's default, is among the points of the task or the campaign
file, or came by ``hpo enqueue``."""

GIVEN_OPERATORS = frozenset({DEFAULT, GIVEN, ENQUEUED})


def make_id(island: int, worker: int, sequence: int) -> str:
    """``island-worker-sequence``: unique in its campaign, and usable as a file name."""
    return f"{island}-{worker}-{sequence}"


@lru_cache(maxsize=1024)  # the same individual is asked for several times in a row
def birthplace(identity: str) -> tuple[int, int, int]:
    """Island, worker and sequence number of an individual's id; of a known point -1, -1 and its number."""
    if is_known(identity):
        return -1, -1, int(identity.rpartition("-")[2])
    island, worker, sequence = map(int, identity.split("-"))
    return island, worker, sequence


KNOWN = "known"
"""The operator of a known point, which was evaluated elsewhere."""


def known_id(number: int) -> str:
    """The id of the campaign's known point of this number, from 1; no evaluation has such an id."""
    return f"{KNOWN}-{number}"


def is_known(identity: str) -> bool:
    return identity.startswith(f"{KNOWN}-")


class Origin(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a configuration came about."""

    operator: str = ""
    """Name of the breeder that proposed it."""
    parents: tuple[str, ...] = ()
    """Ids of the individuals that it was bred from."""
    inherits: str = ""
    """The individual from whose checkpoint it goes on training, if from any."""


class Configuration(Origin, frozen=True, kw_only=True, array_like=True):
    """Point of the search space that an individual is, made where it is proposed."""

    id: str
    """Empty for a given point that no worker has begun yet: the worker gives it an id."""
    params: Params

    @classmethod
    def of(cls, origin: Origin, *, id: str, params: dict[str, Scalar]) -> Configuration:
        return cls(id=id, params=params, **{name: getattr(origin, name) for name in Origin.__struct_fields__})


class Attempt(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One run of an individual's evaluation."""

    retries: int = 0
    """How many evaluations crashed before."""
    resumed: bool = False
    """Whether it was begun before, and may find its own checkpoint."""
    resumed_at_step: int = 0
    """The step at which it had paused and goes on, 0 in its first run."""
    reopened: int = 0
    """How often the individual had ended in a failure that was reopened."""
    contested: bool = False
    """Whether an earlier evaluation may still write into its directory, so that a copy is used."""

    @property
    def run(self) -> tuple[int, int]:
        """Number of this run, larger for later runs. A retry belongs to the same run."""
        return self.reopened, self.resumed_at_step


FIRST_ATTEMPT = Attempt()


class Outcome(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """End of one evaluation."""

    status: str
    objectives: dict[str, float] | None = None
    """Finite values by name, where it completed, or was pruned after a finite report."""
    metrics: dict[str, Metric] = {}
    error: str | None = None
    """A sentence or a traceback."""
    seconds: float = 0.0
    """Wall-clock time of the evaluation."""
    steps: int | None = None
    """The step of the last report, where it completed."""


def _nested(path: str) -> Any:
    """Read-only attribute with the value of an attribute of a nested struct."""
    return property(attrgetter(path))


class Facts:
    """Facts of an individual by their own names, for classes that nest its configuration and its attempt."""

    __slots__ = ()
    configuration: Configuration
    attempt: Attempt
    id: str = _nested("configuration.id")
    params: Params = _nested("configuration.params")
    operator: str = _nested("configuration.operator")
    parents: tuple[str, ...] = _nested("configuration.parents")
    inherits: str = _nested("configuration.inherits")
    retries: int = _nested("attempt.retries")
    resumed: bool = _nested("attempt.resumed")
    resumed_at_step: int = _nested("attempt.resumed_at_step")
    reopened: int = _nested("attempt.reopened")
    run: tuple[int, int] = _nested("attempt.run")

    @property
    def island(self) -> int:
        return birthplace(self.id)[0]

    @property
    def worker(self) -> int:
        return birthplace(self.id)[1]

    @property
    def sequence(self) -> int:
        return birthplace(self.id)[2]


class FinalFacts(Facts):
    """Facts of an individual whose outcome is nested, too."""

    __slots__ = ()
    outcome: Outcome
    status: str = _nested("outcome.status")
    objectives: dict[str, float] | None = _nested("outcome.objectives")
    metrics: dict[str, Metric] = _nested("outcome.metrics")
    error: str | None = _nested("outcome.error")


class Individual(FinalFacts, msgspec.Struct, frozen=True, kw_only=True):
    """One row of a campaign's results. Times are Unix seconds."""

    configuration: Configuration
    attempt: Attempt = FIRST_ATTEMPT
    outcome: Outcome = Outcome(status=RUNNING)
    started: float | None = None
    finished: float | None = None
    launch: int = 0
    """The number of the launch in which it was last evaluated, 0 for a known point."""
    migrations: tuple[tuple[int, int], ...] = ()
    """Its moves in order, each from an island to another."""
    breaks: tuple[str, ...] = ()
    """Limited metrics and objectives whose limits a completed individual breaks or says nothing of."""

    @property
    def fit(self) -> bool:
        """Whether it completed and keeps all limits, so that it may be the best."""
        return self.status == COMPLETED and self.objectives is not None and not self.breaks

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
