"""Tasks that do all that tasks should not: the campaign completes its budget, and the journal tells which did what."""

from __future__ import annotations

from collections import Counter

import pytest
from cases import cases
from places import TESTS
from stand_in_torch import torch_that_finds
from terminal import Terminal

BAD = """
import sys
import hpo
from task import note

sys.path.append(TESTS)
from evaluated import evaluate


def noted(trial):
    note(trial.id, trial.params["what"])
    print("before the end", flush=True)
    return evaluate(trial)


space = hpo.SearchSpace(what=hpo.Categorical(*WAYS), value=hpo.Float(0.0, 1.0))
task = hpo.Task(space, noted, points=[{"what": what, "value": 0.5} for what in WAYS])
"""
EXPECTED = {
    "complete": ("completed", None),
    "raise": ("failed", "ValueError: no such thing"),
    "text": ("failed", "'0.5'"),
    "nan": ("invalid", "nan"),
    "sys_exit": ("failed", "sys.exit(3)"),
    "hang": ("timeout", "timeout"),
    "exit": ("crashed", "exited with code 7"),
    "segfault": ("crashed", "SIGSEGV"),
    "killed": ("crashed", "SIGKILL, most likely by the out-of-memory killer"),
}


@pytest.mark.parametrize("isolation", cases(["warm"], nightly=["fresh"]))
def test_one_campaign_with_all_of_them_completes_its_budget(terminal: Terminal, isolation: str) -> None:
    terminal.task()
    terminal.write("bad.py", f"WAYS, TESTS = {[*EXPECTED]}, {str(TESTS)!r}\n{BAD}")
    terminal.campaign(
        f'[evaluation]\nisolation = "{isolation}"\ntimeout = 4\nretries = 2',
        evaluations=20,
        task="bad.py:task",
    )
    done = terminal.hpo("run", "c.toml", "--ranks", 2, returns=0)
    assert "Traceback" not in done.stderr

    # A worker whose individuals fail one after the other is tested: another one evaluates the last of them again.
    runs = Counter(record["id"] for record in terminal.records("finished"))
    finished = [*{record["id"]: record for record in terminal.records("finished")}.values()]
    assert len(finished) == 20 and runs.total() - 20 == len(terminal.records("reopened"))
    assert {record["params"]["what"] for record in finished} == set(EXPECTED)
    tries = Counter(terminal.side())
    for record in finished:
        status, words = EXPECTED[record["params"]["what"]]
        assert record["status"] == status, record
        assert (record["error"] is None) if words is None else (words in record["error"]), record
        # Only those that crashed are tried again; each try is on record.
        retries = 2 if record["status"] == "crashed" else 0
        assert record["retries"] == retries and tries[record["id"]] == runs[record["id"]] * (1 + retries), (
            record
        )
        notes = [note for note in terminal.records("note") if note["id"] == record["id"]]
        assert [note["status"] for note in notes] == ["crashed"] * retries * runs[record["id"]]
        assert (record["objectives"] is not None) == (record["status"] == "completed")
        output = terminal.directory / "run" / "evaluations" / record["id"] / "output-0.txt"
        assert "before the end" in output.read_text()

    counts = terminal.status()["evaluations"]
    assert counts == {**dict.fromkeys(counts, 0), **Counter(record["status"] for record in finished)}
    assert terminal.processes() == []


ON_GPUS = """
import time
from pathlib import Path
import hpo

REFUSED = Path(__file__).with_name("refused")


def evaluate(trial):
    try:
        device = trial.device
    except Exception:
        REFUSED.touch()
        raise
    end = time.monotonic() + LIMIT_S
    while not REFUSED.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return {"value": trial.params["x"], "device": device}


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""
"""On a host of two GPUs, of which the second is not there any more."""


@pytest.mark.parametrize("isolation", cases(["warm"], nightly=["inline"]))
def test_a_rank_whose_gpu_does_not_work_hands_its_work_on(terminal: Terminal, isolation: str) -> None:
    # Who evaluates in the rank that also hands out the work can wait no longer for another: that one has none yet.
    terminal.write("task.py", ON_GPUS.replace("LIMIT_S", "1" if isolation == "inline" else "30"))
    torch_that_finds(("0",), terminal.directory, built="12.8")
    terminal.campaign(f'[evaluation]\nisolation = "{isolation}"', evaluations=12)
    terminal.environment["CUDA_VISIBLE_DEVICES"] = "1"
    done = terminal.hpo("run", "c.toml", "--ranks", 2)
    assert done.returncode == 1 and terminal.records("finished") == [], "no rank has one that works"
    assert "no worker could start its evaluators" in done.stderr
    assert "cannot use its GPU, cuda:0 (CUDA_VISIBLE_DEVICES is '1')" in done.stderr
    (terminal.directory / "refused").unlink()
    terminal.environment["CUDA_VISIBLE_DEVICES"] = "0,1"
    terminal.hpo("run", "c.toml", "--ranks", 2, returns=0)
    finished = terminal.records("finished")
    assert Counter(record["status"] for record in finished) == {"completed": 12}
    assert {record["metrics"]["device"] for record in finished} == {"cuda:0"}
    assert (terminal.directory / "refused").exists()
