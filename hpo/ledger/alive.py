"""Signs of life of launches: the first process of an open launch refreshes ``DIR/launches/NUMBER/alive``.

They keep a second launch from joining a campaign that is at work, and show whether one is. What a launch does counts
by the ledger alone: it does no harm that a living launch is taken for dead, and goes on."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from hpo.errors import CampaignError
from hpo.journal.directory import unwritable
from hpo.journal.durable import write_atomically
from hpo.journal.heartbeat import Heartbeat
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.ledger.fold import LedgerState
from hpo.ledger.opening import state_of
from hpo.terminal import quoted

STALE_S = 150.0
"""Seconds without a refresh after which a launch on another machine counts as dead."""
REFRESH_S = 5.0
_LOOK_S = 1.0
_JOINING_S = 15.0
"""Seconds in which a launch that has joined makes its file."""

_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=2**33)]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The first process of a launch."""

    host: str
    machine: str
    """``Machine.identity``: ``pid`` can be looked up there alone."""
    pid: _Pid
    process_started: int | None
    """Clock ticks after boot, which tell the process from a later one with its ``pid``; None if unknown."""
    time: _Time
    token: str
    supervisor: str | None = None
    """Token of the ``hpo run`` that started this launch and watches it."""
    over: bool = False
    """Whether the launch has ended, whatever else its process does."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"process {self.pid} on {self.host} since {since}"


class Sign(NamedTuple):
    """Content of a launch's file, and what it shows."""

    holder: Holder | None
    """None while the file is not there or not readable."""
    mtime_ns: int
    local: bool
    """Whether the holder's process can be looked up here."""
    alive: bool


def alive_path(directory: Path, launch: int) -> Path:
    """File that shows that ``launch`` lives."""
    return directory / "launches" / f"{launch:04d}" / "alive"


def _read(path: Path, machine: Machine) -> Sign:
    """OSError as the file system says."""
    try:
        # Attributes after the file was opened: those of an NFS client may be a minute old otherwise.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return Sign(None, 0, False, False)
    with open(handle, "rb") as file:
        data, mtime_ns = file.read(1 << 16), os.fstat(handle).st_mtime_ns
    try:
        holder = msgspec.json.decode(data, type=Holder)
    except ValueError:
        return Sign(None, mtime_ns, False, False)
    local = holder.machine == machine.identity
    if local or holder.over:
        alive = not holder.over and machine.is_running(holder.pid, holder.process_started)
    else:
        # The difference of two stamps by one clock, whatever this machine's own clock says.
        alive = machine.file_time(path.parent) - mtime_ns / 1e9 < STALE_S
    return Sign(holder, mtime_ns, local, alive)


def living(directory: Path, state: LedgerState | None = None) -> dict[int, Holder]:
    """First processes of the launches that are at work on the campaign in ``directory``, by launch.

    Args:
        state: of the ledger; None to read it.

    Raises:
        CampaignError: the ledger or a sign cannot be read.
    """
    signs = signs_of(directory, state_of(directory) if state is None else state)
    return {launch: sign.holder for launch, sign in signs.items() if sign.alive and sign.holder is not None}


def signs_of(directory: Path, state: LedgerState) -> dict[int, Sign]:
    """Signs of the launches that are open in ``state``; CampaignError where they cannot be read."""
    try:
        return {launch: _read(alive_path(directory, launch), THIS_MACHINE) for launch in state.open}
    except OSError as error:
        raise CampaignError(
            f"{directory / 'launches'} cannot be read ({error.strerror or error}). Give read access there."
        ) from error


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

    def __init__(
        self, directory: Path, launch: int, *, supervisor: str | None = None, machine: Machine = THIS_MACHINE
    ) -> None:
        self.path = alive_path(directory, launch)
        self._machine = machine
        pid = machine.pid
        self.holder = Holder(
            host=machine.host,
            machine=machine.identity,
            pid=pid,
            process_started=machine.process_started(pid),
            time=machine.time(),
            token=uuid.uuid4().hex,
            supervisor=supervisor,
        )
        self.heartbeat = Heartbeat(REFRESH_S)
        self.heartbeat.register(self._beat)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    def _write(self) -> None:
        write_atomically(self.path, msgspec.json.encode(self.holder) + b"\n")
        self._machine.touch(self.path)

    def _beat(self) -> None:
        with suppress(OSError):  # the ledger shows what becomes of it
            self.refresh()

    def refresh(self) -> None:
        """Show that the launch lives. OSError as the file system says."""
        try:
            self._machine.touch(self.path)
        except FileNotFoundError:
            self._write()

    def __enter__(self) -> SignOfLife:
        self.heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop()
        with suppress(OSError):
            self.holder = msgspec.structs.replace(self.holder, over=True)
            self._write()


def wait_until_free(
    directory: Path,
    read: Callable[[], LedgerState],
    *,
    supervisor: str | None = None,
    waiting: Callable[[str], None] | None = None,
    machine: Machine = THIS_MACHINE,
) -> LedgerState:
    """State of the ledger in which no open launch lives.

    A launch counts as dead whose first process ran on this machine and is gone, which has shown no sign of life for
    ``STALE_S`` seconds, or which the same supervisor has started.

    Args:
        read: reads the ledger's present state.
        supervisor: token of the ``hpo run`` that starts this launch, and starts none while another is at work.
        waiting: called once, with a sentence, where a launch elsewhere may have died: this function then waits for a
            sign of life, or until it is stale. None: it raises at once.

    Raises:
        CampaignError: a launch is at work (the text says which process, where), or the directory cannot be read.
    """
    dead: set[int] = set()
    seen: tuple[int, Sign] | None = None
    since, said = machine.monotonic(), False
    while True:
        state = read()
        try:
            found = _first_in_the_way(directory, state, dead, supervisor, machine)
        except OSError as error:
            raise unwritable(directory, error) from error
        if found is None:
            return state
        launch, sign = found
        unchanged = seen is not None and seen[0] == launch and seen[1][:2] == sign[:2]
        refreshed = seen is not None and seen[0] == launch and not unchanged
        since = since if unchanged else machine.monotonic()
        seen = found
        if sign.holder is None and machine.monotonic() - since >= _JOINING_S:
            dead.add(launch)  # it had time enough to make its file
        elif sign.holder is not None and (waiting is None or sign.local or refreshed):
            raise CampaignError(
                f"{directory} is in use by {sign.holder}. Let it finish, stop it with `hpo stop {quoted(directory)}`, "
                "or name another directory."
            )
        elif not sign.local and machine.monotonic() - since >= STALE_S:
            # Whatever the stamp says: a file server's clock may be wrong, this machine's monotonic clock is not.
            dead.add(launch)
        else:
            if sign.holder is not None and waiting is not None and not said:
                waiting(
                    f"{directory} is in use by {sign.holder}. Waiting until that shows that it lives, or for at most "
                    f"{STALE_S:.0f} s in case it has died."
                )
                said = True
            machine.sleep(_LOOK_S)


def _first_in_the_way(
    directory: Path, state: LedgerState, dead: set[int], supervisor: str | None, machine: Machine
) -> tuple[int, Sign] | None:
    """The first open launch that may live, with its sign. ``dead``: launches that do not."""
    for launch in state.open:
        sign = _read(alive_path(directory, launch), machine)
        same = supervisor is not None and sign.holder is not None and sign.holder.supervisor == supervisor
        if launch not in dead and not same and (sign.alive or sign.holder is None):
            return launch, sign
    return None
