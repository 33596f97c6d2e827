"""Every benchmark runs to its end and prints what the README quotes; how fast is not looked at here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).with_name("benchmarks")

KEYS = {
    "throughput": {
        "evaluations_per_s",
        "least_share_counted",
        "ratio_of_default_to_optuna",
        "ratio_of_default_to_propulate",
        "ratio_to_optuna",
        "ratio_to_propulate",
        "time_by_module",
    },
    "flat_cost": {"default"},
    "overhead": {
        "fresh_1_s",
        "fresh_2_s",
        "first_plain_s",
        "first_torch_s",
        "help_s",
        "import_hpo_s",
        "of_limit",
        "python_s",
        "warm_1_ms",
        "warm_2_ms",
    },
    "busy": {"ideal", "ours_2", "ours_2_below_ideal", "propulate_2", "ratio_to_propulate_2"},
    "scale": {
        "below_ideal",
        "busy",
        "busy_ideal",
        "busy_until_last_admitted",
        "bytes_per_evaluation",
        "growth",
        "messages_per_evaluation",
        "seconds_to_simulate",
    },
}


def quick(name: str) -> dict[str, object]:
    """What the benchmark's last line says; the other lines are for people."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


# Peers take seconds to import, and more where other work goes on beside.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(KEYS))
def test_quick_benchmark_prints_its_figures(name: str) -> None:
    if name == "throughput":
        pytest.importorskip("optuna", reason="installed by the extra bench")
    found = quick(name)
    assert found["benchmark"] == name
    assert found.keys() >= KEYS[name], f"missing: {KEYS[name] - found.keys()}"
    if name == "flat_cost":
        assert found["default"].keys() >= {
            "late_to_early",
            "late_to_early_processor",
            "peak_mib",
            "resume_peak_mib",
            "resume_s",
            "status_s",
        }


def test_every_benchmark_is_run_here() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if "--quick" in path.read_text()}
    assert scripts == set(KEYS)
