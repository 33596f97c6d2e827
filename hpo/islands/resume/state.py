"""The state with which a new launch goes on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from hpo.islands.coordinator.tally import Tally
from hpo.islands.messages import Assignment
from hpo.search.population import Population, TaskResult


class Resting(NamedTuple):
    """A paused individual: how often it was ``reopened``, whose checkpoint it ``inherits``, and when it paused, in Unix
    seconds."""

    reopened: int
    inherits: str
    finished: float


class LaunchSpan(NamedTuple):
    """Time at work of a launch."""

    began: float
    """Unix seconds."""
    updated: float
    """Time of its last record, in Unix seconds."""
    workers: int = 0
    """Number of its workers; 0 where it died before that was written."""


@dataclass
class ResumeState:
    """The state with which a new launch goes on."""

    keys: set[str] = field(default_factory=set)
    """Keys of all configurations."""
    tally: Tally = field(default_factory=Tally)
    begun: dict[int, int] = field(default_factory=dict)
    """Number of individuals by the island where they were bred."""
    resting: dict[str, Resting] = field(default_factory=dict)
    """Pruned individuals that have saved themselves and may go on."""
    continued: set[str] = field(default_factory=set)
    """Individuals whose lineages went on."""
    saves: bool = False
    """Whether an individual has ever saved itself when it was asked to."""
    repeats: bool = False
    """Whether a configuration was evaluated again on purpose."""
    codes: dict[int, str] = field(default_factory=dict)
    """Hash of the task's code by launch, where it is on record."""
    launches: dict[int, LaunchSpan] = field(default_factory=dict)
    """Earlier launches by number."""
    pending: list[Assignment] = field(default_factory=list)
    """Unfinished individuals."""
    populations: dict[int, Population] = field(default_factory=dict)
    """Populations by island."""
    reports: dict[int, list[tuple[str, int, float]]] = field(default_factory=dict)
    """Latest intermediate results at rungs, by island."""
    known: int = 0
    """Number of the last known point."""
    sources: dict[str, int] = field(default_factory=dict)
    """Number of known points that count, by source."""
    tasks: dict[str, dict[str, TaskResult]] = field(default_factory=dict)
    """Results of other tasks by source, then by the key of the configuration."""
    torn: list[str] = field(default_factory=list)
    """Names of the journals whose last line was cut off."""
    ended: Collection[str] = ()
    """Ids of all individuals that have ended."""
    failed: Collection[str] = ()
    """Ids of those that ended in a failure."""
    leading: list[tuple[float, str]] = field(default_factory=list)
    """Loss and id of the best completed individuals, where there is one objective."""

    @property
    def code(self) -> str:
        """Last hash of the task's code on record."""
        return self.codes[max(self.codes)] if self.codes else ""
