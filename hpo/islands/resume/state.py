"""The state with which a new launch goes on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpo.islands.assignment import Assignment
from hpo.islands.coordinator.tally import Tally
from hpo.journal.commands import Standing
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
class ResumeState:
    """``sequences``: by (island, worker) the number after the last on record; ``hung``: by (island, worker) the
    launch that gave its ranks up though they may run, where nothing newer of it is on record; ``populations``: by
    island, as of the end of the last launch; ``reports``: by island the latest intermediate results at rungs;
    ``resting``: pruned ones that have saved themselves and may go on; ``continued``: those whose lineages went on;
    ``known``: the number of the last known point; ``sources``: by source, how many known points count; ``saves``:
    whether an individual that was asked to has ever saved itself; ``commands``: what those on record come to;
    ``enqueued``: points of theirs that were not begun; ``codes``: by launch the hash of the task's code, where it is on
    record; ``launches``: when each began, and the time of its last record; ``repeats``: whether a configuration was
    evaluated again on purpose; ``torn``: names of the journals whose last line was cut
    off; ``ended``: ids of all that have ended; ``contested``: whether the last launch may still run;
    ``first_number``: of new individuals of any worker at least; ``leading``: of one objective loss and id of the
    best that completed; ``snapshot``: for ``hpo.islands.resume.snapshot.write_beside``, empty where that is not due."""

    keys: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    pending: list[Assignment] = field(default_factory=list)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    hung: dict[tuple[int, int], int] = field(default_factory=dict)
    populations: dict[int, Population] = field(default_factory=dict)
    reports: dict[int, deque[tuple[str, int, float]]] = field(default_factory=dict)
    resting: dict[str, Resting] = field(default_factory=dict)
    continued: set[str] = field(default_factory=set)
    known: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    saves: bool = False
    commands: Standing = field(default_factory=Standing)
    enqueued: list[Assignment] = field(default_factory=list)
    codes: dict[int, str] = field(default_factory=dict)
    launches: dict[int, tuple[float, float]] = field(default_factory=dict)
    repeats: bool = False
    torn: list[str] = field(default_factory=list)
    ended: Collection[str] = ()
    contested: bool = False
    first_number: int = 0
    leading: list[tuple[float, str]] = field(default_factory=list)
    snapshot: bytes = b""

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
        for one in self.pending:
            one.contested = True

    def leave_numbers(self) -> None:
        """New individuals of all workers get numbers that nothing on record comes near."""
        self.first_number = max(self.first_number, *self.sequences.values(), 0) + _UNRECORDED

    def avoid(self, taken: Mapping[tuple[int, int], int]) -> None:
        """Number new individuals from ``taken`` on, by (island, worker), where that is further."""
        for (island, worker), first in taken.items():
            self.sequences[island, worker] = max(first, self.sequences.get((island, worker), 0))
