"""Campaigns on a GPU: what becomes of it when evaluations run out of memory, break it, hang on it or die on it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_tasks
import pytest
from places import ROOT
from skips import not_possible_here
from terminal import Command, Terminal, wait_until

TASKS = Path(gpu_tasks.__file__)
MIB = 2**20
SLACK = 64 * MIB
"""Of memory in use, for what the driver keeps or rounds."""
pytestmark = pytest.mark.timeout(300)
whole_device = pytest.mark.whole_device


def of_task(terminal: Terminal, name: str, text: str, evaluations: int) -> None:
    terminal.campaign(text, evaluations=evaluations, task=f"{TASKS}:{name}")


def finished(terminal: Terminal) -> list[dict[str, Any]]:
    return sorted(terminal.records("finished"), key=lambda record: record["finished"])


# Visible devices


@pytest.mark.parametrize("visible", ["as it is", None, "", "0"])
def test_visible_devices_are_those_of_torch(device: Any, visible: str | None) -> None:
    script = "import os, torch; from hpo.evaluation.devices import visible_devices\n"
    script += "print(len(visible_devices(os.environ)), torch.cuda.device_count())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if visible is None:
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    elif visible != "as it is":
        environment["CUDA_VISIBLE_DEVICES"] = visible
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours, torchs = map(int, done.stdout.split())
    if visible == "0" and device.type == "cpu":
        assert torchs == 0, "one is named that is not there"
    else:
        assert ours == torchs


def test_a_device_that_is_not_there_is_a_sentence_and_exit_1(device: Any, terminal: Terminal) -> None:
    import torch

    if torch.version.cuda is None:
        not_possible_here("a torch without CUDA trains on the CPU, and says so")
    of_task(terminal, "misbehaving", "", evaluations=3)
    terminal.environment["CUDA_VISIBLE_DEVICES"] = "7" if torch.cuda.device_count() < 8 else "99"
    done = terminal.hpo("run", "c.toml", seconds=200)
    assert done.returncode == 1, done.stderr
    assert "cannot use its GPU, cuda:0 (CUDA_VISIBLE_DEVICES is" in done.stderr
    assert "Traceback" not in done.stderr
    assert finished(terminal) == []


# What goes wrong in an evaluation


@pytest.fixture(scope="module")
def misbehaved(device: Any, terminals: Callable[[], Terminal], figures: dict[str, Any]) -> SimpleNamespace:
    """One worker's evaluations, a good one before and after each that misbehaves: by what it did."""
    terminal = terminals()
    wanted = [
        what for what in gpu_tasks.WHAT[1:] if device.type == "cuda" or not what.startswith("assertion")
    ]
    order = ["fine", "fine", *(one for what in wanted for one in (what, "fine"))]
    points = ", ".join(f'{{ what = "{what}", turn = {turn} }}' for turn, what in enumerate(order))
    text = f'points = [{points}]\n[evaluation]\ntimeout = "25s"\nretries = 0\nstart_timeout = "100s"'
    of_task(terminal, "misbehaving", text, evaluations=len(order))
    done = terminal.start("run", "c.toml").wait(280)
    found = finished(terminal)
    by_turn = {record["params"]["turn"]: record for record in found}
    pairs = {what: (by_turn[turn], by_turn[turn + 1]) for turn, what in enumerate(order) if what != "fine"}
    used = [record["metrics"].get("used", 0) for record in found if record["params"]["what"] == "fine"]
    figures["memory in use before each good evaluation, MiB"] = [one // MIB for one in used]
    return SimpleNamespace(done=done, pairs=pairs, first=by_turn[0], second=by_turn[1], found=found)


@whole_device
def test_the_campaign_ends_as_if_nothing_had_happened(misbehaved: SimpleNamespace) -> None:
    assert misbehaved.done.returncode == 0, misbehaved.done.stderr
    first, second = misbehaved.first["metrics"], misbehaved.second["metrics"]
    assert first["pid"] == second["pid"], "good evaluations share an evaluator"


@whole_device
@pytest.mark.parametrize(
    ("what", "status", "replaced"),
    [
        ("memory", "failed", "on a GPU"),
        ("memory, caught", "completed", "no"),
        ("assertion", "failed", "yes"),
        ("assertion, caught", "completed", "yes"),
        ("assertion, unseen", "completed", "yes"),
        ("endless", "timeout", "yes"),
        ("killed", "crashed", "yes"),
    ],
)
def test_what_goes_wrong_costs_one_evaluation_and_no_memory(
    misbehaved: SimpleNamespace, device: Any, what: str, status: str, replaced: str
) -> None:
    if what not in misbehaved.pairs:
        not_possible_here("a GPU alone has kernels that break it")
    bad, good = misbehaved.pairs[what]
    assert (bad["status"], good["status"]) == (status, "completed"), (bad, good)
    before = {
        record["metrics"].get("pid") for record in misbehaved.found if record["finished"] < bad["finished"]
    }
    # Of an evaluator that was killed the record has no metrics.
    same = good["metrics"]["pid"] in before | {bad["metrics"].get("pid")}
    assert same == (replaced == "no" or (replaced == "on a GPU" and device.type == "cpu"))
    assert good["metrics"]["device"] == str(device)
    if device.type == "cuda":
        least = misbehaved.second["metrics"]["used"]
        assert good["metrics"]["used"] <= least + SLACK, (
            f"{(good['metrics']['used'] - least) // MIB} MiB are lost"
        )


@whole_device
def test_errors_say_what_happened(misbehaved: SimpleNamespace, device: Any) -> None:
    errors = {what: bad.get("error") or "" for what, (bad, _) in misbehaved.pairs.items()}
    assert ("out of memory" if device.type == "cuda" else "allocate memory") in errors["memory"]
    assert "not over after 25 s (timeout)" in errors["endless"]
    assert "killed by SIGKILL" in errors["killed"]
    if device.type == "cuda":
        assert "device-side assert" in errors["assertion"]
        assert misbehaved.pairs["memory, caught"][0]["metrics"]["caught"] == "OutOfMemoryError"


# Stop and resume


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def opened(pid: int) -> list[str]:
    """The files that a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(link))
        except OSError:  # closed meanwhile
            continue
    return found


def uses_gpu(pid: int) -> bool:
    """Whether it has a CUDA context: without this file there is none, and what only looks for GPUs leaves it alone."""
    return any(name.startswith("/dev/nvidia-uvm") for name in opened(pid))


@pytest.fixture(scope="module")
def stopped(device: Any, terminals: Callable[[], Terminal]) -> SimpleNamespace:
    """A campaign with workers of two ranks, stopped in the middle of its first training and continued."""
    terminal = terminals()
    notes = terminal.directory / "notes"
    terminal.environment["GPU_TEST_NOTES"] = str(notes)
    of_task(
        terminal, "training", 'layout.ranks_per_worker = 2\n[evaluation]\ntimeout = "200s"', evaluations=2
    )

    def epochs() -> list[tuple[str, int]]:
        lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        return [(line[0], int(line[1])) for line in lines]

    first: Command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(lambda: len(epochs()) > 2 or first.process.poll() is not None, "the third epoch", seconds=150)
    ranks = [(uses_gpu(one.pid), "libtorch" in mapped(one.pid)) for one in terminal.ranks().values()]
    evaluators = [(uses_gpu(one.pid), "libtorch" in mapped(one.pid)) for one in terminal.evaluators()]
    first.signal(signal.SIGTERM)
    ended = first.wait(100)
    before = epochs()
    again = terminal.hpo("run", "c.toml", "--ranks", 2, seconds=200)
    return SimpleNamespace(
        terminal=terminal,
        ranks=ranks,
        evaluators=evaluators,
        ended=ended,
        before=before,
        again=again,
        epochs=epochs(),
    )


def test_ranks_use_no_gpu_and_load_no_torch(stopped: SimpleNamespace, device: Any) -> None:
    assert stopped.ranks == [(False, False)] * 2
    assert stopped.evaluators == [(device.type == "cuda", True)] * 2


def test_a_stopped_campaign_goes_on_in_the_middle_of_a_training(
    stopped: SimpleNamespace, device: Any
) -> None:
    assert stopped.ended.returncode == 75, stopped.ended.stderr
    assert stopped.again.returncode == 0, stopped.again.stderr
    interrupted = stopped.before[-1][0]
    assert 0 < sum(id == interrupted for id, _ in stopped.before) < gpu_tasks.EPOCHS
    # None twice: what was trained before the stop was not trained again.
    assert [epoch for id, epoch in stopped.epochs if id == interrupted] == list(
        range(1, gpu_tasks.EPOCHS + 1)
    )
    records = finished(stopped.terminal)
    assert Counter(record["status"] for record in records if record["status"] != "interrupted") == {
        "completed": 2
    }
    metrics = [record["metrics"] for record in records if record["status"] == "completed"]
    assert {one["on"] for one in metrics} == {str(device)}
    assert {one["epochs"] for one in metrics} == {gpu_tasks.EPOCHS}


def test_commands_show_the_campaign(stopped: SimpleNamespace) -> None:
    terminal = stopped.terminal
    best = json.loads(terminal.hpo("best", "run", "--json").stdout)
    assert best, "hpo best"
    assert terminal.status()["evaluations"]["completed"] == 2
    assert terminal.hpo("check", "run").returncode == 0


# Many evaluations in one process


def warm(terminal: Terminal, evaluations: int) -> list[dict[str, Any]]:
    """The metrics of that number of completed evaluations of one process, in their order."""
    metrics = [record["metrics"] for record in finished(terminal) if record["status"] == "completed"]
    assert len(metrics) == evaluations
    assert len({one["pid"] for one in metrics}) == 1
    return metrics


def growth(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """How long evaluations took, and what memory their process and all on the device had when each began: "each" is the
    slope of a straight line through those after the first tenth.
    """
    seconds = [one["seconds"] for one in metrics]
    found: dict[str, Any] = {
        "evaluations": len(metrics),
        "seconds, first and median": [seconds[0], statistics.median(seconds)],
    }
    for name, key in (
        ("resident", "resident_kb"),
        ("device in use", "used"),
        ("device reserved", "reserved"),
    ):
        if key in metrics[-1]:
            kib = [one[key] // (1 if key == "resident_kb" else 1024) for one in metrics[len(metrics) // 10 :]]
            found[f"{name}, KiB"] = {
                "after a tenth": kib[0],
                "at the end": kib[-1],
                "each": round(statistics.linear_regression(range(len(kib)), kib).slope, 2),
            }
    return found


@whole_device
@pytest.mark.timeout(570)
def test_memory_stays_the_same_over_many_compiled_trainings(
    device: Any, terminal: Terminal, figures: dict[str, Any]
) -> None:
    trials = 80 if device.type == "cuda" else 30
    of_task(terminal, "compiling", '[evaluation]\ntimeout = "100s"', evaluations=trials)
    # Compiled code of other runs must not help this one, nor this one others.
    terminal.environment["TORCHINDUCTOR_CACHE_DIR"] = str(terminal.directory / "inductor")
    done = terminal.start("run", "c.toml").wait(550)
    assert done.returncode == 0, done.stderr
    metrics = warm(terminal, trials)
    grown = growth(metrics)
    figures["warm evaluations with torch.compile"] = grown
    # Of the host's memory 4 MiB each.
    assert grown["resident, KiB"]["at the end"] - grown["resident, KiB"]["after a tenth"] < 4 * 1024 * trials
    if device.type == "cuda":
        settled = metrics[trials // 10 :]
        assert max(one["used"] for one in settled) <= settled[0]["used"] + 2 * SLACK
        assert max(one["reserved"] for one in settled) <= settled[0]["reserved"] + 4 * MIB


@whole_device
def test_memory_stays_the_same_where_each_evaluation_manages_its_group(
    device: Any, terminal: Terminal, figures: dict[str, Any]
) -> None:
    of_task(terminal, "managing", '[evaluation]\ntimeout = "100s"', evaluations=20)
    done = terminal.start("run", "c.toml").wait(280)
    assert done.returncode == 0, done.stderr
    metrics = warm(terminal, 20)
    figures["warm evaluations that manage a group of one rank"] = growth(metrics)
    assert {one["backend"] for one in metrics} == {"nccl" if device.type == "cuda" else "gloo"}
    assert {one["ranks"] for one in metrics} == {1}
    settled = metrics[2:]
    assert max(one["files"] for one in settled) <= settled[0]["files"] + 8
    assert max(one["threads"] for one in settled) <= settled[0]["threads"] + 8
    if device.type == "cuda":
        assert max(one["used"] for one in settled) <= settled[0]["used"] + SLACK
        assert max(one["reserved"] for one in settled) <= settled[0]["reserved"] + 4 * MIB
