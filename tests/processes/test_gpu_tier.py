"""What the tests of one GPU start as scripts runs, too, where there is none: these tests are skipped there."""

from __future__ import annotations

import json
import sys

import pytest
from places import JOBS, ROOT, TESTS
from programs import called


def test_its_modules_can_be_imported() -> None:
    modules = ", ".join(["gpu_tasks", *(path.stem for path in (TESTS / "gpu").glob("test_*.py"))])
    line = f"import sys; sys.path[:0] = ['tests', 'tests/gpu']; import {modules}"
    called(sys.executable, "-c", line, cwd=ROOT)


def test_check_gpu_runs_all_of_them() -> None:
    (line,) = (
        one for one in (JOBS / "check_gpu.sh").read_text().splitlines() if "tests/gpu/test_gpu_{" in one
    )
    listed = line.partition("test_gpu_{")[2].partition("}")[0].split(",")
    assert sorted(listed) == sorted(
        path.stem.removeprefix("test_gpu_") for path in (TESTS / "gpu").glob("test_*.py")
    )


@pytest.mark.parametrize("kind", ["worker", "run"])
def test_groups_are_formed_and_left_in_turn(kind: str) -> None:
    done = called(sys.executable, "tests/gpu/groups_in_turn.py", kind, "cpu", 5, cwd=ROOT)
    assert json.loads(done.stdout.splitlines()[-1])["backend"] == "gloo"
