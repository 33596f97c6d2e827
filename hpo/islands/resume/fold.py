"""The state with which a new launch goes on, folded from the journals of the earlier ones.

It holds the keys of all configurations (so that none is evaluated twice), the unfinished individuals, the first free
sequence numbers, and the populations of the islands; not the records themselves, so that a launch after 100 000
evaluations needs hardly more memory than one after a hundred."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpo.individual import ENQUEUED, INTERRUPTED, LOST, PRUNED, REEVALUATION, Scalar
from hpo.islands.coordinator.commands import point_assignment
from hpo.islands.coordinator.worker_registry import HANGS
from hpo.islands.resume import snapshot
from hpo.islands.resume.individuals import (
    InvalidRecord,
    assignment_of,
    end_of,
    loss_of,
    progress_of,
    validated,
)
from hpo.islands.resume.known import WITHDRAWN, enter
from hpo.islands.resume.snapshot import FoldState
from hpo.islands.resume.state import Resting, ResumeState
from hpo.journal.evaluations import CurrentEvaluations
from hpo.journal.files import journal_files, read_file
from hpo.journal.records import (
    Command,
    Finished,
    Header,
    Known,
    Launched,
    Left,
    Migrated,
    Record,
    Reopened,
    Reported,
    Started,
    Withdrawn,
)
from hpo.search.population import Member, Population
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec

KEPT = 256
"""Of each birthplace; more than an island breeds from, since some of them have emigrated."""
_LATEST = 64
"""Completed ones of each birthplace that finished last, for islands whose individuals go on from each other."""
_PRUNED = 1024
"""Of each birthplace; any that are paused may be worth going on with, and journals are read in no order of time."""
_REPORTS = 4096
"""Intermediate results of an island, the latest."""


def fold(
    records: Iterable[Record],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> ResumeState:
    """State of the campaign after ``records``; individuals of islands that no longer exist go to island
    number modulo ``islands``. Raises ``InvalidRecord``."""
    folding = _Fold(space=space, islands=islands, losses=losses)
    folding.add(records)
    return folding.finish()


def fold_directory(
    directory: Path,
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
    take_snapshot: bool = False,
    withdrawn: Collection[int] = (),
) -> ResumeState:
    """``fold`` of all journals of the campaign in ``directory``, from its snapshot on where that fits them, without the
    known points of the numbers ``withdrawn``.

    Raises:
        InvalidRecord: a record contradicts others.
        CampaignError: a journal is damaged, was written by another version, or cannot be read.
    """
    files = journal_files(directory)
    journals = snapshot.stamps(files)
    found = snapshot.read(directory, journals, islands)
    while True:
        covered = 0 if found is None else found.journals
        folding = _Fold(space=space, islands=islands, losses=losses, state=found)
        torn: list[Path] = []
        try:
            for path in files[covered:]:
                folding.add(read_file(path, torn))
            folding.torn += [path.name for path in torn]
            data = b""
            if take_snapshot and snapshot.is_due(journals, covered):
                data = snapshot.encode(directory, journals, islands, folding.state)
            folding.withdraw(withdrawn)
            state = folding.finish()
        except InvalidRecord:
            if found is None:
                raise
            found = None  # only the journals themselves are worth an error
            continue
        state.snapshot = data
        return state


_SHARED = (
    "keys",
    "tally",
    "sequences",
    "hung",
    "resting",
    "continued",
    "saves",
    "repeats",
    "commands",
    "codes",
    "launches",
    "first_number",
)
"""What folding keeps in the ``ResumeState`` from the beginning, and a ``FoldState`` under the same names."""


class _Fold:
    """What becomes a ``ResumeState``; one method per type of record that a later launch needs."""

    def __init__(
        self,
        *,
        space: Codec,
        islands: int,
        losses: Callable[[dict[str, float]], tuple[float, ...]],
        state: FoldState | None = None,
    ) -> None:
        self._space = space
        self._islands = islands
        self._losses = losses
        self._state = ResumeState()
        self._launch = 0
        self._contested = 0
        """The last launch before whose beginning others may not have ended."""
        self.updated = -math.inf
        """The time of the last record of the launch that is read."""
        self._evaluations = CurrentEvaluations()
        self._moves: dict[str, dict[tuple[int, int, int], Migrated]] = {}
        # By birthplace until all moves are known; the configurations of those kept, by id.
        self._born: dict[int, Population] = {}
        self._configurations: dict[str, dict[str, Scalar]] = {}
        # Of each birthplace a heap of when they finished.
        self._latest: dict[int, list[tuple[float, str, Member]]] = {}
        self._known: dict[int, Known] = {}
        # By id, the configurations of individuals that were enqueued.
        self._enqueued: dict[str, dict[str, Scalar]] = {}
        self.torn: list[str] = []
        if state is not None:
            self._restore(state)

    def _restore(self, state: FoldState) -> None:
        folded = self._state
        for name in _SHARED:
            setattr(folded, name, getattr(state, name))
        folded.reports = {island: deque(reports, _REPORTS) for island, reports in state.reports.items()}
        self._launch, self.updated, self.torn = state.launch, state.updated, state.torn
        self._evaluations = CurrentEvaluations(state.evaluations)
        self._moves, self._latest, self._configurations = state.moves, state.latest, state.configurations
        self._known, self._enqueued, self._contested = state.known, state.enqueued, state.contested
        for island, members in state.born.items():
            self._born[island] = Population(best=KEPT, pruned=_PRUNED)
            self._born[island].restore(members)

    @property
    def state(self) -> FoldState:
        """What a fold of later records may go on from."""
        return FoldState(
            **{name: getattr(self._state, name) for name in _SHARED},
            reports={island: list(reports) for island, reports in self._state.reports.items()},
            launch=self._launch,
            updated=self.updated,
            torn=self.torn,
            evaluations=self._evaluations.state,
            moves=self._moves,
            born={island: members.state for island, members in self._born.items()},
            latest=self._latest,
            configurations=self._configurations,
            known=self._known,
            enqueued=self._enqueued,
            contested=self._contested,
        )

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            handle = _HANDLERS.get(type(record))
            if handle is not None:
                handle(self, record)
            if record.at > self.updated:
                self.updated = record.at

    def _on_header(self, record: Header) -> None:
        self._evaluations.enter_launch(record)
        self._enter_launch(record.launch, record.time)

    def _enter_launch(self, launch: int, began: float) -> None:
        launches = self._state.launches
        if self._launch:
            launches[self._launch] = launches[self._launch][0], self.updated
        before, self.updated = launches.get(launch, (began, began))
        launches[launch] = min(before, began), self.updated
        self._launch = launch

    def _on_launched(self, record: Launched) -> None:
        if record.contested:
            self._contested = max(self._contested, self._launch)
            self._state.leave_numbers()
        if record.code:
            self._state.codes[self._launch] = record.code
        self._state.commands.launched(record)

    def _on_command(self, record: Command) -> None:
        self._state.commands.add(record)

    def _on_known(self, record: Known) -> None:
        self._known.setdefault(record.number, record)

    def _on_withdrawn(self, record: Withdrawn) -> None:
        self.withdraw(record.numbers)

    def withdraw(self, numbers: Collection[int]) -> None:
        """The known points of these numbers do not count any more."""
        for number in self._known.keys() & set(numbers):
            self._known[number] = msgspec.structs.replace(self._known[number], status=WITHDRAWN)

    def _on_migrated(self, record: Migrated) -> None:
        self._moves.setdefault(record.id, {})[record.hop, record.source, record.target] = record

    def _on_left(self, record: Left) -> None:
        if record.may_run or record.reason == HANGS:
            self._state.hung[record.island, record.worker] = self._launch

    def _on_reported(self, record: Reported) -> None:
        reports = self._state.reports.setdefault(record.island % self._islands, deque(maxlen=_REPORTS))
        reports.append((record.id, record.step, _worst(record.loss)))

    def _on_evaluation(self, record: Started | Finished) -> None:
        state = self._state
        place = (record.island, record.worker)
        state.sequences[place] = max(state.sequences.get(place, 0), record.sequence + 1)
        if state.hung.get(place, self._launch) < self._launch:
            del state.hung[place]
        state.repeats |= record.operator == REEVALUATION
        if record.operator == ENQUEUED:
            self._enqueued[record.id] = record.params
        if isinstance(record, Finished):
            # What was killed after its grace has an error.
            saved = record.status == INTERRUPTED and record.error is None
            state.saves |= saved or record.resting
        if record.inherits:
            # Its own lineage went on, also where it had fallen behind and took over another's checkpoint.
            state.continued.update(record.parents[-1:])
        change = self._evaluations.add(record)
        self._reopen(record.id, change.reopens)
        if change.ends and isinstance(record, Finished):
            self._ended(record)

    def _on_reopened(self, record: Reopened) -> None:
        self._reopen(record.id, self._evaluations.reopen(record).reopens)

    def _reopen(self, identity: str, ended: str | None) -> None:
        """An individual that had ended with this status goes on."""
        if ended is None:
            return
        self._state.tally.reopen(ended, identity=identity)
        self._state.resting.pop(identity, None)
        if ended != PRUNED:  # what was pruned is still worth knowing
            for population in self._born.values():
                population.discard(identity)

    def _ended(self, record: Finished) -> None:
        state, identity = self._state, record.id
        state.keys.add(key_of(self._space, record.params, record.inherits, record.operator, identity))
        if record.resting:
            state.resting[identity] = Resting(record.reopened, record.inherits, record.finished)
        loss = loss_of(record, self._losses)
        state.tally.add(end_of(record, loss))
        population = self._born.get(record.island)
        if population is None:
            population = self._born[record.island] = Population(best=KEPT, pruned=_PRUNED)
        progress = progress_of(record, self._losses)
        member = Member(identity, (), loss, record.status, (), progress, record.operator)
        population.add(member)
        if loss is not None:
            newest = self._latest.setdefault(record.island, [])
            heapq.heappush(newest, (record.finished, identity, member))
            if len(newest) > _LATEST:
                heapq.heappop(newest)
        self._configurations[identity] = record.params
        if len(self._configurations) > 4096 + 2 * (KEPT + _LATEST + _PRUNED) * len(self._born):
            kept = {one.id for birthplace in self._born for one in self._of(birthplace)}
            self._configurations = {one: self._configurations[one] for one in kept}

    def _of(self, birthplace: int) -> list[Member]:
        return _in_order(self._born[birthplace], self._latest.get(birthplace, []))

    def finish(self) -> ResumeState:
        state, space, islands = self._state, self._space, self._islands
        if self._launch:
            state.launches[self._launch] = state.launches[self._launch][0], self.updated
        for birthplace in sorted(self._born):
            for member in self._of(birthplace):
                moves = self._moves.get(member.id, {})
                genome = space.encode(validated(space, member.id, self._configurations[member.id]))
                history = tuple(moves[hop].source for hop in sorted(moves))
                for island in sorted(_homes(birthplace, moves, islands)):
                    population = state.populations.setdefault(island, Population(pruned=_PRUNED))
                    carried = (member.progress, member.operator)
                    population.add(Member(member.id, genome, member.losses, member.status, history, *carried))
        state.torn = self.torn
        state.ended = self._evaluations.ended_ids
        completed = (one for born in self._born.values() for one in born.best)
        state.leading = sorted((one.losses[0], one.id) for one in completed if one.losses)
        for unfinished in self._evaluations.open:
            # That the whole launch was killed is no fault of the individual's, and no try of it.
            interrupted = isinstance(unfinished.record, Finished) and unfinished.record.status == INTERRUPTED
            state.tally.unfinished[unfinished.record.id] = INTERRUPTED if interrupted else LOST
            assignment = assignment_of(unfinished, space=space)
            # Its copy is made when it begins: that launch may have had no time for it.
            assignment.contested = unfinished.launch < self._contested
            state.keys.add(assignment.key)
            state.pending.append(assignment)
        begun = Counter(space.key(params) for params in self._enqueued.values())
        for command, params in state.commands.points:
            point = point_assignment(validated(space, command, params), space.key)
            if begun[point.key]:
                begun[point.key] -= 1
            else:
                state.enqueued.append(point)
        enter(state, self._known.values(), space=space, islands=islands, losses=self._losses)
        return state


_HANDLERS: dict[type[Record], Callable[[_Fold, Any], None]] = {
    Header: _Fold._on_header,
    Launched: _Fold._on_launched,
    Command: _Fold._on_command,
    Known: _Fold._on_known,
    Withdrawn: _Fold._on_withdrawn,
    Migrated: _Fold._on_migrated,
    Reported: _Fold._on_reported,
    Left: _Fold._on_left,
    Started: _Fold._on_evaluation,
    Finished: _Fold._on_evaluation,
    Reopened: _Fold._on_reopened,
}


def _worst(loss: float | None) -> float:
    return math.inf if loss is None else loss


def _in_order(population: Population, latest: list[tuple[float, str, Member]]) -> list[Member]:
    """All; last the ``latest``, in the order in which they finished: journals are in no order of time."""
    newest = {identity: member for _, identity, member in sorted(latest, key=lambda entry: entry[:2])}
    others = [*population, *population.pruned, *population.failures]
    return [*(one for one in others if one.id not in newest), *newest.values()]


def _homes(birthplace: int, moves: Mapping[tuple[int, int, int], Migrated], islands: int) -> set[int]:
    """The islands on which an individual lives after its moves: where the last one took it, and where a copy
    stayed."""
    # It may have been evaluated elsewhere than where it was bred.
    first = moves[min(moves)].source if moves else birthplace
    homes = {first % islands}
    for hop in sorted(moves):
        if not moves[hop].copy:
            homes.discard(moves[hop].source % islands)
        homes.add(moves[hop].target % islands)
    return homes
