"""Watches mpirun: ends launches that hang while MPI starts or ends, and processes that outlive it.

*Ranks that die while MPI itself starts.* The others are not informed, and would wait in MPI_Init for ever, as fault
tolerance begins after it. mpirun's parent sees that a rank of its host has gone, and ends the launch within seconds;
for those of other hosts each rank ends by itself after a time that no healthy start takes.

*An mpirun that starts no rank*, as one waits for ever, and ignores SIGTERM, whose daemon on another host was killed
before it answered. It is ended after a time that no healthy start takes.

*Ranks that die while MPI ends.* The others would wait in MPI_Finalize: they end after a minute.

*An mpirun that outlives its ranks*, as that of Open MPI 5.0.11 sometimes does where they ended in an unusual way.

*Ranks that hang.* The others have given them up, and mpirun would wait for them. Once the campaign's end is on record
and rank 0 has ended, they are killed; so are ranks that are stopped, or in a call that does not return, where rank 0
has gone, and such a rank 0 where all the others have. Those of other hosts cannot be seen: mpirun is killed when rank 0
has shown no life for so long that all that can run have ended.

*Ranks that outlive their mpirun.* Where that was killed, they end as soon as they see it, which may be after the next
launch has read the journals: what one of them recorded then would be evaluated again."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpo.errors import EXIT_RESUMABLE

START_S = 300
"""For MPI to connect all ranks, the slowest one's imports included."""
END_S = 60
"""For MPI to take leave, once no message is under way."""
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1
_REST_S = 10.0
"""Ranks that end of their own accord at the start, as all do where the campaign is refused, are all gone by then."""
_STAY_S = 60.0
"""For an mpirun without ranks: what reads its output may be slow."""
_OVER_S = 2.0 * END_S
"""For an mpirun after the campaign's end: within half of it ranks that cannot take leave of each other have ended."""
_AGAIN_S = 60.0
"""When the campaign's end is looked for again, though the journal does not grow: what is written may go elsewhere."""


@contextmanager
def bounded(seconds: float = START_S) -> Iterator[None]:
    """End this process if what is inside takes longer. By SIGALRM's default action: no handler in Python runs, and
    no other thread, while a library's C code holds the interpreter."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, left - (time.monotonic() - began)), interval)


def tied(parent: int) -> list[str]:
    """What to put before a command line, so that the process gets SIGUSR1, as it would from ``parent`` for a stop in
    good order, when that is gone. A small program, not code between fork and exec: ``parent`` may have threads."""
    return [
        sys.executable,
        "-ISc",
        "import ctypes, os, sys; "
        f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGUSR1)}, 0, 0, 0); "
        f"os.getppid() == {parent} or os._exit({EXIT_RESUMABLE}); "
        "os.execv(sys.argv[1], sys.argv[1:])",
    ]


def set_alarm(seconds: int = END_S) -> None:
    """End this process after ``seconds``, whatever it does: for MPI_Finalize, in which ranks wait for each other."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def wait(
    mpirun: subprocess.Popen[bytes],
    ranks: int,
    begun: Path,
    kill_at: Callable[[], float | None] = lambda: None,
    ended: Callable[[], bool] = lambda: False,
    unseen_s: float = math.inf,
    refreshed: Callable[[], int | None] = lambda: None,
    silent_s: float = math.inf,
) -> int | None:
    """The return code of ``mpirun``, which leads a session and starts ``ranks`` ranks; None where it was killed here.
    ``begun`` exists once all have met. ``kill_at``: on the monotonic clock, when it and all its session are killed;
    ``ended``: whether the campaign's end is on record; ``unseen_s``: how long ``begun`` may take where no rank is seen,
    as they may all be on other hosts; ``refreshed``: a number that changes while rank 0 lives, None where it cannot be
    had; ``silent_s``: how long it may stay the same.

    Where some of this host's are gone before that, and the others neither begin nor end within 10 s, it and they are
    killed; also an mpirun that stays for a minute when all its ranks, all of this host, are gone, and one that stays
    for two once the campaign has ended: it may wait for a host that has lost its power. Otherwise without a time-out
    while rank 0 lives: a campaign lasts as long as it lasts, and its deadline is kept by its ranks. Of MPIs other than
    Open MPI the ranks are not known."""
    start = time.monotonic()
    met = False  # kept, as storage that fails for a while shows no file
    known: dict[int, int] = {}  # a rank's first process; it may hide or overwrite its environment later
    here = 0
    since: float | None = None
    over: float | None = None
    size: int | None = None  # of the journal; its end is looked for once where it does not grow
    asked: int | None = None
    asked_at = -math.inf
    looked = -_REST_S
    signs = _Signs(refreshed)
    while True:
        try:
            return mpirun.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            pass
        limit = kill_at()
        if limit is not None and time.monotonic() >= limit:
            _kill(mpirun)
            return None
        # Path.exists raises where storage fails.
        met = met or os.path.exists(begun)
        if met and since is None and time.monotonic() < looked + _REST_S:
            continue
        looked = time.monotonic()
        session = _session(mpirun.pid)
        if not here or len(known) < here:
            for pid in session:
                number, local = _rank(pid)
                if number is not None:
                    known.setdefault(number, pid)
                    here = local
        living = sum(pid in session for pid in known.values())
        now = time.monotonic()
        before, size = size, _size(begun)
        if over is None and met and before == size and (size != asked or now - asked_at > _AGAIN_S):
            asked, asked_at = size, now
            over = now if ended() else None
        unseen = not known and not met and now - start > unseen_s
        silent = met and signs.silence_s(now) > silent_s
        if unseen or silent or (over is not None and now - over > _OVER_S):
            _kill(mpirun)
            return None
        alone = bool(known) and here == ranks and not living
        hangs = met and _hangs(known, session, all_here=here == ranks, ended=ended)
        if not alone and not hangs and (not known or living >= here or met):
            since = None
        elif since is None:
            since = now
        elif now - since > (_STAY_S if alone and met else _REST_S):
            _kill(mpirun)
            return None


class _Signs:
    """Of the life of rank 0: ``refreshed`` is of ``wait``."""

    def __init__(self, refreshed: Callable[[], int | None]) -> None:
        self._refreshed = refreshed
        self._last: int | None = None
        self._looked = -math.inf
        self._silence_s = 0.0

    def silence_s(self, now: float) -> float:
        """For how long there has been none, as far as was looked: while this process is stopped rank 0 may be, too, and
        needs a moment then. ``now``: on the monotonic clock."""
        before, self._last = self._last, self._refreshed()
        looked, self._looked = self._looked, now
        same = self._last is not None and self._last == before
        self._silence_s = self._silence_s + min(now - looked, 2 * _REST_S) if same else 0.0
        return self._silence_s


def _hangs(known: dict[int, int], session: list[int], *, all_here: bool, ended: Callable[[], bool]) -> bool:
    """Whether ranks are left that hang. ``known``: the processes of this host's ranks; ``all_here``: there are no
    others."""
    living = [rank for rank, pid in known.items() if pid in session]
    if not living or 0 not in known:
        return False
    if 0 in living and (living != [0] or len(known) == 1):
        return False
    # With rank 0 alone, or without it, ranks that can run end by themselves.
    if all_here and all(_state(known[rank]) in ("T", "D") for rank in living):
        return True
    return 0 not in living and ended()


def _size(path: Path) -> int | None:
    """In bytes; None where it cannot be had."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _state(pid: int) -> str:
    """A letter, as ps shows it; empty where the process has ended."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _kill(mpirun: subprocess.Popen[bytes]) -> None:
    """Kill it, and then its session."""
    mpirun.kill()  # first, so that it starts no more
    end_rest(mpirun.pid)
    with suppress(subprocess.TimeoutExpired):
        mpirun.wait(_REST_S)


def end_rest(mpirun: int) -> None:
    """Kill what there is on this machine of the session of ``mpirun``: where that has ended its ranks, and with each
    its evaluator. More than once, as what is killed may just have started another."""
    end = time.monotonic() + _REST_S
    while (left := _session(mpirun)) and time.monotonic() < end:
        for pid in left:
            with suppress(OSError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _session(leader: int) -> list[int]:
    """The processes of a session that have not ended; none where the system has no /proc of its own."""
    with suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return []
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if int(session) == leader and state not in ("Z", "X"):
            found.append(int(stat.parent.name))
    return found


def _rank(pid: int) -> tuple[int | None, int]:
    """Which rank it is, and how many there are on this host; None and 0 of what is no rank of Open MPI."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
        variables = dict(one.split(b"=", 1) for one in content.split(b"\0") if b"=" in one)
        return int(variables[b"OMPI_COMM_WORLD_RANK"]), int(variables[b"OMPI_COMM_WORLD_LOCAL_SIZE"])
    except (OSError, KeyError, ValueError):
        return None, 0
