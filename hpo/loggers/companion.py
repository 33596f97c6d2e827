"""The process of a sink beside rank 0 of a running campaign: ``python -m hpo.loggers.companion DIR SINK FOLDER``.

Its standard input stays open while rank 0 works. When that is closed, or rank 0 has died, it writes what is missing and
ends. On standard output it says line by line that it is alive (``.``), or a sentence for the user (``!`` before it)."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from hpo.errors import CampaignError, HpoError
from hpo.loggers.command import Patience, pause_s
from hpo.loggers.log import CampaignLog
from hpo.terminal import one_line

ALIVE, SENTENCE = ".", "!"
_NICE = 10
_FORMER_S = 90.0
"""How long one that a former launch left behind may take to end."""
_LAST_S = 60
"""How long the end may take where no rank 0 is left that would end it, whatever the sink waits for."""


def main(directory: Path, name: str, folder: Path) -> int:
    os.nice(_NICE)
    threading.Thread(target=_bound_the_end, name="end", daemon=True).start()
    patience = Patience()
    try:
        log = CampaignLog(directory, name, folder, patience_s=_FORMER_S)
        over = failed = False
        while not over:
            # Before the look: what is on record when the input is closed is to be written.
            over = _closed(0.0)
            began = time.monotonic()
            try:
                log.write()
                failed = False
                patience.succeeded()
                wait_s = pause_s(time.monotonic() - began)
            except CampaignError as error:
                failed = True
                wait_s, sentence = patience.after(error)
                if sentence is not None:
                    _say(SENTENCE + sentence)
            _say(ALIVE)
            if not over:
                _closed(wait_s)
        log.close()
    except HpoError as error:
        _say(SENTENCE + one_line(error))
        return error.exit_code
    return int(failed)  # at the last look: something is missing


def _bound_the_end() -> None:
    """End this process some time after its standard input was closed, also where a sink's library hangs just then."""
    _closed(None)
    signal.alarm(_LAST_S)


def _no_concern(number: int, frame: FrameType | None) -> None:
    """Slurm sends a job's SIGTERM to all of its processes, and rank 0 then has the campaign save itself: that is to be
    written. It is no ``SIG_IGN``, which what a library starts would inherit."""


def _closed(wait_s: float | None) -> bool:
    """Whether standard input is closed, or is closed within ``wait_s``; None: it is waited for."""
    return bool(select.select([0], [], [], wait_s)[0])


def _say(line: str) -> None:
    with suppress(OSError):  # rank 0 is gone
        os.write(1, f"{line}\n".encode())


def start() -> int:
    """Be that process; its exit code."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _no_concern)
    return main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))


if __name__ == "__main__":
    sys.exit(start())
