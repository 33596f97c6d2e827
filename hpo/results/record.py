"""Record of a campaign, folded from its journals: individuals, launches, and whether it runs, ended or was killed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from hpo.journal import directory as directories
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.records import (
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
from hpo.ledger.alive import living
from hpo.ledger.fold import LedgerState
from hpo.ledger.journals import read_directory
from hpo.ledger.opening import state_of
from hpo.results.launch import Launch, Span, seconds_of
from hpo.results.parts import Part, PartsFold, Place
from hpo.task.limits import UNLIMITED, OutcomeLimits


@dataclass(frozen=True, kw_only=True)
class CampaignRecord:
    """Contents of a campaign's directory. Times are Unix seconds, None before the first launch."""

    directory: Path
    identity: directories.Identity
    individuals: list[Individual]
    """Individuals in the order in which their last evaluations started."""
    known: list[Individual] = field(default_factory=list)
    """Points that were evaluated elsewhere; their metrics name the source."""
    launches: list[Launch]
    torn: list[Path]
    """Journals whose last line was cut off and is left out."""
    at_work: frozenset[int] = frozenset()
    """Numbers of the launches that are at work now."""
    taken: float = field(default=0.0, compare=False)
    """When it was read."""
    ledger: LedgerState = field(default_factory=LedgerState, compare=False)
    """State by the campaign's ledger."""
    starts_and_ends: PartsFold = field(default_factory=PartsFold, compare=False)
    reported: list[Reported] = field(default_factory=list)
    """Intermediate results that a pruner has compared, by time."""
    reports: bool = False
    """Whether an individual that completed or was pruned had reported."""
    moves: list[Migrated] = field(default_factory=list)
    """Migrations between islands, by time."""
    rank_s: float = 0.0
    """Seconds of all evaluations that have ended, each times the ranks of its worker."""

    @cached_property
    def parts(self) -> list[Part]:
        """Stretches of evaluations by worker, in the order of their begins."""
        running = {one.id: one.started or 0.0 for one in self.individuals if one.status == RUNNING}
        return self.starts_and_ends.parts(running)

    @property
    def hosts(self) -> dict[Place, str]:
        """Host of a worker's first rank, by launch, island and worker."""
        return self.starts_and_ends.hosts

    @property
    def alive(self) -> bool:
        """Whether a launch is at work now."""
        return bool(self.at_work)

    @property
    def current(self) -> list[Launch]:
        """The launches that are at work; where there are none, the last alone."""
        return [one for one in self.launches if one.number in self.at_work] or self.launches[-1:]

    @property
    def seconds(self) -> float:
        """Time in which at least one launch was at work."""
        return seconds_of(map(self._span, self.launches))

    @property
    def worker_hours(self) -> float:
        """Hours at work of all launches' workers together, busy or idle."""
        spans = ((one.workers, *self._span(one)) for one in self.launches)
        return sum(workers * (end - begin) for workers, begin, end in spans) / 3600

    def _span(self, launch: Launch) -> Span:
        goes_on = launch.number in self.at_work and launch.ended is None
        return launch.started, max(launch.updated, self.taken if goes_on else 0.0)

    @property
    def objectives(self) -> dict[str, str]:
        """See ``hpo.journal.directory.objectives_of``."""
        return directories.objectives_of(self.identity)

    @property
    def reference(self) -> dict[str, float]:
        """Reference point of the last launch, by objective; empty where none was given."""
        launched = self.launches[-1].launched if self.launches else None
        return dict((launched and launched.reference) or {})

    @property
    def limits(self) -> OutcomeLimits:
        """Limits of outcomes of the last launch."""
        return limits_of(self.launches)

    @property
    def code_versions(self) -> dict[int, str]:
        """Hash of the task's code by launch, without launches that have none on record."""
        found = {one.number: one.launched.code for one in self.launches if one.launched is not None}
        return {number: code for number, code in found.items() if code}

    @property
    def started(self) -> float | None:
        return self.launches[0].started if self.launches else None

    @property
    def updated(self) -> float | None:
        """Time of the last record."""
        return max((one.updated for one in self.launches), default=None)

    @property
    def ended(self) -> tuple[str, int] | None:
        """Reason and exit code of the launch that was closed last; None if a launch is running or was killed.

        Launches that are not closed come after those that are, and clocks do not matter: hosts' clocks may differ by
        more than launches last."""
        closed = {number: place for place, number in enumerate(self.ledger.closed)}
        if not self.launches:
            return None
        unclosed = [one for one in self.launches if one.number in self.ledger.open]
        if any(one.ended is None for one in unclosed):
            return None
        return max(unclosed or self.launches, key=lambda one: (closed.get(one.number, -1), one.number)).ended


class Fold:
    """State of a campaign after the records so far, which are added as :func:`read_directory` gives them."""

    def __init__(self) -> None:
        self.launches: dict[int, Launch] = {}
        self._known: dict[int, Individual] = {}
        self._evaluations = CurrentEvaluations()
        self._ended: dict[str, Individual] = {}
        # The earliest run of individuals that went on after a pause: its configuration says what proposed them.
        self._first: dict[str, tuple[Attempt, Configuration]] = {}
        # Keys are hop, time, source and target: the record of a second move may be read before that of the first.
        self._moves: dict[str, dict[tuple[int, float, int, int], Migrated]] = {}
        self._reported: list[Reported] = []
        self._rank_s = 0.0
        self._ranks = 1
        self._parts = PartsFold()
        self._launch = Launch(number=0, started=0.0, updated=0.0)

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._take(record)
            at = record.at
            if at > self._launch.updated:
                self._launch.updated = at

    def _take(self, record: Record) -> None:
        launch = self._launch
        match record:  # the most frequent types come first
            case Started() | Finished():
                self._parts.add(record)
                self._take_evaluation(record)
                if isinstance(record, Finished):
                    self._rank_s += record.outcome.seconds * self._ranks
            case Reopened():
                self._take_evaluation(record)
            case Reported():
                self._reported.append(record)
            case Migrated():
                move = (record.hop, record.time, record.source, record.target)
                self._moves.setdefault(record.id, {})[move] = record
            case Note():
                self._parts.add(record)
            case Header():
                number, at = record.launch, record.time
                self._evaluations.take(record)
                self._ranks = record.ranks
                self._launch = self.launches.setdefault(number, Launch(number=number, started=at, updated=at))
                self._launch.started = min(self._launch.started, at)
                self._parts.enter(record)
            case Launched():
                launch.launched = record
            case Known(other_task=True):
                pass
            case Known():
                self._known.setdefault(record.number, _known(record))
            case Withdrawn():
                for number in record.numbers:
                    self._known.pop(number, None)
            case Left():
                launch.left.append(record)
            case Stopping():
                launch.stopping = record.reason
            case Storage():
                launch.storage = None if record.error is None else (record.error, record.time)
                launch.waits.append(record)
            case Ended():
                launch.ended = (record.reason, record.exit)

    def _take_evaluation(self, record: Started | Finished | Reopened) -> None:
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

    def _keep_first(self, one: Started | Finished | Individual) -> None:
        first, _ = self._first.get(one.id, (None, None))
        if first is None or one.run < first.run:
            self._first[one.id] = one.attempt, one.configuration

    def individuals(self, at_work: Collection[int] = ()) -> list[Individual]:
        """All individuals by start; those at work in a launch that has ended are lost. ``at_work``: numbers of the
        launches that are at work."""
        runs = {
            number for number in at_work if number in self.launches and self.launches[number].ended is None
        }
        everyone = [self._placed(one) for one in self._ended.values()]
        for launch, record, _ in self._evaluations.open:
            one = _individual(record, launch)
            reopened = one.status in FINAL
            if reopened or (one.status == RUNNING and launch not in runs):
                one = structs.replace(one, outcome=structs.replace(one.outcome, status=LOST))
            everyone.append(self._placed(one))
        everyone.sort(key=lambda one: (one.started or 0.0, birthplace(one.id)))
        return everyone

    def _placed(self, one: Individual) -> Individual:
        """``one`` with its origin and its migrations, which other records hold."""
        first, moves = self._first.get(one.id), self._moves.get(one.id)
        if first is not None:
            one = structs.replace(one, configuration=first[1])
        if moves:
            migrations = tuple((source, target) for _, _, source, target in sorted(moves))
            one = structs.replace(one, migrations=migrations)
        return one

    def record(
        self,
        directory: Path,
        identity: directories.Identity,
        state: LedgerState,
        torn: list[Path],
        at_work: Collection[int],
    ) -> CampaignRecord:
        """The record of ``directory``, whose ledger has ``state``, after the last record was added. ``at_work``: see
        ``individuals``."""
        launches = [one for _, one in sorted(self.launches.items())]
        limits = limits_of(launches)
        moves = (one for own in self._moves.values() for one in own.values())
        return CampaignRecord(
            directory=directory,
            identity=identity,
            individuals=[_judged(one, limits) for one in self.individuals(at_work)],
            launches=launches,
            torn=torn,
            at_work=frozenset(at_work),
            taken=time.time(),
            known=[_judged(one, limits) for _, one in sorted(self._known.items())],
            ledger=state,
            starts_and_ends=self._parts,
            reports=any(
                one.status == PRUNED or (one.status == COMPLETED and one.outcome.steps is not None)
                for one in self._ended.values()
            ),
            reported=sorted(self._reported, key=lambda one: (one.time, one.island, one.id, one.step)),
            rank_s=self._rank_s,
            moves=sorted(moves, key=lambda one: (one.time, one.id, one.hop, one.source)),
        )


def limits_of(launches: Sequence[Launch]) -> OutcomeLimits:
    """Limits of outcomes that hold after ``launches``: those of the last that has any on record."""
    return next((one.launched.limits for one in reversed(launches) if one.launched is not None), UNLIMITED)


def _judged(one: Individual, limits: OutcomeLimits) -> Individual:
    """``one`` with the limits that it breaks, also by lacking a metric that was not limited when it was evaluated."""
    if not limits or one.status != COMPLETED:
        return one
    breaks = (*limits.broken(one.objectives, one.metrics), *limits.missing(one.objectives, one.metrics))
    return structs.replace(one, breaks=breaks) if breaks else one


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
            metrics={**record.metrics, "source": record.source, "origin": record.origin},
        ),
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the garbage collector: reading makes many objects, and looking for garbage among them triples the time."""
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
    state, torn = state_of(directory), list[Path]()
    # Before the journals: a campaign that ends meanwhile writes so into these.
    at_work = living(directory, state)
    fold = Fold()
    with collector_paused():
        fold.add(read_directory(directory, torn, state=state))
        return fold.record(directory, identity, state, torn, at_work)
