"""Where the repository and the folders of its tests are."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
BENCHMARKS = TESTS / "benchmarks"
JOBS = ROOT / "jobs"
