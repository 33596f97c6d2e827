"""Simulated launches that share a campaign through its ledger, on a file server with the faults of network storage.

Each launch is a client of the server, with caches, outages and a clock of its own. A call to the server may take ten
minutes, in which the other launches go on: so any launch may be closed at any time, wrongly too, and run on. After
every step ``Campaign.check`` compares the ledger with what really happened."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpo.errors import CampaignError
from hpo.individual import birthplace, make_id
from hpo.journal.commands import Enqueue, Pause, Request, Retry, Set, Stop, Unpause
from hpo.journal.machine import Machine
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
    UnitsReturned,
    UnknownEntry,
)
from hpo.ledger.fold import LedgerState, OpenLaunch
from hpo.ledger.ledger import Ledger
from hpo.ledger.store import FileStore, Folder

_MOST_LAUNCHES = 8
_LIKELY_FAULTS = {"link": 0.1, "read": 0.03, "write": 0.03, "remove": 0.1}


class Broken(AssertionError):
    """An invariant does not hold."""


class Line(NamedTuple):
    """Record in the journal of a launch."""

    id: str
    ends: bool = False
    failed: bool = False
    point: int | None = None
    """Given point that the individual is, in the record of its begin."""
    directory: tuple[str, int] = ("", 0)
    """Directory in which it runs: its id, and the launch that made this copy, else 0."""


@dataclass
class Journal:
    """All lines that a launch wrote; ``synced`` of them survive a crash of the server."""

    lines: list[Line] = field(default_factory=list)
    synced: int = 0


class Server:
    """Files of a ledger as they are on the server, and journals by launch."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.time = 0.0
        self.files: dict[str, bytes] = {}
        self.journals: dict[int, Journal] = {}
        self.full = self.down = False
        self.late: list[tuple[float, str, str]] = []
        """Links that are made later: time, name, other name."""

    def link(self, name: str, other: str) -> None:
        if other in self.files:
            raise FileExistsError(errno.EEXIST, "File exists", other)
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        self.files[other] = self.files[name]

    def advance(self, seconds: float) -> None:
        self.time += seconds
        for link in [one for one in self.late if one[0] <= self.time]:
            self.late.remove(link)
            if link[1] in self.files and link[2] not in self.files:
                self.link(*link[1:])


class ClientFolder(Folder):
    """The ledger's folder as one client sees it. ``turn``: called before each operation, for others to go on."""

    def __init__(self, server: Server, turn: Callable[[], None]) -> None:
        super().__init__(Path("ledger"))
        self._server = server
        self._turn = turn
        # Until when the client believes that there is no file of a name.
        self._absent: dict[str, float] = {}
        self.down = self.calm = False
        # Whether its client looks at names afresh once it has made one in the folder.
        self._looks_again = server.rng.random() < 0.5

    def _fault(self, operation: str) -> bool:
        self._turn()
        server = self._server
        if self.down or server.down:
            raise OSError(server.rng.choice((errno.EIO, errno.ESTALE, errno.ETIMEDOUT)), "the server is away")
        return not self.calm and server.rng.random() < _LIKELY_FAULTS[operation]

    def write(self, name: str, data: bytes) -> None:
        if self._server.full or self._fault("write"):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._server.files[name] = data
        if self._looks_again:
            self._absent.clear()

    def read(self, name: str) -> bytes:
        if self._fault("read"):
            raise OSError(errno.ESTALE, "Stale file handle")
        server = self._server
        if self._absent.get(name, 0.0) <= server.time and name in server.files:
            return server.files[name]
        if self._absent.get(name, 0.0) <= server.time:
            self._absent[name] = server.time + (0.0 if self.calm else server.rng.uniform(0, 60))
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)

    def link(self, name: str, other: str) -> None:
        if not self._fault("link"):
            self._server.link(name, other)
            return
        rng = self._server.rng
        match rng.choice(("claimed", "lost", "late", "failed")):
            case "claimed":  # another's file is taken for the trace of a repeated call
                with suppress(FileExistsError):
                    self._server.link(name, other)
                return
            case "lost":  # made, and answered by an error
                self._server.link(name, other)
                code = rng.choice((errno.EEXIST, errno.EIO))
                raise OSError(code, "the answer was lost", other)
            case "late":
                self._server.late.append((self._server.time + rng.uniform(0, 60), name, other))
        raise OSError(rng.choice((errno.EIO, errno.ESTALE)), "the call was lost")

    def remove(self, name: str) -> None:
        if self._fault("remove"):
            raise OSError(errno.EIO, "Input/output error")
        self._server.files.pop(name, None)

    def sync(self) -> None:
        pass


class ClientMachine(Machine):
    """A host whose clock is hours off."""

    def __init__(self, server: Server, name: str) -> None:
        self._server = server
        self._name = name
        self._skew_s = server.rng.uniform(-7200, 7200)

    @property
    def host(self) -> str:
        return self._name

    def time(self) -> float:
        return self._server.time + self._skew_s

    def monotonic(self) -> float:
        return self._server.time

    def sleep(self, seconds: float) -> None:
        self._server.advance(seconds)


class Launch:
    """A launch: it draws, begins and ends individuals, and closes others on a whim."""

    def __init__(self, campaign: Campaign, name: str) -> None:
        self.campaign = campaign
        self.rng = campaign.rng
        self.folder = ClientFolder(campaign.server, lambda: campaign.turn(self))
        self.name = name
        self.machine = ClientMachine(campaign.server, name)
        self.ledger = Ledger(FileStore(self.folder), machine=self.machine, rng=self.rng)
        self.number = 0
        self.tried = 0
        """Number of the last entry of which it may not know whether it is there."""
        self.journal = Journal()
        self.first_worker = 0
        self.sequences: dict[int, int] = {}
        self.running: dict[str, tuple[str, int]] = {}
        """Directory of each individual that runs: its id, and the launch that made the copy or 0."""
        self.begun: set[str] = set()
        self.points: set[int] = set()
        """Given points that were begun."""
        self.over = False
        """Whether none of its processes runs."""
        self.busy = False
        """Whether it is within a step."""

    # --- steps --------------------------------------------------------------------------------------------------------

    def act(self, step: Callable[[], object]) -> None:
        """One step; errors of the storage are waited for."""
        self.busy = True
        try:
            step()
        except OSError:
            self.tried = self.ledger.state.entries + 1
        finally:
            self.busy = False
        if self.number in self.ledger.state.closed:
            self.over = True

    def join(self) -> None:
        workers = self.rng.randint(1, 4)

        def decide(state: LedgerState) -> LedgerEntry | None:
            # After a lost answer the launch finds itself among those that have joined.
            mine = [n for n, one in state.open.items() if one.joined.job == self.name]
            if mine:
                return None
            return Joined(
                launch=state.launches + 1, workers=workers, first_worker=state.workers, job=self.name
            )

        self.ledger.append(decide)
        for number, one in self.ledger.state.open.items():
            if one.joined.job == self.name:
                self.number, self.first_worker = number, one.joined.first_worker
                self.sequences = dict.fromkeys(
                    range(self.first_worker, self.first_worker + one.joined.workers), 0
                )
                # Another launch has this number where the server lost an entry: no journal is made twice.
                self.over = self.campaign.server.journals.setdefault(number, self.journal) is not self.journal

    def draw(self) -> None:
        most = self.rng.randint(1, 4)

        def decide(state: LedgerState) -> LedgerEntry | None:
            if self.number not in state.open or not state.may_draw() or state.free < 0:
                return None
            units = max(0, min(most, state.free))
            ids = tuple(list(state.pool)[:units])
            points = tuple(list(state.waiting)[: units - len(ids)])
            fresh = units - len(ids) - len(points)
            if state.resting and self.rng.random() < 0.3:
                ids += (next(iter(state.resting)),)
            return Drew(launch=self.number, fresh=fresh, ids=ids, points=points) if ids or units else None

        self.ledger.append(decide)

    def begin(self) -> None:
        mine = self.ledger.state.open.get(self.number)
        settled = self.ledger.state.entries >= self.tried
        if mine is None or len(self.running) >= 4 or not settled:
            return
        ids, points, fresh = self._unbegun(mine)
        point = None
        if ids:
            identity = ids[0]
        elif points or fresh > 0:
            point = points[0] if points else None
            worker = self.rng.choice(list(self.sequences))
            identity = make_id(0, worker, self.sequences[worker])
            self.sequences[worker] += 1
        else:
            return
        in_place = mine.ids.get(identity, True)
        directory = self.campaign.directory(identity) if in_place else (identity, self.number)
        self.begun.add(identity)
        self.points.update(() if point is None else (point,))
        self._write(Line(identity, point=point, directory=directory))
        for other in self.campaign.launches:
            if directory in other.running.values():
                raise Broken(f"two launches are at work in the directory of {identity}")
        self.running[identity] = directory

    def end(self) -> None:
        if self.running:
            identity = self.rng.choice(list(self.running))
            self._write(Line(identity, ends=True, failed=self.rng.random() < 0.3))
            del self.running[identity]

    def _write(self, line: Line) -> None:
        self.journal.lines.append(line)
        if line.ends or self.rng.random() < 0.5:
            self.journal.synced = len(self.journal.lines)

    def give_back(self) -> None:
        def decide(state: LedgerState) -> LedgerEntry | None:
            mine = state.open.get(self.number)
            if mine is None:
                return None
            ids, points, fresh = self._unbegun(mine)
            entry = UnitsReturned(launch=self.number, fresh=fresh, ids=ids, points=points)
            return entry if fresh or ids or points else None

        self.ledger.append(decide)

    def _unbegun(self, mine: OpenLaunch) -> tuple[tuple[str, ...], tuple[int, ...], int]:
        """Individuals, given points and number of fresh units that it holds and has not begun."""
        bred = len(self.begun - mine.ids.keys()) - len(self.points)
        ids, points = sorted(mine.ids.keys() - self.begun), sorted(mine.points - self.points)
        return tuple(ids), tuple(points), mine.fresh - bred

    def close(self, number: int) -> None:
        """Close launch ``number``: itself where nothing runs, or another, which may run."""
        own = number == self.number

        def decide(state: LedgerState) -> LedgerEntry | None:
            if not {number, self.number} <= state.open.keys() or (own and self.running):
                return None
            return self.campaign.closing(state, number, by=self.number, own=own)

        self.ledger.append(decide)

    def die(self) -> None:
        """All of its processes die, and what was not synced is lost."""
        self.over, self.running = True, {}
        del self.journal.lines[self.journal.synced :]

    def suspect(self) -> None:
        others = sorted(self.ledger.state.open.keys() - {self.number})
        if others:
            self.close(self.rng.choice(others))

    def command(self) -> None:
        request = {"time": 0.0, "by": "me"}
        kind = self.rng.choice((Stop, Go, Pause, Unpause, Set, Enqueue, Retry))

        def decide(state: LedgerState) -> LedgerEntry | None:
            if kind is Retry:
                failed = [one for one, line in self.campaign.counted(state).items() if line.failed]
                return Commanded(request=Retry(statuses=("failed",), **request), pool=tuple(failed[:3]))
            given: dict[type[Request], dict[str, object]] = {
                Set: {"evaluations": self.rng.randint(1, 40)},
                Enqueue: {"points": [{"x": 1.0}]},
            }
            return Commanded(request=kind(**request, **given.get(kind, {})))

        self.ledger.append(decide)

    def complete(self) -> None:
        def decide(state: LedgerState) -> LedgerEntry | None:
            if state.held or state.free > 0 or state.completed is not None:
                return None
            return Completed(final=state.final)

        self.ledger.append(decide)


class Campaign:
    """Launches of one campaign, and all that really happened in them."""

    def __init__(self, seed: int, *, loses_entries: bool = False) -> None:
        self.rng = random.Random(f"launches/{seed}")
        self.server = Server(self.rng)
        self.launches: list[Launch] = []
        self._reader = Ledger(FileStore(_Plain(self.server)), rng=self.rng)
        self._lines: list[bytes] = []
        self._counted: dict[str, Line] = {}
        # Ends of individuals that rested and were drawn.
        self._drawn: dict[str, Line] = {}
        self._most = 0
        self._loses_entries = loses_entries
        self.calm = False

    @property
    def truth(self) -> LedgerState:
        """State after all entries that are on the server."""
        return self._reader.state

    # --- truth --------------------------------------------------------------------------------------------------------

    def closing(self, state: LedgerState, number: int, *, by: int, own: bool) -> Closed:
        """LedgerEntry that closes a launch, from what its journal holds on the server by now."""
        mine = state.open[number]
        journal = self.server.journals.get(number, Journal())
        # The closer syncs what it counts.
        length = len(journal.lines) if own else self.rng.randint(journal.synced, len(journal.lines))
        journal.synced = max(journal.synced, length)
        counting = journal.lines[:length]
        begun = {line.id for line in counting} | mine.ids.keys()
        ended = {line.id for line in counting if line.ends}
        rests = [
            line.id for line in counting if line.ends and line.failed and birthplace(line.id)[2] % 5 == 0
        ]
        own_begun = {line.id for line in counting}
        unbegun = sorted(mine.rested - own_begun)

        pool = tuple(sorted((begun - ended).difference(unbegun)))

        def unclean(one: str) -> bool:
            # A launch that never began an individual knows no more of its directory than when it drew it.
            return one not in own_begun and not mine.ids[one]

        return Closed(
            launch=number,
            by=by,
            reason="simulated",
            lengths={mine.joined.first_worker: (length,)},
            final=len(ended) + len(unbegun),
            pool=pool,
            points=tuple(sorted(mine.points - {line.point for line in counting})),
            resting=(*rests, *unbegun),
            in_place=tuple(one for one in (*pool, *rests, *unbegun) if own and not unclean(one)),
        )

    def counted(self, state: LedgerState) -> dict[str, Line]:
        """Individuals of closed launches that count after the entries of ``state``, with the records of their ends."""
        self.follow()
        if state.entries != self.truth.entries:
            return {}
        return {one: line for one, line in self._counted.items() if one not in state.resting}

    def directory(self, identity: str) -> tuple[str, int]:
        """Directory in which closed launches had an individual last."""
        for number, closed in reversed(self.truth.closed.items()):
            for line in reversed(self.server.journals.get(number, Journal()).lines[: _length(closed)]):
                if line.id == identity and not line.ends:
                    return line.directory
        return identity, 0

    def follow(self) -> None:
        """Take what is new on the server into ``truth``."""
        for number, line in enumerate(self._lines, 1):
            if self.server.files.get(f"{number:08d}") != line and not self._loses_entries:
                raise Broken(f"entry {number} has changed")
        for entry in self._reader._further():  # one by one, each with the state behind it
            self._lines.append(self.server.files[f"{entry.n:08d}"])
            self._take(entry)

    def _take(self, entry: LedgerEntry) -> None:
        if isinstance(entry, Drew):
            self._drawn.update({one: self._counted.pop(one) for one in entry.ids if one in self._counted})
            if self.truth.free < 0:
                raise Broken(f"entry {entry.n} draws more than is free")
        elif isinstance(entry, UnitsReturned):
            self._counted.update(
                {one: self._drawn.pop(one) for one in entry.ids if one in self.truth.resting}
            )
        elif isinstance(entry, Commanded):
            for one in entry.pool:
                self._counted.pop(one, None)
        elif isinstance(entry, Closed):
            journal = self.server.journals.get(entry.launch, Journal())
            length = next(iter(entry.lengths.values()), (0,))[0]
            for line in journal.lines[:length]:
                if line.ends:
                    if line.id in self._counted:
                        raise Broken(f"{line.id} counts twice")
                    self._counted[line.id] = line
            unbegun = set(entry.resting) - self._counted.keys()
            self._counted.update({one: self._drawn.pop(one) for one in unbegun})
        self._most = max(self._most, self.truth.limits.evaluations or 0)

    def check(self) -> None:
        """All invariants, against what is on the server."""
        self.follow()
        state = self.truth
        if len(self._counted) != state.final:
            raise Broken(f"{len(self._counted)} individuals count, and {state.final} by the ledger")
        if state.final + state.held > self._most:
            raise Broken(f"{state.final} final and {state.held} held exceed every budget that was set")
        held = [one for launch in state.open.values() for one in launch.ids]
        if len(set(held)) != len(held) or set(held) & state.pool.keys():
            raise Broken("an individual is held twice")
        points = [*state.waiting, *(one for launch in state.open.values() for one in launch.points)]
        for number, closed in state.closed.items():
            lines = self.server.journals.get(number, Journal()).lines[: _length(closed)]
            points += [line.point for line in lines if line.point is not None]
        if sorted(points) != list(range(len(state.points))):
            raise Broken(f"of {len(state.points)} given points these are waiting, held or begun: {points}")
        for number, closed in state.closed.items():
            if len(self.server.journals.get(number, Journal()).lines) < _length(closed):
                raise Broken(f"records of launch {number} count, and are lost")
            for line in self.server.journals.get(number, Journal()).lines[: _length(closed)]:
                places = (line.id in self._counted) + (line.id in state.pool) + (line.id in held)
                if places != 1:
                    raise Broken(f"{line.id} was begun in launch {number}, and is in {places} places")

    # --- schedule -----------------------------------------------------------------------------------------------------

    def turn(self, caller: Launch) -> None:
        """Other launches go on while ``caller`` waits for an answer of the server, which may take ten minutes."""
        self.server.advance(self.rng.uniform(0, 0.1))
        while not self.calm and self.rng.random() < 0.15:
            if self.rng.random() < 0.05:
                self.server.advance(self.rng.uniform(0, 600))
            idle = [one for one in self.launches if not one.busy and not one.over and one is not caller]
            if not idle:
                return
            self.step(self.rng.choice(idle))

    def step(self, launch: Launch) -> None:
        if not launch.number:
            launch.act(launch.join)
        else:
            steps = [launch.draw, launch.begin, launch.begin, launch.end, launch.end, launch.end]
            steps += [
                launch.give_back,
                launch.ledger.read_on,
                launch.suspect,
                launch.command,
                launch.complete,
            ]
            steps += [lambda: launch.close(launch.number)]
            weights = [4, 4, 4, 4, 4, 4, 1, 3, 0.7, 0.7, 1, 0.7]
            launch.act(self.rng.choices(steps, weights)[0])
        self.check()

    def new_launch(self) -> Launch:
        launch = Launch(self, f"node{len(self.launches)}")
        self.launches.append(launch)
        return launch

    def run(self) -> None:
        """The whole campaign; Broken or CampaignError where it does not hold."""
        opener = self.new_launch()
        opener.folder.calm = True
        budget, points = self.rng.randint(1, 30), self.rng.randint(0, 3)
        first = Opened(limits=Limits(evaluations=budget), islands=1, seed=0, points=({"x": 0.0},) * points)
        opener.ledger.append(lambda state: None if state.opened else first)
        opener.folder.calm = False
        for _ in range(self.rng.randint(20, 150)):
            self._disturb()
            alive = [one for one in self.launches if not one.over]
            if len(self.launches) < _MOST_LAUNCHES and (not alive or self.rng.random() < 0.05):
                self.new_launch()
            elif alive:
                self.step(self.rng.choice(alive))
        self._finish()
        self.read_again()

    def read_again(self) -> None:
        """Read the ledger from its begin, as a new launch would."""
        lines = [self.server.files.get(f"{number:08d}") for number in range(1, len(self._lines) + 1)]
        reader = Ledger(FileStore(_Plain(self.server)), rng=self.rng)
        reader.read_on()
        if None not in lines and lines != self._lines:
            raise Broken("an entry that others have read was replaced, and nobody notices")

    def _disturb(self) -> None:
        self.server.advance(self.rng.expovariate(1 / 10))
        self.server.down = self.rng.random() < 0.02
        self.server.full = self.rng.random() < 0.02
        for launch in self.launches:
            launch.folder.down = self.rng.random() < 0.03
            if self.rng.random() < 0.01:
                launch.die()
        if self._loses_entries and self.rng.random() < 0.02 and self._lines:
            self.server.files.pop(f"{len(self._lines):08d}", None)

    def _finish(self) -> None:
        """One more launch closes all others, which may run on, and completes the campaign."""
        self.server.down = self.server.full = False
        self.calm = True
        for one in self.launches:
            one.folder.down, one.folder.calm = False, True
        self.server.advance(60)
        last = self.new_launch()
        last.folder.calm = True
        last.act(last.join)
        last.ledger.append(
            lambda state: Commanded(request=Unpause(time=0.0, by="me")) if state.paused else None
        )
        for _ in range(2000):
            last.act(last.ledger.read_on)
            state = last.ledger.state
            if state.completed is not None and not state.open:
                break
            others = sorted(state.open.keys() - {last.number})
            mine = state.open.get(last.number)
            zombies = [one for one in self.launches if not one.over and one is not last]
            if zombies and self.rng.random() < 0.3:
                zombie = self.rng.choice(zombies)
                zombie.act(self.rng.choice((zombie.begin, zombie.end, zombie.draw, zombie.die)))
            if others:
                last.act(lambda number=others[0]: last.close(number))  # type: ignore[misc]
            elif mine is not None and state.free > 0 and state.completed is None:
                last.act(last.draw)
            elif mine is not None and mine.units > len(self.ended_of(last)):
                last.act(last.begin)
                last.act(last.end)
            elif mine is not None:
                last.act(lambda: last.close(last.number))
            else:
                last.act(last.complete)
            self.check()
        state = self.truth
        if state.completed is None or state.open:
            raise Broken(f"no end: {state.final} of {state.limits.evaluations}, {len(state.open)} open")
        if state.final < (state.limits.evaluations or 0):
            raise Broken(f"completed with {state.final} of {state.limits.evaluations}")

    def ended_of(self, launch: Launch) -> list[Line]:
        return [line for line in launch.journal.lines if line.ends]


class _Plain(Folder):
    """The server's files without faults."""

    def __init__(self, server: Server) -> None:
        super().__init__(Path("ledger"))
        self._server = server

    def read(self, name: str) -> bytes:
        if name not in self._server.files:
            raise FileNotFoundError(name)
        return self._server.files[name]


def _length(closed: Closed) -> int:
    return next(iter(closed.lengths.values()), (0,))[0]


def run(seed: int, *, loses_entries: bool = False) -> Exception | None:
    """Error of the campaign of ``seed``, None if all holds. ``loses_entries``: the server loses entries that
    it had confirmed, as one that exports with ``async``."""
    try:
        Campaign(seed, loses_entries=loses_entries).run()
    except (Broken, CampaignError, UnknownEntry) as error:
        return error
    return None
