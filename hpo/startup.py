"""Ranks that die while MPI itself starts: nobody tells the others, which would wait in MPI_Init for ever.

Fault tolerance begins after MPI_Init. On one machine mpirun's parent sees that a rank has gone, and ends the launch
within seconds; elsewhere each rank ends by itself after a time that no healthy start takes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 300
"""For MPI to connect all ranks, the slowest one's imports included."""
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


def wait_for_start(mpirun: subprocess.Popen[bytes], ranks: int, begun: Path) -> None:
    """Return once ``begun`` exists or ``mpirun`` has ended. Where some of its ``ranks`` are gone, and the others
    neither begin nor end within 10 s, kill them all; so only for ranks of this machine."""
    missing_since: float | None = None
    while not begun.exists():
        try:
            mpirun.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            pass
        children = _children(mpirun.pid)
        now = time.monotonic()
        if not 0 < len(children) < ranks:
            missing_since = None
        elif missing_since is None:
            missing_since = now
        elif now - missing_since > _REST_S and not begun.exists():
            for pid in (*children, mpirun.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            return


def _children(pid: int) -> list[int]:
    """Those that have not ended; none where the system has no /proc."""
    found = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(one) for one in listed.read_text().split()]
        except OSError:
            continue
    return [one for one in found if not _ended(one)]


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True
