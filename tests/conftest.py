"""What all tests share: one thread a process, set before anything that starts threads is imported; modules that are
compiled once; signals as at a terminal; the options of jobs/check.sh; a terminal, mpirun and a written campaign."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cases
import gloo
import mpi_scripts
import skips
from slurm import Slurm, User
from terminal import Terminal, wait_until
from written import Written

# Where it is set, as in many containers, each of the hundreds of processes that tests start compiles hpo anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Under nohup or in a shell's background they are ignored, and by all that the tests start, which test them.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _default)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-rank", action="store_true", help="leave out what needs several ranks")
    parser.addoption("--all-cases", action="store_true", help="also the cases that run nightly")
    parser.addoption(
        "--examples", type=int, default=50, metavar="N", help="of each property that Hypothesis tests"
    )
    parser.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="of tests/gpu")
    parser.addoption(
        "--figures", type=Path, metavar="FILE", help="what tests/gpu measures and how it ends, as JSON"
    )
    parser.addoption("--skips", type=Path, metavar="FILE", help="append the reasons of skipped tests to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--device") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cases.all_cases = config.getoption("--all-cases")
    gloo.one_rank = config.getoption("--one-rank")
    # No deadline: how long an example takes says how busy the machine is.
    hypothesis.settings.register_profile("tests", deadline=None, max_examples=config.getoption("--examples"))
    hypothesis.settings.load_profile("tests")
    config.addinivalue_line("markers", "nightly: runs with --all-cases")
    config.addinivalue_line("markers", "whole_device: looks at all of a GPU's memory, and runs alone on it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not cases.all_cases:
        items[:] = [item for item in items if item.get_closest_marker("nightly") is None]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    file: Path | None = config.getoption("--skips")
    if file is not None:
        skips.write(file, terminalreporter.stats.get("skipped", ()))


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A user's terminal in a fresh directory; whatever still runs is killed afterwards."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.kill()


@pytest.fixture
def mpirun() -> mpi_scripts.Run:
    """``mpirun(ranks, script, *arguments)``: see ``mpi_scripts.run``."""
    return mpi_scripts.run


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The directory of a campaign with one that completed, one that failed and one that was pruned."""
    campaign = Written(tmp_path / "digits")
    campaign.evaluate(0, 1.0, metrics={"size": 7, "note": "text"})
    campaign.evaluate(1, None, "failed")
    campaign.evaluate(2, 3.0, "pruned")
    return campaign


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm of two nodes, for all tests that ask for one."""
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


@pytest.fixture
def user(cluster: Slurm, terminal: Terminal) -> Iterator[User]:
    """Who submits a campaign to ``cluster``; jobs that are left are cancelled afterwards."""
    yield User(cluster, terminal)
    if cluster.jobs():
        cluster.cancel_all()
        wait_until(lambda: not cluster.jobs(), "the end of all jobs", seconds=30, pause_s=0.2)
