"""jobs/setup.sh takes the torch and numpy that are there, from a copy of the repository and without an index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from cases import nightly
from places import ROOT
from programs import called
from skips import NOT_POSSIBLE

SITE = Path(sysconfig.get_path("purelib"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy = tmp_path / "repository"
    leave = shutil.ignore_patterns("__pycache__", ".*", "tests", "runs", "build", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=leave)
    return copy


def set_up(
    repository: Path, *arguments: object, path: tuple[Path, ...] = (), **variables: object
) -> subprocess.CompletedProcess[str]:
    """setup.sh with ``path`` as PYTHONPATH, as a cluster's modules set it, and environment ``variables``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    # What is installed has to do: nothing can be fetched, nor is setuptools to build with.
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, path))}
    environment |= {name: str(value) for name, value in variables.items()}
    # A Python that has no packages of its own, first on PATH.
    binaries = repository.parent / "bin"
    binaries.mkdir(exist_ok=True)
    (binaries / "python3").unlink(missing_ok=True)
    (binaries / "python3").symlink_to(Path(sys.base_prefix, "bin", "python3"))
    environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
    return called(
        "bash", repository / "jobs/setup.sh", *arguments, cwd=repository.parent, env=environment, returns=None
    )


def pretend(folder: Path, **versions: str) -> Path:
    """A folder in which packages of these versions seem to be installed."""
    for name, number in versions.items():
        info = folder / f"{name}-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    return folder


@nightly
def test_the_torch_of_the_system_stays_and_is_seen(repository: Path) -> None:
    done = set_up(repository, "--system-torch", path=(SITE,))
    assert done.returncode == 0, done.stderr
    venv = repository / ".venv"
    assert "include-system-site-packages = true" in (venv / "pyvenv.cfg").read_text()
    (own,) = venv.glob("lib/python*/site-packages")
    added = {one.name.split("-")[0].lower() for one in own.glob("*.dist-info")} - {"pip", "setuptools"}
    assert added == {"hpo_mpi"}, "all else was there"
    stamp = (venv / ".setup").read_text()
    assert "--system-torch" in stamp
    # Later calls need not say so again, and change nothing.
    again = set_up(repository, path=(SITE,))
    assert (again.returncode, again.stderr, (venv / ".setup").read_text()) == (0, "", stamp)


@nightly
@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason=f"{NOT_POSSIBLE}propulate's pins do not apply from Python 3.13 on"
)
def test_where_numpy_2_is_propulate_goes_without_its_pins(repository: Path, tmp_path: Path) -> None:
    newer = pretend(
        tmp_path / "newer", numpy="2.4.6", scipy="1.17.1", matplotlib="3.11.2", GPy="1.15.0", pandas="3.0.0"
    )
    environment = tmp_path / "theirs"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=100)
    done = set_up(repository, "--into", "theirs", path=(newer, SITE))
    assert done.returncode == 0, done.stderr
    assert (
        "propulate's pins (propulate==1.2.2 numpy<2 scipy==1.12.* matplotlib==3.8.*) do not hold"
        in done.stderr
    )
    assert f"torch=={version('torch')} numpy==2.4.6" in done.stderr
    assert (environment / "bin" / "hpo").exists() and not (repository / ".venv").exists()


def wheel(folder: Path, name: str, number: str) -> None:
    """An installable wheel without modules, for every Python."""
    info = f"{name}-{number}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{number}-py3-none-any.whl", "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


@nightly
@pytest.mark.parametrize(
    ("builds", "options", "constraint", "chosen"),
    [
        # pip has other words for a build that is missing where a constraint names torch.
        (["2.13.0"], [], "torch<=2.14.1", "2.13.0"),
        (["2.13.0", "2.13.0+cpu"], [], "torch<=2.14.1", "2.13.0+cpu"),
        (["2.13.0+cpu"], ["--cuda"], "", "2.13.0+cpu"),
        (["2.12.0"], [], "", None),
    ],
)
def test_the_build_of_torch_that_there_is(
    repository: Path,
    tmp_path: Path,
    builds: list[str],
    options: list[str],
    chosen: str | None,
    constraint: str,
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for number in builds:
        wheel(index, "torch", number)
    (tmp_path / "constraint").write_text(constraint)
    done = set_up(repository, *options, PIP_FIND_LINKS=index, PIP_CONSTRAINT=tmp_path / "constraint")
    found = [one.name for one in (repository / ".venv").glob("lib/python*/site-packages/torch-*.dist-info")]
    assert found == ([] if chosen is None else [f"torch-{chosen}.dist-info"]), done.stderr
    # The index has nothing else, so that set-up stops after torch where it gets so far.
    lacking = "torch" if chosen is None else "the packages"
    assert done.returncode == 1 and f"{lacking} could not be installed" in done.stderr


def test_what_cannot_be_is_said(repository: Path, tmp_path: Path) -> None:
    done = set_up(repository, "--systemtorch")
    assert done.returncode == 2 and "--systemtorch: there is no such option" in done.stderr
    done = set_up(repository, "--into", "nowhere")
    assert (
        done.returncode == 2 and "--into nowhere: must be an environment that has bin/python" in done.stderr
    )
    (tmp_path / "bin" / "python3").unlink()
    done = set_up(repository, "--system-torch", path=(pretend(tmp_path / "old", torch="2.5.1"), SITE))
    assert done.returncode == 1 and "torch==2.5.1 is there, and hpo needs torch>=2.6,<3" in done.stderr
