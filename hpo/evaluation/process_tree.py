"""A process and all that it started, as the kernel lists them, and what they use."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STATE, SESSION, FLAGS, _TIMES, _STARTED, _RESIDENT = 0, 3, 6, slice(11, 15), 19, 21
"""Fields of /proc/PID/stat after the name: R, S, Z and so on; session; flags; user and system time of the process, and
of its children that have ended; ticks from the boot to its start; resident pages."""
_SHARED = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"compile_worker", b"loky")
"""Parts of the command lines of helpers that libraries start once a process, and use again."""
_ENDS_S = 0.1


class ResourceUse(NamedTuple):
    """``cpu_s``: processor time so far, ``memory``: resident bytes."""

    cpu_s: float
    memory: int


def descendants(pid: int) -> list[int]:
    """Processes that ``pid`` started, and those that they started, as far as the kernel lists them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        with suppress(OSError):  # it ended meanwhile
            for thread in os.scandir(f"/proc/{waiting.pop()}/task"):
                children = list(map(int, Path(thread.path, "children").read_bytes().split()))
                waiting += children
                found += children
    return found


def resource_use(pid: int) -> ResourceUse:
    """Use of ``pid`` and its descendants together; memory that they share counts for each."""
    ticks = pages = 0
    for process in (pid, *descendants(pid)):
        if fields := stat_of(process):
            ticks += sum(map(int, fields[_TIMES]))
            pages += int(fields[_RESIDENT])
    return ResourceUse(ticks / _TICKS_A_SECOND, pages * _PAGE_BYTES)


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes of which some may have ended."""
    for pid in pids:
        with suppress(OSError):  # it has ended, or is another user's, as what sudo started
            os.kill(pid, signal.SIGKILL)


def kill_started_since(moment: float) -> bool:
    """Kill what this process has started since ``moment`` (``time.CLOCK_BOOTTIME``), and what that has, but for helpers
    of libraries; whether there was anything."""
    if not _started_since(moment):
        return False
    gc.collect()  # loaders end with their objects
    time.sleep(_ENDS_S)  # it may be about to end, or to become what it is
    left = _started_since(moment)
    kill_all(left)
    return bool(left)


def _started_since(moment: float) -> list[int]:
    found = []
    for pid in descendants(os.getpid()):
        fields = stat_of(pid)
        if fields and fields[STATE] != "Z" and int(fields[_STARTED]) + 1 >= moment * _TICKS_A_SECOND:
            with suppress(OSError):  # it ended meanwhile
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if not any(name in command for name in _SHARED):
                    found.append(pid)
    return found


def stat_of(pid: int) -> list[str]:
    """The fields after the process's name, which may hold anything; none where the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []
