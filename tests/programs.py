"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from typing import Any


def called(
    *line: object, returns: int | None = 0, timeout: float = 110, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A finished command with its output as text; AssertionError with all of it unless it returns ``returns``."""
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    captured = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False}
    done = subprocess.run([*map(str, line)], timeout=timeout, **captured, **options)
    assert returns is None or done.returncode == returns, (
        f"{line} returned {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done
