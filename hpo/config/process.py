"""Environment of this process: its launcher, its Slurm job, its terminal. Besides this module only ``hpo.logs`` and
evaluators read environment variables."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

from hpo import logs
from hpo.config.settings import Settings

_TOLERANT = "OMPI_MCA_mpi_ft_enable"
STARTED_BY = "HPO_STARTED_BY"
"""Environment variable with the token of the ``hpo run`` that started mpirun and watches its ranks."""
PANEL = "HPO_PANEL"
"""Environment variable with the process id of the ``hpo run`` that shows progress in the place of rank 0."""
DEADLINE = "HPO_DEADLINE"
"""Unix seconds at which a campaign that ``hpo run`` starts again has to end: its deadline counts once."""
SUBMITTED = "HPO_SUBMITTED"
"""Number of entries of the campaign's ledger when the job was submitted: ``hpo stop`` holds for earlier submissions."""
_JOB, _ARRAY, _TASK = "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"
EXPORTED = (STARTED_BY, PANEL, DEADLINE, SUBMITTED, logs.LEVEL, _JOB, _ARRAY, _TASK, "SLURM_RESTART_COUNT")
"""Environment variables that the ranks on all hosts are to have."""

# Slurm numbers the steps of a batch script, of an interactive shell and of its own daemons from here on.
_FIRST_SPECIAL_STEP = 0xFFFFFFFA


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """MPI launcher that started this process: ``rank`` of this process, None without a launcher; number of ranks, None
    if the launcher does not say; token of the ``hpo run`` that started the launcher and watches it, None without."""

    rank: int | None = None
    size: int | None = None
    supervisor: str | None = None

    @property
    def started_by_hpo(self) -> bool:
        return self.supervisor is not None

    @property
    def speaks(self) -> bool:
        """Whether this process, among all ranks, writes the sentences for the user."""
        return self.rank is None or (self.rank == 0 and not self.started_by_hpo)


class SlurmAttempt(NamedTuple):
    """Attempt at a Slurm job, written as "JOB.NUMBER". Slurm requeues a job under its own number, so attempts count."""

    job: str
    number: int

    def __str__(self) -> str:
        return f"{self.job}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> SlurmAttempt | None:
        """Attempt from its text; None for any other text."""
        job, _, number = text.partition(".")
        return cls(job, int(number)) if job.isdecimal() and number.isdecimal() and len(number) < 10 else None


def launcher(environ: Mapping[str, str] | None = None) -> Launcher:
    """Launcher of this process, from the variables that MPI implementations and Slurm set."""
    environ = os.environ if environ is None else environ

    def number(name: str) -> int | None:
        value = environ.get(name, "")
        return int(value) if value.isdecimal() else None

    step, tasks = number("SLURM_STEP_ID"), number("SLURM_STEP_NUM_TASKS") or number("SLURM_NTASKS")
    in_step = step is not None and step < _FIRST_SPECIAL_STEP
    said = [("OMPI_COMM_WORLD_RANK", number("OMPI_COMM_WORLD_SIZE"))]
    # Inside a step of srun PMIX_RANK is set by Slurm, which says more by its own variables below.
    said += [] if in_step else [("PMIX_RANK", number("OMPI_COMM_WORLD_SIZE"))]
    # Not in a shell that srun started, where Slurm's default is pmi2.
    shell = in_step and tasks == 1 and number("PMI_SIZE") in (None, 1)
    said += [] if shell else [("PMI_RANK", number("PMI_SIZE"))]
    said += [("SLURM_PROCID", tasks)] if in_step and (tasks or 0) > 1 else []
    found = ((number(name), size) for name, size in said if number(name) is not None)
    rank, size = next(found, (None, None))
    return Launcher(rank=rank, size=size, supervisor=environ.get(STARTED_BY))


def requeued() -> bool:
    """Whether this job runs because Slurm has started it again, and not because a person has."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return count.isdecimal() and int(count) > 0


def submitted() -> int | None:
    """Number of entries of the ledger when this job was submitted; None where that is not known, or a person starts
    the campaign."""
    value = os.environ.get(SUBMITTED, "")
    return int(value) if value.isdecimal() else None


def deadline_from(settings: Settings, now: float) -> float:
    """From when the deadline counts, in Unix seconds: the first start of what ``hpo run`` started again, or ``now``."""
    value = os.environ.get(DEADLINE, "")
    return now if not value or settings.deadline_s is None else float(value) - settings.deadline_s


def slurm_attempt(environ: Mapping[str, str] | None = None) -> SlurmAttempt | None:
    """Slurm job of this process, and how often it was requeued before; None outside a job."""
    environ = os.environ if environ is None else environ
    job, restarts = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_RESTART_COUNT", "")
    return SlurmAttempt.parse(f"{job}.{restarts or 0}")


def slurm_name(environ: Mapping[str, str] | None = None) -> str:
    """Name of this process's job in Slurm's commands, "" outside a job. The last task of an array has the number of the
    whole array, which would name all its tasks."""
    environ = os.environ if environ is None else environ
    job, task = environ.get(_JOB, ""), environ.get(_TASK, "")
    return f"{job}_{task}" if job and task and environ.get(_ARRAY) == job else job


def environment() -> dict[str, str]:
    return dict(os.environ)


def private_places() -> list[Path]:
    """Directories in which a socket that is this user's alone may be made, the best first."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    # The path of a Unix socket has at most 107 characters, and TMPDIR may be long.
    return [Path(own)] * os.path.isabs(own) + [Path(tempfile.gettempdir()), Path("/tmp")]


def terminal_columns(stream: TextIO | None = None) -> int | None:
    """Width of the terminal that ``stream`` (standard error) is, None where it is none that can move its cursor."""
    if os.environ.get("TERM", "") in ("", "dumb", "unknown") or not (stream or sys.stderr).isatty():
        return None
    return shutil.get_terminal_size().columns


def panel_shown() -> bool:
    """Whether the ``hpo run`` that this process is, or that started this rank, shows how the campaign goes."""
    return bool(os.environ.get(PANEL))


def tolerates_deaths() -> bool:
    """Whether this process is a rank of an Open MPI that was started with fault tolerance (``--with-ft ulfm``). Under
    any other a rank's death ends all others."""
    return os.environ.get(_TOLERANT) == "1"
