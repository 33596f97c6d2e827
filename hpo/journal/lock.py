"""The lock of a campaign's directory: one launch at a time works in it."""

from __future__ import annotations

import os
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from hpo.errors import CampaignError
from hpo.journal.directory import unwritable
from hpo.journal.durable import write_atomically
from hpo.terminal import quoted

STALE_S = 60.0
"""A lock held on another machine counts as abandoned when it has not been refreshed for this many seconds."""


_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=2**33)]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a campaign's lock."""

    host: str
    machine: str
    """Boot and PID namespace: only there can ``pid`` be looked up."""
    pid: _Pid
    process_started: int | None
    """Clock ticks after boot: distinguishes a process from a later one with its ``pid``; None if unknown."""
    time: _Time
    token: str

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"process {self.pid} on {self.host} since {since}"


def _machine() -> str:
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _process_started(pid: int) -> int | None:
    """Clock ticks after boot at which process ``pid`` started; None without such a process or /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    # A zombie does nothing any more; only its parent has yet to notice.
    return None if state in "ZX" else int(fields[18])


def _is_running(holder: Holder) -> bool:
    if holder.process_started is not None:
        return _process_started(holder.pid) == holder.process_started
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_lock(path: Path) -> tuple[Holder | None, bool] | None:
    """Who the lock file names (None while it is being written) and whether it is held; None if absent."""
    try:
        data = path.read_bytes()
        age = time.time() - path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unwritable(path.parent, error) from error
    try:
        holder = msgspec.json.decode(data, type=Holder)
    except ValueError:
        return None, age < STALE_S
    return holder, _is_running(holder) if holder.machine == _machine() else age < STALE_S


def holder(directory: Path) -> Holder | None:
    """The process that is at work on the campaign in ``directory``; None if there is none, or it has died."""
    found = _read_lock(directory / "lock")
    return found[0] if found and found[1] else None


def stale_holder(directory: Path) -> str | None:
    """What the lock that a dead process left says of it; None without such a lock."""
    found = _read_lock(directory / "lock")
    if not found or found[1]:
        return None
    return str(found[0] or "a process that cannot be read")


class Lock:
    """The right to be the one campaign at work in a directory; from :func:`acquire`."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self.path = path
        self.holder = holder

    def refresh(self) -> None:
        """Show other machines that the holder lives: to be called every few seconds.

        Raises:
            CampaignError: another campaign has taken the lock, because this one was not seen for too long.
        """
        found = _read_lock(self.path)
        if found is None or (found[0] is not None and found[0].token != self.holder.token):
            by = f" by {found[0]}" if found else ""
            raise CampaignError(
                f"{self.path} was taken away{by} while this campaign was at work. This one stops, so that "
                "the two do not mix; start it again when the other has finished."
            )
        with suppress(OSError):
            os.utime(self.path)

    def release(self) -> None:
        """Let others in; a lock that was taken away is left to its new holder."""
        found = _read_lock(self.path)
        if found and found[0] and found[0].token == self.holder.token:
            with suppress(FileNotFoundError):
                self.path.unlink()


def acquire(directory: Path) -> Lock:
    """Become the one campaign at work in ``directory``, which is made if need be.

    A dead holder's lock is taken over: one that ran here and whose process is gone, or that ran elsewhere and
    has not refreshed the lock for ``STALE_S`` seconds. File locks are no alternative: across the nodes of a
    cluster they are not to be relied on.

    Raises:
        CampaignError: another campaign holds the lock (the text says which process, where), or the directory
            cannot be written.
    """
    path = directory / "lock"
    pid = os.getpid()
    mine = Holder(
        host=socket.gethostname(),
        machine=_machine(),
        pid=pid,
        process_started=_process_started(pid),
        time=time.time(),
        token=uuid.uuid4().hex,
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.encode(mine) + b"\n"
        # One turn is enough unless others acquire or release the lock at the same moment.
        for _ in range(10):
            if _create(path, data):
                return Lock(path, mine)
            found = _read_lock(path)
            if found and found[1]:
                raise _refused(directory, found[0])
            if found and _take_over(path, found[0], data):
                return Lock(path, mine)
    except OSError as error:
        raise unwritable(directory, error) from error
    raise _refused(directory, None)


def _create(path: Path, data: bytes) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    try:
        with open(handle, "wb") as file:
            file.write(data)
    except OSError:  # an empty one would be in the way of the next
        with suppress(OSError):
            path.unlink()
        raise
    return True


def _take_over(path: Path, stale: Holder | None, data: bytes) -> bool:
    """Put ``data`` in the place of a dead holder's lock; False if another is doing so, or has done it.

    Of several that found the same dead holder, only the one that could create the claim on it may go on, and
    only if the lock is still the one that it found: so none replaces the lock of another that was quicker.
    """
    claim = path.with_name(f".lock.{stale.token if stale else 'unreadable'}")
    if not _create(claim, data):
        claimed = _read_lock(claim)
        if claimed and not claimed[1]:
            claim.unlink(missing_ok=True)
        return False
    try:
        if _read_lock(path) != (stale, False):
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
