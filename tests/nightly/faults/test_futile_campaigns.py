"""Where all evaluations fail for one reason, the launch ends with that, before the budget is spent, and goes on when it
is mended; where one ends all launches, so does the campaign."""

from __future__ import annotations

import re

import pytest
from terminal import Terminal, wait_until

TASK = """
import os, time
import hpo
from pathlib import Path

HERE = Path(__file__).parent


def evaluate(trial):
    print("reading the data", flush=True)
    IMPORTED
    text = (HERE / "data.txt").read_text()
    return float(text) + trial.params["x"]


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""


def settings(failures: object, isolation: str = "warm") -> str:
    return f'[evaluation]\nisolation = "{isolation}"\nfirst_failures = {failures}\ngrace = 5'


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_data_set_that_is_not_there_ends_the_launch_and_the_same_command_goes_on(
    terminal: Terminal, ranks: int
) -> None:
    terminal.write("task.py", TASK.replace("    IMPORTED\n", ""))
    terminal.campaign(settings(6), evaluations=300)
    for launches in (1, 2):  # the second time nothing is mended, and it counts anew
        done = terminal.hpo("run", "c.toml", "--ranks", ranks)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        told = "FileNotFoundError: [Errno 2] No such file or directory:"
        assert done.stderr.count("hpo: ") == 1 and told in done.stderr, done.stderr
        assert "evaluations failed and none completed" in done.stderr
        assert "[evaluation] first_failures = 6" in done.stderr
        assert "give the same command again" in done.stderr
        # No automatic restart.
        assert "starting again" not in done.stderr
        assert [(one["reason"], one["exit"]) for one in terminal.records("ended")] == [
            ("futile", 1)
        ] * launches

        failed = [one["id"] for one in terminal.records("finished") if one["status"] == "failed"]
        # Evaluations that take no time go on until their leaders hear of the end.
        assert 5 * launches <= len(failed) < 100 * launches
        # None of them counts.
        assert len(terminal.records("reopened")) == len(failed)
        assert terminal.status()["evaluations"]["failed"] == 0
        latest = done.stderr.split(" the latest: ")[-1].splitlines()[1].strip()
        log = terminal.directory / latest.removesuffix(" has what it printed")
        assert log.name == "output-0.txt" and log.read_text().startswith("reading the data")
        status = terminal.hpo("status", "run").stdout
        assert "evaluations failed one after the other" in status
        assert re.search(r"errors +\d+ lost, \S+ the latest: FileNotFoundError", status), status
    assert terminal.hpo("check", "run").returncode == 0

    terminal.write("data.txt", "3.0")
    done = terminal.hpo("run", "c.toml", "--ranks", ranks)
    assert done.returncode == 0, done.stderr
    completed = [one["id"] for one in terminal.records("finished") if one["status"] == "completed"]
    assert len(completed) == len(set(completed)) == 300 and set(failed) <= set(completed)
    assert terminal.status()["evaluations"]["completed"] == 300
    assert terminal.records("ended")[-1]["reason"] == "done"
    assert terminal.processes() == []


def test_an_import_that_is_wrong_under_somebody_elses_mpirun(terminal: Terminal) -> None:
    terminal.write("task.py", TASK.replace("IMPORTED", "import no_such_module"))
    terminal.campaign(settings(4), evaluations=300)
    done = terminal.mpirun(2, "run", "c.toml")
    assert done.returncode == 1, done.stderr
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
    assert done.stderr.count("evaluations failed and none completed") == 1
    assert [(one["reason"], one["exit"]) for one in terminal.records("ended")] == [("futile", 1)]


@pytest.mark.timeout(240)
def test_what_kills_every_launch_is_not_started_for_ever(terminal: Terminal) -> None:
    terminal.write(
        "task.py",
        "import os, signal, hpo\n"
        "def evaluate(trial):\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    return 1.0\n"
        "task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)\n",
    )
    terminal.campaign(evaluations=10)
    done = terminal.start("run", "c.toml", "--ranks", 2).wait(200)  # with its pauses, of 65 s
    assert done.returncode == 75
    assert "not started again by itself any more (nothing gets done)" in done.stderr
    assert "same command again" in done.stderr
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=20)
