"""What all tests share: one thread a process, set before anything that starts threads is imported; signals as at a
terminal; and a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from terminal import Terminal

# Under nohup or in a shell's background they are ignored, and by all that the tests start, which test them.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _default)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A user's terminal in a fresh directory; whatever still runs is killed afterwards."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.kill()
