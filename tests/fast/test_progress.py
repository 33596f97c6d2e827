"""The line of a running campaign, and its last one."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpo


def evaluate(trial: hpo.Trial) -> float:
    if trial.params["n"] > 6:
        raise hpo.Pruned
    return float(trial.params["n"])


@pytest.mark.parametrize(("most", "counts"), [(6, "  0 failed"), (10, "  0 failed  4 pruned")])
def test_pruned_ones_are_counted_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int, counts: str
) -> None:
    task = hpo.Task(hpo.SearchSpace(n=hpo.Int(1, most)), evaluate)
    hpo.Campaign(task, directory=tmp_path / "run", evaluations=most, isolation="inline").run()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"done: {most}/{most} evaluated  best 1 ") and last.endswith(counts)
