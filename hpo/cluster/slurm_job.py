"""Questions to Slurm about the job and the allocation of this process."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpo.cluster.hosts import Host, counts
from hpo.config import process

# How long one of Slurm's commands may take before it counts as failed.
_COMMAND_S = 30.0
# Time that a campaign needs to write down its end.
_MARGIN_S = 5.0


@dataclass(frozen=True)
class JobLimits:
    """Time limit of a job in Unix seconds, infinite without a limit, and seconds from SIGTERM to SIGKILL."""

    end: float = math.inf
    kill_wait_s: float = math.inf

    def must_end(self, terminated: float | None) -> float:
        """Unix seconds at which all must be on disk. ``terminated``: when SIGTERM came."""
        killed = math.inf if terminated is None else terminated + self.kill_wait_s
        return min(self.end, killed) - _MARGIN_S


def limits() -> JobLimits | None:
    """Limits of the Slurm job of this process; None outside a job, or where Slurm does not answer."""
    job = process.slurm_name()
    if not job or shutil.which("scontrol") is None:
        return None
    code, out, _ = call(["scontrol", "show", "job", "-o", job])
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
    """Hosts of this process's allocation, with the tasks that Slurm has planned for each; None outside an allocation,
    or where Slurm does not answer."""
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
    """Numbers in SLURM_TASKS_PER_NODE, such as "4(x3),2"; a single 1 where there are none."""
    return counts(text) or (1,)


def dead_nodes(names: Iterable[str]) -> frozenset[str]:
    """Nodes on which Slurm starts nothing any more; none where it does not answer."""
    listed = ",".join(names)
    code, out, _ = call(["sinfo", "--noheader", "--Node", f"--nodes={listed}", "--format=%N %T"])
    return frozenset() if code else read_states(out)


def read_states(text: str) -> frozenset[str]:
    """Nodes that are down, failed, or do not respond (a star), from lines "name state"."""
    lines = [line.split() for line in text.splitlines() if len(line.split()) == 2]
    bad = ("down", "fail", "unk", "powered_down", "powering_down", "poweroff", "error")
    return frozenset(name for name, state in lines if state.endswith("*") or state.startswith(bad))


def call(line: Sequence[str], text: str = "") -> tuple[int, str, str]:
    """Return code, output and errors of one of Slurm's commands; not 0 where it does not answer."""
    try:
        done = subprocess.run(
            line, input=text, capture_output=True, text=True, timeout=_COMMAND_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"{line[0]} did not answer within {_COMMAND_S:g} s"
    except OSError as error:
        return 1, "", f"{line[0]} cannot be started: {error.strerror}"
    return done.returncode, done.stdout.strip(), done.stderr.strip()
