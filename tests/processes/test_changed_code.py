"""A campaign goes on with changed code of the task, and says so: from a file, and from a script."""

from __future__ import annotations

from terminal import Terminal

TASK = """
import hpo
from model import score

def evaluate(trial):
    return score(trial.params["x"])

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""
SAID = "hpo: the task's code has changed since the last launch"


def copies(terminal: Terminal) -> list[str]:
    return sorted(path.name for path in (terminal.directory / "run" / "code").iterdir())


def test_a_changed_file_beside_the_tasks(terminal: Terminal) -> None:
    terminal.write("task.py", TASK)
    terminal.write("model.py", "def score(x):\n    return x\n")
    said = []
    for evaluations, ranks in ((2, 1), (4, 2), (6, 1)):
        if evaluations == 4:
            (first,) = copies(terminal)
            # Of another length: within a second of the first Python would take its cache for this one's.
            terminal.write("model.py", "def score(x):\n    return 2.0 + x\n")
        terminal.campaign(evaluations=evaluations)
        done = terminal.hpo("run", "c.toml", "--ranks", ranks, returns=0)
        said.append([line for line in done.stderr.splitlines() if line.startswith(SAID)])
    assert said[0] == said[2] == [] and len(said[1]) == 1
    assert said[1][0].startswith(f"{SAID}: model.py. ") and said[1][0].endswith(f"run/code/{first}.")
    assert len(copies(terminal)) == 2
    assert (
        terminal.directory / "run/code" / first / "model.py"
    ).read_text() == "def score(x):\n    return x\n"
