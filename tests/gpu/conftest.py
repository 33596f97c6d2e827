"""The device of the tests that want a GPU, and the file of what they find.

bash jobs/check.sh gpu            on the GPU; without one each test says that it was skipped
pytest tests/gpu --device cpu     on the CPU what can run there, by the same code
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gpu_results import Results
from skips import not_possible_here
from terminal import Terminal

_results: Results | None = None
_tests: dict[str, dict[str, Any]] = {}
"""By test: its outcome, once there is one, and the seconds of its setup, call and teardown."""
_figures: dict[str, Any] = {}


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


def pytest_sessionstart(session: pytest.Session) -> None:
    global _results
    file: Path | None = session.config.getoption("--figures")
    if file is not None:
        command = " ".join(("pytest", *map(str, session.config.invocation_params.args)))
        _results = Results(
            file, command=command, device="cpu" if session.config.getoption("--device") == "cpu" else "cuda:0"
        )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = _tests.setdefault(report.nodeid, {})
    # A fixture that tests share is in the seconds of the first one's setup.
    test[f"{report.when}_s"] = round(report.duration, 2)
    if report.when == "call" or not report.passed:
        test["outcome"] = report.outcome
    _write()


def pytest_sessionfinish() -> None:
    _write()


def _write() -> None:
    """After each part of a test, so that a run that is cut off leaves what it has found; not before one has run."""
    if _results is not None and any(test.get("outcome", "skipped") != "skipped" for test in _tests.values()):
        _results.write(tests=_tests, figures=_figures)
