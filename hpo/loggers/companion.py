"""The process of a sink beside rank 0 of a running campaign: ``python -m hpo.loggers.companion DIR SINK FOLDER``.

Its standard input stays open while rank 0 works. When that is closed, or rank 0 has died, it writes what is missing and
ends. On standard output it says line by line that it is alive (``.``), or a sentence for the user (``!`` before it)."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpo.errors import CampaignError, HpoError
from hpo.loggers.command import Patience, pause_s
from hpo.loggers.log import CampaignLog
from hpo.terminal import one_line

ALIVE, SENTENCE = ".", "!"
_NICE = 10
_FORMER_S = 90.0
"""How long one that a former launch left behind may take to end."""
_LAST_S = 60
"""How long the end may take where no rank 0 is left that would end it."""


def main(directory: Path, name: str, folder: Path) -> int:
    os.nice(_NICE)
    patience = Patience()
    try:
        log = CampaignLog(directory, name, folder, patience_s=_FORMER_S)
        over = False
        while not over:
            # Before the look: what is on record when the input is closed is to be written.
            over = _closed(0.0)
            began = time.monotonic()
            try:
                log.write()
                patience.succeeded()
                wait_s = pause_s(time.monotonic() - began)
            except CampaignError as error:
                wait_s, sentence = patience.after(error)
                if sentence is not None:
                    _say(SENTENCE + sentence)
            _say(ALIVE)
            if not over and _closed(wait_s):
                signal.alarm(_LAST_S)
        log.close()
    except HpoError as error:
        _say(SENTENCE + one_line(error))
        return error.exit_code
    return 0


def _closed(wait_s: float) -> bool:
    """Whether standard input is closed, or is closed within ``wait_s``."""
    return bool(select.select([0], [], [], wait_s)[0])


def _say(line: str) -> None:
    with suppress(OSError):  # rank 0 is gone
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
