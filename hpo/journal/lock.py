"""The lock of a campaign's directory: one launch at a time works in it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from hpo.errors import CampaignError, LockLost
from hpo.journal.directory import unwritable
from hpo.journal.durable import write_atomically
from hpo.journal.heartbeat import Heartbeat
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.terminal import quoted

_PATIENCE_S = 120.0
"""Seconds for which a holder bears errors of the storage before it gives up."""
STALE_S = _PATIENCE_S + 30.0
"""Age at which a lock held on another machine counts as abandoned. By then its holder has given up, unless it was
stopped; and then it looks at the lock before it does anything else."""
REFRESH_S = 5.0
_LOOK_S = 1.0
_MOST_TURNS = 10

_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=2**33)]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a campaign's lock."""

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
    contested: bool = False
    """Whether ranks of the former holder's launch may still run, which no launch has put on record yet."""
    ranks: tuple[tuple[_Pid, int | None], ...] | None = None
    """``pid`` and ``process_started`` of the launch's other processes; None unless all are on its machine."""
    over: bool = False
    """Whether the holder has ended, and left the lock because some of ``ranks`` may not have."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"process {self.pid} on {self.host} since {since}"


class _LockFile(NamedTuple):
    holder: Holder | None
    """None while it is being written."""
    mtime_ns: int
    local: bool
    """Whether the holder's process can be looked up here."""
    alive: bool


def _read_lock(path: Path, machine: Machine) -> _LockFile | None:
    try:
        # Attributes after the file was opened: those of an NFS client may be a minute old otherwise.
        with open(path, "rb") as file:
            data, mtime_ns = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unwritable(path.parent, error) from error
    holder = _decode(data)
    local = holder is not None and holder.machine == machine.identity
    if holder is not None and (local or holder.over):
        alive = not holder.over and machine.is_running(holder.pid, holder.process_started)
    else:
        # The difference of two stamps by one clock, whatever this machine's own clock says.
        alive = machine.file_time(path.parent) - mtime_ns / 1e9 < STALE_S
    return _LockFile(holder, mtime_ns, local, alive)


def _decode(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except ValueError:
        return None


def _encode(holder: Holder) -> bytes:
    return msgspec.json.encode(holder) + b"\n"


def holder(directory: Path) -> Holder | None:
    """The living process at work on the campaign in ``directory``."""
    found = _read_lock(directory / "lock", THIS_MACHINE)
    return found.holder if found and found.alive else None


def stale_holder(directory: Path) -> str | None:
    """The dead process, in words, whose lock is left in ``directory``."""
    found = _read_lock(directory / "lock", THIS_MACHINE)
    if not found or found.alive:
        return None
    return str(found.holder or "a process that cannot be read")


def last_refresh(directory: Path) -> int | None:
    """Time of the lock's last refresh, in nanoseconds of its storage's clock, to be compared with an earlier answer. 0
    where there is no lock, None where that cannot be seen now."""
    try:
        with open(directory / "lock", "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError:
        return None


class Lock:
    """The right to be the only campaign at work in a directory; from :func:`acquire`. As a context it is kept alive by
    its ``heartbeat``, on which others may register what they do as often, and released in the end."""

    def __init__(self, path: Path, holder: Holder, *, machine: Machine = THIS_MACHINE) -> None:
        self.path = path
        self.holder = holder
        self._machine = machine
        self.heartbeat = Heartbeat(REFRESH_S)
        self.heartbeat.register(self.refresh)
        self._refreshed = machine.monotonic()
        self._refreshing = False
        self._lost: LockLost | None = None
        self.all_ended = False
        """Whether nothing is left at work for this launch, although some of its ranks may still run."""

    def __enter__(self) -> Lock:
        self.heartbeat.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.heartbeat.stop()
        self.release()

    @property
    def contested(self) -> bool:
        """Whether ranks of the former holder's launch may still run (see ``Holder``)."""
        return self.holder.contested

    def settle(self) -> None:
        """The journal says that the lock was contested: its next holder need not know."""
        if self.contested:
            with suppress(OSError):  # the next holder puts it on record once more
                self._rewrite(msgspec.structs.replace(self.holder, contested=False))

    def name_ranks(self, processes: Iterable[tuple[str, int]]) -> None:
        """Put the launch's other ``processes``, each by its machine's identity and its pid, into the lock before any
        of them begins to evaluate: whoever takes the lock over can see whether they have ended.

        Raises:
            CampaignError: the lock cannot be written.
            LockLost: another campaign has taken it.
        """
        named = [*processes]
        here = all(identity == self.holder.machine for identity, _ in named)
        ranks = tuple((pid, self._machine.process_started(pid)) for _, pid in named) if here else None
        if ranks == self.holder.ranks:
            return
        try:
            if not self._rewrite(msgspec.structs.replace(self.holder, ranks=ranks)):
                raise self._taken("")
        except OSError as error:
            raise unwritable(self.path.parent, error) from error

    def _rewrite(self, holder: Holder) -> bool:
        """Replace the lock's content; False where it is another holder's. OSError as the file system says."""
        if not self._is_own():
            return False
        write_atomically(self.path, _encode(holder))
        self._machine.touch(self.path)
        self.holder = holder
        return True

    def _is_own(self) -> bool:
        named = _decode(self.path.read_bytes())
        return named is not None and named.token == self.holder.token

    def refresh(self) -> None:
        """Show other machines that the holder lives, at least every few seconds; ``check`` raises what came of it.

        Errors of the storage are borne for ``_PATIENCE_S``: they pass, as where a file server changes over."""
        self._refreshing = True
        try:
            self._refresh()
        except OSError as error:
            if self._silent_s >= _PATIENCE_S:
                self._lost = self._given_up(str(error.strerror or error))
        finally:
            self._refreshing = False

    def _refresh(self) -> None:
        try:
            named = _decode(self.path.read_bytes())
        except FileNotFoundError:
            if not (self.path.parent / "campaign.json").exists():
                raise  # the whole directory is away, whatever evaluations make in its place
            # Until it is stale only a person can have removed it; later another launch may have come and gone.
            if self._silent_s >= STALE_S:
                self._lost = self._taken("")
                return
            self._machine.create(self.path, _encode(self.holder))
            named = None
        if named is not None and named.token != self.holder.token:
            self._lost = self._taken(f" by {named}")
            return
        # The time before the call: it may take long, and others count from the stamp.
        began = self._machine.monotonic()
        self._machine.touch(self.path)
        self._refreshed = began

    @property
    def _silent_s(self) -> float:
        return self._machine.monotonic() - self._refreshed

    def _given_up(self, reason: str) -> LockLost:
        return LockLost(
            f"{self.path} could not be refreshed for {self._silent_s:.0f} s ({reason}), and another launch may take "
            "this one for dead. This one stops: give the same command again when the directory can be used."
        )

    def _taken(self, by: str) -> LockLost:
        return LockLost(
            f"{self.path} was taken away{by} while this campaign was at work. This one stops, so that "
            "the two do not mix; start it again when the other has finished."
        )

    def check(self) -> None:
        """Make sure of the lock before anything is done that its holder alone may do.

        Raises LockLost: another campaign has taken the lock, or may have, as this holder was silent for too long."""
        if self._silent_s >= _PATIENCE_S and not self._refreshing:
            self.refresh()  # this process was stopped, and its heartbeat has not beaten yet
        if self._silent_s >= _PATIENCE_S and self._lost is None:
            self._lost = self._given_up("the file server does not answer")
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Let others in; a lock that was taken away is left to its new holder, and one that cannot be removed gets
        stale."""
        with suppress(OSError):
            if not self._is_own():
                return
            # The next holder has to know where ranks may still run, those of this launch or of the former.
            if not self.contested and (self.all_ended or self.holder.ranks == ()):
                self.path.unlink()
            else:
                self._rewrite(msgspec.structs.replace(self.holder, over=True))


def acquire(
    directory: Path,
    *,
    supervisor: str | None = None,
    waiting: Callable[[str], None] | None = None,
    machine: Machine = THIS_MACHINE,
) -> Lock:
    """Become the only campaign at work in ``directory``, which is made if need be.

    A dead holder's lock is taken over: that of a process of this machine that is gone, that of another machine which
    was not refreshed for ``STALE_S`` seconds, and that of an earlier launch of the same supervisor. Locks of the
    operating system are no alternative: across the nodes of a cluster they are not to be relied on.

    Args:
        supervisor: a token of the ``hpo run`` that starts this launch, and starts none while another is at work.
        waiting: called once, with a sentence, where a holder elsewhere may have died: this function then waits until
            the lock is refreshed or stale. None: the lock is refused at once.

    Raises:
        CampaignError: another campaign holds the lock (the text says which process, where), or the directory
            cannot be written.
    """
    path = directory / "lock"
    pid = machine.pid
    mine = Holder(
        host=machine.host,
        machine=machine.identity,
        pid=pid,
        process_started=machine.process_started(pid),
        time=machine.time(),
        token=uuid.uuid4().hex,
        supervisor=supervisor,
        ranks=(),
    )
    seen: _LockFile | None = None
    turns, unchanged_since, said = 0, machine.monotonic(), False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # One turn is enough unless others acquire or release the lock at the same moment.
        while turns < _MOST_TURNS:
            if machine.create(path, _encode(mine)):
                return Lock(path, mine, machine=machine)
            former, seen = seen, _read_lock(path, machine)
            if seen is None:
                turns += 1
                continue
            if former is None or former[:2] != seen[:2]:
                unchanged_since = machine.monotonic()
            refreshed = (
                former is not None and former.holder == seen.holder and former.mtime_ns != seen.mtime_ns
            )
            # Whatever the stamp says: a file server's clock may be wrong, this machine's monotonic clock is not.
            stale = not seen.local and machine.monotonic() - unchanged_since >= STALE_S
            same_supervisor = supervisor is not None and seen.holder and seen.holder.supervisor == supervisor
            if not seen.alive or stale or same_supervisor:
                turns += 1
                taken = msgspec.structs.replace(mine, contested=_ranks_may_run(seen, machine))
                if _take_over(path, seen, _encode(taken), machine):
                    return Lock(path, taken, machine=machine)
            elif waiting is None or seen.local or refreshed:
                raise _refused(directory, seen.holder)
            else:
                if not said:
                    waiting(
                        f"{directory} is in use by {seen.holder or 'another campaign'}. Waiting until that shows that "
                        f"it lives, or for at most {STALE_S:.0f} s in case it has died."
                    )
                said = True
                machine.sleep(_LOOK_S)
    except OSError as error:
        raise unwritable(directory, error) from error
    raise _refused(directory, None)


def _ranks_may_run(found: _LockFile, machine: Machine) -> bool:
    """Whether ranks of the launch that held this lock may still run: always, unless it is seen that none does."""
    former = found.holder
    if former is None or former.contested or former.ranks is None or not found.local or found.alive:
        return True
    return any(machine.is_running(pid, started) for pid, started in former.ranks)


def _take_over(path: Path, stale: _LockFile, data: bytes, machine: Machine) -> bool:
    """Put ``data`` in the place of a dead holder's lock; False if another process is doing so, or has done it."""
    # Several processes may find the same dead holder. Only the process that could create the claim on it may go on, and
    # only if the lock is still as it found it: so none replaces the lock of a process that was quicker.
    claim = path.with_name(f".lock.{stale.holder.token if stale.holder else 'unreadable'}")
    if not machine.create(claim, data):
        claimed = _read_lock(claim, machine)
        if claimed and not claimed.alive:
            claim.unlink(missing_ok=True)
        return False
    try:
        found = _read_lock(path, machine)
        if found is None or found[:2] != stale[:2]:
            return False
        write_atomically(path, data)
        return True
    finally:
        claim.unlink(missing_ok=True)


def _refused(directory: Path, by: Holder | None) -> CampaignError:
    return CampaignError(
        f"{directory} is in use by {by or 'another campaign that has just started'}. Let it finish, stop it "
        f"with `hpo stop {quoted(directory)}`, or name another directory."
    )
