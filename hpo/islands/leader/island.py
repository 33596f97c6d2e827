"""Records of a leader's worker and of its island."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hpo.config.layout import WorkerPlacement
from hpo.islands.leader.migration import Migration
from hpo.search.early_stopping import Pruner
from hpo.search.population import Population
from hpo.search.proposals import Proposals
from hpo.search.protocols import Breeder, Candidate, Codec, Crew, Journal
from hpo.task.trial import Job


class JobMaker(Protocol):
    """Makes jobs of candidates, and keeps their directories."""

    def __call__(self, candidate: Candidate) -> Job:
        """The job for the crew; OSError where the directory cannot be made for now."""

    def forget(self, identity: str) -> None:
        """The checkpoints of this individual are not needed any more."""


@dataclass(frozen=True, kw_only=True)
class OwnWorker:
    """The leader's own worker. ``signalled``: whether this process has received a signal to stop, which the coordinator
    may not have answered yet."""

    place: WorkerPlacement
    crew: Crew
    jobs: JobMaker
    journal: Journal
    signalled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, kw_only=True)
class IslandSearch:
    """Individuals that the leader knows of its island, and its means of search there."""

    space: Codec
    breeder: Breeder
    proposals: Proposals
    population: Population
    early_stopping: Pruner
    migration: Migration
