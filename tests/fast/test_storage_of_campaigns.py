"""Whole campaigns on storage that fails, in this process; pauses and patience are shortened."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disks import failing

import hpo
from hpo import cli
from hpo.errors import EXIT_RESUMABLE, StorageFailed
from hpo.journal.directory import status_path
from hpo.journal.records import Storage, encode
from hpo.ledger.inspection import check
from hpo.ledger.journals import journal_files, read_directory
from hpo.results.record import load

EVALUATIONS = 12


def evaluate(trial: hpo.Trial) -> float:
    (trial.directory / "weights").write_text("")
    x = trial.params["x"]
    assert isinstance(x, float)
    return x**2


def run(directory: Path, evaluations: int = EVALUATIONS) -> hpo.Result:
    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5, 5)), evaluate)
    campaign = hpo.Campaign(task, directory=directory, evaluations=evaluations, isolation="inline", keep=1000)
    return campaign.run()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpo.islands.storage._FIRST_PAUSE_S", 0.001)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For launches that are to end; the others wait for however long a busy machine takes."""
    monkeypatch.setattr("hpo.islands.storage.PATIENCE_S", 0.5)


def in_journal(directory: Path) -> Callable[[int], bool]:
    return lambda handle: os.readlink(f"/proc/self/fd/{handle}").startswith(
        f"{directory}/launches/0001/journal"
    )


def evaluations_of(directory: Path) -> int:
    """How many individuals have made a directory."""
    return len(list((directory / "evaluations").glob("*"))) if (directory / "evaluations").exists() else 0


def check_complete(directory: Path, result: hpo.Result) -> None:
    assert [one.status for one in result.individuals] == ["completed"] * EVALUATIONS
    report = check(directory)
    assert report.exit_code == 0 and report.finished == EVALUATIONS, str(report)


@pytest.mark.parametrize(("number", "call", "name"), [(errno.ENOSPC, "mkdir", "0-0-3")])
def test_individuals_wait_until_their_directories_can_be_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    call: str,
    name: str,
) -> None:
    home = tmp_path / "run"
    tries: list[str] = []

    def four_times(path: Any) -> bool:
        own = f"{home / 'evaluations'}/" in str(path) and str(path).endswith(name)
        tries.extend([str(path)] * own)
        return own and len(tries) <= 4

    failing(monkeypatch, call, number, four_times)
    check_complete(home, run(home))
    assert len(tries) > 4 and f"storage: {os.strerror(number)}" in capsys.readouterr().err
    records = [one for one in read_directory(home) if isinstance(one, Storage)]
    assert [one.error and one.error.partition(": ")[2] for one in records] == [os.strerror(number), None]


@pytest.mark.parametrize("number", [errno.EACCES])
def test_where_no_directory_can_be_made_the_launch_ends_and_the_same_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None, number: int
) -> None:
    home = tmp_path / "run"
    with monkeypatch.context() as patch:
        new = f"{home / 'evaluations'}/0-0-"
        failing(patch, "mkdir", number, lambda path: str(path).startswith(new) and evaluations_of(home) >= 5)
        with pytest.raises(StorageFailed) as caught:
            run(home)
    assert caught.value.exit_code == EXIT_RESUMABLE
    sentence = str(caught.value)
    assert f"{home / 'evaluations' / '0-0-5'}: {os.strerror(number)}" in sentence
    assert "give write access" in sentence and "same command again" in sentence
    assert load(home).ended == ("storage", EXIT_RESUMABLE)
    assert [one.status for one in load(home).individuals].count("completed") == 5
    check_complete(home, run(home))


@pytest.mark.parametrize("begun", [0, EVALUATIONS])
def test_without_its_journal_the_launch_ends_and_the_same_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None, begun: int
) -> None:
    """Also where all is done, and only that is to be put on record; and where it could not even be begun."""
    home = tmp_path / "run"
    with monkeypatch.context() as patch:
        ours = in_journal(home)
        hit = failing(
            patch, "fsync", errno.EDQUOT, lambda handle: ours(handle) and evaluations_of(home) >= begun
        )
        with pytest.raises(StorageFailed, match=re.escape(os.strerror(errno.EDQUOT))) as caught:
            run(home)
        assert 2 < len(hit) < 100
    assert f"{home / 'launches/0001/journal/0001-i000-w0000'}" in str(caught.value)
    assert check(home).exit_code == 0
    check_complete(home, run(home))


def test_status_says_what_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []

    def asks(trial: hpo.Trial) -> float:
        if trial.id == "0-0-1":
            path = journal_files(tmp_path / "run")[0].path
            with open(path, "ab") as file:
                file.write(
                    encode(Storage(error="run/evaluations/0-0-9: \x1b[2JNo space", time=time.time() - 40))
                )
            status_path(tmp_path / "run", 1).unlink(missing_ok=True)  # so that the journals are read
            capsys.readouterr()
            assert cli.main(["status", str(tmp_path / "run")]) == 0
            said.append(capsys.readouterr().out)
            assert cli.main(["status", str(tmp_path / "run"), "--json"]) == 0
            json.loads(capsys.readouterr().out)
        return 0.0

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5, 5)), asks)
    hpo.Campaign(task, directory=tmp_path / "run", evaluations=3, isolation="inline").run()
    line = next(line for line in said[0].splitlines() if line.startswith("state"))
    assert re.search(r"running; storage: run/evaluations/0-0-9: .*No space, waiting 4\d s", line), line
    assert "\x1b" not in line
