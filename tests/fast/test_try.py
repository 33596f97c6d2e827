"""What `hpo try` evaluates, and what it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpo
from hpo.campaign.try_once import _point, _where, attempt
from hpo.errors import CampaignError

SPACE = hpo.SearchSpace(x=hpo.Float(0, 1))


def task(**keywords: Any) -> hpo.Task:
    return hpo.Task(SPACE, lambda trial: 0.0, **keywords)


def test_the_default_comes_before_points_and_points_before_chance() -> None:
    points = [{"x": 0.2}, {"x": 0.3}]
    assert _point(task(default={"x": 0.1}, points=points)) == ("the default point", {"x": 0.1})
    assert _point(task(points=points)) == ("the first given point", {"x": 0.2})
    name, params = _point(task(constraints=[lambda params: params["x"] > 0.9]))
    assert name.startswith("a random point") and params["x"] > 0.9
    with pytest.raises(CampaignError, match="Give the task a default point"):
        _point(task(constraints=[lambda params: params["x"] > 1]))


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ("return 0.5", 0, "completed"),
        ("raise hpo.Pruned", 0, "pruned"),
        ("raise ValueError('no such layer')", 1, "failed"),
        ("return float('nan')", 1, "invalid"),
    ],
)
def test_its_exit_code_says_whether_the_task_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, code: int, status: str
) -> None:
    (tmp_path / "tried.py").write_text(
        f"import hpo\ndef evaluate(trial):\n    {body}\n"
        "task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate, default={'x': 0.25})\n"
    )
    (tmp_path / "tried.toml").write_text(
        f'task = "tried.py:task"\ndirectory = "{tmp_path / "run"}"\nevaluations = 1\n'
        '[evaluation]\nisolation = "inline"\n'
    )
    assert attempt(tmp_path / "tried.toml") == code
    shown = capsys.readouterr()
    assert "evaluating the default point: x=0.25" in shown.out.replace(" = ", "=")
    assert f"{status} after" in shown.out and ("value = 0.5" in shown.out) is (status == "completed")
    assert ("no such layer" in shown.err) is (status == "failed")
    assert not (tmp_path / "run").exists(), "the campaign's directory is not touched"


@pytest.mark.parametrize(
    ("ranks", "visible", "expected"),
    [
        (1, (), "1 rank, CPU"),
        (1, ("3", "5"), "1 rank, GPU 3"),
        (3, ("3", "5"), "3 ranks, GPUs 3, 5, 3"),
        (2, ("MIG-a", "MIG-b"), "2 ranks, GPUs MIG-a, MIG-b"),
    ],
)
def test_it_says_which_gpu_is_whose(ranks: int, visible: tuple[str, ...], expected: str) -> None:
    assert _where(ranks, visible) == expected
