"""The state with which a new launch goes on, folded from the journals of earlier launches.

It holds keys of all configurations, unfinished individuals, free numbers and populations, and not the records
themselves: a launch after 100 000 evaluations needs hardly more memory than after a hundred."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from hpo.individual import INTERRUPTED, LOST, PRUNED, REEVALUATION, birthplace
from hpo.islands.resume import snapshot
from hpo.islands.resume.individuals import (
    assignment_of,
    end_of,
    loss_of,
    progress_of,
    validated,
)
from hpo.islands.resume.known import WITHDRAWN, enter
from hpo.islands.resume.snapshot import Folded, Lengths, Snapshot
from hpo.islands.resume.state import LaunchSpan, Resting, ResumeState
from hpo.journal.records import (
    Finished,
    Header,
    Known,
    Launched,
    Migrated,
    Record,
    Reopened,
    Reported,
    Started,
    Withdrawn,
)
from hpo.ledger.journals import journal_files, read_journals
from hpo.ledger.opening import state_of
from hpo.search.population import Member, Population
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec
from hpo.task.limits import UNLIMITED, OutcomeLimits

KEPT = 256
"""Number of members kept of each birthplace: more than an island breeds from, since some have emigrated."""
_LATEST = 64
"""Number of last completed members kept of each birthplace, for islands whose individuals go on from each other."""
_PRUNED = 1024
"""Number of pruned members kept of each birthplace: journals are read in no order of time, and any may go on."""
_REPORTS = 4096
"""Number of intermediate results kept of each island, the latest."""
_MANY = 50_000
"""Records of closed launches that take about a second to read: a snapshot is made after as many."""


def fold(
    records: Iterable[Record],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
    limits: OutcomeLimits = UNLIMITED,
    withdrawn: Collection[int] = (),
) -> ResumeState:
    """State of the campaign after ``records``, without the known points of the numbers ``withdrawn``. Individuals of
    islands that no longer exist go to the island of their number modulo ``islands``. Raises InvalidRecord."""
    folding = _Fold(space, islands, losses, limits=limits)
    folding.add(records)
    folding.withdraw(withdrawn)
    return folding.finish()


def fold_directory(
    directory: Path,
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
    limits: OutcomeLimits = UNLIMITED,
    withdrawn: Collection[int] = (),
) -> ResumeState:
    """``fold`` of all journals of the campaign in ``directory``.

    Raises:
        InvalidRecord: a record contradicts others.
        CampaignError: a journal is damaged, was written by another version, or cannot be read.
    """
    ledger, torn = state_of(directory), list[Path]()
    over = snapshot.lengths_of(ledger)
    before = snapshot.read(directory, over, islands, limits)
    files = journal_files(directory, state=ledger, without=() if before is None else before.closed)
    folding = _Fold(space, islands, losses, before, limits)
    closed = [one for one in files if one.name.launch in over]
    if folding.add(record for _, record in read_journals(closed, ledger, torn)) >= _MANY:
        snapshot.write(directory, folding.snapshot(over))
    others = [one for one in files if one.name.launch not in over]
    folding.add(record for _, record in read_journals(others, ledger, torn))
    folding.withdraw(withdrawn)
    state = folding.finish()
    state.torn = [path.name for path in torn]
    return state


class _Fold:
    """Folds records to a ``ResumeState``, by a method for each type of record that a later launch needs."""

    def __init__(
        self,
        space: Codec,
        islands: int,
        losses: Callable[[dict[str, float]], tuple[float, ...]],
        before: Snapshot | None = None,
        limits: OutcomeLimits = UNLIMITED,
    ) -> None:
        self._space = space
        self._islands = islands
        self._losses, self._limits = losses, limits
        self._folded = Folded() if before is None else before.folded
        self._state = self._folded.state
        self._launch = 0
        # Time of the last record of the launch that is read.
        self._updated = -math.inf
        # Members by birthplace, until all moves are known.
        self._born: dict[int, Population] = {}
        for island, members in () if before is None else before.members.items():
            self._population(island).restore(*members)

    def add(self, records: Iterable[Record]) -> int:
        """Take whole journals, and return the number of their records."""
        number = 0
        for record in records:
            number += 1
            handle = _HANDLERS.get(type(record))
            if handle is not None:
                handle(self, record)
            if record.at > self._updated:
                self._updated = record.at
        self._close_launch()
        return number

    def snapshot(self, closed: Lengths) -> Snapshot:
        """The facts so far, which are those of the launches that are ``closed``, by their lengths."""
        folded = self._folded
        kept = {one.id for island in self._born for one in self._of(island)}
        ended = folded.evaluations.ended_ids
        # Others are not among the best or the latest any more, and nobody asks where they went.
        folded.moves = {one: own for one, own in folded.moves.items() if one in kept or one not in ended}
        return Snapshot(
            closed=closed,
            islands=self._islands,
            limits=self._limits,
            folded=folded,
            members={
                island: (one.best, one.recent, one.pruned, one.failures) for island, one in self._born.items()
            },
        )

    def _on_header(self, record: Header) -> None:
        self._folded.evaluations.take(record)
        launch, began, launches = record.launch, record.time, self._state.launches
        self._close_launch()
        before = launches.get(launch, LaunchSpan(began, began))
        launches[launch] = before._replace(began=min(before.began, began))
        self._launch, self._updated = launch, before.updated

    def _close_launch(self) -> None:
        launches = self._state.launches
        if self._launch:
            launches[self._launch] = launches[self._launch]._replace(updated=self._updated)

    def _on_launched(self, record: Launched) -> None:
        if (span := self._state.launches.get(self._launch)) is not None:
            self._state.launches[self._launch] = span._replace(workers=record.workers)
        if record.code:
            self._state.codes[self._launch] = record.code

    def _on_known(self, record: Known) -> None:
        self._folded.known.setdefault(record.number, record)

    def withdraw(self, numbers: Collection[int]) -> None:
        # The points may be in journals that are read later, of an older launch that is still open.
        self._folded.withdrawn.update(numbers)

    def _on_migrated(self, record: Migrated) -> None:
        self._folded.moves.setdefault(record.id, {})[record.hop, record.source, record.target] = record

    def _on_reported(self, record: Reported) -> None:
        reports = self._state.reports.setdefault(record.island % self._islands, [])
        reports.append((record.id, record.step, math.inf if record.loss is None else record.loss))
        if len(reports) >= 2 * _REPORTS:
            del reports[:-_REPORTS]

    def _on_evaluation(self, record: Started | Finished) -> None:
        state = self._state
        configuration = record.configuration
        island, worker, sequence = birthplace(record.id)
        number = self._folded.begun.get((island, worker), 0)
        self._folded.begun[island, worker] = max(number, sequence + 1)
        state.repeats |= configuration.operator == REEVALUATION
        if isinstance(record, Finished):
            # An evaluation that was killed after its grace has an error.
            saved = record.status == INTERRUPTED and record.error is None
            state.saves |= saved or record.resting
        if configuration.inherits:
            # The last parent is its own predecessor, also where it took over another's checkpoint.
            state.continued.update(configuration.parents[-1:])
        self._take(record)

    def _take(self, record: Started | Finished | Reopened) -> None:
        change = self._folded.evaluations.take(record)
        assert change is not None
        if change.reopens is not None:
            self._reopen(record.id, change.reopens)
        if change.ends and isinstance(record, Finished):
            self._ended(record)

    def _reopen(self, identity: str, ended: str) -> None:
        self._state.tally.reopen(ended, identity=identity)
        self._state.resting.pop(identity, None)
        if ended != PRUNED:  # pruned members are still worth knowing
            for population in self._born.values():
                population.discard(identity)

    def _ended(self, record: Finished) -> None:
        state, configuration, outcome = self._state, record.configuration, record.outcome
        identity = configuration.id
        state.keys.add(key_of(self._space, configuration))
        if record.resting:
            state.resting[identity] = Resting(record.reopened, configuration.inherits, record.finished)
        loss = loss_of(outcome, self._losses)
        excess = () if loss is None else self._limits.excess(outcome.objectives, outcome.metrics)
        in_limits = excess is not None and max(excess, default=0.0) <= 0.0
        state.tally.add(end_of(record, loss if in_limits else None))
        if excess is None:  # a metric that was not limited before has no number here
            return
        island = birthplace(identity)[0]
        progress = progress_of(outcome, self._losses)
        origin = configuration.operator
        member = Member(identity, (), loss, outcome.status, (), progress, origin, excess=excess)
        self._population(island).add(member)
        if loss is not None:
            newest = self._folded.latest.setdefault(island, [])
            heapq.heappush(newest, (record.finished, identity, member))
            if len(newest) > _LATEST:
                heapq.heappop(newest)
        self._folded.configurations[identity] = configuration.params
        if len(self._folded.configurations) > 4096 + 2 * (KEPT + _LATEST + _PRUNED) * len(self._born):
            kept = {one.id for island in self._born for one in self._of(island)}
            self._folded.configurations = {one: self._folded.configurations[one] for one in kept}

    def _population(self, island: int) -> Population:
        if island not in self._born:
            self._born[island] = Population(best=KEPT, pruned=_PRUNED)
        return self._born[island]

    def _of(self, island: int) -> list[Member]:
        return _in_order(self._born[island], self._folded.latest.get(island, []))

    def finish(self) -> ResumeState:
        space, islands, state = self._space, self._islands, self._state
        for reports in state.reports.values():
            del reports[:-_REPORTS]
        for island in sorted(self._born):
            for member in self._of(island):
                moves = self._folded.moves.get(member.id, {})
                genome = space.encode(validated(space, member.id, self._folded.configurations[member.id]))
                history = tuple(moves[hop].source for hop in sorted(moves))
                for home in sorted(_homes(island, moves, islands)):
                    population = state.populations.setdefault(home, Population(pruned=_PRUNED))
                    population.add(structs.replace(member, genome=genome, history=history))
        state.ended = self._folded.evaluations.ended_ids
        state.failed = {one.record.id for one in self._folded.evaluations.failures}
        completed = (one for born in self._born.values() for one in born.best)
        state.leading = sorted(
            (one.losses[0], one.id) for one in completed if one.losses and not one.violation
        )
        for (island, _), number in self._folded.begun.items():
            state.begun[island % islands] = state.begun.get(island % islands, 0) + number
        for _, record, attempt in self._folded.evaluations.open:
            # The end of a whole launch is not the individual's fault, and counts for no retry.
            interrupted = isinstance(record, Finished) and record.status == INTERRUPTED
            state.tally.unfinished[record.id] = INTERRUPTED if interrupted else LOST
            assignment = assignment_of(record, attempt, space=space)
            state.keys.add(assignment.key)
            state.pending.append(assignment)
        known, withdrawn = self._folded.known, self._folded.withdrawn
        known |= {one: structs.replace(known[one], status=WITHDRAWN) for one in known.keys() & withdrawn}
        enter(state, known.values(), space=space, islands=islands, losses=self._losses, limits=self._limits)
        return state


_HANDLERS: dict[type[Record], Callable[[_Fold, Any], object]] = {
    Header: _Fold._on_header,
    Launched: _Fold._on_launched,
    Known: _Fold._on_known,
    Withdrawn: lambda folding, record: folding.withdraw(record.numbers),
    Migrated: _Fold._on_migrated,
    Reported: _Fold._on_reported,
    Started: _Fold._on_evaluation,
    Finished: _Fold._on_evaluation,
    Reopened: _Fold._take,
}


def _in_order(population: Population, latest: list[tuple[float, str, Member]]) -> list[Member]:
    # Journals are in no order of time: the latest come last, in the order in which they finished.
    newest = {identity: member for _, identity, member in sorted(latest, key=lambda entry: entry[:2])}
    others = [*population, *population.pruned, *population.failures]
    return [*(one for one in others if one.id not in newest), *newest.values()]


def _homes(born: int, moves: Mapping[tuple[int, int, int], Migrated], islands: int) -> set[int]:
    """Islands on which an individual lives after its moves: the last target, and sources where a copy stayed."""
    # It may have been evaluated on another island than that where it was bred.
    first = moves[min(moves)].source if moves else born
    homes = {first % islands}
    for hop in sorted(moves):
        if not moves[hop].copy:
            homes.discard(moves[hop].source % islands)
        homes.add(moves[hop].target % islands)
    return homes
