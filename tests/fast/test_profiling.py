"""The profiler of a training run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainers.run.profiling import TRACED, Profiler


def test_a_run_too_short_to_be_traced_is_warned_of(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path / "trace")
    for _ in range(TRACED[0] - 1):
        profiler.step()
    with pytest.warns(RuntimeWarning, match="Steps 3 to 5 are, and this run took 2"):
        profiler.close()
    assert not (tmp_path / "trace" / "trace.json").exists()


def test_a_run_that_ends_within_the_traced_steps_leaves_a_trace(tmp_path: Path) -> None:
    profiler = Profiler(tmp_path)
    for _ in range(TRACED[0]):
        profiler.step()
    profiler.close()
    assert (tmp_path / "trace.json").stat().st_size > 0
