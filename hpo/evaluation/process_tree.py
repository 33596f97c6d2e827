"""A process and all that it started, as the kernel lists them, and what they use."""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATE, _TIMES, _STARTED, _RESIDENT = 0, slice(11, 15), 19, 21
"""Of the fields of /proc/PID/stat after the name: R, S, Z and so on; user and system time of the process, and of its
children that have ended; ticks from the boot to its start; resident pages."""
_SHARED = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"compile_worker", b"loky")
"""In the command lines of what libraries start once a process, and use again."""
_ENDS_S = 0.1


class Use(NamedTuple):
    """``cpu_s``: processor time so far, ``memory``: resident bytes."""

    cpu_s: float
    memory: int


def descendants(pid: int) -> list[int]:
    """Processes that ``pid`` started, and those that they started, as far as the kernel lists them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            for thread in os.scandir(f"/proc/{current}/task"):
                listed = Path(thread.path, "children").read_bytes().split()
                waiting += (children := [int(number) for number in listed])
                found += children
        except OSError:  # it ended meanwhile
            continue
    return found


def use(pid: int) -> Use:
    """What ``pid`` and its descendants use together; memory that they share counts for each."""
    ticks = pages = 0
    for one in (pid, *descendants(pid)):
        try:
            fields = _stat(one)
            ticks += sum(map(int, fields[_TIMES]))
            pages += int(fields[_RESIDENT])
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
    return Use(ticks / _TICKS_A_SECOND, pages * _PAGE_BYTES)


def kill_started_since(moment: float) -> bool:
    """Kill what this process has started since ``moment`` (``time.CLOCK_BOOTTIME``), and what that has, but for helpers
    of libraries; whether there was anything."""
    if not _started_since(moment):
        return False
    gc.collect()  # loaders end with their objects
    time.sleep(_ENDS_S)  # it may be about to end, or to become what it is
    left = _started_since(moment)
    for pid in left:
        with suppress(OSError):  # it has ended, or is another user's, as what sudo started
            os.kill(pid, signal.SIGKILL)
    return bool(left)


def _started_since(moment: float) -> list[int]:
    found = []
    for pid in descendants(os.getpid()):
        try:
            fields, command = _stat(pid), Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, IndexError):  # it ended meanwhile
            continue
        began = int(fields[_STARTED]) + 1 >= moment * _TICKS_A_SECOND
        if began and fields[_STATE] != "Z" and not any(name in command for name in _SHARED):
            found.append(pid)
    return found


def _stat(pid: int) -> list[str]:
    # The name may hold anything, so what counts is behind its last bracket.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
