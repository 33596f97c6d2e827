"""State of a campaign as its ledger has it: who takes part, and what of the budget is used, held and free.

The state follows from the entries alone. ``LedgerState.problem`` has the rules that an entry must keep: its writer
checks it before it is appended, and every reader checks it again. These rules hold the invariants:

* units are drawn only where they are free, so that the individuals that count cannot outnumber the budget;
* an individual of the pool, and a given point, is held by at most one open launch;
* a launch is closed once, and has no entry after that;
* no two workers have the same number, so no two individuals have the same id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from hpo.errors import LedgerDamaged
from hpo.individual import birthplace
from hpo.journal.commands import Enqueue, Pause, Request, Retry, Set, Stop, Unpause
from hpo.ledger.entries import (
    Closed,
    Commanded,
    Completed,
    Drew,
    Go,
    Joined,
    LedgerEntry,
    Limits,
    Opened,
    Recount,
    UnitsReturned,
)

UNLIMITED = 1 << 62
"""Free units of a campaign without a budget."""


@dataclass
class OpenLaunch:
    """A launch that has joined and was not closed, with the units of the budget that it holds."""

    joined: Joined
    stops_after: int = 0
    """Number of the entry after which ``hpo stop`` holds for it."""
    fresh: int = 0
    """Units drawn to breed; they stay held until the launch closes."""
    ids: dict[str, bool] = field(default_factory=dict)
    """Individuals of other launches that it drew, and whether it goes on in place, as in ``pool``."""
    rested: set[str] = field(default_factory=set)
    """Those of ``ids`` that were resting."""
    points: set[int] = field(default_factory=set)
    """Given points that it drew."""
    again: dict[str, int] = field(default_factory=dict)
    """Individuals that it ended and is to evaluate again, each with the number of the entry of ``hpo retry``: who
    closes the launch puts those into the pool that it has not reopened since."""

    @property
    def units(self) -> int:
        return self.fresh + len(self.ids) + len(self.points)

    def has(self, worker: int) -> bool:
        """Whether the worker of this number is one of its own."""
        return 0 <= worker - self.joined.first_worker < self.joined.workers

    def evaluates(self, identity: str) -> bool:
        """Whether the individual is one that it bred or drew."""
        return identity in self.ids or self.has(birthplace(identity)[1])


@dataclass
class LedgerState:
    """State after the first ``entries`` entries."""

    entries: int = 0
    opened: Opened | None = None
    limits: Limits = field(default_factory=Limits)
    """Limits that hold."""
    in_file: Limits = field(default_factory=Limits)
    """Limits of the campaign file, as the last launch read it."""
    launches: int = 0
    """Number of launches that have joined, those before the ledger included."""
    workers: int = 0
    """Least number that no worker has."""
    joined: dict[int, Joined] = field(default_factory=dict)
    """Entries by which launches joined, by number."""
    open: dict[int, OpenLaunch] = field(default_factory=dict)
    """Launches that take part, by number."""
    closed: dict[int, Closed] = field(default_factory=dict)
    """Launches that take no more part, by number."""
    final: int = 0
    """Number of individuals that ended in closed launches, and count."""
    rank_s: float = 0.0
    """Seconds of all evaluations in closed launches, each times the ranks of its worker."""
    pool: dict[str, bool] = field(default_factory=dict)
    """Individuals to go on with before any that is new, in the order in which they came, and whether to do so in place:
    else in a copy of the directory, as a process of a closed launch may still write there."""
    resting: dict[str, bool] = field(default_factory=dict)
    """Pruned individuals of closed launches that count and may go on, likewise."""
    points: list[dict[str, Any]] = field(default_factory=list)
    """All given points."""
    waiting: dict[int, None] = field(default_factory=dict)
    """Numbers of the given points that no open launch holds and none has begun, in their order."""
    commands: list[Commanded] = field(default_factory=list)
    """All commands."""
    paused: bool = False
    completed: Completed | None = None
    """Its end, unless a command has made room since."""
    _stopped: int = 0
    _went_on: int = 0
    _last_closed: int = 0

    @property
    def held(self) -> int:
        """Units that open launches hold."""
        return sum(launch.units for launch in self.open.values())

    @property
    def free(self) -> int:
        """Units that may be drawn; below 0 where ``hpo set`` made the budget smaller than what is used and held."""
        evaluations = self.limits.evaluations
        return UNLIMITED if evaluations is None else evaluations - self.final - self.held

    def command(self, request: Request, retried: Sequence[str] = ()) -> Commanded:
        """The entry of ``request``. ``retried``: ids of individuals that ended, to be evaluated again."""
        again = [one for one in retried if any(launch.evaluates(one) for launch in self.open.values())]
        pool = [one for one in retried if one not in self.pool and one not in again]
        return Commanded(request=request, pool=tuple(pool), again=tuple(again))

    def limits_with(self, in_file: Limits) -> Limits:
        """Limits that hold where the campaign file has the limits ``in_file``: what was set holds until the file
        changes."""
        given = structs.asdict(in_file)
        if in_file.outcomes is None:
            del given["outcomes"]
        changed = {name: value for name, value in given.items() if value != getattr(self.in_file, name)}
        return structs.replace(self.limits, **changed)

    @property
    def ended_early(self) -> Completed | None:
        """Entry by which the campaign has ended before its budget was used up."""
        return self.completed if self.completed is not None and self.completed.reason else None

    @property
    def end_reason(self) -> str:
        """Reason of ``ended_early``; "" while the campaign goes on, or where its budget is used up."""
        return "" if self.ended_early is None else self.ended_early.reason

    def end_with(self, in_file: Limits) -> Completed | None:
        """``ended_early``, if the campaign stays ended where its file has the limits ``in_file``."""
        return self.ended_early if self.limits_with(in_file).ends == self.limits.ends else None

    @property
    def unseen_commands(self) -> int:
        """Number of commands that were given since the last launch was closed, where none is open."""
        return 0 if self.open else sum(one.n > self._last_closed for one in self.commands)

    @property
    def stop_pending(self) -> bool:
        """Whether ``hpo stop`` was given, and no person has started the campaign since."""
        return self._stopped > self._went_on

    @property
    def is_stopping(self) -> bool:
        """Whether ``hpo stop`` holds for all open launches, and no person has started the campaign since."""
        return self.stop_pending and all(map(self.is_stopped, self.open))

    def keeps_from_joining(self, submitted: int | None) -> bool:
        """Whether ``hpo stop`` holds for a launch that was submitted when ``submitted`` entries were there, and has not
        joined. None: before all stops."""
        return self._stopped > max(submitted or 0, self._went_on)

    def is_stopped(self, launch: int) -> bool:
        """Whether the open ``launch`` is to end for ``hpo stop``, also where a person has started others since."""
        return self._stopped > self.open[launch].stops_after

    @property
    def submitted(self) -> int:
        """``Joined.submitted`` of a launch that begins now: a stop that is pending came after its start."""
        return self._stopped - 1 if self.stop_pending else self.entries

    def may_draw(self) -> bool:
        """Whether units may be drawn now."""
        return self.opened is not None and self.completed is None and not self.paused

    def problem(self, entry: LedgerEntry) -> str:
        """Reason why ``entry`` cannot follow in this state; "" if it can."""
        if entry.n != self.entries + 1:
            return f"entry {entry.n} of the ledger follows entry {self.entries}"
        for problem in self._problems(entry):
            return (
                f"entry {entry.n} of the ledger ({entry.__struct_config__.tag}, by {entry.host or 'an unknown host'}) "
                f"contradicts those before it: {problem}"
            )
        return ""

    def take(self, entry: LedgerEntry) -> None:
        """Go on to the state after ``entry``; LedgerDamaged, and nothing changed, where it cannot follow."""
        problem = self.problem(entry)
        if problem:
            raise LedgerDamaged(problem)
        self.entries = entry.n
        _CHANGES[type(entry)](self, entry)

    # --- rules --------------------------------------------------------------------------------------------------------

    def _problems(self, entry: LedgerEntry) -> Iterator[str]:
        if isinstance(entry, Opened) != (self.opened is None):
            yield "a ledger is opened by its first entry, and by no other"
        number = getattr(entry, "launch", None)
        if number is not None and not isinstance(entry, Joined) and number not in self.open:
            yield f"launch {number} is not open"
            return
        yield from _RULES[type(entry)](self, entry)

    def _rules_of_opened(self, entry: Opened) -> Iterator[str]:
        yield from _given_twice((*entry.pool, *entry.resting), "individual")
        if len(entry.resting) > entry.final:
            yield "more individuals rest than have ended"
        for one in (*entry.pool, *entry.resting):
            if birthplace(one)[1] >= entry.workers:
                yield f"no worker has the number of {one}"

    def _rules_of_joined(self, entry: Joined) -> Iterator[str]:
        if entry.launch != self.launches + 1:
            yield f"launch {entry.launch} joins after launch {self.launches}"
        if entry.first_worker != self.workers:
            yield f"its workers begin at {entry.first_worker}, and {self.workers} is the next free number"

    def _rules_of_drew(self, entry: Drew) -> Iterator[str]:
        if not self.may_draw():
            yield "nothing may be drawn from a campaign that is paused or completed"
        yield from _given_twice(entry.ids, "individual")
        yield from _given_twice(entry.points, "point")
        yield from (
            f"{one} is not to be drawn"
            for one in entry.ids
            if one not in self.pool and one not in self.resting
        )
        yield from (f"point {one} is not to be drawn" for one in entry.points if one not in self.waiting)
        if not entry.ids and self._cost(entry) == 0:
            yield "it draws nothing"
        if self._cost(entry) > max(0, self.free):
            yield f"{self._cost(entry)} units are drawn, and {self.free} are free"

    def _cost(self, entry: Drew) -> int:
        # A resting individual counts already.
        return entry.fresh + len(entry.points) + sum(one in self.pool for one in entry.ids)

    def _rules_of_returned(self, entry: UnitsReturned) -> Iterator[str]:
        launch = self.open[entry.launch]
        yield from _given_twice(entry.ids, "individual")
        yield from _given_twice(entry.points, "point")
        if entry.fresh > launch.fresh or not launch.ids.keys() >= set(entry.ids):
            yield f"launch {entry.launch} does not hold what it returns"
        if not launch.points.issuperset(entry.points):
            yield f"launch {entry.launch} does not hold the points that it returns"

    def _rules_of_closed(self, entry: Closed) -> Iterator[str]:
        launch = self.open[entry.launch]
        if entry.by and entry.by not in self.open:
            yield f"launch {entry.by}, which closes it, is not open"
        if entry.in_place and entry.by != entry.launch:
            yield "a launch that another closed may still write in all of its directories"
        yield from _given_twice((*entry.pool, *entry.resting), "individual")
        yield from _given_twice(entry.points, "point")
        for one in (*entry.pool, *entry.resting):
            if not launch.evaluates(one):
                yield f"launch {entry.launch} neither drew nor bred {one}"
        if not all(map(launch.has, entry.lengths)):
            yield "it counts journals of workers of other launches"
        if not launch.points.issuperset(entry.points):
            yield f"launch {entry.launch} did not draw the points that it leaves"
        if not {*entry.pool, *entry.resting}.issuperset(entry.in_place):
            yield "an individual to go on with in place is neither in the pool nor resting"
        if len(entry.resting) > entry.final:
            yield "more individuals rest than have ended"
        left = len(entry.pool) + len(entry.points)
        if len(launch.ids.keys() - set(entry.pool)) > entry.final:
            yield "individuals that it drew are missing"
        if len(launch.ids) + len(launch.points) > entry.final + left:
            yield "points that it drew are missing"

    def _rules_of_command(self, entry: Commanded) -> Iterator[str]:
        yield from _given_twice((*entry.pool, *entry.again), "individual")
        if (entry.pool or entry.again) and not isinstance(entry.request, Retry):
            yield "only `hpo retry` has individuals evaluated again"
        for one in (*entry.pool, *entry.again):
            at_work = any(launch.evaluates(one) for launch in self.open.values())
            if one in self.pool or at_work != (one in entry.again):
                yield f"{one} has not ended in {'an open' if one in entry.again else 'a closed'} launch"
            elif birthplace(one)[1] >= self.workers:
                yield f"no worker has the number of {one}"
        if isinstance(entry.request, Recount) and self.held:
            yield f"it counts what launches leave, and open launches hold {self.held} units"
        if len(entry.pool) > self.final:
            yield f"{len(entry.pool)} individuals are evaluated again, and {self.final} have ended"

    def _rules_of_completed(self, entry: Completed) -> Iterator[str]:
        if self.completed is not None:
            yield "the campaign is completed already"
        if entry.final != self.final:
            yield f"{entry.final} individuals have ended by this entry, and {self.final} by those before it"
        if self.held and not entry.reason:
            yield f"open launches hold {self.held} units"
        if not entry.reason and self.free > 0:
            yield f"{self.free} units of the budget are free"

    # --- changes ------------------------------------------------------------------------------------------------------

    def _on_opened(self, entry: Opened) -> None:
        self.opened = entry
        self.limits, self.in_file, self.paused = entry.limits, entry.in_file, entry.paused
        self.launches, self.workers, self.final = entry.launches, entry.workers, entry.final
        self.rank_s = entry.rank_s
        self.pool = dict.fromkeys(entry.pool, False)
        self.resting = dict.fromkeys(entry.resting, False)
        self._give(entry.points)

    def _on_joined(self, entry: Joined) -> None:
        self.launches = entry.launch
        self.joined[entry.launch] = entry
        self.workers += entry.workers
        self.open[entry.launch] = OpenLaunch(entry, max(entry.submitted, self._went_on))
        self._give(entry.points)
        if entry.in_file is not None:
            before, self.limits = self.limits, self.limits_with(entry.in_file)
            self.in_file = entry.in_file
            self._go_on(before)

    def _on_drew(self, entry: Drew) -> None:
        launch = self.open[entry.launch]
        launch.fresh += entry.fresh
        launch.points.update(entry.points)
        for one in entry.ids:
            if one in self.resting:  # it counts again when it ends again
                self.final -= 1
                launch.rested.add(one)
            launch.ids[one] = self.pool.pop(one) if one in self.pool else self.resting.pop(one)
        for number in entry.points:
            del self.waiting[number]

    def _on_returned(self, entry: UnitsReturned) -> None:
        launch = self.open[entry.launch]
        launch.fresh -= entry.fresh
        launch.points.difference_update(entry.points)
        for one in entry.ids:
            in_place = launch.ids.pop(one)
            if one in launch.rested:
                launch.rested.remove(one)
                self.final += 1
                self.resting[one] = in_place
            else:
                self.pool[one] = in_place
        self._put_back(entry.points)

    def _on_closed(self, entry: Closed) -> None:
        del self.open[entry.launch]
        self.closed[entry.launch] = entry
        self._last_closed = entry.n
        self.final += entry.final
        self.rank_s += entry.rank_s
        in_place = set(entry.in_place)
        self.pool.update({one: one in in_place for one in entry.pool})
        self.resting.update({one: one in in_place for one in entry.resting})
        self._put_back(entry.points)

    def _on_command(self, entry: Commanded) -> None:
        request, before = entry.request, self.limits
        self.commands.append(entry)
        if isinstance(request, Stop):
            self._stopped = entry.n
        elif isinstance(request, Go):
            self._went_on = entry.n
        elif isinstance(request, (Pause, Unpause)):
            self.paused = isinstance(request, Pause)
        elif isinstance(request, Enqueue):
            self._give(request.points)
        elif isinstance(request, Set):
            self.limits = structs.replace(self.limits, **request.values)
        elif isinstance(request, Recount):
            self.final = request.final
            self.pool = {one: self.pool.get(one, False) for one in request.pool}
            self.resting = {one: self.resting.get(one, False) for one in request.resting}
        self.final -= len(entry.pool)
        for one in entry.pool:
            self.resting.pop(one, None)
            self.pool[one] = False
        for launch in self.open.values():
            own = filter(launch.evaluates, entry.again)
            launch.again.update(dict.fromkeys(own, entry.n))
        self._go_on(before)

    def _go_on(self, before: Limits) -> None:
        """Forget the end where there is room again, or where what it came from has changed since ``before``."""
        if self.limits.ends != before.ends if self.ended_early else self.free > 0:
            self.completed = None

    def _on_completed(self, entry: Completed) -> None:
        self.completed = entry

    def _give(self, points: Iterable[dict[str, Any]]) -> None:
        first = len(self.points)
        self.points += points
        self.waiting.update(dict.fromkeys(range(first, len(self.points))))

    def _put_back(self, points: Collection[int]) -> None:
        if points:
            self.waiting = dict.fromkeys(sorted({*self.waiting, *points}))


def _given_twice(values: Collection[object], name: str) -> Iterator[str]:
    if len(set(values)) != len(values):
        yield f"it names {name}s twice"


_RULES: dict[type[LedgerEntry], Callable[[LedgerState, Any], Iterator[str]]] = {
    Opened: LedgerState._rules_of_opened,
    Joined: LedgerState._rules_of_joined,
    Drew: LedgerState._rules_of_drew,
    UnitsReturned: LedgerState._rules_of_returned,
    Closed: LedgerState._rules_of_closed,
    Commanded: LedgerState._rules_of_command,
    Completed: LedgerState._rules_of_completed,
}
_CHANGES: dict[type[LedgerEntry], Callable[[LedgerState, Any], None]] = {
    Opened: LedgerState._on_opened,
    Joined: LedgerState._on_joined,
    Drew: LedgerState._on_drew,
    UnitsReturned: LedgerState._on_returned,
    Closed: LedgerState._on_closed,
    Commanded: LedgerState._on_command,
    Completed: LedgerState._on_completed,
}
