"""The wheel holds all that runs, its requirements are met by what is installed here, and a campaign runs from it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

from cases import nightly
from places import ROOT
from programs import called

TASK = """
import hpo, search_spaces, trainers

def evaluate(trial):
    from search_spaces.networks import small_resnet
    from search_spaces.readers import small_images
    return trial.params["x"]

for package in (hpo, search_spaces, trainers):
    assert package.__file__.startswith({environment!r}), package.__file__
task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate)
"""


def run(folder: Path, *line: object) -> str:
    # No PYTHONPATH, which would have this checkout come first.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return called(*line, cwd=folder, env=environment).stdout


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
OFFLINE = ("-qq", "--no-index")


def make(tmp_path: Path) -> tuple[Path, set[str]]:
    """The wheel, and the files that it is to hold."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    # Whatever stands here is to be installed, but the tests and documents: a new package is found with its first file.
    packages = [one.parent.name for one in ROOT.glob("*/__init__.py") if one.parent.name != "tests"]
    assert {"hpo", "search_spaces", "trainers"} <= {*packages}
    for name in packages:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    files = {
        str(path.relative_to(source))
        for name in packages
        for path in (source / name).rglob("*")
        if path.is_file() and path.name != "README.md" and path.suffix != ".png"
    }
    run(tmp_path, *PIP, "wheel", *OFFLINE, "--no-deps", "--no-build-isolation", "-w", "dist", source)
    (wheel,) = (tmp_path / "dist").iterdir()
    return wheel, files


def test_the_wheel_holds_all_that_runs(tmp_path: Path) -> None:
    wheel, files = make(tmp_path)
    assert wheel.name.startswith("hpo_mpi-")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == files


@nightly
def test_a_campaign_runs_from_the_wheel_in_a_directory_of_its_own(tmp_path: Path) -> None:
    wheel, _ = make(tmp_path)
    # All that hpo requires is seen there as it is installed here; what only is this checkout is not.
    environment = tmp_path / "environment"
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", environment)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    # With its dependencies, of which none can be fetched: each is there in a version that the wheel allows.
    pip = (*PIP, "--python", python, "install", *OFFLINE)
    run(tmp_path, *pip, "--force-reinstall", "--no-deps", wheel)
    run(tmp_path, *pip, "hpo-mpi")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "task.py").write_text(TASK.format(environment=str(environment)))
    (elsewhere / "campaign.toml").write_text('task = "task.py:task"\ndirectory = "run"\nevaluations = 3\n')
    run(elsewhere, environment / "bin" / "hpo", "run", "campaign.toml")
    status = json.loads(run(elsewhere, environment / "bin" / "hpo", "status", "run", "--json"))
    assert status["evaluations"]["completed"] == 3
