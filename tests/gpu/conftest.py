"""The device of the tests that want a GPU, and the file of what they find.

bash jobs/check.sh gpu            on the GPU; without one each test says that it was skipped
pytest tests/gpu --device cpu     on the CPU what can run there, by the same code
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from skips import not_possible_here
from terminal import Terminal

_figures: dict[str, Any] = {}
_outcomes: dict[str, str] = {}


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Any:
    """The ``torch.device`` to test on: the first GPU, or the CPU where that was asked for."""
    import torch

    from hpo.evaluation.devices import visible_devices

    if request.config.getoption("--device") == "cpu":
        return torch.device("cpu")
    # One that the driver shows and torch cannot use is an error, and no reason to skip.
    if not torch.cuda.is_available() and not visible_devices(os.environ):
        not_possible_here("tests/gpu needs a GPU; --device cpu runs what can run without")
    return torch.device("cuda", 0)


@pytest.fixture(scope="session")
def figures() -> dict[str, Any]:
    """What is measured on the way, by name: plain data, written to the file of --figures."""
    return _figures


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Terminal]]:
    """Makes terminals, each in a fresh directory, for campaigns that several tests look at."""
    made: list[Terminal] = []

    def make() -> Terminal:
        made.append(Terminal(tmp_path_factory.mktemp("campaign")))
        return made[-1]

    yield make
    for terminal in made:
        terminal.kill()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        _outcomes[report.nodeid] = f"{report.outcome} after {report.duration:.1f} s"
        _write()


_file: Path | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    global _file
    _file = session.config.getoption("--figures")


def _write() -> None:
    """After each test: a run that is cut off leaves what it has found."""
    if _file is None:
        return
    import torch

    there = torch.cuda.is_available()
    machine = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(0) if there else "cpu",
        "devices": torch.cuda.device_count(),
        "cores": len(os.sched_getaffinity(0)),
    }
    _file.parent.mkdir(parents=True, exist_ok=True)
    _file.write_text(
        json.dumps({"machine": machine, "tests": _outcomes, "figures": _figures}, indent=1) + "\n"
    )
