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


def in_turn(script: str, device: torch.device, times: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), str(device), str(times)],
        env=ENVIRONMENT,
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_nothing_grows(settled: dict[str, int], last: dict[str, int]) -> None:
    assert last["files"] <= settled["files"] + 8
    assert last["threads"] <= settled["threads"] + 8
    assert last["device_mib"] <= settled["device_mib"] + 64


def test_a_group_is_formed_and_left_a_hundred_times(device: torch.device, figures: dict[str, Any]) -> None:
    """Of NCCL, as between evaluations of a worker; of gloo on the CPU."""
    found = figures["groups of one rank, in turn"] = in_turn("groups_in_turn.py", device, 100)
    assert found["backend"] == ("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    assert_nothing_grows(found["after 20"], found["after 100"])


def test_groups_of_runs_are_made_used_and_given_back_in_turn(
    device: torch.device, figures: dict[str, Any]
) -> None:
    """By the functions of ``trainers``, on a GPU over NCCL, with what its channels send."""
    found = figures["groups of a run of one rank, in turn"] = in_turn("run_groups_in_turn.py", device, 10)
    assert_nothing_grows(found["after 5"], found["after 10"])
