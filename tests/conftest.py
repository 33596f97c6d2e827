"""What all tests share: one thread a process, set before anything that starts threads is imported; signals as at a
terminal; which of them run beside no other; and a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gloo
from terminal import Terminal

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# Under nohup or in a shell's background they are ignored, and by all that the tests start, which test them.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _default)

# They measure how soon something happens, count what others get done meanwhile, kill what runs at the worst moment, or
# bind to cores: beside other tests some would be later than they allow. A whole file or folder each.
_HERE = Path(__file__).parent
ALONE = frozenset(
    _HERE / name
    for name in (
        "faults/test_bad_tasks.py",
        "faults/test_dead_ranks.py",
        "faults/test_kills.py",
        "faults/test_signal_to_all.py",
        "faults/test_stopping.py",
        "mpi",
        "test_deadline.py",
        "test_evaluation.py",
        "test_hosts.py",
        "test_mpirun.py",
        "test_slurm.py",
    )
)
_gone = sorted(str(path) for path in ALONE if not path.exists())
assert not _gone, f"tests/conftest.py says that these are to run alone, and they are not there: {_gone}"


# They start campaigns or programs on several ranks; others do so by tests/gloo.py.
RANKS = ALONE | {
    _HERE / name
    for name in ("faults", "test_benchmarks.py", "test_cli.py", "test_readme.py", "test_slurm_script.py")
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-rank", action="store_true", help="leave out what needs a process a rank")


def pytest_configure(config: pytest.Config) -> None:
    gloo.one_rank = config.getoption("--one-rank")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test is either ``-m alone`` or ``-m "not alone"``."""
    for item in items:
        if not ALONE.isdisjoint((item.path, *item.path.parents)):
            item.add_marker("alone")
        if config.getoption("--one-rank") and not RANKS.isdisjoint((item.path, *item.path.parents)):
            item.add_marker(pytest.mark.skip("needs a process a rank"))


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A user's terminal in a fresh directory; whatever still runs is killed afterwards."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.kill()
