"""Commands to a running campaign (see ``hpo.journal.commands``), and what its launch may evaluate by the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hpo.errors import (
    CampaignError,
    HpoError,
    LaunchClosed,
    LedgerDamaged,
    StorageFailed,
    describe_os_error,
)
from hpo.individual import ENQUEUED, Configuration, Scalar
from hpo.islands.coordinator.health import ReopenableFailure
from hpo.islands.coordinator.launch import EndRules
from hpo.islands.coordinator.sharing import Sharing
from hpo.islands.end_reasons import STOPPED
from hpo.islands.messages import Assignment
from hpo.islands.storage import StorageWait, storage_sentence
from hpo.journal.commands import Drain, Enqueue, Pause, Retry, Set, Stop, Unpause, name_of
from hpo.ledger.entries import Commanded
from hpo.ledger.participation import Participation

if TYPE_CHECKING:
    from hpo.islands.coordinator.coordinator import Coordinator


class LeftByLaunch(NamedTuple):
    """Individuals of a closed launch."""

    unfinished: Mapping[str, Assignment]
    """Those that it had begun, by id."""
    ended: Collection[str]
    """Ids of those that ended in it."""
    keys: Collection[str] = ()
    """Keys of the configurations of all."""


class _Units(NamedTuple):
    """Units of the campaign's budget: a number to breed, and individuals and given points that hold one each."""

    fresh: int = 0
    ids: frozenset[str] = frozenset()
    points: frozenset[int] = frozenset()

    def without(self, other: _Units) -> _Units:
        return _Units(self.fresh - other.fresh, self.ids - other.ids, self.points - other.points)


@dataclass(kw_only=True)
class Commands:
    """Follows the ledger: applies new commands to the coordinator, and draws and returns units of the budget.

    ``unfinished``: individuals of earlier launches that were begun and did not end, by id."""

    participation: Participation
    sharing: Sharing
    """Its rules on units where other launches are open."""
    unfinished: dict[str, Assignment]
    began: float
    """Unix seconds from which the deadline counts."""
    assigned: Callable[[str, Mapping[str, object]], Assignment]
    """Makes an assignment of a point with this name; HpoError where the task does not take it."""
    left_by: Callable[[int], LeftByLaunch]
    """Reads what a closed launch left, by its number."""
    failures: Callable[[], list[tuple[str, Assignment]]]
    """Returns the status of each individual that ended in a failure, and how it would be evaluated again."""
    rules: EndRules = field(default_factory=EndRules)
    """Rules by which the whole campaign ends early."""
    error: OSError | None = None
    """Why the ledger, or a journal that a command needs, cannot be read or written for now."""
    _learnt: set[int] = field(default_factory=set)
    """Closed launches of whose individuals this launch knows."""
    _unclosed: set[int] = field(default_factory=set)
    """Dead launches whose journals cannot be read."""
    _drew: bool = False
    """Whether what was free could be drawn once."""
    _applied: int = 0
    _judged: set[int] = field(default_factory=set)
    """Numbers of the given points that were tried on the task."""
    _points: dict[int, Assignment] = field(default_factory=dict)
    """Given points that the task takes, by number."""
    _drawn: dict[str, Assignment] = field(default_factory=dict)
    """Assignments of unfinished individuals that were drawn, by id."""
    _failed: dict[str, ReopenableFailure] = field(default_factory=dict)
    """Failures that ``hpo retry`` names, by id."""
    _sought: set[str] = field(default_factory=set)
    """Individuals that were looked for among the failures on record."""
    _again: set[tuple[str, int]] = field(default_factory=set)
    """Individuals that are evaluated again here, each with the entry of the command."""
    _wait: StorageWait = field(default_factory=StorageWait)
    _held: _Units = field(default_factory=_Units)
    _returning: _Units = field(default_factory=_Units)
    """Those of ``_held`` that are used no more, and that the ledger may not have yet."""

    def __post_init__(self) -> None:
        # Those that were given while this launch read the journals are still to be applied.
        joined = self.participation.own.joined.n
        self._applied = sum(one.n < joined for one in self.participation.state.commands)
        self._learnt = {*self.participation.read_closed}

    def look(self, target: Coordinator, now: float) -> None:
        """Apply new commands, and draw what is free.

        Args:
            now: Unix seconds.

        Raises:
            StorageFailed: the ledger could not be used for minutes.
            CampaignError: it is damaged, or another launch has closed the present launch.
        """
        self.error = None
        target.paused |= not self._drew  # nothing may begin that is not drawn
        try:
            self.participation.ledger.read_on()
            self._close_dead(target)
            self._learn_closed(target)
            self._take_drawn(target)
            self._apply(target)
            self._take_limit(target)
            self._end_campaign(target, now)
            if target.stopping is None and self.participation.state.is_stopped(self.participation.number):
                target.stop(STOPPED)
            self._judge_points(target)
            self._find_failures(target)
            self._keep_for_others(target)
            target.share(self.sharing.look(target, now))
            if not self._give_back(target):
                self._draw(target)
            self._take_drawn(target)
        except OSError as error:
            self.error = error
            self._wait.failed(describe_os_error(error, "the ledger"), now)
            if self._wait.over:
                raise StorageFailed(storage_sentence(self._wait.error or "")) from error
        else:
            self._wait.worked()
            self._drew = True
            target.paused = self.participation.state.paused

    @property
    def awaits_units(self) -> bool:
        """Whether the launch may get more to evaluate: the campaign is paused, or what is free could not be drawn."""
        state = self.participation.state
        paused = state.paused and (state.free > 0 or bool(state.resting))
        return self.error is not None or paused

    # --- other launches -----------------------------------------------------------------------------------------------

    def _close_dead(self, target: Coordinator) -> None:
        """Close launches that have died, of which others may go on with what they leave."""
        for number in sorted(self.sharing.dead - self._unclosed):
            try:
                self.participation.close_others("it showed no sign of life", [number])
            except (LaunchClosed, LedgerDamaged):
                raise
            except CampaignError as error:
                if isinstance(error.__cause__, OSError):
                    continue  # it may be readable at the next look
                self._unclosed.add(number)
                target.remarks.append(f"launch {number} has died and cannot be closed: {error}".rstrip("."))
            else:
                target.remarks.append(f"launch {number} showed no sign of life, and was closed")

    def _learn_closed(self, target: Coordinator) -> None:
        """Learn what other launches left that were closed since the last look."""
        for number in self.participation.state.closed.keys() - self._learnt:
            left = self.left_by(number)
            for one in left.ended:
                self.unfinished.pop(one, None)
            self.unfinished.update(left.unfinished)
            target.budget.learn_closed(number, left.keys)
            # A failure may have been evaluated again there.
            self._failed, self._sought = {}, set()
            self._learnt.add(number)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _apply(self, target: Coordinator) -> None:
        commands = self.participation.state.commands
        while self._applied < len(commands) and target.end is None:
            command = commands[self._applied]
            self._applied += 1
            if said := self._execute(command, target):
                request = command.request
                target.remarks.append(f"`hpo {name_of(request)}` by {request.by}: {said}")
        self._retry_own(target)

    def _execute(self, command: Commanded, target: Coordinator) -> str:
        """Apply ``command``, as far as it is more than a change of the budget; a sentence on its effect."""
        request, participation = command.request, self.participation
        if isinstance(request, Stop):
            target.stop(STOPPED)
            return "nothing more is begun, in no launch before a person gives `hpo run`"
        if isinstance(request, Pause):
            return "what runs goes on, and nothing new starts until `hpo unpause`"
        if isinstance(request, Unpause):
            return "goes on"
        if isinstance(request, Drain):
            if not participation.own.has(int(request.worker.partition("-")[2])):
                return ""
            leader = target.workers.get(request.worker)
            if leader is None:
                return f"refused: there is no worker {request.worker} at work any more"
            target.drain(leader)
            return f"worker {request.worker} gets nothing more in this launch"
        if isinstance(request, Retry):
            number = len(command.pool) + sum(one in participation.own.again for one in command.again)
            if not number:  # others evaluate them
                return ""
            return f"{number} that ended as {' or '.join(request.statuses)} are evaluated again"
        if isinstance(request, Enqueue):
            return f"{len(request.points)} evaluated next, as far as the budget goes and they are new"
        if isinstance(request, Set):
            return self._set(request, target)
        return ""

    def _set(self, request: Set, target: Coordinator) -> str:
        if request.evaluations is not None:
            target.evaluations = request.evaluations
        if request.deadline_s is not None:
            target.set_deadline(self.began + request.deadline_s)
        return ", ".join(f"{name} = {value}" for name, value in request.values.items())

    def ends_now(self, target: Coordinator) -> bool:
        """Whether results have ended the campaign by a value or by the hours."""
        limits = self.participation.state.limits
        if target.stopping is not None or (limits.stop_value is None and limits.rank_hours is None):
            return False
        return bool(self.rules.reached(target.tally, limits, self.sharing.rank_s(target) / 3600))

    def _end_campaign(self, target: Coordinator, now: float) -> None:
        """End the campaign where a rule says so, and this launch where the campaign has ended early."""
        participation, sharing = self.participation, self.sharing
        if participation.state.completed is None and target.stopping is None:
            hours, limits = sharing.rank_s(target) / 3600, participation.state.limits
            reason = self.rules.reached(target.tally, limits, hours)
            reason = reason or self.rules.no_gain(target.tally, limits, alone=sharing.alone, now=now)
            if reason:
                participation.complete(reason)
        if target.stopping is None and (ended := target.ended_early) is not None:
            target.remarks.append(f"the campaign ends: {ended.reason}")
            target.stop(ended.name)

    def _take_limit(self, target: Coordinator) -> None:
        """Take the budget of another launch's campaign file."""
        evaluations = self.participation.state.limits.evaluations
        if evaluations != target.evaluations:
            target.evaluations = evaluations
            target.remarks.append(f"evaluations = {evaluations} by the campaign file of another launch")

    def _retry_own(self, target: Coordinator) -> None:
        """Evaluate failures of this launch again that ``hpo retry`` names."""
        again = {one for one in self.participation.own.again.items() if one not in self._again}
        if again:
            failures = self._failures_by_id()
            for identity, entry in sorted(again):
                if identity not in failures or target.retry([failures[identity]], entry):
                    self._again.add((identity, entry))

    def _failures_by_id(self) -> dict[str, ReopenableFailure]:
        return {one.id: ReopenableFailure(status, one, "") for status, one in self.failures()}

    # --- units of the budget ------------------------------------------------------------------------------------------

    def _judge_points(self, target: Coordinator) -> None:
        """Keep those of the given points that this launch may evaluate."""
        points = self.participation.state.points
        for number in self.participation.state.waiting.keys() - self._judged:
            try:
                point = self.assigned(f"point {number + 1} of `hpo enqueue`", points[number])
            except HpoError as error:
                target.remarks.append("; ".join(str(error).splitlines()).rstrip("."))
            else:
                self._points[number] = point
            self._judged.add(number)

    def _find_failures(self, target: Coordinator) -> None:
        """Look for the failures that ``hpo retry`` has put into the pool: they do not count any more."""
        failed = {one for one in self.participation.state.pool if one not in self.unfinished}
        if target.stopping is None and not failed <= self._sought:
            found = self._failures_by_id()
            self._failed.update({one: found[one] for one in failed & found.keys()})
            self._sought |= failed
            for one in failed & found.keys():
                target.tally.reopen(found[one].status, identity=one)

    def _known_of_pool(self) -> dict[str, Assignment]:
        """Individuals that may be drawn and that this launch knows, by id."""
        again = {one: found.again for one, found in self._failed.items()} | self.unfinished
        return {one: again[one] for one in self.participation.state.pool if one in again}

    def _keep_for_others(self, target: Coordinator) -> None:
        """Leave units to individuals and points that only workers of other sizes may evaluate."""
        points = (self._points[one] for one in self.participation.state.waiting if one in self._points)
        kept = sum(not target.may_evaluate(one) for one in (*self._known_of_pool().values(), *points))
        if kept and not self.sharing.kept:
            target.remarks.append(
                f"{kept} of the budget wait for workers of other sizes ([[island]] ranks_per_worker): start with more "
                "ranks, beside this launch or after it"
            )
        self.sharing.kept = kept

    def _draw(self, target: Coordinator) -> None:
        state = self.participation.state
        if state.may_draw() and target.stopping is None:
            known = self._known_of_pool()
            suited = [one for one, found in known.items() if target.may_evaluate(found)]
            # The leaders do not know individuals that have rested in another launch meanwhile.
            resting = [one for one in state.resting if self.sharing.alone and target.has_island(one)]
            self.participation.draw(
                [*suited, *resting],
                self._points_to_draw(target),
                most=self.sharing.portion(target),
                kept=self.sharing.kept,
            )

    def _points_to_draw(self, target: Coordinator) -> list[int]:
        """Numbers of the given points that wait and are new: of equal points one at a time, as that shows, once it is
        admitted, whether the others may come."""
        waiting = sorted(self._points.keys() & self.participation.state.waiting.keys(), reverse=True)
        points = {one: self._points[one] for one in waiting if target.may_evaluate(self._points[one])}
        new = {point.key: one for one, point in points.items() if target.budget.is_new(point.key)}
        return sorted(new.values())

    def _take_drawn(self, target: Coordinator) -> None:
        """Let the coordinator grant what this launch holds since the last look."""
        own = self.participation.own
        held = _Units(own.fresh, frozenset(own.ids), frozenset(own.points))
        if held != self._held:
            self._held, self._returning = self._held.without(self._returning), _Units()
        new, self._held = held.without(self._held), held
        if not any(new):
            return
        drawn = [one for one in own.ids if one in new.ids and one not in own.rested]
        individuals = [
            self.unfinished[one] if own.ids[one] else self.unfinished[one].as_contested()
            for one in drawn
            if one in self.unfinished
        ]
        self._drawn.update({one.id: one for one in individuals})
        points = {one: self._points[one] for one in sorted(new.points)}
        # Where the answer to the draw was late, a leader may have bred the same meanwhile; so may another launch.
        late = frozenset(number for number, one in points.items() if not target.budget.reserve(one.key))
        self._returning = _Units(points=late)
        target.budget.add(
            new.fresh, individuals, [one for number, one in points.items() if number not in late]
        )
        failed = [self._failed[one] for one in drawn if one in self._failed]
        target.retry(failed, self.participation.state.entries)

    def _give_back(self, target: Coordinator) -> bool:
        """Return units that the campaign's budget lacks since ``hpo set`` made it smaller, and units drawn to breed
        that given points need, which come before; whether nothing is to be drawn at this look."""
        state = self.participation.state
        owed, spared = max(0, -state.free), 0
        if not any(self._returning):
            target.budget.owed = owed
            given_up = target.budget.surrender(owed, self._is_returnable)
            if not owed:
                needed = len(self._points_to_draw(target)) - state.free
                spared = target.budget.spare(needed) if state.may_draw() and target.stopping is None else 0
                given_up = target.budget.surrender(
                    self.sharing.to_spare(target) - spared, self._is_returnable
                )
                given_up = given_up._replace(fresh=given_up.fresh + spared)
            ids = frozenset(one.id for one in given_up.assignments if one.id)
            points = frozenset(
                number
                for number, one in self._points.items()
                if any(one is other for other in given_up.assignments)
            )
            self._returning = _Units(given_up.fresh, ids, points)
        if any(self._returning):
            self.participation.give_back(self._held.fresh, *self._returning)
        # Units for points are drawn at once; units that others need are not drawn again.
        return owed > 0 or self._returning not in (_Units(), _Units(spared))

    def _is_returnable(self, assignment: Assignment) -> bool:
        """Whether ``assignment`` was drawn as it is, and never begun here."""
        return self._drawn.get(assignment.id) is assignment or any(
            one is assignment for one in self._points.values()
        )


def point_assignment(
    params: dict[str, Scalar], key: Callable[[dict[str, Scalar]], str], operator: str = ENQUEUED
) -> Assignment:
    """Assignment of a given point."""
    configuration = Configuration(id="", params=params, operator=operator)
    return Assignment(configuration=configuration, key=key(params))
