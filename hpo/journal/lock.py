"""The lock of a campaign's directory: one launch at a time works in it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, NamedTuple

import msgspec

from hpo.errors import CampaignError, LockLost
from hpo.journal.directory import unwritable
from hpo.journal.durable import write_atomically
from hpo.journal.heartbeat import Heartbeat
from hpo.journal.machine import THIS_MACHINE, Machine
from hpo.terminal import quoted

_PATIENCE_S = 120.0
"""For which errors of the storage are borne; then a holder gives up."""
STALE_S = _PATIENCE_S + 30.0
"""A lock held on another machine counts as abandoned when it has not been refreshed for this many seconds. By then
its holder has given up, unless it was stopped; and then it looks at the lock before it does anything else."""
REFRESH_S = 5.0
_LOOK_S = 1.0


_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=2**33)]


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a campaign's lock."""

    host: str
    machine: str
    """See ``Machine.identity``: only there can ``pid`` be looked up."""
    pid: _Pid
    process_started: int | None
    """Clock ticks after boot: distinguishes a process from a later one with its ``pid``; None if unknown."""
    time: _Time
    token: str
    supervisor: str | None = None
    """Token of the ``hpo run`` that started the launch of this process and watches it; None without one."""
    contested: bool = False
    """Whether ranks of the launch that held the lock before may still run, and no launch has put that on record yet."""
    ranks: tuple[tuple[_Pid, int | None], ...] | None = None
    """The other processes that may evaluate for its launch, each as ``pid`` and ``process_started``, where all are on
    its machine; None where some are not, or that is not known."""
    over: bool = False
    """Whether it has ended, and leaves the lock for the next launch to know that some of ``ranks`` may not have."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"process {self.pid} on {self.host} since {since}"


class _Found(NamedTuple):
    """What the lock file says. ``holder``: None while it is being written; ``local``: its process can be looked up
    here; ``alive``: as far as one look shows; ``data``: all of it."""

    holder: Holder | None
    mtime_ns: int
    local: bool
    alive: bool
    data: bytes


def _read_lock(path: Path, machine: Machine) -> _Found | None:
    """None if there is no lock."""
    try:
        # Attributes after the file was opened: those of an NFS client may be a minute old otherwise.
        with open(path, "rb") as file:
            data, mtime_ns = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unwritable(path.parent, error) from error
    holder = _decoded(data)
    if holder is not None and holder.over:
        return _Found(holder, mtime_ns, local=holder.machine == machine.identity, alive=False, data=data)
    if holder is not None and holder.machine == machine.identity:
        alive = machine.is_running(holder.pid, holder.process_started)
        return _Found(holder, mtime_ns, local=True, alive=alive, data=data)
    # Of two stamps of one clock, whatever ours says.
    age_s = machine.file_time(path.parent) - mtime_ns / 1e9
    return _Found(holder, mtime_ns, local=False, alive=age_s < STALE_S, data=data)


def _decoded(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except ValueError:
        return None


def holder(directory: Path) -> Holder | None:
    """The process that is at work on the campaign in ``directory``; None if there is none, or it has died."""
    found = _read_lock(directory / "lock", THIS_MACHINE)
    return found.holder if found and found.alive else None


def stale_holder(directory: Path) -> str | None:
    """What the lock that a dead process left says of it; None without such a lock."""
    found = _read_lock(directory / "lock", THIS_MACHINE)
    if not found or found.alive:
        return None
    return str(found.holder or "a process that cannot be read")


def last_refresh(directory: Path) -> int | None:
    """When the lock was last refreshed, in nanoseconds of its storage's clock: to be compared with an earlier answer. 0
    where there is no lock, None where that cannot be seen now."""
    try:
        with open(directory / "lock", "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError:
        return None


class Lock:
    """The right to be the one campaign at work in a directory; from :func:`acquire`. As a context it is kept alive by
    its ``heartbeat``, on which others may register what they do as often, and released in the end."""

    def __init__(
        self, path: Path, holder: Holder, *, machine: Machine = THIS_MACHINE, former: _Found | None = None
    ) -> None:
        self.path = path
        self.holder = holder
        self._former = former
        """What it was taken over from."""
        self._machine = machine
        self.heartbeat = Heartbeat(REFRESH_S)
        self.heartbeat.register(self.refresh)
        self._refreshed = machine.monotonic()
        self._refreshing = False
        self._lost: LockLost | None = None
        self.all_ended = False
        """Whether nothing is left at work for its launch, although some of its ranks may still run."""

    def __enter__(self) -> Lock:
        self.heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heartbeat.stop()
        self.release()

    @property
    def contested(self) -> bool:
        """Whether ranks of the launch that held the lock before may still run (see ``Holder``)."""
        return self.holder.contested

    def settle(self) -> None:
        """It is on record that the lock was contested: whoever has it next need not know."""
        if self.contested:
            with suppress(OSError):  # the next will see to it once more
                self._rewrite(msgspec.structs.replace(self.holder, contested=False))

    def name_ranks(self, processes: Iterable[tuple[str, int]]) -> None:
        """Put the other processes of the launch into the lock before any of them begins to evaluate, so that whoever
        takes the lock over can see whether they have ended. ``processes``: identity of the machine and pid of each.

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
        """Change what the lock says of this holder; False where it is another's. OSError as the file system says."""
        named = _decoded(self.path.read_bytes())
        if named is None or named.token != self.holder.token:
            return False
        write_atomically(self.path, _encoded(holder))
        self._machine.touch(self.path)
        self.holder = holder
        return True

    def refresh(self) -> None:
        """Show other machines that the holder lives, at least every few seconds; ``check`` says what came of it.

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
            named = _decoded(self.path.read_bytes())
        except FileNotFoundError:
            if not (self.path.parent / "campaign.json").exists():
                raise  # the whole directory is away, whatever evaluations make in its place
            # Until others think it stale, only a person can have removed it; later, one of them may have come and gone.
            if self._silent_s >= STALE_S:
                self._lost = self._taken("")
                return
            self._machine.create(self.path, _encoded(self.holder))
            named = None
        if named is not None and named.token != self.holder.token:
            self._lost = self._taken(f" by {named}")
            return
        # From before the call: it may take long, and others count from the stamp.
        began = self._machine.monotonic()
        self._machine.touch(self.path)
        self._refreshed = began

    @property
    def _silent_s(self) -> float:
        """For how long it has not been refreshed."""
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
        """To be called before anything is done that only the holder may do.

        Raises LockLost: another campaign has taken the lock, or may have, as this one was not seen for too long."""
        if self._silent_s >= _PATIENCE_S and not self._refreshing:
            self.refresh()  # this process was stopped, and its heartbeat has not gone on yet
        if self._silent_s >= _PATIENCE_S and self._lost is None:
            self._lost = self._given_up("the file server does not answer")
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Let others in; a lock that was taken away is left to its new holder, and one that cannot be removed gets
        stale. Who takes it over next has to know where ranks may still run: a lock that was contested and is not
        settled is put back as it was found, and one whose own ranks may still be at work stays, marked as over."""
        with suppress(OSError):
            named = _decoded(self.path.read_bytes())
            if named is None or named.token != self.holder.token:
                return
            former = self._former if self.contested else None
            if former is not None:
                write_atomically(self.path, former.data)
                os.utime(self.path, ns=(former.mtime_ns, former.mtime_ns))
            elif self.all_ended or self.holder.ranks == ():
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
    """Become the one campaign at work in ``directory``, which is made if need be.

    A dead holder's lock is taken over: one that ran here and whose process is gone, one that ran elsewhere and has not
    refreshed the lock for ``STALE_S`` seconds, and that of an earlier launch of the same supervisor. File locks are no
    alternative: across the nodes of a cluster they are not to be relied on.

    Args:
        machine: that this process runs on.
        supervisor: a token of the ``hpo run`` that starts this launch, and starts none while another is at work.
        waiting: where a holder elsewhere may have died, it is waited for until it refreshes the lock or that is stale;
            called once, with a sentence. None: it is refused at once.

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
    watch = _Watch(machine)
    turns, said = 0, False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # One turn is enough unless others acquire or release the lock at the same moment.
        while turns < 10:
            if machine.create(path, _encoded(mine)):
                return Lock(path, mine, machine=machine)
            found = _read_lock(path, machine)
            if found is None:
                turns += 1
                continue
            refreshed = watch.refreshed(found)
            if not found.alive or watch.stale or _same_supervisor(found.holder, mine):
                turns += 1
                taken = msgspec.structs.replace(mine, contested=_may_run(found, machine))
                if _take_over(path, found, _encoded(taken), machine):
                    return Lock(path, taken, machine=machine, former=found)
            elif waiting is None or found.local or refreshed:
                raise _refused(directory, found.holder)
            else:
                if not said:
                    by = found.holder or "another campaign"
                    waiting(
                        f"{directory} is in use by {by}. Waiting until that shows that it lives, or for at most "
                        f"{STALE_S:.0f} s in case it has died."
                    )
                said = True
                machine.sleep(_LOOK_S)
    except OSError as error:
        raise unwritable(directory, error) from error
    raise _refused(directory, None)


class _Watch:
    """Looks at a lock again and again, and trusts no clock but this machine's own monotonic one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: _Found | None = None
        self._since = 0.0

    def refreshed(self, found: _Found) -> bool:
        """Whether its holder has refreshed the lock since the last look. To be asked once a look."""
        former, self._seen = self._seen, found
        if former is None or former[:2] != found[:2]:
            self._since = self._machine.monotonic()
        return former is not None and former.holder == found.holder and former.mtime_ns != found.mtime_ns

    @property
    def stale(self) -> bool:
        """Whether a holder elsewhere has not refreshed it for long enough, whatever the lock's stamp says."""
        seen = self._seen
        return seen is not None and not seen.local and self._machine.monotonic() - self._since >= STALE_S


def _same_supervisor(former: Holder | None, mine: Holder) -> bool:
    return former is not None and mine.supervisor is not None and former.supervisor == mine.supervisor


def _may_run(found: _Found, machine: Machine) -> bool:
    """Whether ranks of the launch that held this lock may still run: always, unless it is seen that none does."""
    former = found.holder
    if former is None or former.contested or former.ranks is None or not found.local or found.alive:
        return True
    return any(machine.is_running(pid, started) for pid, started in former.ranks)


def _encoded(holder: Holder) -> bytes:
    return msgspec.json.encode(holder) + b"\n"


def _take_over(path: Path, stale: _Found, data: bytes, machine: Machine) -> bool:
    """Put ``data`` in the place of a dead holder's lock; False if another is doing so, or has done it.

    Of several that found the same dead holder, only the one that could create the claim on it may go on, and
    only if the lock is still as it found it: so none replaces the lock of another that was quicker.
    """
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
