"""The state with which a new launch goes on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpo.islands.coordinator.tally import Tally
from hpo.islands.messages import Assignment
from hpo.journal.commands import Standing
from hpo.search.population import Population

# Numbers that a launch which was thought dead may use in each worker for individuals that are not on record.
_UNRECORDED = 100


class Resting(NamedTuple):
    """A paused individual: how often it was ``reopened``, whose checkpoint it ``inherits``, and when it paused, in Unix
    seconds."""

    reopened: int
    inherits: str
    finished: float


@dataclass
class ResumeState:
    """The state with which a new launch goes on."""

    keys: set[str] = field(default_factory=set)
    """Keys of all configurations."""
    tally: Tally = field(default_factory=Tally)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    """First free number by island and worker."""
    hung: dict[tuple[int, int], int] = field(default_factory=dict)
    """Last launch that gave up ranks of a worker that may run, by island and worker, unless the worker has records of a
    later launch."""
    resting: dict[str, Resting] = field(default_factory=dict)
    """Pruned individuals that have saved themselves and may go on."""
    continued: set[str] = field(default_factory=set)
    """Individuals whose lineages went on."""
    saves: bool = False
    """Whether an individual has ever saved itself when it was asked to."""
    repeats: bool = False
    """Whether a configuration was evaluated again on purpose."""
    commands: Standing = field(default_factory=Standing)
    codes: dict[int, str] = field(default_factory=dict)
    """Hash of the task's code by launch, where it is on record."""
    launches: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Begin and time of the last record, by launch."""
    first_number: int = 0
    """Least number of new individuals of any worker."""
    pending: list[Assignment] = field(default_factory=list)
    """Unfinished individuals."""
    populations: dict[int, Population] = field(default_factory=dict)
    """Populations by island."""
    reports: dict[int, deque[tuple[str, int, float]]] = field(default_factory=dict)
    """Latest intermediate results at rungs, by island."""
    known: int = 0
    """Number of the last known point."""
    sources: Counter[str] = field(default_factory=Counter)
    """Number of known points that count, by source."""
    enqueued: list[Assignment] = field(default_factory=list)
    """Points of commands that were not begun."""
    torn: list[str] = field(default_factory=list)
    """Names of the journals whose last line was cut off."""
    ended: Collection[str] = ()
    """Ids of all individuals that have ended."""
    contested: bool = False
    """Whether the last launch may still run."""
    leading: list[tuple[float, str]] = field(default_factory=list)
    """Loss and id of the best completed individuals, where there is one objective."""

    @property
    def code(self) -> str:
        """Last hash of the task's code on record."""
        return self.codes[max(self.codes)] if self.codes else ""

    def sequence(self, island: int, worker: int) -> int:
        """First free number of a worker."""
        place = island, worker
        # Ranks that were given up may have gone on for a moment, and begun individuals that no journal names.
        unrecorded = _UNRECORDED if place in self.hung else 0
        return max(self.first_number, self.sequences.get(place, 0) + unrecorded)

    def leave_numbers(self) -> None:
        """Number new individuals of all workers far from all numbers on record."""
        self.first_number = max(self.first_number, *self.sequences.values(), 0) + _UNRECORDED

    def contest(self) -> None:
        """Avoid the directories of the last launch, which may still run: those of individuals on record, and of numbers
        that it will use."""
        self.contested = True
        self.leave_numbers()
        self.pending = [one.as_contested() for one in self.pending]

    def avoid(self, taken: Mapping[tuple[int, int], int]) -> None:
        """Number new individuals from ``taken`` on, by (island, worker), at least."""
        for (island, worker), first in taken.items():
            self.sequences[island, worker] = max(first, self.sequences.get((island, worker), 0))
