"""What the journals of a campaign say: its individuals, its launches, and whether it runs, has ended or was killed."""

from __future__ import annotations

import copy
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import structs

from hpo.individual import (
    COMPLETED,
    FINAL,
    KNOWN,
    LOST,
    PRUNED,
    RUNNING,
    Attempt,
    Configuration,
    Individual,
    Outcome,
    birthplace,
    known_id,
)
from hpo.journal import commands, lock
from hpo.journal import directory as directories
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import read_directory
from hpo.journal.records import (
    Command,
    Ended,
    Finished,
    Header,
    Known,
    Launched,
    Left,
    Migrated,
    Note,
    Record,
    Reopened,
    Reported,
    Started,
    Stopping,
    Storage,
    Withdrawn,
)
from hpo.results.parts import Part, PartsFold, Place


@dataclass(kw_only=True)
class Launch:
    """One launch of the campaign, from its header to its last record in Unix seconds."""

    number: int
    started: float
    updated: float
    launched: Launched | None = None
    """None if the launch died before that record was written."""
    stopping: str | None = None
    """Why it begins nothing more; None until then."""
    storage: tuple[str, float] | None = None
    """What a worker waits for, path and reason, and since when; None where none does."""
    waits: list[Storage] = field(default_factory=list)
    """When workers began to wait for their storage, and when none did any more."""
    left: list[Left] = field(default_factory=list)
    """Workers that took no more part."""
    ended: tuple[str, int] | None = None
    """Reason and exit code; None if it is running or was killed."""


@dataclass(frozen=True, kw_only=True)
class CampaignRecord:
    """All that a campaign's directory says; times are Unix seconds, None before the first launch."""

    directory: Path
    identity: directories.Identity
    individuals: list[Individual]
    """In the order in which their last evaluations started."""
    known: list[Individual] = field(default_factory=list)
    """What was known before: no evaluations of this campaign, and of no island. ``metrics`` name the source."""
    launches: list[Launch]
    torn: list[Path]
    """Journals whose last line was cut off and is left out."""
    seconds: float
    """How long the campaign has been at work, all launches together."""
    alive: bool
    """Whether a campaign is at work in the directory now."""
    standing: commands.Standing = field(default_factory=commands.Standing)
    """What the commands that were applied come to."""
    waiting: int = 0
    """Commands that were not applied yet."""
    stop_pending: bool = False
    """Whether ``hpo stop`` was given, and no person has started the campaign since."""
    starts_and_ends: PartsFold = field(default_factory=PartsFold, compare=False)
    """What ``parts`` are made of."""
    reported: list[Reported] = field(default_factory=list)
    """Intermediate results that a pruner has compared, in the order of their times."""
    reports: bool = False
    """Whether an individual that completed or was pruned had reported."""
    moves: list[Migrated] = field(default_factory=list)
    """Migrations between islands, in the order of their times."""

    @cached_property
    def parts(self) -> list[Part]:
        """Which worker evaluated what and when, in the order of the begins."""
        running = {one.id: one.started or 0.0 for one in self.individuals if one.status == RUNNING}
        return self.starts_and_ends.parts(running)

    @property
    def hosts(self) -> dict[Place, str]:
        """The host of a worker's first rank, by launch, island and worker."""
        return self.starts_and_ends.hosts

    @property
    def objectives(self) -> dict[str, str]:
        """Name to direction ("minimize", "maximize"), in the task's order."""
        return dict(self.identity.get("objectives") or {"value": "minimize"})

    @property
    def reference(self) -> dict[str, float]:
        """The reference point of the last launch, by objective; empty where none was given."""
        launched = self.launches[-1].launched if self.launches else None
        return dict((launched and launched.reference) or {})

    @property
    def code_versions(self) -> dict[int, str]:
        """By the number of the launch, the hash of the task's code; without launches that have none on record."""
        return {
            one.number: one.launched.code
            for one in self.launches
            if one.launched is not None and one.launched.code
        }

    @property
    def started(self) -> float | None:
        return self.launches[0].started if self.launches else None

    @property
    def updated(self) -> float | None:
        """Time of the last record."""
        return max((one.updated for one in self.launches), default=None)

    @property
    def ended(self) -> tuple[str, int] | None:
        """Reason and exit code of the last launch; None if it is running or was killed."""
        return self.launches[-1].ended if self.launches else None


class Fold:
    """The state of a campaign after the records so far; one method per type of record that results need.

    Records are added as :func:`read_directory` gives them. Those of one worker on individuals may also come after those
    of others, behind their header, if all of an individual are then put in order (``reorder``)."""

    def __init__(self) -> None:
        self.launches: dict[int, Launch] = {}
        self.known: dict[int, Individual] = {}
        self._evaluations = CurrentEvaluations()
        self._ended: dict[str, Individual] = {}
        # Of individuals that went on after a pause, the earliest run: its configuration says what proposed them.
        self._first: dict[str, tuple[Attempt, Configuration]] = {}
        # By (hop, time, source, target): the record of a second move may be read before that of the first.
        self._moves: dict[str, dict[tuple[int, float, int, int], Migrated]] = {}
        self.reported: list[Reported] = []
        self.parts = PartsFold()
        self._launch = Launch(number=0, started=0.0, updated=0.0)
        self.standing = commands.Standing()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            handle = _HANDLERS.get(type(record))
            if handle is not None:
                handle(self, record)
            at = record.at
            if at > self._launch.updated:
                self._launch.updated = at

    def _on_header(self, record: Header) -> None:
        number, at = record.launch, record.time
        self._evaluations.take(record)
        self._launch = self.launches.setdefault(number, Launch(number=number, started=at, updated=at))
        self._launch.started = min(self._launch.started, at)
        self.parts.enter(record)

    def _on_launched(self, record: Launched) -> None:
        self._launch.launched = record
        self.standing.launched(record)

    def _on_command(self, record: Command) -> None:
        request = self.standing.add(record)
        if isinstance(request, commands.Set) and self._launch.launched is not None:
            self._launch.launched = structs.replace(self._launch.launched, **request.values)

    def _on_left(self, record: Left) -> None:
        self._launch.left.append(record)

    def _on_stopping(self, record: Stopping) -> None:
        self._launch.stopping = record.reason

    def _on_storage(self, record: Storage) -> None:
        self._launch.storage = None if record.error is None else (record.error, record.time)
        self._launch.waits.append(record)

    def _on_ended(self, record: Ended) -> None:
        self._launch.ended = (record.reason, record.exit)

    def _on_migrated(self, record: Migrated) -> None:
        move = (record.hop, record.time, record.source, record.target)
        self._moves.setdefault(record.id, {})[move] = record

    def _on_reported(self, record: Reported) -> None:
        self.reported.append(record)

    def _on_note(self, record: Note) -> None:
        self.parts.add(record)

    def _on_known(self, record: Known) -> None:
        self.known.setdefault(record.number, _known(record))

    def _on_withdrawn(self, record: Withdrawn) -> None:
        for number in record.numbers:
            self.known.pop(number, None)

    def _on_evaluation(self, record: Started | Finished) -> None:
        self.parts.add(record)
        self._take(record)

    def _take(self, record: Started | Finished | Reopened) -> None:
        change = self._evaluations.take(record)
        assert change is not None
        before = None if change.reopens is None else self._ended.pop(record.id)
        if isinstance(record, Reopened):
            return
        if before is not None:
            self._keep_first(before)
        if change.ends:
            self._ended[record.id] = _individual(record, self._launch.number)
        elif not change.counts:
            self._keep_first(record)

    def reorder(self, identity: str, records: Iterable[tuple[Header, Started | Finished | Reopened]]) -> None:
        """``records``, with the headers of their journals, are all on the evaluations of this individual, in the order
        that counts; they were added in another one. A header comes next."""
        self._evaluations.forget(identity)
        for kept in (self._ended, self._first):
            kept.pop(identity, None)
        for header, record in records:
            self._on_header(header)
            self._take(record)

    def _keep_first(self, one: Started | Finished | Individual) -> None:
        first, _ = self._first.get(one.id, (None, None))
        if first is None or one.run < first.run:
            self._first[one.id] = one.attempt, one.configuration

    def individuals(self, *, alive: bool) -> list[Individual]:
        """All, in the order in which they started; those at work in a launch that is no more are lost."""
        last = max(self.launches, default=0)
        runs = alive and bool(last) and self.launches[last].ended is None
        everyone = [self._placed(one) for one in self._ended.values()]
        for launch, record, _ in self._evaluations.open:
            one = _individual(record, launch)
            reopened = one.status in FINAL
            if reopened or (one.status == RUNNING and not (runs and launch == last)):
                one = structs.replace(one, outcome=structs.replace(one.outcome, status=LOST))
            everyone.append(self._placed(one))
        everyone.sort(key=lambda one: (one.started or 0.0, birthplace(one.id)))
        return everyone

    def _placed(self, one: Individual) -> Individual:
        """``one`` with where it came from and where it went, which other records say."""
        first, moves = self._first.get(one.id), self._moves.get(one.id)
        if first is not None:
            one = structs.replace(one, configuration=first[1])
        if moves:
            migrations = tuple((source, target) for _, _, source, target in sorted(moves))
            one = structs.replace(one, migrations=migrations)
        return one

    def record(
        self, directory: Path, identity: directories.Identity, torn: list[Path], *, alive: bool
    ) -> CampaignRecord:
        """All that ``directory`` says, where its journals are the records so far: later ones do not change it."""
        launches = [
            replace(one, left=list(one.left), waits=list(one.waits))
            for _, one in sorted(self.launches.items())
        ]
        moves = (one for own in self._moves.values() for one in own.values())
        seconds = sum(one.updated - one.started for one in launches)
        if alive and launches and launches[-1].ended is None:
            seconds += max(0.0, time.time() - launches[-1].updated)
        return CampaignRecord(
            directory=directory,
            identity=identity,
            individuals=self.individuals(alive=alive),
            launches=launches,
            torn=torn,
            seconds=seconds,
            alive=alive,
            known=[one for _, one in sorted(self.known.items())],
            standing=copy.deepcopy(self.standing),
            waiting=commands.waiting(directory),
            stop_pending=commands.stop_pending(directory),
            starts_and_ends=self.parts.copy(),
            reports=any(
                one.status == PRUNED or (one.status == COMPLETED and one.outcome.steps is not None)
                for one in self._ended.values()
            ),
            reported=sorted(self.reported, key=lambda one: (one.time, one.island, one.id, one.step)),
            moves=sorted(moves, key=lambda one: (one.time, one.id, one.hop, one.source)),
        )


_HANDLERS: dict[type[Record], Callable[[Fold, Any], None]] = {
    Header: Fold._on_header,
    Launched: Fold._on_launched,
    Command: Fold._on_command,
    Started: Fold._on_evaluation,
    Finished: Fold._on_evaluation,
    Reopened: Fold._take,
    Migrated: Fold._on_migrated,
    Known: Fold._on_known,
    Withdrawn: Fold._on_withdrawn,
    Note: Fold._on_note,
    Reported: Fold._on_reported,
    Left: Fold._on_left,
    Stopping: Fold._on_stopping,
    Storage: Fold._on_storage,
    Ended: Fold._on_ended,
}


def _individual(record: Started | Finished, launch: int) -> Individual:
    facts: dict[str, Any] = {"started": record.at}
    if isinstance(record, Finished):
        facts = {"outcome": record.outcome, "started": record.started, "finished": record.finished}
    return Individual(configuration=record.configuration, attempt=record.attempt, launch=launch, **facts)


def _known(record: Known) -> Individual:
    return Individual(
        configuration=Configuration(id=known_id(record.number), params=record.params, operator=KNOWN),
        outcome=Outcome(
            status=record.status,
            objectives=record.objectives,
            metrics={"source": record.source, "origin": record.origin},
        ),
    )


@contextmanager
def collector_paused() -> Iterator[None]:
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
    alive = lock.holder(directory) is not None
    torn: list[Path] = []
    fold = Fold()
    with collector_paused():
        fold.add(read_directory(directory, torn))
        return fold.record(directory, identity, torn, alive=alive)
