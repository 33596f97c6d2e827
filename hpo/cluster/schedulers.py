"""Questions to PBS, LSF and Flux about the job of this process: its hosts, and its end. Slurm's are in ``slurm_job``.

Sources: OpenPBS' and TORQUE's ``qstat`` and pbs_resources, IBM's references of LSF's environment and ``bjobs -o``,
flux-environment(7), flux-resource(1), flux-job(1). Tried with stand-ins that speak as these commands do."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpo.cluster import slurm_job
from hpo.cluster.hosts import Host, cores
from hpo.cluster.slurm_job import JobLimits, call
from hpo.config import process

# Flux gives the largest number of 32 bits for a job without a time limit.
_NO_LIMIT_S = (1 << 32) - 1


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """How jobs of a scheduler are asked."""

    name: str
    variable: str
    """Environment variable that its jobs have."""
    hosts: Callable[[Mapping[str, str]], Counter[str]]
    """Slots of each host of the job, the first host first. OSError or ValueError where they cannot be read."""
    left_s: Callable[[Mapping[str, str]], float]
    """Seconds until the job's time limit, infinite without a limit, or where they cannot be read."""
    kill_wait_s: float
    """Default of the seconds from SIGTERM to SIGKILL."""
    agent: str | None = None
    """Program that starts programs on the job's hosts in the place of ssh, as a part of the job."""


@dataclass(frozen=True)
class Allocation:
    """Hosts of this process's job, of which it has more than this."""

    scheduler: Scheduler
    hosts: tuple[Host, ...]

    @property
    def agent(self) -> str | None:
        """Path of the program to start ranks with in the place of ssh; None where it is not there. The whole path, as
        mpirun's daemons on other hosts look for it, too, by a path of their own."""
        return shutil.which(self.scheduler.agent) if self.scheduler.agent else None

    @property
    def room(self) -> tuple[int, str]:
        """Room for ranks, as ``hpo.cluster.hosts.room`` has it: other hosts are taken to have as many cores as this."""
        return len(self.hosts) * cores()[0], f"cores of the hosts of this {self.scheduler.name} job"

    def shared_out(self, ranks: int, sizes: Sequence[int]) -> tuple[Host, ...]:
        """Hosts with the slots that were asked for, if these are as many as ``ranks``, else with equal slots for whole
        workers: schedulers count cores, of which the first hosts would have enough for all. ``sizes``: see
        ``Layout.plan``."""
        if sum(host.slots for host in self.hosts) == ranks:
            return self.hosts
        workers = -(-ranks // min(sizes))
        each = -(-workers // len(self.hosts)) * min(sizes)
        return tuple(Host(host.name, each) for host in self.hosts)


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Allocation of this process's PBS, LSF or Flux job; None outside a job, on a single host, and where the scheduler
    does not say it: mpirun then looks for itself."""
    scheduler = _of(environ)
    try:
        slots = Counter() if scheduler is None else scheduler.hosts(environ)
    except (OSError, ValueError):
        return None
    if scheduler is None or len(slots) < 2:
        return None
    return Allocation(scheduler, tuple(Host(name, count) for name, count in slots.items()))


def limits() -> JobLimits | None:
    """Limits of the job of this process; None outside a job, or where Slurm does not answer."""
    environ = process.environment()
    scheduler = _of(environ)
    if scheduler is None:
        return slurm_job.limits()
    return JobLimits(end=time.time() + scheduler.left_s(environ), kill_wait_s=scheduler.kill_wait_s)


def _of(environ: Mapping[str, str]) -> Scheduler | None:
    inside = (one for one in _SCHEDULERS if environ.get(one.variable))
    return None if process.slurm_name(environ) else next(inside, None)


def in_job(environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to a job of a scheduler."""
    return bool(process.slurm_name(environ)) or _of(environ) is not None


def _asked(*line: str) -> str:
    """Output of a command; empty where it is not there, or fails."""
    code, out, _ = call(line) if shutil.which(line[0]) else (1, "", "")
    return "" if code else out


def _seconds(text: str, unit_s: int = 1) -> float:
    """Duration from "3600", "60:00" or "1:00:00", whose last number is in units of ``unit_s``; infinite otherwise."""
    if not re.fullmatch(r"\d{1,9}(:\d{1,9}){0,3}", text):
        return math.inf
    total = 0
    for number in text.split(":"):
        total = total * 60 + int(number)
    return float(total * unit_s)


# --- PBS --------------------------------------------------------------------------------------------------------------


def _pbs_hosts(environ: Mapping[str, str]) -> Counter[str]:
    """A line for each rank: as many for a host as ``mpiprocs``, or TORQUE's ``ppn``, says."""
    return Counter(Path(environ.get("PBS_NODEFILE", "")).read_text().split())


def _pbs_left_s(environ: Mapping[str, str]) -> float:
    said = dict(
        re.findall(r"^\s+([\w.]+) = (.*)$", _asked("qstat", "-f", environ["PBS_JOBID"]), re.MULTILINE)
    )
    if "Walltime.Remaining" in said:  # TORQUE
        return _seconds(said["Walltime.Remaining"])
    limit_s = _seconds(said.get("Resource_List.walltime", ""))
    try:
        # Not by resources_used.walltime, which is minutes old.
        began = time.strptime(said.get("stime") or said.get("start_time", ""), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return math.inf
    return time.mktime(began) + limit_s - time.time()


# --- LSF --------------------------------------------------------------------------------------------------------------


def _lsf_hosts(environ: Mapping[str, str]) -> Counter[str]:
    """Host and slots in turn, as in "a 4 b 4"; a line for each slot in the file that there is for many hosts."""
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        return Counter(Path(environ.get("LSB_DJOB_HOSTFILE", "")).read_text().split())
    slots: Counter[str] = Counter()
    for name, number in zip(words[::2], words[1::2], strict=True):
        slots[name] += int(number)
    return slots


def _lsf_left_s(environ: Mapping[str, str]) -> float:
    """Hours and minutes, or with LSB_HMS_TIME_FORMAT seconds, too; then a letter for how it is known."""
    # For an element of an array, the first has the index, too.
    job = environ.get("LSB_BATCH_JID") or environ["LSB_JOBID"]
    text = [*_asked("bjobs", "-noheader", "-o", "time_left", job).split(), ""][0]
    return _seconds(text, 1 if text.count(":") > 1 else 60)


# --- Flux -------------------------------------------------------------------------------------------------------------


def _flux_hosts(environ: Mapping[str, str]) -> Counter[str]:
    """GPUs of each host, or cores where there are none."""
    line = ("flux", "resource", "list", "--no-header", "--states=free,allocated", "--format")
    slots: Counter[str] = Counter()
    for found in _asked(*line, "{nnodes} {ncores} {ngpus} {nodelist}").splitlines():
        nodes, own_cores, gpus, listed = [*found.split(maxsplit=3), ""][:4]
        for name in expanded(listed) if int(nodes) else ():
            slots[name] += max(1, (int(gpus) or int(own_cores)) // int(nodes))
    return slots


def expanded(listed: str) -> list[str]:
    """Names of a list of hosts such as "a[08-10,12],b" (Flux RFC 29)."""
    names: list[str] = []
    for prefix, ranges, suffix in re.findall(r"([^,\[]+)(?:\[([\d,-]+)\])?([^,\[]*)", listed):
        for part in ranges.split(",") if ranges else ():
            first, _, last = part.partition("-")
            names += (
                f"{prefix}{number:0{len(first)}}{suffix}"
                for number in range(int(first), int(last or first) + 1)
            )
        names += [] if ranges else [prefix + suffix]
    return names


def _flux_left_s(environ: Mapping[str, str]) -> float:
    seconds = _seconds(_asked("flux", "job", "timeleft"))
    return seconds if seconds < _NO_LIMIT_S else math.inf


_SCHEDULERS = (
    Scheduler(
        name="PBS",
        variable="PBS_JOBID",
        hosts=_pbs_hosts,
        left_s=_pbs_left_s,
        kill_wait_s=10.0,  # kill_delay of a queue
        agent="pbs_tmrsh",
    ),
    Scheduler(
        name="LSF",
        variable="LSB_JOBID",
        hosts=_lsf_hosts,
        left_s=_lsf_left_s,
        kill_wait_s=10.0,  # JOB_TERMINATE_INTERVAL
        agent="blaunch",
    ),
    # Flux takes its own variables, and Slurm's, out of a batch script's environment, but for this.
    Scheduler(
        name="Flux",
        variable="FLUX_URI",
        hosts=_flux_hosts,
        left_s=_flux_left_s,
        kill_wait_s=5.0,  # kill-timeout of its executor
    ),
)
