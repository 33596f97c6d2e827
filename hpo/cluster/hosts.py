"""The hosts that ranks are started on, and which of them are left after some have died."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from hpo.errors import UsageError
from hpo.evaluation.cores import cpu_quota, within

# How long a host gets to answer.
_PROBE_S = 10.0
_SLURM_COUNTS = ("SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
_DISCARD = 9
# Ranks are light, so that some may share a core; where there are many more, it was a slip.
_MOST_A_CORE = 4


@dataclass(frozen=True)
class Host:
    name: str
    slots: int
    """Number of ranks that it takes."""


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of an Open MPI hostfile: a name a line, with ``slots=N`` where that is not 1; a repeated name adds slots.
    UsageError where the file is no such list."""
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
    """UsageError where ``ranks``, which ``need`` asks for, are too many for the ``room``: a number and its unit."""
    if clause := crowded(ranks, room):
        raise UsageError(f"{need}: {clause}. {remedy}")


def crowded(ranks: int, room: tuple[int, str]) -> str | None:
    """Clause that says that ``ranks`` are too many for the ``room``; None where they are not."""
    count, unit = room
    if ranks <= _MOST_A_CORE * count:
        return None
    return f"{ranks} ranks are more than {_MOST_A_CORE} for each of the {count} {unit}"


def room(listed: Sequence[Host] | None, environ: Mapping[str, str]) -> tuple[int, str]:
    """Room for ranks, a number and its unit: slots of the ``listed`` hosts; else tasks or CPUs of the Slurm job,
    whichever are more; else cores that this process may use."""
    if listed is not None:
        return sum(host.slots for host in listed), "slots in the hostfile"
    tasks, cpus = (sum(counts(environ.get(name, ""))) for name in _SLURM_COUNTS)
    if "SLURM_JOB_ID" in environ and max(tasks, cpus):
        return max(tasks, cpus), "CPUs in this Slurm job" if cpus >= tasks else "tasks in this Slurm job"
    return cores()


def cores() -> tuple[int, str]:
    """Cores that this process may use: their number and its unit."""
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


def left(hosts: Sequence[Host], dead: Iterable[str], *, ranks: int, sizes: Sequence[int]) -> Fleet | None:
    """Ranks to start, and their hosts: those of ``hosts`` that are not ``dead``; None when none is left. As many ranks
    as there are slots, at most ``ranks``, in whole workers; at least a worker for each island, though they share cores.
    ``sizes``: see ``Layout.plan``."""
    gone = frozenset(dead)
    living = tuple(host for host in hosts if host.name not in gone)
    if not living:
        return None
    if len(living) == len(hosts):
        return Fleet(ranks, tuple(hosts))
    room = min(ranks, sum(host.slots for host in living))
    return Fleet(max(room // min(sizes) * min(sizes), sum(sizes)), living)


def others(names: Iterable[str]) -> list[str]:
    return [name for name in names if not _is_here(name)]


def silent(names: Iterable[str], limit_s: float = _PROBE_S, agent: str | None = None) -> frozenset[str]:
    """Hosts that do not answer ``ssh HOST true``, as mpirun reaches them, within ``limit_s`` seconds; this host always
    does. None counts as silent where there is no ssh. ``agent``: program in the place of ssh."""
    if agent is None and shutil.which("ssh") is None:
        return frozenset()
    # Twice, as one of them may have been slow.
    return frozenset(_unanswered(_unanswered(others(names), limit_s, agent), limit_s, agent))


def _unanswered(names: Iterable[str], limit_s: float, agent: str | None) -> list[str]:
    asked, unanswered = {}, []
    for name in names:
        try:
            asked[name] = subprocess.Popen(
                _probe(name, agent),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:  # too many processes, just after ranks died
            unanswered.append(name)
    end = time.monotonic() + limit_s
    for name, process in asked.items():
        try:
            if process.wait(max(0.0, end - time.monotonic())):
                unanswered.append(name)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            unanswered.append(name)
    return unanswered


def _probe(name: str, agent: str | None) -> list[str]:
    return (
        [agent, name, "true"]
        if agent
        else ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_PROBE_S:.0f}", name, "true"]
    )


def _is_here(name: str) -> bool:
    """Whether it is a name or an address of this host, on which mpirun starts ranks without ssh."""
    if name in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, (address, *rest) in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            # Sends nothing. The system would send to an address of its own from the same address, or from a loopback.
            probe.connect((address, _DISCARD, *rest[1:]))
            source = probe.getsockname()[0]
            if source == address or ip_address(source).is_loopback:
                return True
    return False


def can_block_signals() -> bool:
    """Whether this machine's ``env`` can start a program with a signal blocked (GNU coreutils 8.31)."""
    try:
        line = ["env", "--block-signal=TERM", "true"]
        return subprocess.run(line, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
