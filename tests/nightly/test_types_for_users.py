"""mypy sees mistakes in a user's file, and no others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from places import ROOT
from programs import called

USERS = """
import hpo

def evaluate(trial: hpo.Trial) -> float:
    trial.report("x", 1.0)
    print(trial.sizes)
    return float(trial.params["lr"])

task = hpo.Task(hpo.SearchSpace(lr=hpo.Float(0.0, 1.0)), evaluate, "minimize")
result = hpo.Campaign(task, directory="run", evaluations=3).run()
if result.best is not None:
    print(float(result.best.params["lr"]), result.best.value)
"""


def test_mistakes_are_seen_and_right_code_passes(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(USERS)
    line = (sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "users.py")
    paths = {**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    done = called(*line, cwd=tmp_path, env=paths, returns=None)
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert ["report" in lines[0], "sizes" in lines[1], len(lines)] == [True, True, 2], done.stdout
