"""Process of a sink beside rank 0 of a running campaign: ``python -m hpo.loggers.companion DIR SINK FOLDER``.

Rank 0 keeps the process's standard input open. When rank 0 closes it, or dies, the process writes the missing records
and ends. Each line on its standard output is a sign of life (``.``) or a message for the user (``!`` before it).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from hpo.errors import HpoError
from hpo.loggers.command import Following
from hpo.loggers.log import CampaignLog
from hpo.terminal import one_line

ALIVE, SENTENCE = ".", "!"
_NICE = 10
# Longer than _LAST_S, after which the process of a former launch ends itself.
_FORMER_S = 90.0
"""Seconds to wait for the folder while the sink process of a former launch still uses it."""
_LAST_S = 60
"""Most seconds from the end of standard input to the end of this process."""


def main(directory: Path, name: str, folder: Path) -> int:
    """Write the campaign to the sink until standard input is closed; returns the exit code."""
    # The evaluations have precedence: a sink may lag behind.
    os.nice(_NICE)
    threading.Thread(target=_limit_shutdown, name="end", daemon=True).start()
    try:
        log = CampaignLog(directory, name, folder, patience_s=_FORMER_S)
        following = Following(log)
        over = False
        while not over:
            # Asked before the look, so that all records from before the end of the input are written.
            over = _closed(0.0)
            wait_s, message = following.look()
            if message:
                _report(SENTENCE + message)
            _report(ALIVE)
            if not over:
                _closed(wait_s)
        log.close()
    except HpoError as error:
        _report(SENTENCE + one_line(error))
        return error.exit_code
    return int(following.failed)


def _limit_shutdown() -> None:
    """End this process _LAST_S seconds after standard input was closed, even if a sink's library hangs."""
    # An alarm, because its default action ends the process whatever the main thread is waiting for.
    _closed(None)
    signal.alarm(_LAST_S)


def _closed(wait_s: float | None) -> bool:
    """Whether standard input is closed, or gets closed within ``wait_s`` seconds; None waits without limit."""
    return bool(select.select([0], [], [], wait_s)[0])


def _report(line: str) -> None:
    with suppress(OSError):  # rank 0 has died
        os.write(1, f"{line}\n".encode())


def start() -> int:
    """Run the process with the arguments of the command line; returns the exit code."""
    # Without SIG_IGN a write after the death of rank 0 would end the process before it has written the rest.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Slurm sends SIGTERM to all processes of a job. Rank 0 then saves the campaign, and closes standard input when that
    # is to be written. A handler in place of SIG_IGN, which processes that a library starts would inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    return main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))


if __name__ == "__main__":
    sys.exit(start())
