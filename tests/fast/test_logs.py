"""Sentences for the user, and the debug file of a rank."""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo import logs
from hpo.errors import UsageError


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("hpo", "trainers")]
    before = [(one.level, [*one.handlers]) for one in loggers]
    yield
    for one, (level, handlers) in zip(loggers, before):
        one.setLevel(level)
        for handler in {*one.handlers} - {*handlers}:
            one.removeHandler(handler)
            handler.close()


@pytest.fixture
def debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPO_LOG", "debug")
    monkeypatch.setenv("HPO_LOG_FILE", "")


@pytest.mark.usefixtures("debug")
def test_each_campaign_of_a_process_has_a_debug_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        logs.open_debug_file(tmp_path / name, 3)
        logging.getLogger("hpo.islands").debug("rank %d sends %s", 1, name)
        logging.getLogger("trainers.run").debug("epoch ends")
        logging.getLogger("hpo.campaign").info("stopped \x1b[31m")
    for name in ("first", "second"):
        lines = (tmp_path / name / "logs" / "ranks" / "3.log").read_text().splitlines()
        said = [line.split(": ", 1)[1] for line in lines]
        assert said == [f"rank 1 sends {name}", "epoch ends", "stopped \x1b[31m"]
    assert capsys.readouterr().err == "hpo: stopped \\x1b[31m\n" * 2


def test_no_file_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPO_LOG", raising=False)
    logs.open_debug_file(tmp_path, 0)
    logging.getLogger("hpo.islands").debug("nobody reads this")
    assert not (tmp_path / "logs").exists()
    monkeypatch.setenv("HPO_LOG", "loud")
    with pytest.raises(UsageError, match="HPO_LOG='loud'"):
        logs.open_debug_file(tmp_path, 0)


@pytest.mark.usefixtures("debug")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs").write_text("a file")
    logs.open_debug_file(tmp_path, 0)
    assert "0.log cannot be written" in capsys.readouterr().err


def test_a_task_that_configures_logging_does_not_silence_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("hpo.islands")
    logging.config.dictConfig({"version": 1})
    logging.disable(logging.CRITICAL)
    try:
        logger.warning("not heard")
        logs.keep_loggers()
        logger.warning("still heard")
    finally:
        logging.disable(logging.NOTSET)
    assert capsys.readouterr().err == "hpo: still heard\n"
