"""A leader's worker, its island, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hpo.config.layout import WorkerPlacement
from hpo.individual import Scalar
from hpo.islands.leader.migration import Migration, MigrationSettings
from hpo.search.early_stopping import Pruner, Steps
from hpo.search.population import Population
from hpo.search.proposals import Proposals
from hpo.search.protocols import Breeder, Candidate, Codec, Crew, Journal
from hpo.search.stopping_rules import PruningSettings
from hpo.task.limits import UNLIMITED, OutcomeLimits
from hpo.task.trial import Job


class JobMaker(Protocol):
    """Makes a job of a candidate (OSError where its directory cannot be made for now), and removes the checkpoints of
    individuals."""

    def __call__(self, candidate: Candidate) -> Job: ...
    def forget(self, identity: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OwnWorker:
    """The leader's worker. ``signalled``: whether this process has received a signal to stop, which the coordinator may
    not have answered yet."""

    place: WorkerPlacement
    crew: Crew
    jobs: JobMaker
    journal: Journal
    signalled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class IslandSearch:
    """The leader's knowledge of its island, and its means of search."""

    space: Codec
    breeder: Breeder
    proposals: Proposals
    population: Population
    early_stopping: Pruner
    migration: Migration


@dataclass(frozen=True, kw_only=True)
class LeaderSettings:
    """Settings of the campaign and of its task that leaders follow."""

    seed: int
    losses: Callable[[dict[str, float]], tuple[float, ...]]
    """Converts objectives by name to numbers to be minimised."""
    allows: Callable[[dict[str, Scalar]], bool]
    """The task's constraints."""
    migration: MigrationSettings
    retries: int
    """Number of further attempts at an individual that crashed."""
    duplicates: bool
    durable_starts: bool
    """Whether starts are put on disk, so that an interrupted evaluation goes on under its id: not worth it for
    functions of microseconds."""
    grace_s: float
    """Seconds in which running evaluations may save themselves when the launch stops."""
    keep: int
    """Number of the best individuals that keep their checkpoints."""
    pruning: PruningSettings | None
    steps: Steps
    """Number of steps of a whole run with given parameters, None where it is not known."""
    reported: str | None
    """The only objective, which reports give the value of; None where there are several."""
    sign: float
    """-1 where larger reports are better."""
    reference: tuple[float, ...] | None
    """Losses beyond which nothing is wanted, where there are several objectives."""
    limits: OutcomeLimits = UNLIMITED
    """The task's limits of outcomes."""
