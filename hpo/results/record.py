"""What the journals of a campaign say: its individuals, its launches, and whether it runs, has ended or was killed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpo.individual import FINAL, KNOWN, LOST, RUNNING, Individual, known_id
from hpo.journal import directory as directories
from hpo.journal import records as journal


@dataclass(kw_only=True)
class Leg:
    """One launch of the campaign, from its header to its last record in Unix seconds."""

    number: int
    started: float
    updated: float
    launched: Mapping[str, Any] = field(default_factory=dict)
    """The fields of its ``launched`` record; empty if the launch died before that was written."""
    stopping: str | None = None
    """Why it begins nothing more; None until then."""
    ended: tuple[str, int] | None = None
    """Reason and exit code; None if it is running or was killed."""


@dataclass(frozen=True, kw_only=True)
class CampaignRecord:
    """All that a campaign's directory tells; times are Unix seconds, None before the first leg."""

    directory: Path
    identity: directories.Identity
    individuals: list[Individual]
    """In the order in which their last evaluations started."""
    known: list[Individual] = field(default_factory=list)
    """What was known before: no evaluations of this campaign, and of no island. ``metrics`` tell whence."""
    legs: list[Leg]
    torn: list[Path]
    """Journals whose last line was cut off and is left out."""
    seconds: float
    """How long the campaign has been at work, all legs together."""
    alive: bool
    """Whether a campaign is at work in the directory now."""

    @property
    def objectives(self) -> dict[str, str]:
        """Name to direction ("minimize", "maximize"), in the task's order."""
        return dict(self.identity.get("objectives") or {"value": "minimize"})

    @property
    def reference(self) -> dict[str, float]:
        """The reference point of the last launch, by objective; empty where none was given."""
        return dict(self.legs[-1].launched.get("reference") or {}) if self.legs else {}

    @property
    def started(self) -> float | None:
        return self.legs[0].started if self.legs else None

    @property
    def updated(self) -> float | None:
        """Time of the last record."""
        return max((leg.updated for leg in self.legs), default=None)

    @property
    def ended(self) -> tuple[str, int] | None:
        """Reason and exit code of the last leg; None if it is running or was killed."""
        return self.legs[-1].ended if self.legs else None


class _Fold:
    """The state of a campaign after the records so far."""

    def __init__(self) -> None:
        self.legs: dict[int, Leg] = {}
        self.final: dict[str, Individual] = {}
        # Not (yet) final, with leg and time of the record: a later one replaces it.
        self.open: dict[str, tuple[tuple[int, float], Individual]] = {}
        # By (hop, time, source, target): a leader's word may come before that of the leader it had it from.
        # Of those that were promoted, the steps at which that was last.
        self.turns: dict[str, int] = {}
        self.moves: dict[str, set[tuple[int, float, int, int]]] = {}
        self.known: dict[int, Individual] = {}

    def add(self, records: Iterable[journal.Record]) -> None:
        leg = Leg(number=0, started=0.0, updated=0.0)
        for record in records:
            kind = record["type"]
            now = record["finished"] if kind == "finished" else record.get("time", leg.updated)
            if kind == "finished" or kind == "started":
                self._evaluation(record, kind, (leg.number, now))
            elif kind == "migrated":
                move = (record["hop"], now, record["source"], record["target"])
                self.moves.setdefault(record["id"], set()).add(move)
            elif kind == "header":
                number = record["leg"]
                leg = self.legs.setdefault(number, Leg(number=number, started=now, updated=now))
                leg.started = min(leg.started, now)
            elif kind == "launched":
                leg.launched = record
            elif kind == "known":
                self.known.setdefault(record["number"], _known(record))
            elif kind == "stopping":
                leg.stopping = record["reason"]
            elif kind == "ended":
                leg.ended = (record["reason"], record["exit"])
            if now > leg.updated:
                leg.updated = now

    def _evaluation(self, record: journal.Record, kind: str, at: tuple[int, float]) -> None:
        name = record["id"]
        # What is final stays: a second end can only be that of an evaluation that was thought lost, unless it had
        # paused and was promoted. Files are in no order of time, so those evaluations are numbered.
        turn = record.get("promoted", 0)
        first = self.final.get(name) or self.open.get(name, (None, None))[1]
        known = self.turns.get(name, 0)
        if turn < known or (turn == known and name in self.final):
            if turn < known and first is not None:
                first.operator, first.parents = record["operator"], tuple(record["parents"])
            return
        if turn:
            self.turns[name] = turn
        individual = Individual(
            name,
            record["island"],
            record["worker"],
            record["sequence"],
            record["params"],
            operator=record["operator"],
            parents=tuple(record["parents"]),
            retries=record["retries"],
            inherits=record.get("inherits", ""),
        )
        if turn > known and first is not None:
            individual.operator, individual.parents = first.operator, first.parents
            self.final.pop(name, None)
        if kind == "started":
            individual.started = record["time"]
        else:
            individual.status = record["status"]
            individual.objectives = record["objectives"]
            individual.metrics = record["metrics"]
            individual.error = record["error"]
            individual.started = record["started"]
            individual.finished = record["finished"]
            if individual.status in FINAL:
                self.final[name] = individual
                self.open.pop(name, None)
                return
        if name not in self.open or self.open[name][0] <= at:
            self.open[name] = (at, individual)

    def individuals(self, *, alive: bool) -> list[Individual]:
        """All, in the order in which they started; those at work in a leg that is no more are lost."""
        last = max(self.legs, default=0)
        runs = alive and bool(last) and self.legs[last].ended is None
        for (leg, _), individual in self.open.values():
            if individual.status == RUNNING and not (runs and leg == last):
                individual.status = LOST
        everyone = [*self.final.values(), *(individual for _, individual in self.open.values())]
        for individual in everyone:
            moves = self.moves.get(individual.id)
            if moves:
                individual.migrations = tuple((source, target) for _, _, source, target in sorted(moves))
        everyone.sort(key=lambda one: (one.started or 0.0, one.island, one.worker, one.sequence))
        return everyone


def _known(record: journal.Record) -> Individual:
    return Individual(
        known_id(record["number"]),
        -1,
        -1,
        record["number"],
        record["params"],
        status=record["status"],
        objectives=record["objectives"],
        metrics={"source": record["source"], "origin": record["origin"]},
        operator=KNOWN,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Reading makes many objects, none of them garbage: looking for it triples the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load(directory: str | os.PathLike[str]) -> CampaignRecord:
    """Read the campaign in ``directory``, which may be at work.

    Raises:
        JournalDamaged: a journal is damaged elsewhere than in its last line.
        CampaignError: there is no campaign in ``directory``, or it cannot be read.
    """
    directory = Path(directory)
    identity = directories.read_identity(directory)
    # Before the journals: a campaign that ends meanwhile leaves word of it there.
    alive = directories.holder(directory) is not None
    torn: list[Path] = []
    fold = _Fold()
    with _collector_paused():
        fold.add(journal.read_directory(directory, torn))
        individuals = fold.individuals(alive=alive)
    legs = [fold.legs[number] for number in sorted(fold.legs)]
    seconds = sum(leg.updated - leg.started for leg in legs)
    if alive and legs and legs[-1].ended is None:
        seconds += max(0.0, time.time() - legs[-1].updated)
    return CampaignRecord(
        directory=directory,
        identity=identity,
        individuals=individuals,
        legs=legs,
        torn=torn,
        seconds=seconds,
        alive=alive,
        known=[fold.known[number] for number in sorted(fold.known)],
    )
