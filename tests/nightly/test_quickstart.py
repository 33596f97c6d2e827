"""jobs/quickstart.sh in a copy of the repository, with the environment that is there and a small budget."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from programs import called

from hpo.cluster.mpirun_command import environment


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    copy = tmp_path / "repository"
    leave = shutil.ignore_patterns("__pycache__", ".*", "tests", "runs", "build", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=leave)
    # processes/test_setup.py has set-up itself.
    (copy / "jobs" / "setup.sh").write_text('echo set up >> "$PWD/calls"\n')
    campaign = copy / "jobs" / "digits.toml"
    text, changed = re.subn(
        r"^evaluations = \d+$", "evaluations = 4", campaign.read_text(), flags=re.MULTILINE
    )
    assert changed == 1
    campaign.write_text(text)
    return copy


def quickstart(repository: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    base = environment({**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository)})
    base["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), base["PATH"]])
    script = repository / "jobs" / "quickstart.sh"
    return called("bash", script, cwd=repository.parent, env=base, timeout=seconds, returns=None)


@pytest.mark.timeout(600)
def test_it_runs_the_campaign_compares_it_with_the_default_and_repeats_that(repository: Path) -> None:
    done = quickstart(repository, 480)
    assert done.returncode == 0, done.stderr
    assert "quickstart: hpo run jobs/digits.toml" in done.stderr and "4/4 evaluated" in done.stderr
    assert {"best", "default"} <= set(re.findall(r"\w+", done.stdout)), done.stdout
    again = quickstart(repository, 100)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert (repository / "calls").read_text() == "set up\n" * 2


def test_what_hpo_returns_is_what_it_returns(repository: Path) -> None:
    (repository / "jobs" / "digits.toml").write_text("evaluations = 0\n")
    done = quickstart(repository, 100)
    assert done.returncode == 2 and "evaluations" in done.stderr and not done.stdout
    (repository / "jobs" / "setup.sh").write_text("exit 1\n")
    done = quickstart(repository, 100)
    assert done.returncode == 1 and "hpo run" not in done.stderr
