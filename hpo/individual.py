"""One individual: a configuration, which run of its evaluation counts, and how that ended.

Whatever carries an individual, from its proposal to the table of results, nests these three structs. A further fact of
it is a field here, and of ``hpo.journal.records`` where the journal keeps it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

MOST_STEPS = 2**53
"""The largest number of steps that a task may report: all libraries that read a journal keep it exactly."""

CURVE_COLUMNS = ("id", "step", "value", "time")
"""Of a table of learning curves, before those of the metrics, which are called otherwise."""

Scalar = str | int | float | bool | None

if TYPE_CHECKING:
    # Whoever wrote the space knows the type of each parameter: float(trial.params["lr"]) needs no cast.
    Params = dict[str, Any]
else:
    Params = dict[str, Scalar]

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
    """Whether the id is that of a known point."""
    return identity.startswith(f"{KNOWN}-")


class Origin(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How a configuration came about."""

    operator: str = ""
    """The name of what proposed it."""
    parents: tuple[str, ...] = ()
    """Ids of the individuals that it was bred from."""
    inherits: str = ""
    """The individual from whose checkpoint it goes on training, if from any."""


class Configuration(Origin, frozen=True, kw_only=True, array_like=True):
    """The point of the search space that an individual is, made once, where it is proposed."""

    id: str
    """Empty for a given point that no worker has begun: it takes the id of the individual in whose place it is put."""
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
    """Whether what evaluated it before may still run and write into its directory, so that a copy is used."""

    @property
    def run(self) -> tuple[int, int]:
        """The number of this run: later ones are larger. A retry belongs to the same run."""
        return self.reopened, self.resumed_at_step


FIRST_ATTEMPT = Attempt()


class Outcome(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The end of one evaluation, made once, from what the task gave."""

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


class Facts:
    """The facts of an individual by their own names, for whatever nests its configuration and its attempt."""

    __slots__ = ()
    configuration: Configuration
    attempt: Attempt

    @property
    def id(self) -> str:
        return self.configuration.id

    @property
    def island(self) -> int:
        return birthplace(self.configuration.id)[0]

    @property
    def worker(self) -> int:
        return birthplace(self.configuration.id)[1]

    @property
    def sequence(self) -> int:
        return birthplace(self.configuration.id)[2]

    @property
    def params(self) -> Params:
        return self.configuration.params

    @property
    def operator(self) -> str:
        return self.configuration.operator

    @property
    def parents(self) -> tuple[str, ...]:
        return self.configuration.parents

    @property
    def inherits(self) -> str:
        return self.configuration.inherits

    @property
    def retries(self) -> int:
        return self.attempt.retries

    @property
    def resumed(self) -> bool:
        return self.attempt.resumed

    @property
    def resumed_at_step(self) -> int:
        return self.attempt.resumed_at_step

    @property
    def reopened(self) -> int:
        return self.attempt.reopened

    @property
    def run(self) -> tuple[int, int]:
        return self.attempt.run


class FinalFacts(Facts):
    """The same, where an outcome is nested, too."""

    __slots__ = ()
    outcome: Outcome

    @property
    def status(self) -> str:
        return self.outcome.status

    @property
    def objectives(self) -> dict[str, float] | None:
        return self.outcome.objectives

    @property
    def metrics(self) -> dict[str, Metric]:
        return self.outcome.metrics

    @property
    def error(self) -> str | None:
        return self.outcome.error


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
