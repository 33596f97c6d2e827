"""Groups of ranks on a GPU, one after another in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_gpu_training import ENVIRONMENT

pytestmark = [pytest.mark.timeout(200), pytest.mark.whole_device, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(("kind", "times"), [("worker", 40), ("run", 20)])
def test_groups_are_made_used_and_left_in_turn(
    device: torch.device, figures: dict[str, Any], kind: str, times: int
) -> None:
    """Groups of NCCL, or of gloo on the CPU, of a worker between evaluations, and of runs of ``trainers``."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("groups_in_turn.py"), kind, str(device), str(times)],
        env=ENVIRONMENT,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = figures[f"groups of one rank, in turn, of a {kind}"] = json.loads(done.stdout.splitlines()[-1])
    of_a_worker = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    assert kind == "run" or found["backend"] == of_a_worker
    settled, last = found["settled"], found["last"]
    assert last["files"] <= settled["files"] + 8
    assert last["threads"] <= settled["threads"] + 8
    assert last["device_mib"] <= settled["device_mib"] + 64
