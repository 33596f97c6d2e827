"""What the tests of one GPU start as scripts runs, too, where there is none: these tests are skipped there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from places import ROOT


@pytest.mark.parametrize("module", ["gpu_tasks", "test_gpu_training", "test_gpu_campaigns"])
def test_its_modules_can_be_imported(module: str) -> None:
    line = f"import sys; sys.path[:0] = ['tests', 'tests/gpu']; import {module}"
    done = subprocess.run(
        [sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_groups_are_formed_and_left_in_turn() -> None:
    done = subprocess.run(
        [sys.executable, "tests/gpu/groups_in_turn.py", "cpu", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["backend"] == "gloo"
