"""Groups of ranks on a GPU: those of a run that the next one takes over, and one after another in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_ranks
from test_gpu_training import BATCH, ENVIRONMENT, ROUNDED, WIDTHS, apart, perceptron, trained, weights

from trainers.communication.kept_groups import KEPT

pytestmark = [pytest.mark.timeout(200), pytest.mark.filterwarnings("default")]


def trained_twice(rank: int, device: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """By each method: the weights of both runs, and which groups torch has between and after them."""
    found = {}
    for name in names:
        first = trained(device, BATCH, name)
        between = kept()
        second = trained(device, BATCH, name)
        found[name] = [first, second, between, kept()]
    return found


def kept() -> list[str]:
    """Names of the groups that wait for another run."""
    return sorted(
        group.group_name for group in dist.distributed_c10d._world.pg_map if group.group_desc == KEPT
    )


def test_a_second_run_of_daso_takes_over_the_groups_of_the_first(device: torch.device) -> None:
    names, start = ("DASO", "DASO at once"), weights(perceptron(torch.float64, *WIDTHS))
    for found in run_ranks(2, trained_twice, str(device), names, timeout_s=150, method="spawn"):
        for name in names:
            first, second, between, after = found[name]
            assert between and between == after
            # The same bits on the CPU; a GPU may add up in another order.
            most = (0.02 if name in ROUNDED else 1e-6) if device.type == "cuda" else 0.0
            assert apart(second, first, start) <= most


@pytest.mark.parametrize(("kind", "times"), [("worker", 100), ("run", 25)])
def test_groups_are_made_used_and_left_in_turn(
    device: torch.device, figures: dict[str, Any], kind: str, times: int
) -> None:
    """Of NCCL, or of gloo on the CPU: those of a worker between evaluations, and those of runs of ``trainers``."""
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
