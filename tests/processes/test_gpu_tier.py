"""What the tests of one GPU start as scripts runs, too, where there is none: these tests are skipped there."""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path

import pytest
from cases import nightly
from places import JOBS, ROOT, TESTS
from programs import called

sys.path.append(str(TESTS / "gpu"))
from gpu_results import Results


@nightly
def test_its_modules_can_be_imported() -> None:
    modules = ", ".join(["gpu_tasks", *(path.stem for path in (TESTS / "gpu").glob("test_*.py"))])
    line = f"import sys; sys.path[:0] = ['tests', 'tests/gpu']; import {modules}"
    called(sys.executable, "-c", line, cwd=ROOT)


def test_check_gpu_runs_all_of_them() -> None:
    (line,) = (
        one for one in (JOBS / "check_gpu.sh").read_text().splitlines() if one.strip().startswith("lanes=")
    )
    listed = " ".join(line.split('"')[1::2]).split()
    assert sorted(listed) == sorted(
        path.stem.removeprefix("test_gpu_") for path in (TESTS / "gpu").glob("test_*.py")
    )


def note(file: str, number: int) -> None:
    results = Results(Path(file), command=str(number), device="cpu")
    for found in range(20):
        results.write(found=found)


@nightly
def test_runs_side_by_side_leave_all_that_they_found(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "gpu.json"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=note, args=(str(file), number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    runs = json.loads(file.read_text())["runs"]
    assert sorted((run["command"], run["found"]) for run in runs) == [("0", 19), ("1", 19), ("2", 19)]


@nightly
@pytest.mark.parametrize("kind", ["worker", "run"])
def test_groups_are_formed_and_left_in_turn(kind: str) -> None:
    done = called(sys.executable, "tests/gpu/groups_in_turn.py", kind, "cpu", 5, cwd=ROOT)
    assert json.loads(done.stdout.splitlines()[-1])["backend"] == "gloo"
