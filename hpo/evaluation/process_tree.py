"""A process and all that it started, as the kernel lists them, and what they use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TIMES, _RESIDENT = slice(11, 15), 21
"""Of the fields of /proc/PID/stat after the name: user and system time of the process, and of its children that have
ended; resident pages."""


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
            # The name may hold anything, so what counts is behind its last bracket.
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_TIMES]))
            pages += int(fields[_RESIDENT])
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
    return Use(ticks / _TICKS_A_SECOND, pages * _PAGE_BYTES)
