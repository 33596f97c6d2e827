"""``Campaign.run(ranks=…)``: starts the ranks by mpirun from a script or a notebook, and returns what they found."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from contextlib import nullcontext, suppress

from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.launch import may_start
from hpo.campaign.live_panel import in_notebook, live_panel
from hpo.campaign.rank_entry import CampaignTransfer
from hpo.campaign.supervisor import MpirunSettings, Supervisor
from hpo.cluster.hosts import Host
from hpo.cluster.mpirun_command import find_mpirun
from hpo.config.layout import Layout
from hpo.config.reader import Settings
from hpo.errors import CampaignError
from hpo.evaluation.environment import child_environment
from hpo.islands.end_reasons import DONE, LOST, STOPPED
from hpo.ledger.entries import Limits
from hpo.ledger.launches import budget_use, read_launch
from hpo.results.result import Result
from hpo.terminal import write

_MOST_LINES = 30
_OURS = "hpo: "
_ALONE = {
    "PRTE_MCA_ras": "^slurm,pbs,lsf,gridengine,flux",
    "OMPI_MCA_ras": "^slurm,tm,lsf,gridengine",
    "HYDRA_RMK": "user",
    "HYDRA_LAUNCHER": "fork",
}
"""Environment that keeps mpirun from asking a scheduler for hosts: it would refuse this host where the scheduler did
not give it. The ranks read the campaign in this process's memory, so all are on its host."""


def run(definition: CampaignDefinition, ranks: int) -> tuple[Result, int]:
    """Run the campaign on ``ranks`` ranks that this process starts; its result and exit code. Raises HpoError as
    ``Campaign.run`` does, with the campaign's exit code."""
    settings = definition.settings
    Layout.plan(ranks=ranks, sizes=settings.worker_sizes, joins=definition.may_lack_islands())
    mpirun = find_mpirun()
    transfer = CampaignTransfer(definition)
    try:
        if not may_start(definition):
            return Result(settings.directory, STOPPED, definition.task.space), 0
        said: list[str] = []
        # Outside of notebooks the ranks write to this process's streams.
        collecting = _Output() if in_notebook() else nullcontext()
        with live_panel(settings.directory) as inherited, collecting as output:

            def say(sentence: str) -> None:
                said.append(sentence)
                write(f"{_OURS}{sentence}", sys.stderr, flush=True)

            started = MpirunSettings(
                mpirun=mpirun,
                listed=(Host("localhost", ranks),),
                output=None if output is None else output.handle,
                inherited=inherited,
                tied=True,
                variables=_ALONE | _importable(),
            )
            supervisor = Supervisor(transfer.rank, settings, ranks, started, say=say)
            code = supervisor.run()
        refusal = transfer.refusal()
    finally:
        transfer.close()
    if code and refusal is not None:
        raise refusal
    reason = _reason(settings, code, supervisor.launch)
    if reason is not None:
        return Result(settings.directory, reason, definition.task.space), code
    tail = () if output is None else output.tail
    error = CampaignError("\n".join([*said, *tail]) or "the ranks ended")
    error.exit_code = code
    raise error


def _reason(settings: Settings, code: int, number: int | None) -> str | None:
    """Reason for which the campaign ended with ``code``; None where its ranks died. ``number``: of its last launch."""
    launch = None if number is None else read_launch(settings.directory, number)
    reason = None if launch is None or launch.end is None else launch.end[0]
    if reason not in (None, LOST):
        return reason
    if code:
        return None
    # The last ranks died once the campaign was complete; or before it was started again `hpo stop` was given.
    use = budget_use(settings.directory, Limits.of(settings))
    early = use.early.name if use.early is not None else DONE
    return early if use.complete else STOPPED


def _importable() -> dict[str, str]:
    """Path of this package, which a notebook may have put on ``sys.path`` itself."""
    variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    path = child_environment(variables, threads=1)["PYTHONPATH"]
    return {"PYTHONPATH": path} if path else {}


class _Output:
    """Pipe for the output of the ranks at ``handle``. Only this package's own sentences are shown, and the last lines
    are kept for an error."""

    def __init__(self) -> None:
        reading, self.handle = os.pipe()
        self.tail: deque[str] = deque(maxlen=_MOST_LINES)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="hpo-output", daemon=True)
        self._thread.start()

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.handle)
        self._thread.join(5.0)

    def _read(self, reading: int) -> None:
        # Split at "\n" alone: each redrawing of a progress bar would be a line.
        with open(reading, encoding="utf-8", errors="replace", newline="\n") as file:
            for line in filter(str.strip, file):
                self.tail.append(line.rstrip("\n"))
                if line.startswith(_OURS):
                    with suppress(OSError):
                        write(self.tail[-1], sys.stderr, flush=True)
