"""README does what it says: its programs run as printed, its campaign files are read, its commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpo.campaign.launch import command, environment, find_mpirun
from hpo.cli import _parser
from hpo.config import reader as config
from hpo.config.reader import Settings
from hpo.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))
"""The files that README prints, by the name in their first line."""
COMMANDS = [
    line.split("#")[0].strip()
    for line in re.findall(
        r"^    ((?:bash|hpo|mpirun|srun|python|torchrun|jq|sbatch) .*)$", TEXT, re.MULTILINE
    )
]
HPO = Path(sys.executable).with_name("hpo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in BLOCKS.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def run(folder: Path, *line: object, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*map(str, line)],
        cwd=folder,
        env=environment({**os.environ, "OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{line} returned {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_a_model_is_trained_alone_and_under_torchrun(folder):
    for start in ([sys.executable], [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", 2]):
        told = run(folder, *start, "train_alone.py").stdout.split()
        found = dict(zip(told[::2], map(float, told[1::2])))
        assert found["accuracy"] > 0.9
        assert found["trainable_fraction"] < 1


def test_images_of_one_s_own_are_written_and_trained_with(folder):
    run(folder, sys.executable, "own_images.py")
    (check, train) = (line for line in COMMANDS if "data/own_images" in line)
    found = run(folder, sys.executable, *shlex.split(check)[1:]).stdout
    assert found == "data/own_images: 100 images to train with, 20 to test with, 10 classes\n"
    small = ("--dim", 24, "--depth", 1, "--heads", 2)
    told = json.loads(run(folder, sys.executable, *shlex.split(train)[1:], *small).stdout)
    assert told["options"]["data"] == "data/own_images" and 0 <= told["value"] <= 1
    # As they were written: read back with the shapes and the order that README says.
    code = "from own_images import *; from search_spaces.readers.cifar import read_cifar; "
    code += "train = read_cifar('data/own_images').train; "
    code += "assert (train.pixels.numpy() == images.transpose(0, 3, 1, 2)[:100]).all(); "
    code += "assert (train.classes.numpy() == classes[:100]).all()"
    run(folder, sys.executable, "-c", code)


def test_the_search_space_has_twenty_odd_lines():
    assert 15 <= sum(bool(line) for line in BLOCKS["my_space.py"].splitlines()) <= 25


def test_the_default_point_is_tried(folder):
    done = run(folder, HPO, "try", "my_space.toml")
    assert "completed after" in done.stdout
    assert "value = 0." in done.stdout


def test_the_campaign_file_runs_on_islands_of_workers_and_its_results_are_read(folder):
    run(folder, HPO, "run", "my_space.toml", "--ranks", 4)
    status = json.loads(run(folder, HPO, "status", "runs/my_space", "--json").stdout)
    assert status["evaluations"]["completed"] == 24
    assert status["best"]["value"] > 0.8
    read = run(folder, sys.executable, "read_results.py").stdout
    assert "momentum" in read or "Adam" in read
    assert "random" in read
    if shutil.which("jq"):
        for line in COMMANDS:
            if line.startswith("jq "):
                run(folder, "bash", "-c", line.replace("runs/digits", "runs/my_space"))


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_script_runs_alone_and_under_mpirun(folder, ranks):
    line = [sys.executable, "my_search.py"]
    if ranks > 1:
        line = command(find_mpirun(), "Open MPI 5", ranks, line)
    done = run(folder, *line)
    assert done.stdout.count("done 0.") == ranks


def uncommented(text: str) -> str:
    """``text`` with the keys and tables in it that are commented out."""
    return re.sub(r"^# (?=\[\[|\w+ = )", "", text, flags=re.MULTILINE)


def test_every_key_of_a_campaign_file_is_explained(folder):
    path = folder / "all.toml"
    path.write_text(uncommented(BLOCKS["every_key.toml"]))
    settings = config.read_file(path)
    left_out = {
        section: [name for name in model.model_fields if name not in value.model_fields_set]
        for section, model, value in [
            ("top", Settings, settings),
            ("layout", config.LayoutSettings, settings.layout),
            ("search", config.SearchSettings, settings.search),
            ("evaluation", config.EvaluationSettings, settings.evaluation),
        ]
    }
    assert left_out == {"top": [], "layout": [], "search": [], "evaluation": []}
    assert settings.island[0].model_fields_set


def test_keys_are_shown_with_their_defaults(folder):
    given = config.read_file(folder / "every_key.toml")
    assert given == Settings(task=given.task, directory=given.directory, evaluations=given.evaluations)


@pytest.mark.parametrize("line", [line for line in COMMANDS if "hpo " in line])
def test_commands_are_accepted(line):
    words = shlex.split(line[line.index("hpo ") :])[1:]
    try:
        _parser().parse_args([word if word != "$1" else "FILE" for word in words if word != "&"])
    except (SystemExit, UsageError) as refusal:
        pytest.fail(f"{line}: {refusal}")


def test_the_table_of_commands_is_complete():
    listed = set(re.findall(r"^\| `hpo (\w+)", TEXT, re.MULTILINE))
    there = set(_parser()._subparsers._group_actions[0].choices)
    assert listed == there
    for name in there:
        assert name in run(ROOT, HPO, name, "--help").stdout


def test_files_that_are_named_exist():
    named = set(re.findall(r"\b(?:jobs|search_spaces|tests)/[\w/.]+\.(?:py|sh|sbatch|toml)\b", TEXT))
    assert {name for name in named if not (ROOT / name).exists()} <= {
        "jobs/NAME.toml",
        "jobs/NAME_small.toml",
    }
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert all((ROOT / target).exists() for target in links)


def test_known_points_are_read_as_printed(folder):
    done = run(folder, sys.executable, "known_points.py")
    assert "2 entered" in done.stdout and "'lr'" in done.stdout
    path = folder / "known.toml"
    keys = re.search(r"^    known = \[\n.*?^    \]\n", TEXT, re.MULTILINE | re.DOTALL)
    path.write_text('task = "my_space.py:task"\ndirectory = "runs/x"\nevaluations = 1\n' + keys[0])
    assert [one.source for one in config.read_file(path).known] == [
        "runs/earlier",
        "study.db",
        "points.csv",
        None,
    ]
