"""Signs of life of launches: the first process of an open launch refreshes ``DIR/launches/NUMBER/alive``.

They show which launches are at work, how far each has come, and which may be closed. What a launch does counts by the
ledger alone: it does no harm that a living launch is taken for dead, and goes on."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from hpo.errors import CampaignError
from hpo.journal.directory import launch_folder
from hpo.journal.durable import read_bounded
from hpo.journal.heartbeat import Heartbeat
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.fold import LedgerState
from hpo.ledger.opening import state_of

STALE_S = 150.0
"""Seconds without a refresh after which a launch counts as dead."""
REFRESH_S = 5.0
_TURN_S = 5.0
"""Seconds between the launches that may close a dead launch, the next after it in number first."""

_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=2**33)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The first process of a launch, and what the launch has done."""

    host: str
    machine: str
    """``Machine.identity``: ``pid`` can be looked up there alone."""
    pid: _Pid
    process_started: int | None
    """Clock ticks after boot, which tell the process from a later one with its ``pid``; None if unknown."""
    time: _Time
    token: str
    over: bool = False
    """Whether the launch has ended, whatever else its process does."""
    turn: _Count = 0
    """Number of refreshes so far."""
    ended: _Count = 0
    """Number of units that the launch holds whose individuals have ended."""
    given_up: _Count = 0
    """Number of units whose individuals began, did not end, and are not evaluated there any more."""
    idle: _Count = 0
    """Number of its workers that have nothing to evaluate."""
    rank_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds of its evaluations, each times the ranks of its worker."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"process {self.pid} on {self.host} since {since}"


_decoder = msgspec.json.Decoder(Holder)


class Sign(NamedTuple):
    """Content of a launch's file, and what it shows."""

    holder: Holder | None
    """None while the file is not there or not readable."""
    alive: bool
    stamp: float
    """Time of the last refresh, by the clock of its storage."""


def alive_path(directory: Path, launch: int) -> Path:
    """File that shows that ``launch`` lives."""
    return launch_folder(directory, launch) / "alive"


def _read(path: Path) -> tuple[Holder | None, float]:
    """Content of a sign, None where there is none, and its time by the clock of its storage. OSError as the file system
    says."""
    try:
        data, stamp = read_bounded(path, 1 << 16)
        return _decoder.decode(data), stamp
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None, 0.0


def _is_gone(holder: Holder, machine: Machine) -> bool:
    """Whether the launch is seen to have ended."""
    here = holder.machine == machine.identity
    return holder.over or (here and not machine.is_running(holder.pid, holder.process_started))


def living(directory: Path, state: LedgerState | None = None) -> dict[int, Holder]:
    """First processes of the launches that are at work on the campaign in ``directory``, by launch.

    Args:
        state: of the ledger; None to read it.

    Raises:
        CampaignError: the ledger or a sign cannot be read.
    """
    signs = signs_of(directory, state_of(directory) if state is None else state)
    return {launch: sign.holder for launch, sign in signs.items() if sign.alive and sign.holder is not None}


def signs_of(directory: Path, state: LedgerState, *, machine: Machine = THIS_MACHINE) -> dict[int, Sign]:
    """Signs of the launches that are open in ``state``; CampaignError where they cannot be read."""
    signs, now = dict[int, Sign](), None
    try:
        for launch in state.open:
            holder, stamp = _read(alive_path(directory, launch))
            alive = holder is not None and not _is_gone(holder, machine)
            if alive and holder is not None and holder.machine != machine.identity:
                # The difference of two stamps by one clock, whatever this machine's own clock says.
                now = machine.file_time(directory / "launches") if now is None else now
                alive = now - stamp < STALE_S
            signs[launch] = Sign(holder, alive, stamp)
    except OSError as error:
        raise CampaignError(
            f"{directory / 'launches'} cannot be read ({error.strerror or error}). Give read access there."
        ) from error
    return signs


def last_refresh(directory: Path, launch: int) -> int | None:
    """Time of the last sign of life of ``launch``, in nanoseconds of its storage's clock, to be compared with an
    earlier answer. 0 where there was none, None where that cannot be seen now."""
    try:
        with open(alive_path(directory, launch), "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError:
        return None


class SignOfLife:
    """Shows that ``launch`` lives; as a context, by a ``heartbeat``, on which others may register what they do as
    often. The constructor makes the file; OSError where that fails."""

    def __init__(self, directory: Path, launch: int, *, machine: Machine = THIS_MACHINE) -> None:
        self.path = alive_path(directory, launch)
        self.launch = launch
        self._machine = machine
        pid = machine.pid
        self.holder = Holder(
            host=machine.host,
            machine=machine.identity,
            pid=pid,
            process_started=machine.process_started(pid),
            time=machine.time(),
            token=uuid.uuid4().hex,
        )
        self.refreshed_at = machine.monotonic()
        """Time of the last refresh that succeeded, by the monotonic clock."""
        self._progress = 0, 0, 0, 0.0
        self.heartbeat = Heartbeat(REFRESH_S)
        self.heartbeat.register(self._beat)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write(durable=True)

    def _write(self, *, durable: bool = False) -> None:
        self._machine.write(self.path, msgspec.json.encode(self.holder) + b"\n", durable=durable)

    def show(self, ended: int, given_up: int, idle: int, rank_s: float) -> None:
        """Show how far the launch has come, by the next refresh, or soon where a worker has become idle (see
        ``Holder``)."""
        before, self._progress = self._progress, (ended, given_up, idle, rank_s)
        if idle and not before[2]:
            self.heartbeat.hasten()

    def _beat(self) -> None:
        with suppress(OSError):  # the ledger shows what becomes of it
            self.refresh()

    def refresh(self) -> None:
        """Show that the launch lives. OSError as the file system says."""
        ended, given_up, idle, rank_s = self._progress
        self.holder = msgspec.structs.replace(
            self.holder, turn=self.holder.turn + 1, ended=ended, given_up=given_up, idle=idle, rank_s=rank_s
        )
        self._write()
        self.refreshed_at = self._machine.monotonic()

    def __enter__(self) -> SignOfLife:
        self.heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop()
        with suppress(OSError):
            self.holder = msgspec.structs.replace(self.holder, over=True)
            self._write(durable=True)


class _SeenSign(NamedTuple):
    holder: Holder | None
    gone: bool
    silent_s: float = 0.0

    @property
    def lives(self) -> bool:
        return self.holder is not None and not self.gone and self.silent_s < STALE_S


class OtherLaunches:
    """Other open launches of the campaign in ``directory``, as their signs of life show them to the launch of ``sign``,
    whose heartbeat reads these.

    A launch counts as dead after ``STALE_S`` seconds of this launch's own heartbeat in which its file did not change,
    or where its process has ended here: no clock of another host and no outage of the storage ends a launch."""

    def __init__(self, directory: Path, sign: SignOfLife, machine: Machine = THIS_MACHINE) -> None:
        self._directory = directory
        self._own = sign
        self._machine = machine
        self._launches: tuple[int, ...] = ()
        self._seen: dict[int, _SeenSign] = {}
        self._looked_at = machine.monotonic()
        self.dead: frozenset[int] = frozenset()
        """Launches that this launch is to close: the launch after a dead launch in number closes it at once, each
        further launch some seconds later."""
        sign.heartbeat.register(self.look)

    def watch(self, launches: Iterable[int]) -> None:
        """Watch these launches from now on."""
        before, self._launches = self._launches, tuple(launches)
        if set(self._launches) - set(before):
            self._own.heartbeat.hasten()

    def look(self) -> None:
        """Read the signs; called by the heartbeat after the own sign was refreshed."""
        now = self._machine.monotonic()
        passed_s, self._looked_at = now - self._looked_at, now
        # While this process is stopped, or has no storage, it sees nothing of others.
        counts = now - self._own.refreshed_at < REFRESH_S
        seen = {}
        for launch in self._launches:
            before = self._seen.get(launch)
            try:
                holder, _ = _read(alive_path(self._directory, launch))
            except OSError:
                if before is not None:
                    seen[launch] = before
                continue
            silent_s = 0.0
            if before is not None and holder == before.holder:
                silent_s = before.silent_s + (min(passed_s, 2 * REFRESH_S) if counts else 0.0)
            seen[launch] = _SeenSign(holder, holder is not None and _is_gone(holder, self._machine), silent_s)
        self._seen = seen
        self.dead = frozenset(one for one in seen if self._is_due(one))

    def _is_due(self, launch: int) -> bool:
        # Those after it in number come first.
        lives = sorted([self._own.launch, *self.at_work], key=lambda one: (one < launch, one))
        turn = [one for one in lives if one != launch].index(self._own.launch)
        seen = self._seen[launch]
        return seen.silent_s >= (0.0 if seen.gone else STALE_S) + _TURN_S * turn

    def show(self, ended: int, given_up: int, idle: int, rank_s: float) -> None:
        """Show the others how far this launch has come (see ``Holder``)."""
        self._own.show(ended, given_up, idle, rank_s)

    @property
    def at_work(self) -> dict[int, Holder]:
        """Signs of the launches that live, as far as they were seen."""
        seen = self._seen
        return {launch: one.holder for launch, one in seen.items() if one.holder is not None and one.lives}
