"""What all tests share: one thread a process, set before anything that starts threads is imported; a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A user's terminal in a fresh directory; whatever still runs is killed afterwards."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.kill()
