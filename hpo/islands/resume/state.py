"""The state with which a new launch goes on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpo.islands.coordinator.tally import Tally
from hpo.islands.messages import Assignment
from hpo.journal.commands import Standing
from hpo.journal.records import Hash, Id
from hpo.search.population import Population

_UNRECORDED = 100
"""Numbers of each worker that a launch which was thought dead may use for individuals that are not on record."""


class Resting(NamedTuple):
    """Of one that paused: how often it was ``reopened``, whose checkpoint it ``inherits``, and when it paused, in Unix
    seconds."""

    reopened: int
    inherits: str
    finished: float


@dataclass
class Folded:
    """Result of folding journals that the next launch needs as it is."""

    keys: set[str] = field(default_factory=set)
    """Keys of all configurations."""
    tally: Tally = field(default_factory=Tally)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number after the last on record, by island and worker."""
    hung: dict[tuple[int, int], int] = field(default_factory=dict)
    """Launch that gave up the ranks of a worker though they may run, by island and worker, where nothing newer is on
    record."""
    resting: dict[Id, Resting] = field(default_factory=dict)
    """Pruned individuals that have saved themselves and may go on."""
    continued: set[str] = field(default_factory=set)
    """Individuals whose lineages went on."""
    saves: bool = False
    """Whether an individual that was asked to has ever saved itself."""
    repeats: bool = False
    """Whether a configuration was evaluated again on purpose."""
    commands: Standing = field(default_factory=Standing)
    codes: dict[int, Hash] = field(default_factory=dict)
    """Hash of the task's code by launch, where it is on record."""
    launches: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Begin and time of the last record, by launch."""
    first_number: int = 0
    """The least number of new individuals of any worker."""

    def leave_numbers(self) -> None:
        """New individuals of all workers get numbers that nothing on record comes near."""
        self.first_number = max(self.first_number, *self.sequences.values(), 0) + _UNRECORDED


@dataclass
class ResumeState(Folded):
    """The state with which a new launch goes on."""

    pending: list[Assignment] = field(default_factory=list)
    """The unfinished individuals."""
    populations: dict[int, Population] = field(default_factory=dict)
    """Populations by island, as they were at the end of the last launch."""
    reports: dict[int, deque[tuple[str, int, float]]] = field(default_factory=dict)
    """Latest intermediate results at rungs, by island."""
    known: int = 0
    """The number of the last known point."""
    sources: Counter[str] = field(default_factory=Counter)
    """Number of known points that count, by source."""
    enqueued: list[Assignment] = field(default_factory=list)
    """Points of commands that were not begun."""
    torn: list[str] = field(default_factory=list)
    """Names of the journals whose last line was cut off."""
    ended: Collection[str] = ()
    """Ids of all that have ended."""
    contested: bool = False
    """Whether the last launch may still run."""
    leading: list[tuple[float, str]] = field(default_factory=list)
    """Loss and id of the best that completed, where there is one objective."""
    snapshot: bytes = b""
    """For ``hpo.islands.resume.snapshot.write_beside``, empty where that is not due."""

    @property
    def code(self) -> str:
        """The hash of the task's code in the last launch that has one on record."""
        return self.codes[max(self.codes)] if self.codes else ""

    def sequence(self, island: int, worker: int) -> int:
        """The first free number of a worker."""
        place = island, worker
        # Ranks that were given up may have gone on for a moment, and begun what no journal names.
        unrecorded = _UNRECORDED if place in self.hung else 0
        return max(self.first_number, self.sequences.get(place, 0) + unrecorded)

    def contest(self) -> None:
        """The last launch may still run: what it has begun, and what it will begin by numbers that are not on record,
        each in its directory."""
        self.contested = True
        self.leave_numbers()
        self.pending = [one.as_contested() for one in self.pending]

    def avoid(self, taken: Mapping[tuple[int, int], int]) -> None:
        """Number new individuals from ``taken`` on, by (island, worker), where that is further."""
        for (island, worker), first in taken.items():
            self.sequences[island, worker] = max(first, self.sequences.get((island, worker), 0))
