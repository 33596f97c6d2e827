"""The state with which a new launch goes on, folded from the journals of the earlier ones.

It holds the keys of all configurations (so that none is evaluated twice), the unfinished individuals, the first free
sequence numbers, and the populations of the islands; not the records themselves, so that a launch after 100 000
evaluations needs hardly more memory than one after a hundred."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpo.config.layout import Layout
from hpo.errors import CampaignError, UsageError
from hpo.individual import (
    COMPLETED,
    ENQUEUED,
    INTERRUPTED,
    LOST,
    PRUNED,
    REEVALUATION,
    Scalar,
    is_known,
    known_id,
)
from hpo.islands import snapshot
from hpo.islands.assignment import Assignment, anew
from hpo.islands.coordinator.commands import point_assignment
from hpo.islands.coordinator.tally import Best, Tally
from hpo.islands.coordinator.worker_registry import HANGS
from hpo.islands.messages import Evaluated, EvaluationEnd, Start, Surroundings, rung_reports
from hpo.islands.snapshot import FoldState
from hpo.journal.commands import Standing
from hpo.journal.evaluations import CurrentEvaluations, Unfinished
from hpo.journal.files import damaged, journal_files, read_file
from hpo.journal.records import (
    Command,
    Evaluation,
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
)
from hpo.search.population import Member, Population
from hpo.search.proposals import key_of
from hpo.search.protocols import Codec
from hpo.task.outcome import summary_line

KEPT = 256
"""Of each birthplace; more than an island breeds from, since some of them have emigrated."""
_MOST_KNOWN = 256
"""Known points that each island gets: half of them the best, the others from all over the rest."""
_LATEST = 64
"""Completed ones of each birthplace that finished last, for islands whose individuals go on from each other."""
_UNRECORDED = 100
"""Numbers of each worker that a launch which was thought dead may use for individuals that are not on record."""
_REPORTS = 4096
"""Intermediate results of an island, the latest."""


class InvalidRecord(CampaignError):
    """The record of individual ``identity`` with the parameters ``params`` holds no configuration of the space: it was
    edited, because a campaign goes on in the space that it began in."""

    def __init__(self, identity: str, params: dict[str, Scalar], reason: str) -> None:
        super().__init__(reason)
        self._identity, self._params = identity, params

    def of(self, record: Record) -> bool:
        """Whether this is about ``record``."""
        if isinstance(record, Command):
            return record.id == self._identity
        if isinstance(record, Known):
            return known_id(record.number) == self._identity and record.params == self._params
        return (
            isinstance(record, Evaluation) and record.id == self._identity and record.params == self._params
        )


@contextmanager
def located(directory: Path) -> Iterator[None]:
    """Raise JournalDamaged, with file and line in ``directory``, where what is folded is ``InvalidRecord``."""
    try:
        yield
    except InvalidRecord as error:
        raise damaged(directory, error.of, str(error)) from None


def _validated(space: Codec, identity: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
    """``params`` as the space has them; what a journal says reaches neither task nor model unchecked."""
    try:
        return space.validate(params)
    except UsageError as error:
        rules = "; ".join(str(error).splitlines())
        raise InvalidRecord(
            identity, params, f"the parameters of {identity} do not fit the search space ({rules})"
        ) from None


@dataclass
class ResumeState:
    """``sequences``: by (island, worker) the number after the last on record; ``hung``: by (island, worker) the launch
    that gave its ranks up as they hung, where nothing newer of it is on record; ``populations``: by island, as of the
    end of the last launch; ``reports``: by island the latest intermediate results at rungs; ``resting``: pruned ones
    that have saved themselves and may go on; ``continued``: those whose lineages went on; ``known``: how many known
    points there are; ``saves``: whether one that was asked to has ever saved itself; ``commands``: what those on
    record come to; ``enqueued``: points of theirs that were not begun; ``codes``: by launch the hash of the task's
    code, where it is on record; ``launches``: when each began, and the time of its last record; ``repeats``: whether a
    configuration was evaluated again on purpose; ``torn``: names of the journals whose last line was cut off;
    ``ended``: ids of all that have ended; ``contested``: whether the last launch may still run; ``first_number``: of
    new individuals of any worker at least; ``leading``: of one objective loss and id of the best that completed;
    ``snapshot``: for ``hpo.islands.snapshot.write_beside``, empty where that is not due."""

    keys: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    pending: list[Assignment] = field(default_factory=list)
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    hung: dict[tuple[int, int], int] = field(default_factory=dict)
    populations: dict[int, Population] = field(default_factory=dict)
    reports: dict[int, deque[tuple[str, int, float]]] = field(default_factory=dict)
    resting: set[str] = field(default_factory=set)
    continued: set[str] = field(default_factory=set)
    known: int = 0
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
) -> ResumeState:
    """``fold`` of all journals of the campaign in ``directory``, from its snapshot on where that fits them.

    Raises:
        InvalidRecord: as of ``fold``.
        CampaignError: as of ``hpo.journal.files.read_directory``.
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
            self._born[island] = Population(best=KEPT)
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

    def _on_migrated(self, record: Migrated) -> None:
        self._moves.setdefault(record.id, {})[record.hop, record.source, record.target] = record

    def _on_left(self, record: Left) -> None:
        if record.reason == HANGS:
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
        self._state.resting.discard(identity)
        if ended != PRUNED:  # what was pruned is still worth knowing
            for population in self._born.values():
                population.discard(identity)

    def _ended(self, record: Finished) -> None:
        state, identity = self._state, record.id
        state.keys.add(key_of(self._space, record.params, record.inherits, record.operator, identity))
        if record.resting:
            state.resting.add(identity)
        loss = _loss(record, self._losses)
        state.tally.add(_end(record, loss))
        population = self._born.get(record.island)
        if population is None:
            population = self._born[record.island] = Population(best=KEPT)
        progress = _progress(record, self._losses)
        member = Member(identity, (), loss, record.status, (), progress, record.operator)
        population.add(member)
        if loss is not None:
            newest = self._latest.setdefault(record.island, [])
            heapq.heappush(newest, (record.finished, identity, member))
            if len(newest) > _LATEST:
                heapq.heappop(newest)
        self._configurations[identity] = record.params
        if len(self._configurations) > 4096 + 2 * (KEPT + _LATEST) * len(self._born):
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
                genome = space.encode(_validated(space, member.id, self._configurations[member.id]))
                history = tuple(moves[hop].source for hop in sorted(moves))
                for island in sorted(_homes(birthplace, moves, islands)):
                    population = state.populations.setdefault(island, Population())
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
            assignment = _assignment(unfinished, space=space)
            # Its copy is made when it begins: that launch may have had no time for it.
            assignment.contested = unfinished.launch < self._contested
            state.keys.add(assignment.key)
            state.pending.append(assignment)
        begun = Counter(space.key(params) for params in self._enqueued.values())
        for command, params in state.commands.points:
            point = point_assignment(_validated(space, command, params), space.key)
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
    Migrated: _Fold._on_migrated,
    Reported: _Fold._on_reported,
    Left: _Fold._on_left,
    Started: _Fold._on_evaluation,
    Finished: _Fold._on_evaluation,
    Reopened: _Fold._on_reopened,
}


def _loss(
    record: Finished | Known, losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[float, ...] | None:
    """What is minimised; None unless it completed."""
    completed = record.status == COMPLETED and record.objectives is not None
    return losses(record.objectives) if completed and record.objectives is not None else None


def _end(record: Finished, losses: tuple[float, ...] | None) -> EvaluationEnd:
    """What is on record, as its leader reported it to the coordinator."""
    return EvaluationEnd(
        0,
        record.id,
        record.status,
        losses,
        0.0 if record.started is None else record.finished - record.started,
        reported=False,
        fault=None,
        error="" if record.status == COMPLETED else summary_line(record.error or ""),
        started=record.started or 0.0,
        result=None if losses is None else (record.params, record.objectives or {}),
    )


def enter(
    state: ResumeState,
    known: Iterable[Known],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> None:
    """Have each island know the results in ``known``. They are no individuals of this campaign: they are in no tally,
    are not evaluated again, and as they are on every island, they do not migrate."""
    completed: list[Member] = []
    failed: list[Member] = []
    for record in known:
        identity = known_id(record.number)
        state.known = max(state.known, record.number)
        state.keys.add(space.key(record.params))
        loss = _loss(record, losses)
        params = _validated(space, identity, record.params)
        member = Member(identity, space.encode(params), loss, record.status)
        member.history = tuple(range(islands))
        (failed if loss is None else completed).append(member)
        if loss is not None:
            state.tally.enter(Best(loss, identity, 0.0, params, dict(record.objectives or {})))
    completed.sort(key=lambda member: member.losses or ())
    if len(completed) > _MOST_KNOWN:
        best, rest = completed[: _MOST_KNOWN // 2], completed[_MOST_KNOWN // 2 :]
        left = _MOST_KNOWN - len(best)
        completed = best + [rest[index * len(rest) // left] for index in range(left)]
    for island in range(islands) if completed or failed else ():
        population = state.populations.setdefault(island, Population())
        for member in (*failed, *reversed(completed)):
            population.enter(replace(member))


@dataclass
class DeadLeaderRecord:
    """What the journal of a leader that died says of its last launch.

    ``finished``: key and end in the order in which the leader reported them to the coordinator;
    ``begun``: what it was evaluating; ``populations``: by island, the individuals that it has put there."""

    finished: list[tuple[str, EvaluationEnd]] = field(default_factory=list)
    begun: list[Assignment] = field(default_factory=list)
    populations: dict[int, Population] = field(default_factory=dict)


def dead_leader_record(
    records: Sequence[Record],
    *,
    space: Codec,
    islands: int,
    losses: Callable[[dict[str, float]], tuple[float, ...]],
) -> DeadLeaderRecord:
    """``records``: of one journal, whose writer writes no more."""
    found = DeadLeaderRecord()
    open_: dict[str, Started] = {}
    ended_runs: set[tuple[str, int, int]] = set()
    for record in records:
        if isinstance(record, Started):
            open_[record.id] = record
        elif isinstance(record, Finished):
            open_.pop(record.id, None)
            run = (record.id, record.reopened, record.resumed_at_step)
            if run in ended_runs:
                continue  # written again, after a write that failed
            ended_runs.add(run)
            key = key_of(space, record.params, record.inherits, record.operator, record.id)
            found.finished.append((key, _end(record, _loss(record, losses))))
    found.begun = [_unfinished(record, space=space, deaths=1) for record in open_.values()]
    found.populations = fold(records, space=space, islands=islands, losses=losses).populations
    return found


def _unfinished(record: Started | Finished, *, space: Codec, deaths: int) -> Assignment:
    """An individual that was begun, to be evaluated again under its id; it may find its own checkpoint."""
    params = _validated(space, record.id, record.params)
    return Assignment(
        id=record.id,
        params=params,
        key=key_of(space, params, record.inherits, record.operator, record.id),
        operator=record.operator,
        parents=record.parents,
        retries=record.retries + deaths,
        resumed=True,
        admitted=True,
        resumed_at_step=record.resumed_at_step,
        inherits=record.inherits,
        reopened=record.reopened,
    )


def _assignment(unfinished: Unfinished, *, space: Codec) -> Assignment:
    _, record, reopened = unfinished
    assignment = _unfinished(record, space=space, deaths=0)
    return assignment if reopened == record.reopened else anew(assignment, reopened)


def failures(records: Iterable[Record], *, space: Codec) -> list[tuple[str, Assignment]]:
    """The status of each individual that ended in a failure, and how it would be evaluated if it was reopened."""
    current = CurrentEvaluations()
    for record in records:
        if isinstance(record, Header):
            current.enter_launch(record)
        elif isinstance(record, Reopened):
            current.reopen(record)
        elif isinstance(record, (Started, Finished)):
            current.add(record)
    return [
        (record.status, anew(_unfinished(record, space=space, deaths=0), record.reopened + 1))
        for record in current.failures
        if isinstance(record, Finished)
    ]


def _progress(
    record: Finished, losses: Callable[[dict[str, float]], tuple[float, ...]]
) -> tuple[int, float] | None:
    """Steps and loss of the last report of an individual that was pruned or completed."""
    if record.status not in (PRUNED, COMPLETED):
        return None
    step = record.metrics.get("pruned_step") if record.status == PRUNED else record.steps
    if not isinstance(step, int):
        return None
    return step, losses(record.objectives)[0] if record.objectives else math.inf


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


def start_messages(
    layout: Layout,
    state: ResumeState,
    launch: int,
    hosts: Sequence[str],
    *,
    cores: Sequence[str] = (),
    lineages: Container[int] = (),
    holds: Callable[[str], bool] = lambda identity: True,
) -> list[Start]:
    """The first message to each rank; only leaders get a population. ``hosts`` and ``cores``: by world rank, as of
    ``surroundings``; ``lineages``: islands whose individuals go on from each other; ``holds``: whether what an
    individual saved is still there, without which none goes on."""
    starts = [Start(launch, where, 0, [], [], []) for where in surroundings(layout, hosts, cores)]
    for island in range(layout.islands):
        places = layout.of_island(island)
        population = state.populations.get(island)
        members: list[Evaluated] = []
        owned: dict[int, list[str]] = {}
        if population is not None:
            leaders = [place.leader for place in places]
            paused = [one.id for one in population.pruned if one.id in state.resting and holds(one.id)]
            resting = share(paused, leaders)
            completed = list(reversed(list(population)))  # worst first: what comes last counts as most recent
            if island in lineages:
                recent = population.recent
                completed = [one for one in completed if one not in recent] + recent
                ends = [one.id for one in recent if not one.history and one.id not in state.continued]
                owned = share([identity for identity in ends if holds(identity)], leaders)
            else:
                owned = share([one.id for one in population.best if not is_known(one.id)], leaders)
            owned = {leader: owned[leader] + resting[leader] for leader in leaders}
            everyone = (*population.failures, *population.pruned, *completed)
            members += [Evaluated.of(one) for one in everyone]
        reports = rung_reports(state.reports.get(island, ()))
        for place in places:
            starts[place.leader] = Start(
                launch,
                starts[place.leader].surroundings,
                state.sequence(place.island, place.worker),
                members,
                owned.get(place.leader, []),
                reports,
            )
    return starts


def surroundings(layout: Layout, hosts: Sequence[str], cores: Sequence[str] = ()) -> list[Surroundings]:
    """Where each rank runs. By world rank: ``hosts``; and ``cores``, equal for ranks that see the same of a host."""
    seen: dict[str, set[str]] = {}
    for host, one in zip(hosts, cores):
        seen.setdefault(host, set()).add(one)
    sizes = Counter(hosts)
    leaders = Counter(hosts[place.leader] for place in layout.workers)
    before: Counter[str] = Counter()
    found = []
    for rank, host in enumerate(hosts):
        own = tuple(hosts[member] for member in layout.place_of(rank)[0].ranks)
        found.append(
            Surroundings(own, before[host], sizes[host], leaders[host], len(seen.get(host, ())) == 1)
        )
        before[host] += 1
    return found


def share(identities: Sequence[str], leaders: Sequence[int]) -> dict[int, list[str]]:
    """Who owns which of an island's individuals from now on: dealt to its leaders in turn."""
    owned: dict[int, list[str]] = {leader: [] for leader in leaders}
    for index, identity in enumerate(identities):
        owned[leaders[index % len(leaders)]].append(identity)
    return owned
