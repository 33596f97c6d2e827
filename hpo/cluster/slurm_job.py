"""Questions to Slurm about the job and the allocation of this process."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpo.cluster.hosts import Host, counts
from hpo.config import process

_COMMAND_S = 30.0
"""How long one of Slurm's commands may take before it counts as failed."""
_OFTEN_S, _SOON_S = 600.0, 30.0
"""How long after each other a job's end is asked for: usually, and once it is as near as the first."""
_MARGIN_S = 5.0
"""Time that a campaign needs to write down its end."""


@dataclass(frozen=True)
class JobLimits:
    """``end``: its time limit, in Unix seconds, infinite where it has none; ``kill_wait_s``: from SIGTERM to
    SIGKILL."""

    end: float = math.inf
    kill_wait_s: float = math.inf

    def must_end(self, terminated: float | None) -> float:
        """When all must be on disk, in Unix seconds; ``terminated``: when SIGTERM came."""
        killed = math.inf if terminated is None else terminated + self.kill_wait_s
        return min(self.end, killed) - _MARGIN_S


class JobEnd:
    """When the Slurm job of this process must end. It may be prolonged, so Slurm is asked now and then; in a thread, as
    it may take its time to answer. ``grace_s``: how long before the end a campaign stops."""

    def __init__(self, limits: JobLimits, grace_s: float) -> None:
        self._limits = limits
        self._grace_s = grace_s
        self._asked = time.time()
        self._asking: threading.Thread | None = None

    def must_end(self, terminated: float | None) -> float:
        """The time at which the job must end, see ``JobLimits.must_end``."""
        now = time.time()
        near = self._limits.end - self._grace_s - now < _OFTEN_S
        idle = self._asking is None or not self._asking.is_alive()
        if idle and now - self._asked >= (_SOON_S if near else _OFTEN_S):
            self._asked = now
            self._asking = threading.Thread(target=self._ask, name="job-end", daemon=True)
            self._asking.start()
        return self._limits.must_end(terminated)

    def _ask(self) -> None:
        found = limits()
        if found is not None:  # of its configuration Slurm may say nothing this time
            self._limits = replace(self._limits, end=found.end)


def limits(environ: Mapping[str, str] | None = None) -> JobLimits | None:
    """The Slurm job that this process is in; None outside one, or where Slurm does not answer."""
    number = (process.environment() if environ is None else environ).get("SLURM_JOB_ID", "")
    if not number or shutil.which("scontrol") is None:
        return None
    code, out, _ = call(["scontrol", "show", "job", "-o", number])
    if code:
        return None
    _, shown_config, _ = call(["scontrol", "show", "config"])
    return read_job(out, shown_config)


def read_job(shown: str, config: str) -> JobLimits:
    """Output of ``scontrol show job -o`` and ``scontrol show config``."""
    end = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", shown)
    wait = re.search(r"^KillWait\s*=\s*(\d+) sec", config, re.MULTILINE)
    return JobLimits(
        end=time.mktime(time.strptime(end[1], "%Y-%m-%dT%H:%M:%S")) if end else math.inf,
        kill_wait_s=float(wait[1]) if wait else math.inf,
    )


def allocation(environ: Mapping[str, str]) -> tuple[Host, ...] | None:
    """The hosts of the allocation that this process is in, with the tasks that Slurm has planned for each; None
    outside one, or where Slurm does not answer."""
    nodes, tasks = environ.get("SLURM_JOB_NODELIST", ""), environ.get("SLURM_TASKS_PER_NODE", "")
    if not nodes or shutil.which("scontrol") is None:
        return None
    code, out, _ = call(["scontrol", "show", "hostnames", nodes])
    names = out.split()
    if code or not names:
        return None
    counts = read_counts(tasks)
    return tuple(Host(name, slots) for name, slots in zip(names, (*counts, *[counts[-1]] * len(names))))


def read_counts(text: str) -> tuple[int, ...]:
    """The numbers in SLURM_TASKS_PER_NODE, such as "4(x3),2"; one 1 where it says nothing."""
    return counts(text) or (1,)


def dead_nodes(names: Iterable[str]) -> frozenset[str]:
    """Those on which Slurm starts nothing any more; none where it does not answer."""
    listed = ",".join(names)
    code, out, _ = call(["sinfo", "--noheader", "--Node", f"--nodes={listed}", "--format=%N %T"])
    return frozenset() if code else read_states(out)


def read_states(text: str) -> frozenset[str]:
    """The nodes that are down, failed, or do not respond (a star), of lines "name state"."""
    lines = [line.split() for line in text.splitlines() if len(line.split()) == 2]
    bad = ("down", "fail", "unk", "powered_down", "powering_down", "poweroff", "error")
    return frozenset(name for name, state in lines if state.endswith("*") or state.startswith(bad))


def call(
    line: Sequence[str], text: str = "", environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Return code, output and errors of one of Slurm's commands; not 0 where it does not answer."""
    try:
        done = subprocess.run(
            line,
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
            env=None if environ is None else dict(environ),
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"{line[0]} did not answer within {_COMMAND_S:g} s"
    except OSError as error:
        return 1, "", f"{line[0]} cannot be started: {error.strerror}"
    return done.returncode, done.stdout.strip(), done.stderr.strip()
