"""What mpirun leaves undone about its processes.

*Ranks that die while MPI itself starts.* Nobody tells the others, which would wait in MPI_Init for ever, as fault
tolerance begins after it. On one machine mpirun's parent sees that a rank has gone, and ends the launch within
seconds; elsewhere each rank ends by itself after a time that no healthy start takes.

*Ranks that die while MPI ends.* The others would wait in MPI_Finalize: they end after a minute.

*An mpirun that outlives its ranks*, as that of Open MPI 5.0.11 sometimes does where they ended in an unusual way.

*Ranks that outlive their mpirun.* Where that was killed, they end as soon as they see it, which may be after the next
launch has read the journals: what one of them recorded then would be evaluated again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 300
"""For MPI to connect all ranks, the slowest one's imports included."""
END_S = 60
"""For MPI to take leave, once no message is under way."""
_LOOK_S = 0.5
_REST_S = 10.0
"""Ranks that end of their own accord at the start, as all do where the campaign is refused, are all gone by then."""


@contextmanager
def bounded(seconds: int = START_S) -> Iterator[None]:
    """End this process if what is inside takes longer. By SIGALRM's default action: no handler in Python runs, and
    no other thread, while a library's C code holds the interpreter."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def set_alarm(seconds: int = END_S) -> None:
    """End this process after ``seconds``, whatever it does: for MPI_Finalize, in which ranks wait for each other."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def wait(mpirun: subprocess.Popen[bytes], ranks: int, begun: Path) -> int:
    """The return code of ``mpirun``, which leads a session and whose ``ranks`` are all on this machine. ``begun``
    exists once all have met.

    Where some are gone before that, and the others neither begin nor end within 10 s, or where all are gone and mpirun
    stays, it and they are killed. Otherwise without a time-out: a campaign lasts as long as it lasts, and its deadline
    is kept by its ranks. Of MPIs other than Open MPI the ranks are not known, and nothing is done."""
    seen = False
    missing_since: float | None = None
    while True:
        try:
            return mpirun.wait(_REST_S if begun.exists() and missing_since is None else _LOOK_S)
        except subprocess.TimeoutExpired:
            pass
        living = sum(map(_is_rank, _session(mpirun.pid)))
        seen |= living > 0
        now = time.monotonic()
        if not seen or living >= ranks or (living and begun.exists()):
            missing_since = None
        elif missing_since is None:
            missing_since = now
        elif now - missing_since > _REST_S:
            end_rest(mpirun.pid)
            return mpirun.wait(_REST_S)


def end_rest(mpirun: int) -> None:
    """Kill what there is on this machine of the session of ``mpirun``: where that has ended its ranks, and with each
    its evaluator."""
    for pid in _session(mpirun):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """The processes of a session that have not ended; none where the system has no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
        except (OSError, ValueError):  # it ended meanwhile
            continue
        if int(session) == leader and state not in ("Z", "X"):
            found.append(int(stat.parent.name))
    return found


def _is_rank(pid: int) -> bool:
    try:
        return b"\0OMPI_COMM_WORLD_RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
