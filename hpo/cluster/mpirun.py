"""Watches mpirun: ends launches that hang while MPI starts or ends, and processes that outlive it.

*Ranks that die while MPI itself starts.* The others are not informed, and would wait in MPI_Init for ever, as fault
tolerance begins after it. mpirun's parent sees that a rank of its host has gone, and ends the launch within seconds;
for those of other hosts each rank ends by itself after a time that no healthy start takes.

*An mpirun that starts no rank*, as it waits for ever, and ignores SIGTERM, where its daemon on another host was killed
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
from hpo.evaluation.process_tree import SESSION, STATE, stat_of

# For MPI to connect all ranks, the slowest rank's imports included.
START_S = 300
# For MPI to take leave, once no message is under way.
END_S = 60
_LOOK_S = 0.5
_PR_SET_PDEATHSIG = 1
# Ranks that end of their own accord at the start, as all do where the campaign is refused, are all gone by then.
_REST_S = 10.0
# For an mpirun without ranks: what reads its output may be slow.
_STAY_S = 60.0
# For an mpirun after the campaign's end: within half of it ranks that cannot take leave of each other have ended.
_OVER_S = 2.0 * END_S
# When the campaign's end is looked for again, though the journal does not grow: what is written may go elsewhere.
_AGAIN_S = 60.0


@contextmanager
def bounded(seconds: float = START_S) -> Iterator[None]:
    """End this process if what is inside takes longer. By SIGALRM's default action: no handler in Python runs, and
    no other thread, while a library's C code holds the interpreter."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)


def tied(parent: int) -> list[str]:
    """Beginning of a command line whose process gets SIGUSR1, as for a stop in good order, when ``parent`` is gone."""
    # A small program instead of code between fork and exec: ``parent`` may have threads.
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
    journal_size: Callable[[], int | None],
    kill_at: Callable[[], float | None] = lambda: None,
    ended: Callable[[], bool] = lambda: False,
    unseen_s: float = math.inf,
    refreshed: Callable[[], int | None] = lambda: None,
    silent_s: float = math.inf,
) -> int | None:
    """Return code of ``mpirun``, which leads a session; None where it was killed here with its session. Without a
    time-out while rank 0 lives: a campaign lasts as long as it lasts. Ranks of other MPIs than Open MPI are not known.

    Args:
        journal_size: bytes of rank 0's journal, which exists once all ranks have met; None before.
        kill_at: time on the monotonic clock at which mpirun is killed.
        ended: whether the campaign's end is on record.
        unseen_s: seconds that the journal may take where no rank is seen, as they may all be on other hosts.
        refreshed: number that changes while rank 0 lives, None where it cannot be had.
        silent_s: seconds that this number may stay the same.
    """
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
    sign: int | None = None
    silence_s = 0.0
    while True:
        try:
            return mpirun.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            pass
        limit = kill_at()
        if limit is not None and time.monotonic() >= limit:
            break
        met = met or journal_size() is not None
        if met and since is None and time.monotonic() < looked + _REST_S:
            continue
        session = _session(mpirun.pid)
        if not here or len(known) < here:
            for pid in session:
                number, local = _rank(pid)
                if number is not None:
                    known.setdefault(number, pid)
                    here = local
        living = sum(pid in session for pid in known.values())
        now = time.monotonic()
        if met:
            # While this process is stopped rank 0 may be, too, and needs a moment then: hence the bound.
            before, sign = sign, refreshed()
            same = sign is not None and sign == before
            silence_s = silence_s + min(now - looked, 2 * _REST_S) if same else 0.0
        looked = now
        former, size = size, journal_size()
        if over is None and met and former == size and (size != asked or now - asked_at > _AGAIN_S):
            asked, asked_at = size, now
            over = now if ended() else None
        unseen = not known and not met and now - start > unseen_s
        if unseen or silence_s > silent_s or (over is not None and now - over > _OVER_S):
            break
        alone = bool(known) and here == ranks and not living
        hangs = met and _hangs(known, session, all_here=here == ranks, ended=ended)
        if not alone and not hangs and (not known or living >= here or met):
            since = None
        elif since is None:
            since = now
        elif now - since > (_STAY_S if alone and met else _REST_S):
            break
    mpirun.kill()  # first, so that it starts no more
    end_rest(mpirun.pid)
    with suppress(subprocess.TimeoutExpired):
        mpirun.wait(_REST_S)
    return None


def _hangs(known: dict[int, int], session: list[int], *, all_here: bool, ended: Callable[[], bool]) -> bool:
    """Whether ranks are left that hang. ``known``: the processes of this host's ranks; ``all_here``: there are no
    others."""
    living = [rank for rank, pid in known.items() if pid in session]
    if not living or 0 not in known:
        return False
    if 0 in living and (living != [0] or len(known) == 1):
        return False
    # Without rank 0, and where rank 0 is alone, ranks that can run end by themselves.
    if all_here and all(stat_of(known[rank])[:1] in (["T"], ["D"]) for rank in living):
        return True
    return 0 not in living and ended()


def end_rest(mpirun: int) -> None:
    """Kill what this machine has of the session of ``mpirun``: ranks and their evaluators."""
    # More than once, as what is killed may just have started another.
    end = time.monotonic() + _REST_S
    while (left := _session(mpirun)) and time.monotonic() < end:
        for pid in left:
            with suppress(OSError):  # it has ended, or is another user's
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _session(leader: int) -> list[int]:
    """Processes of a session that have not ended; none where the system has no /proc of its own."""
    with suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return []
    found = []
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        fields = stat_of(pid)
        if fields and int(fields[SESSION]) == leader and fields[STATE] not in ("Z", "X"):
            found.append(pid)
    return found


def _rank(pid: int) -> tuple[int | None, int]:
    """Rank of a process, and number of ranks on this host; None and 0 for a process that is no rank of Open MPI."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
        variables = dict(one.split(b"=", 1) for one in content.split(b"\0") if b"=" in one)
        return int(variables[b"OMPI_COMM_WORLD_RANK"]), int(variables[b"OMPI_COMM_WORLD_LOCAL_SIZE"])
    except (OSError, KeyError, ValueError):
        return None, 0
