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
from places import ROOT, TESTS

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


def test_any_number_of_trainings_and_what_they_took(compare: ModuleType) -> None:
    """As tables 4.3 and 5.1 of the dissertation have them."""
    one = SimpleNamespace(id="0-0", params={"lr": 0.1}, value=0.5, objectives=None, status="completed")
    result = SimpleNamespace(best=one, record=SimpleNamespace(individuals=[one]))
    costs = {"compression_ratio": 0.68, "trainable_fraction": 0.0997, "bytes_between_nodes": 2e6}
    best = {"test": 0.6, "tests": [{"test": 0.5, **costs}, {"test": 0.7, **costs}]}
    full = {**costs, "compression_ratio": 1.0, "trainable_fraction": 1.0, "bytes_between_nodes": 8e6}
    baseline = compare.Baseline(id="ddp", params={"lr": 0.1})
    shown = compare.table(
        result,
        {"best": one, "full rank": baseline},
        {"best": best, "full rank": {"test": 0.6, "tests": [{"test": 0.6, **full}] * 2}},
        "accuracy",
    )
    rows = {line.split("  ")[0]: line.split()[-3:] for line in shown.splitlines() if line}
    assert "best (0-0)" in shown
    assert rows["validation accuracy"][-1] == "-"
    assert "60.00% ± 14.14%  60.00% ± 0.00%" in shown
    assert "0.68 : 1" in shown and "1.00 : 1" in shown
    assert "9.97%" in shown and "100.00%" in shown
    assert "2e+06" in shown and "8e+06" in shown
    assert "the test accuracy is the mean of 2 trainings." in shown


def test_the_compression_of_ab_is_that_of_its_factors(compare: ModuleType) -> None:
    """Its network is whole at the end; tests of before it was kept have only that."""
    import compare_table

    factored = {"compression_ratio": 1.0, "factored_compression_ratio": 1.39}
    columns = [
        {"tests": [{"test": 0.7, **factored, "factored_compression_ratio": one} for one in (1.29, 1.49)]},
        {"tests": [{"test": 0.7, "compression_ratio": 1.0}]},
        {"tests": [{"test": 0.7, "compression_ratio": 0.5}, {"test": 0.7, **factored}]},
    ]
    assert compare_table._costs(columns) == [["compression", "1.39 : 1", "1.00 : 1", "0.94 : 1"]]
    assert compare_table._costs([{"tests": [{"test": 0.7}]}, {}]) == []


def test_a_test_of_ab_keeps_the_compression_of_its_factors() -> None:
    from search_spaces import vit_ab

    task = vit_ab.make_task(
        method="ab-no-groups", epochs=2, train_samples=64, validation_part=0.9, dim=24, depth=1, heads=2
    )
    (found,) = task.tests(task.default or {}, seeds=[0])
    assert found["compression_ratio"] == 1.0 != found["factored_compression_ratio"]


def test_the_baselines_are_those_of_the_sources_tables(compare: ModuleType) -> None:
    from search_spaces import digits, vit_ab, vit_oialr

    assert compare.baselines_of(digits.make_task(), "search_spaces.digits") == {}
    found = compare.baselines_of(vit_oialr.make_task(dim=24), "search_spaces.vit_oialr")
    shared = {
        name: vit_oialr.default[name] for name in ("lr", "min_lr", "warmup_lr", "k_decay", "warmup_epochs")
    }
    assert {name: (one.id, dict(one.params)) for name, one in found.items()} == {"full rank": ("ddp", shared)}
    # Of what would be constant with DDP, and is refused there.
    small = vit_oialr.make_task(dim=24, second_objective="trainable_fraction")
    assert compare.baselines_of(small, "search_spaces.vit_oialr") == found
    flags = compare.flags_of(
        compare.of_baseline({"dim": 24, "second_objective": "trainable_fraction"}, "ddp")
    )
    assert flags == ["--dim=24", "--method=ddp"]
    found = compare.baselines_of(vit_ab.make_task(), "search_spaces.vit_ab")
    assert [one.id for one in found.values()] == ["ab-no-groups", "ddp"]
    assert dict(found["ab-no-groups"].params) == vit_ab.default
    (asked,) = compare.baselines_of(vit_ab.make_task(), "search_spaces.vit_ab", ["oialr"]).values()
    assert set(asked.params) == {"sigma_cutoff", "update_every", "delay"}


def test_a_worker_s_nodes_are_those_that_its_ranks_need(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_NTASKS_PER_NODE", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    assert compare.nodes_for(16) == 1
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "16")
    assert [compare.nodes_for(ranks) for ranks in (1, 4, 8, 16)] == [1, 1, 2, 4]
    with pytest.raises(hpo.CampaignError, match="6 ranks on 4 nodes: each must have as many"):
        compare.Place(ranks=6, nodes=4).command("m", 1)


def test_a_test_on_two_nodes_is_one_training(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun here starts its command once for each node, on this host."""
    (tmp_path / "srun").write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do case $1 in --nodes=*) n=${1#--nodes=};; esac; shift; done\n'
        'i=0; while [ $i -lt "$n" ]; do "$@" & i=$((i + 1)); done; wait\n'
    )
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "sized.py").write_text(
        "import json, os, sys\n"
        "where = [one for one in sys.argv if one.startswith('--directory=')][0].split('=')[1]\n"
        "if os.environ['RANK'] == '0':\n"
        "    print(json.dumps({'test': float(os.environ['WORLD_SIZE']), 'directory': where}))\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compare.socket, "gethostname", lambda: "localhost")
    one = SimpleNamespace(id="0-3", params={"x": 0.5})
    found = compare.trained_anew("sized", tmp_path, one, compare.Place(ranks=4, nodes=2), [], limit_s=100)
    assert found == {"test": 4.0, "directory": str(tmp_path / "test" / "0-3.run")}


def test_the_benchmark_of_campaigns_prints_rows_as_readme_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS / "benchmarks"))
    campaigns = importlib.import_module("campaigns")
    accurate = {
        "name": "vit_ab", "evaluations": 32, "folds": 3, "test_seeds": 10, "measure": "accuracy", "costs": None,
        "best": [0.786, 0.782, 0.796], "default": 0.742, "difference": 0.0458, "standard_error": 0.0073,
        "better": True, "searches": [],
    }  # fmt: skip
    timed = {
        **accurate, "name": "imagenet_daso", "evaluations": 24, "folds": 0, "test_seeds": 3, "costs": "steps",
        "best": [0.812] * 3, "default": 0.835, "difference": -0.023, "standard_error": 0.018, "better": False,
        "searches": [{"cost_ratio": 0.8}] * 3,
    }  # fmt: skip
    error = {
        **timed, "name": "autoformer", "evaluations": 16, "measure": "MSE", "costs": "trainable_fraction",
        "best": [0.442, 0.423, 0.418], "default": 0.453, "difference": -0.025, "standard_error": 0.011,
        "better": True, "searches": [{"cost_ratio": one} for one in (0.94, 0.93, 0.97)],
    }  # fmt: skip
    text = (ROOT / "search_spaces" / "README.md").read_text()
    assert campaigns.head(3) in text
    assert campaigns.line(accurate) == (
        "| `vit_ab`, 32, 3 folds, 10 test trainings | 78.6, 78.2, 79.6 % | 74.2 % | +4.6 ± 0.7 points | yes |"
    )
    assert campaigns.line(error) == (
        "| `autoformer`, 16, 3 test trainings, MSE | 0.442, 0.423, 0.418 for 0.94, 0.93, 0.97 of `trainable_fraction` "
        "| 0.453 | \u22120.025 ± 0.011 | yes |"
    )
    assert campaigns.line(timed) == (
        "| `imagenet_daso`, 24, 3 test trainings | 81.2, 81.2, 81.2 % in 0.80, 0.80, 0.80 of the time | 83.5 % "
        "| \u22122.3 ± 1.8 points | no |"
    )
