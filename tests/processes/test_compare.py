"""jobs/compare.py says in the task's own terms what best and default reach."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from places import ROOT

import hpo


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    return importlib.import_module("compare")


def test_the_help_is_as_it_was_written(compare: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert (compare.__doc__ or "").strip() in shown
    assert "campaign file (TOML)" in shown


def test_a_test_over_its_limit_is_stopped_in_a_sentence(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forever.py").write_text("import signal, sys\nprint('epoch 1', flush=True)\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = SimpleNamespace(id="0-3", params={"x": 0.5})
    with pytest.raises(hpo.CampaignError) as caught:
        compare.test_value("forever", tmp_path, one, 1, [], limit_s=3.0)
    told = str(caught.value)
    assert "-m forever --config=" in told
    assert "was not done after 3 s and was stopped. Give it longer by --limit." in told
    assert not list((tmp_path / "test").glob("*.json"))


def test_a_test_that_is_interrupted_leaves_no_training(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if process not in started:
            started.append(process)
            raise KeyboardInterrupt
        return wait(process, timeout)

    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare._run([sys.executable, "-c", "import signal; signal.pause()"], os.environ, 60.0)
    (process,) = started
    assert process.returncode is not None


@pytest.mark.parametrize("limit", ["0", "-1", "inf", "nan"])
def test_a_limit_that_cannot_be_is_refused(
    compare: ModuleType, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main([f"--limit={limit}", "any.toml"])
    assert ended.value.code == 2
    assert f"--limit {limit}: must be a number of seconds above 0." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "objectives", "what", "shown"),
    [
        ("search_spaces.bigearthnet", {"value": "maximize"}, "micro-F1", "57.25%"),
        ("search_spaces.vit_ab", {"value": "maximize"}, "accuracy", "57.25%"),
        ("search_spaces.autoformer", {"value": "minimize"}, "MSE", "0.5725"),
        ("search_spaces.daso_intervals", {"steps": "minimize", "accuracy": "maximize"}, "accuracy", "57.25%"),
        ("search_spaces.vit_ab", {"seconds": "minimize", "reward": "maximize"}, "reward", "0.5725"),
        ("json", {"value": "minimize"}, "error", "0.5725"),
    ],
)
def test_what_is_measured_has_the_task_s_name(
    compare: ModuleType, module: str, objectives: dict[str, str], what: str, shown: str
) -> None:
    assert compare.measure(module, objectives) == what
    assert compare.reached(0.5725, what) == shown


def test_the_table_names_what_the_task_measures(
    compare: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A campaign whose two tests have been made already."""
    (tmp_path / "scored.py").write_text(
        "import hpo\n"
        "MEASURE = 'micro-F1'\n"
        "space = hpo.SearchSpace(x=hpo.Float(0.0, 1.0))\n"
        "task = hpo.Task(space, lambda trial: trial.params['x'], direction='maximize', default={'x': 0.25})\n"
    )
    file = tmp_path / "scored.toml"
    file.write_text(
        f'task = "scored:task"\ndirectory = "{tmp_path / "run"}"\nevaluations = 4\n'
        '[evaluation]\nisolation = "inline"\n'
    )
    monkeypatch.chdir(tmp_path)
    hpo.Campaign.from_file(file).run()
    (tmp_path / "run" / "test").mkdir()
    for one in hpo.Result(tmp_path / "run").individuals:
        (tmp_path / "run" / "test" / f"{one.id}.json").write_text(json.dumps({"test": 0.5}))
    capsys.readouterr()
    assert compare.main([str(file)]) == 0
    shown = capsys.readouterr().out
    assert "validation micro-F1" in shown and "test micro-F1" in shown
    assert "25.00%" in shown and "50.00%" in shown
    assert "accuracy" not in shown
    assert "The best is chosen by validation micro-F1 alone; the test micro-F1 is the mean of three" in shown
