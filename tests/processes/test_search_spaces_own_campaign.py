"""A campaign in a module of one's own, named by its file: searched, compared, exported; and what is wrong in one."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from own_space import Options, default, recipe, space
from places import JOBS, TESTS

import hpo
from hpo import cli
from search_spaces.building_blocks.image_task import image_campaign
from search_spaces.options import NotNegative
from search_spaces.standalone import trained_models


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The campaign file of the module clothes, which lies beside it and not where hpo is started."""
    folder = tmp_path / "spaces"
    folder.mkdir()
    shutil.copy(TESTS / "own_space.py", folder / "clothes.py")
    file = folder / "clothes.toml"
    file.write_text(
        f'task = "clothes.py:make_task"\ndirectory = "{tmp_path / "run"}"\nevaluations = 3\nkeep = 3\n'
        f'[search]\nkind = "random"\n'
    )
    monkeypatch.setattr(sys, "path", [str(JOBS), *sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "clothes", raising=False)
    return file


def test_a_module_that_is_named_by_its_file_is_compared_and_exported(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hpo.Campaign.from_file(own).run()
    capsys.readouterr()
    compare = importlib.import_module("compare")
    assert compare.main([str(own), "--test-seeds", "1", "--baselines"]) == 0
    shown = capsys.readouterr().out
    assert "validation share of right clothes" in shown and "test share of right clothes" in shown
    clothes: ModuleType = importlib.import_module("clothes")
    directory = hpo.Campaign.from_file(own).settings.directory
    assert clothes.main(["--campaign", str(directory), "--test-seeds", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["id"] == hpo.Result(directory).best.id
    assert found["options"]["batch_size"] == 16 and found["seconds"] > 0
    assert cli.main(["best", str(directory), "--json"]) == 0
    Path("best.json").write_text(capsys.readouterr().out)
    assert clothes.main(["--config", "best.json", "--epochs", "0"]) == 2
    capsys.readouterr()
    assert clothes.main(["--campaign", str(directory), "--export", "best.safetensors"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == found["id"]


def test_a_file_with_the_name_of_another_module_is_refused(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(TESTS / "own_space.py", own.parent / "platform.py")
    own.write_text(
        own.read_text().replace("clothes.py", "platform.py").replace("evaluations = 3", "evaluations = 1")
    )
    hpo.Campaign.from_file(own).run()
    capsys.readouterr()
    assert importlib.import_module("compare").main([str(own), "--test-seeds", "1"]) == 2
    assert "another module of the name 'platform'" in capsys.readouterr().err


def test_what_the_data_decided_is_noted_whatever_its_names(tmp_path: Path) -> None:
    facts, inputs = {"inputs": 12, "network": 3}, {"mean": [0.5]}
    trained_models.note(tmp_path, facts, inputs)
    assert trained_models.noted(tmp_path) == (facts, inputs)
    (tmp_path / "network.json").write_text('{"inputs": ')
    with pytest.raises(hpo.UsageError, match=r"network\.json cannot be read: "):
        trained_models.noted(tmp_path)


def test_a_campaign_that_python_started_is_of_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_task, main = image_campaign(space, default, recipe, options=Options)
    task = make_task(epochs=1, train_samples=16)
    hpo.Campaign(task, evaluations=1, directory="run", isolation="inline").run()
    assert main(["--campaign", "run", "--export", "best.safetensors"]) == 2
    error = capsys.readouterr().err
    assert "run was started from Python" in error and "`hpo best run --json`" in error
    assert cli.main(["best", "run", "--json"]) == 0
    Path("best.json").write_text(capsys.readouterr().out)
    own = ["--config", "best.json", "--epochs", "1", "--train-samples", "16", "--test-seeds", "1"]
    assert main([*own, "--export", "best.safetensors"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["params"] == hpo.Result("run").best.params and Path("best.safetensors").is_file()


def test_a_recipe_that_returns_nothing_is_refused(tmp_path: Path) -> None:
    make_task, _ = image_campaign(space, default, lambda p, options, run: None, options=Options)  # type: ignore[arg-type,return-value]
    with pytest.raises(hpo.UsageError, match="NoneType: must be a Recipe"):
        make_task(train_samples=16).evaluate(hpo.Trial.alone(default, directory=tmp_path))


@pytest.mark.parametrize("name", ["batch_size", "seed"])
def test_a_parameter_with_an_option_s_name_is_refused(name: str) -> None:
    make_task, _ = image_campaign(
        hpo.SearchSpace({name: hpo.Ordinal(8, 16)}), {name: 8}, recipe, options=Options
    )
    with pytest.raises(hpo.UsageError, match=rf"^{name}: is a parameter of the space, and an option\."):
        make_task()


def test_what_does_not_depend_on_options_need_not_be_a_function() -> None:
    seen: list[dict[str, Any]] = []

    def narrow(params: dict[str, Any]) -> bool:
        seen.append(params)
        return True

    make_task, _ = image_campaign(
        space, default, recipe, options=Options, constraints=[narrow], ranks=2,
        objectives={"accuracy": "maximize", "seconds": "minimize"},
    )  # fmt: skip
    task = make_task()
    assert [*task.objectives] == ["accuracy", "seconds"]
    assert narrow in task.constraints and task._ranks == 2


def test_objectives_without_a_judge_are_metrics_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(second: str) -> object:
        objectives = {"accuracy": "maximize", second: "minimize"}
        make_task, _ = image_campaign(space, default, recipe, options=Options, objectives=objectives)
        return make_task(train_samples=16).evaluate(hpo.Trial.alone(default, directory=tmp_path / second))

    found = evaluated("train_s")
    assert {"accuracy", "train_s"} <= set(found)
    steps: list[object] = []
    monkeypatch.setattr(torch.autograd, "backward", lambda *given, **more: steps.append(given))
    with pytest.raises(hpo.UsageError, match="no metric 'seconds'"):
        evaluated("seconds")
    assert not steps
    # The metric of a layer is recorded from the step on at which the method changes the layer.
    with pytest.raises(hpo.UsageError, match="no metric 'rank/fc'"):
        evaluated("rank/fc")
    assert steps


def test_a_default_that_breaks_its_rule_is_refused() -> None:
    class Wrong(Options):
        decay: NotNegative = "much"  # type: ignore[assignment]

    make_task, _ = image_campaign(space, default, recipe, options=Wrong)
    with pytest.raises(hpo.UsageError, match=r"^decay = 'much': must be "):
        make_task()
