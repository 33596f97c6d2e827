"""The hosts that ranks are started on, and which of them are left after some have died."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from hpo.errors import UsageError
from hpo.evaluation.cores import cpu_quota, within

_PROBE_S = 10.0
"""How long a host gets to answer."""
_SLURM_COUNTS = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
_DISCARD = 9
_MOST_A_CORE = 4
"""Ranks are light, so that some may share a core; where there are many more, it was a slip."""


@dataclass(frozen=True)
class Host:
    """``slots``: how many ranks it takes."""

    name: str
    slots: int


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of an Open MPI hostfile: a name a line, with ``slots=N`` where that is not 1; a name that comes
    again adds its slots.

    Raises:
        UsageError: it cannot be read, or a line is none of these.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"hostfile {path} cannot be read: {reason}. Name a file of hosts.") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        found = re.fullmatch(r"slots=([1-9]\d{0,5})", words[1]) if len(words) > 1 else None
        if len(words) > 2 or (len(words) == 2 and found is None) or words[0].startswith("-"):
            raise UsageError(
                f"hostfile {path}, line {number}: {line.strip()!r}: must be the name of a host, and slots=N if it "
                "takes N ranks, fewer than a million. Write for example: node1 slots=4"
            )
        slots[words[0]] = slots.get(words[0], 0) + (int(found[1]) if found else 1)
    if not slots:
        raise UsageError(f"hostfile {path} names no host. Write for example: node1 slots=4")
    return tuple(Host(name, count) for name, count in slots.items())


def check_room(ranks: int, need: str, room: tuple[int, str], remedy: str) -> None:
    """UsageError where ``ranks``, which ``need`` asks for, are more than four times the ``room``: a number and of
    what, such as "cores of this host"."""
    count, of_what = room
    if ranks > _MOST_A_CORE * count:
        raise UsageError(
            f"{need} need {ranks} ranks, and by itself hpo starts at most {_MOST_A_CORE} for each of the {count} "
            f"{of_what}. {remedy}"
        )


def crowded(ranks: int, room: tuple[int, str]) -> str | None:
    """A clause that says that ``ranks`` are more than four times the ``room``, a number and of what, such as "cores of
    this host"; None where they are not."""
    count, of_what = room
    if ranks <= _MOST_A_CORE * count:
        return None
    return f"{ranks} ranks are more than {_MOST_A_CORE} for each of the {count} {of_what}"


def room(listed: Sequence[Host] | None, environ: Mapping[str, str]) -> tuple[int, str]:
    """How much there is for ranks to run on, and of what: the slots of ``listed`` hosts, the tasks or CPUs of all
    nodes of a Slurm job, whichever are more, or the cores that this process may use."""
    if listed is not None:
        return sum(host.slots for host in listed), "slots in the hostfile"
    tasks, cpus = (sum(counts(environ.get(name, ""))) for name in _SLURM_COUNTS)
    if "SLURM_JOB_ID" in environ and max(tasks, cpus):
        return max(tasks, cpus), "CPUs in this Slurm job" if cpus >= tasks else "tasks in this Slurm job"
    return cores()


def cores() -> tuple[int, str]:
    """How many this process may use, and what they are."""
    bound = len(os.sched_getaffinity(0))
    count = within(cpu_quota(), bound)
    return count, "cores on this host" if count == bound else "CPUs of this container's quota"


def counts(text: str) -> tuple[int, ...]:
    """The numbers in SLURM_TASKS_PER_NODE, such as "4(x3),2"; none where it says nothing."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return tuple(int(number) for number, times in found for _ in range(int(times or 1)))


@dataclass(frozen=True)
class Fleet:
    """``hosts`` to start ``ranks`` on; None where the launcher knows them all by itself."""

    ranks: int
    hosts: tuple[Host, ...] | None = None


def left(
    hosts: Sequence[Host], dead: Iterable[str], *, ranks: int, islands: int, ranks_per_worker: int
) -> Fleet | None:
    """The ranks to start and their hosts without the ``dead`` ones of ``hosts``; None when none is left.

    As many ranks as the living have slots for, and no more than ``ranks``, in whole workers; at least a worker
    for each island, which then share cores."""
    gone = frozenset(dead)
    living = tuple(host for host in hosts if host.name not in gone)
    if not living:
        return None
    if len(living) == len(hosts):
        return Fleet(ranks, tuple(hosts))
    room = min(ranks, sum(host.slots for host in living))
    return Fleet(max(room // ranks_per_worker, islands) * ranks_per_worker, living)


def others(names: Iterable[str]) -> list[str]:
    """Those that are not this host."""
    here = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.gethostname().split(".")[0]}
    return [name for name in names if name not in here]


def silent(
    names: Iterable[str], probe: Callable[[str], list[str]] | None = None, limit_s: float = _PROBE_S
) -> frozenset[str]:
    """Those that do not answer ``probe`` (by default ``ssh HOST true``, as mpirun reaches them) within ``limit_s``
    seconds, asked twice; this host always does. Where nothing can be asked, none counts as silent."""
    if probe is None:
        if shutil.which("ssh") is None:
            return frozenset()
        probe = _ssh
    left = _silent_once(others(names), probe, limit_s)
    # One of them may have been slow.
    left = _silent_once(left, probe, limit_s)
    return frozenset(name for name in left if not _is_here(name))


def _silent_once(names: Iterable[str], probe: Callable[[str], list[str]], limit_s: float) -> list[str]:
    asked = {name: _ask(probe(name)) for name in names}
    end = time.monotonic() + limit_s
    left = []
    for name, process in asked.items():
        if process is None:
            left.append(name)
            continue
        try:
            if process.wait(max(0.0, end - time.monotonic())):
                left.append(name)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            left.append(name)
    return left


def _is_here(name: str) -> bool:
    """Whether it is another name of this host, or an address of its own."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, (address, *rest) in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as one:
            # Sends nothing. To an address of its own a host sends from that one, to any loopback one from the first.
            one.connect((address, _DISCARD, *rest[1:]))
            if ip_address(one.getsockname()[0]).is_loopback or one.getsockname()[0] == address:
                return True
    return False


def _ssh(name: str) -> list[str]:
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_PROBE_S:.0f}", name, "true"]


def _ask(line: list[str]) -> subprocess.Popen[bytes] | None:
    try:
        return subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None


def can_block_signals() -> bool:
    """Whether this machine's ``env`` can start a program with a signal blocked (GNU coreutils 8.31)."""
    try:
        line = ["env", "--block-signal=TERM", "true"]
        return subprocess.run(line, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
