"""The file of what tests and benchmarks find on a GPU: ``{"runs": [...]}``, an entry for each run, the latest last.

Runs are only ever added, so that one of a few tests, or of another machine or commit, takes nothing from those before.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from places import ROOT

_DRIVER = Path("/proc/driver/nvidia/version")


class Results:
    """The entry of one run in ``file``, made by the first ``write``.

    Args:
        file (Path): of this run and others; folders that are not there are made.
        command (str): what was run.
        device (str): that it was asked to run on, whatever the machine has.
    """

    def __init__(self, file: Path, *, command: str, device: str) -> None:
        self._file = file
        self._begin = time.perf_counter()
        begun = datetime.now(timezone.utc).isoformat()
        self._entry: dict[str, object] = {"begun": begun, "command": command, "device": device}

    def write(self, **found: object) -> None:
        """Put what has been found so far, and the run's seconds, in the place of what the run wrote before."""
        if "machine" not in self._entry:
            self._entry |= {"commit": commit(), "machine": machine()}
        entry = {**self._entry, "seconds": round(time.perf_counter() - self._begin, 1), **found}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # as runs side by side read and write, too
            others = [one for one in self._others() if not self._is_this(one)]
            # A run that is cut off while it writes leaves the file as it was.
            written = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            written.write_text(json.dumps({"runs": [*others, entry]}, indent=1) + "\n")
            written.replace(self._file)
        finally:
            os.close(folder)

    def _is_this(self, run: dict[str, Any]) -> bool:
        return all(run.get(key) == self._entry[key] for key in ("begun", "command"))

    def _others(self) -> list[dict[str, Any]]:
        if not self._file.exists():
            return []
        found: dict[str, Any] = json.loads(self._file.read_text())
        # What was written when the file had the last run alone is a run as well.
        runs: list[dict[str, Any]] = found.get("runs", [found])
        return runs


def machine() -> dict[str, object]:
    """What figures depend on beside the code; of GPUs None where there is none."""
    import torch  # here, as reading tests/gpu/conftest.py is no reason to load it

    there = torch.cuda.is_available()
    nccl = there and torch.distributed.is_nccl_available()
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        "driver": _driver() if there else None,
        "gpu": torch.cuda.get_device_name(0) if there else None,
        "gpus": torch.cuda.device_count(),
        "cores": len(os.sched_getaffinity(0)),
    }


def commit() -> str | None:
    """That of the checkout, with "-dirty" behind it where tracked files are others; None where this is no checkout."""
    if not (ROOT / ".git").exists():  # git would look for one in the folders above
        return None
    # Without the lock that git takes to write down what it has looked at: a commit may be under way.
    return _first_line(
        "git", "--no-optional-locks", "-C", str(ROOT),
        "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*",
    )  # fmt: skip


def _driver() -> str | None:
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER.read_text())
    except OSError:  # containers need not have it
        return _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found[0] if found else None


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0] if done.stdout else None
