"""jobs/compare.py says in the task's own terms what best and default reach."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from places import ROOT

import hpo
from hpo.cluster.hosts import Host
from search_spaces.building_blocks.recipes import Run
from search_spaces.standalone import arguments as command_line


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    return importlib.import_module("compare")


@pytest.fixture
def started(compare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of trainings, which reach 0.5 without being started."""
    commands: list[list[str]] = []

    def run(command: list[str], environment: object, limit_s: float) -> tuple[int, str, str]:
        commands.append(command)
        return 0, json.dumps({"test": 0.5}), ""

    monkeypatch.setattr(compare, "_run", run)
    return commands


@pytest.mark.parametrize(
    "argument", ["--limit=0", "--limit=inf", "--limit=nan", "--test-seeds=0", "--nodes=-1"]
)
def test_an_argument_that_cannot_be_is_refused(
    compare: ModuleType, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main([argument, "any.toml"])
    assert ended.value.code == 2
    assert f"{argument.replace('=', ' ')}: must be " in capsys.readouterr().err


COUNTED = """
import json, pathlib, signal, sys
where = pathlib.Path([one for one in sys.argv if one.startswith("--directory=")][0].split("=")[1])
print("epoch 1", flush=True)
if "--forever" in sys.argv:
    signal.pause()
where.mkdir(exist_ok=True)
if not (where / "saved").exists():
    (where / "saved").touch()
    sys.exit(3)
print(json.dumps({"test": 0.5}), flush=True)
"""


def test_trainings_that_failed_or_took_too_long_are_continued_by_the_next_call(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted.py").write_text(COUNTED.replace('print("epoch 1", flush=True)', ""))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    one = SimpleNamespace(id="0-3", params={"x": 0.5})
    with pytest.raises(hpo.CampaignError, match=r"-m counted --config=.* 3 s \(--limit\)"):
        compare.trained_anew("counted", tmp_path, one, compare.Place(), ["--forever"], limit_s=3.0)
    with pytest.raises(hpo.CampaignError, match="returned 3"):
        compare.trained_anew("counted", tmp_path, one, compare.Place(), [])
    assert compare.trained_anew("counted", tmp_path, one, compare.Place(), []) == {"test": 0.5}
    assert [path.name for path in (tmp_path / "test").iterdir()] == ["0-3.json"]


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


def front(name: str, *members: tuple[float, float]) -> list[Any]:
    """Individuals of these costs and scores."""
    return [SimpleNamespace(objectives={"steps": cost, name: score}) for cost, score in members]


def test_the_best_beside_a_default_has_the_best_score_among_those_that_cost_no_more(
    compare: ModuleType,
) -> None:
    for name, score in (("accuracy", None), ("micro_f1", "micro_f1")):
        task = SimpleNamespace(objectives={"steps": "minimize", name: "maximize"}, score=score)
        assert compare.tested(task) == (name, "maximize")
        members = front(name, (1.0, 0.5), (2.0, 0.7), (3.0, 0.8), (4.0, 0.9))
        for cost, own, best in (
            (3.5, 0.6, 3.0),
            (2.0, 0.6, 2.0),  # costs as much and is more accurate
            (3.0, 0.8, 4.0),  # is on the front itself: nothing dominates it
        ):
            (default,) = front(name, (cost, own))
            found = compare.best_beside(SimpleNamespace(front=members), default, task)
            assert found.objectives["steps"] == best
    alone = SimpleNamespace(objectives={"value": "maximize"})
    assert compare.best_beside(SimpleNamespace(best=default), None, alone) is default


@pytest.mark.parametrize("file", sorted((ROOT / "jobs").glob("*_small.toml")), ids=lambda path: path.stem)
def test_a_campaigns_options_are_arguments_of_its_module(compare: ModuleType, file: Path) -> None:
    campaign = hpo.Campaign.from_file(file)
    module = importlib.import_module(compare.importable(str(campaign.settings.task), file))
    given = campaign.settings.task_options
    read = command_line.read(module.make_task, compare.flags_of({**given, "seed": None}))
    assert module.make_task(**read.options).options == campaign.task.options
    # Off where it is on, and the other way round.
    other = {name: not value for name, value in given.items() if isinstance(value, bool)}
    assert command_line.read(module.make_task, compare.flags_of(other)).options.items() >= other.items()


def table(
    compare: ModuleType,
    best: dict[str, Any],
    full: dict[str, Any] | None = None,
    *,
    objectives: dict[str, float] | None = None,
    measured: str = "value",
) -> tuple[dict[str, list[str]], list[str]]:
    """By the rows' names the cells of the best and of the full-rank baseline with these tests, and the lines."""
    one = SimpleNamespace(
        id="0-0",
        params={"lr": 0.1},
        value=None if objectives else 0.5,
        objectives=objectives,
        status="completed",
    )
    result = SimpleNamespace(best=one, record=SimpleNamespace(individuals=[one]))
    columns, tests = {"best": one}, {"best": best}
    if full is not None:
        columns["full rank"] = compare.Baseline(id="ddp", params={"lr": 0.1}, options={})
        tests["full rank"] = full
    lines = compare.table(result, columns, tests, "accuracy", measured).splitlines()
    return {name: cells for name, *cells in (re.split("  +", line) for line in lines) if cells}, lines


def trainings(test: Sequence[float], **costs: float | Sequence[float]) -> dict[str, Any]:
    """What a test says of trainings that reach ``test``; a cost is that of all, or of each."""
    each = [
        {
            "test": one,
            **{name: cost[i] if isinstance(cost, Sequence) else cost for name, cost in costs.items()},
        }
        for i, one in enumerate(test)
    ]
    return {"test": sum(test) / len(test), "tests": each}


NOWHERE = {"bytes_between_nodes": 0.0}
SHOWN: list[tuple[dict[str, Any], dict[str, Any] | None, dict[str, list[str]]]] = [
    (  # as in tables 4.3 and 5.1 of the dissertation
        trainings(
            [0.5, 0.7],
            compression_ratio=0.68,
            trainable_fraction=0.0997,
            bytes_between_nodes=[4e6, 8e6],
            bytes_inside_nodes=1e3,
            train_s=2.0,
        ),
        trainings([0.6] * 2, compression_ratio=1.0, bytes_between_nodes=3e7, train_s=[1.0, 3.0]),
        {
            "": ["best (0-0)", "full rank (ddp)"],
            "validation accuracy": ["50.00%", "-"],
            "test accuracy": ["60.00% ± 14.14%", "60.00% ± 0.00%"],
            "compression": ["0.68 : 1", "1.00 : 1"],
            "trained parameters": ["9.97%", "-"],
            "bytes between nodes, all ranks": ["6e+06", "3e+07"],
            "bytes inside nodes, all ranks": ["1000", "-"],
            "traffic between nodes, MB/s": ["3 ± 1.414", "20 ± 14.14"],
            "bytes saved between nodes": ["80.00% ± 9.43%", "-"],
            "training, s": ["2 ± 0", "2 ± 1.414"],
        },
    ),
    (  # savings are those inside nodes if full rank sends nothing between nodes
        trainings([0.5], bytes_inside_nodes=4e5, **NOWHERE),
        trainings([0.5], bytes_inside_nodes=1e6, **NOWHERE),
        {"bytes saved inside nodes": ["60.00%", "-"]},
    ),
    (  # deviations of both sides
        trainings([0.62, 0.68]),
        trainings([0.58, 0.62, 0.66]),
        {
            "difference to full rank": [
                f"+3.00 ± {100 * math.hypot(0.03 * math.sqrt(2), 0.04):.2f} points",
                "-",
            ]
        },
    ),
    (trainings([0.62, 0.68]), trainings([0.7]), {"difference to full rank": ["-5.00 points", "-"]}),
    (  # metrics beside the score
        trainings(
            [0.5] * 2, test_loss=[0.8, 0.9], test_top5=0.98, test_macro_f1=0.25, test_mae=0.25, test_own=3.0
        ),
        trainings([0.5], test_loss=0.7),
        {
            "test loss": ["0.85 ± 0.07071", "0.7"],
            "test top-5 accuracy": ["98.00% ± 0.00%", "-"],
            "test macro-F1": ["25.00% ± 0.00%", "-"],
            "test MAE": ["0.25 ± 0", "-"],
            "test own": ["3 ± 0", "-"],
        },
    ),
    (  # the best's validation is the campaign's, a baseline's that of its trainings
        trainings([0.5], validation=0.1),
        trainings([0.5] * 2, validation=[0.4, 0.6]),
        {"validation accuracy": ["50.00%", "50.00% ± 14.14%"]},
    ),
    # Files of earlier versions have less.
    ({"test": 0.5}, {"test": 0.25}, {"test accuracy": ["50.00%", "25.00%"]}),
    (
        {"test": 0.5},
        trainings([0.5], test_loss=0.7, train_s=2.0),
        {"test loss": ["-", "0.7"], "training, s": ["-", "2"]},
    ),
    (trainings([0.5] * 2, test_loss=[0.5, math.nan]), None, {"test loss": ["nan ± nan"]}),
    (  # a network of AB is whole at the end: its compression is that of its factors
        trainings([0.7] * 2, compression_ratio=1.0, factored_compression_ratio=[1.29, 1.49]),
        trainings([0.7], compression_ratio=1.0),
        {"compression": ["1.39 : 1", "1.00 : 1"]},
    ),
]


@pytest.mark.parametrize(("best", "full", "expected"), SHOWN)
def test_the_table_has_a_row_for_what_tests_measure(
    compare: ModuleType, best: dict[str, Any], full: dict[str, Any] | None, expected: dict[str, list[str]]
) -> None:
    rows, lines = table(compare, best, full)
    assert {name: rows[name] for name in expected} == expected
    assert ("difference to full rank" in rows) == (full is not None)
    assert ("±" in "".join(lines[:-3])) == any(line.startswith("After ±") for line in lines)
    assert "bytes saved inside nodes" not in rows or "bytes saved between nodes" not in rows


def test_several_objectives_have_a_row_each(compare: ModuleType) -> None:
    full = trainings([0.5] * 2, validation=[0.4, 0.6], bytes_between_nodes=8e6)
    both = {"bytes_between_nodes": 2e6, "seconds": 4.0, "accuracy": 0.75}
    rows, _ = table(compare, trainings([0.5]), full, objectives=both, measured="accuracy")
    assert rows["validation accuracy"] == ["75.00%", "50.00% ± 14.14%"]
    assert rows["bytes_between_nodes"] == ["2e+06", "8e+06 ± 0"]
    assert rows["seconds"] == ["4", "-"]


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
    assert compare.flags_of(found["full rank"].options) == ["--dim=24", "--method=ddp"]
    found = compare.baselines_of(vit_ab.make_task(), "search_spaces.vit_ab")
    assert [one.id for one in found.values()] == ["ab-no-groups", "ddp"]
    assert dict(found["ab-no-groups"].params) == vit_ab.default
    (asked,) = compare.baselines_of(vit_ab.make_task(), "search_spaces.vit_ab", ["oialr"]).values()
    assert set(asked.params) == {"sigma_cutoff", "update_every", "delay"}


def test_the_baseline_of_table_4_4_has_the_untuned_schedule(
    compare: ModuleType, tmp_path: Path, started: list[list[str]]
) -> None:
    """In a file of its own: one that was measured with a cosine is not taken for it."""
    pytest.importorskip("transformers")
    from search_spaces import autoformer
    from search_spaces.building_blocks.recipe_parts.schedules import HalvedEachEpoch

    module = "search_spaces.autoformer"
    task = autoformer.make_task(horizon=24, second_objective="trainable_fraction", schedule="cosine")
    (full,) = compare.baselines_of(task, module).values()
    assert dict(full.options) == {"horizon": 24, "schedule": "type1", "method": "ddp"}
    assert full.params["lr"] == autoformer.default["lr"] and "sigma_cutoff" not in full.params
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "ddp.json").write_text(json.dumps({"test": 0.1}))
    found = compare.trained_anew(module, tmp_path, full, compare.Place(), compare.flags_of(full.options))
    assert found == {"test": 0.5}
    assert {"--schedule=type1", "--method=ddp", "--horizon=24"} <= set(started[0])
    trained = autoformer.make_task(**full.options)
    run = Run(data={"features": 7, "time_features": 4})
    assert isinstance(trained._recipe(dict(full.params), trained.options, run).schedule, HalvedEachEpoch)


@pytest.fixture
def on_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a campaign of four ranks a worker, whose evaluations sent bytes between nodes."""
    (tmp_path / "sending.py").write_text(
        "import hpo\n"
        "space = hpo.SearchSpace(x=hpo.Float(0.0, 1.0))\n"
        "def evaluate(trial):\n"
        "    return {'value': trial.params['x'], 'bytes_between_nodes': 5.0}\n"
        "task = hpo.Task(space, evaluate, direction='maximize', default={'x': 0.25})\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_NTASKS_PER_NODE", "SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)

    file = tmp_path / "sending.toml"
    text = f'task = "sending:task"\ndirectory = "{tmp_path / "run"}"\nevaluations = 2\n'
    text += 'evaluation.isolation = "inline"\n'
    file.write_text(text)  # one rank can say what four have sent
    hpo.Campaign.from_file(file).run()
    file.write_text(text + "layout.ranks_per_worker = 4\n")
    return file


@pytest.fixture
def in_a_job(compare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """in_a_job(nodes): this is in an allocation of Slurm of nodes n0, n1 and so on, with 8 and more cores on each."""

    def allocated(nodes: int) -> None:
        hosts = tuple(Host(f"n{number}", 2) for number in range(nodes))
        monkeypatch.setattr(compare.slurm_job, "allocation", lambda environment: hosts)
        monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", f"12(x{nodes - 1}),8")

    return allocated


def test_what_was_sent_between_nodes_is_not_measured_on_one_by_default(
    compare: ModuleType,
    on_nodes: Path,
    in_a_job: Callable[[int], None],
    started: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There DASO and local SGD across nodes would be plain averaging."""
    for arguments, names in (
        ([], ("4 ranks would be on one node", "--nodes N")),
        (["--nodes=2"], ("4 ranks on 2 nodes", "--nodes")),
        (["--nodes=3"], ("4 ranks on 3 nodes", "--nodes")),
    ):
        assert compare.main([str(on_nodes), *arguments]) == hpo.CampaignError.exit_code
        printed = capsys.readouterr().err
        assert all(name in printed for name in names), printed
    assert not started
    in_a_job(2)
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")  # a node is one task
    assert compare.main([str(on_nodes), "--nodes=2"]) == hpo.CampaignError.exit_code
    assert "--gpus-per-node" in capsys.readouterr().err and not started
    monkeypatch.delenv("SLURM_GPUS_PER_TASK")
    assert compare.main([str(on_nodes), "--nodes=2"]) == 0
    assert started and all(command[:2] == ["srun", "--nodes=2"] for command in started)
    # Scores that have been measured are printed anywhere.
    started.clear()
    assert compare.main([str(on_nodes)]) == 0
    assert not started
    shutil.rmtree(on_nodes.parent / "run" / "test")
    assert compare.main([str(on_nodes), "--nodes=1"]) == 0
    assert started and all("--standalone" in command for command in started)


def test_in_slurm_it_is_measured_on_the_allocation_s_nodes(
    compare: ModuleType,
    on_nodes: Path,
    in_a_job: Callable[[int], None],
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_a_job(3)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    assert [compare.nodes_for(ranks) for ranks in (1, 2, 4, 16)] == [1, 1, 2, 3]
    assert compare.main([str(on_nodes)]) == 0
    assert started and all(command[:2] == ["srun", "--nodes=2"] for command in started)
    for command in started:
        # All of the job's cores on each node, and a meeting on the first of them, wherever this is started.
        assert {"--nodelist=n0,n1", "--cpus-per-task=8"} <= set(command)
        assert any(word.startswith("--rdzv-endpoint=n0:") for word in command)


def test_ranks_may_pose_as_nodes(compare: ModuleType) -> None:
    best = SimpleNamespace(metrics={}, objectives={"bytes_between_nodes": 5.0, "accuracy": 0.5})

    def needs(posing: int | None, **given: int) -> bool:
        task = SimpleNamespace(options=SimpleNamespace(ranks_per_node=posing))
        return bool(compare.needs_nodes(task, given, 4, best))

    assert not needs(1)
    assert needs(4)  # one node of four ranks sends nothing
    assert needs(None)
    best.objectives["bytes_between_nodes"] = 0.0
    assert not needs(None)
    assert not compare.needs_nodes(SimpleNamespace(), {}, 4, SimpleNamespace(metrics={}, objectives=None))
