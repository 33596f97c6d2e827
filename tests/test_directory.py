"""A directory belongs to one campaign, and one process at a time is at work in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpo.errors import CampaignError
from hpo.journal import directory

_IDENTITY: dict[str, object] = {
    "task": "search_spaces.digits:task",
    "options": {"epochs": 10},
    "space": {"lr": {"low": 1e-5, "high": 0.1, "log": True}, "depth": {"low": 1, "high": 8}},
    "objectives": {"value": "minimize"},
    "seed": 0,
}


# Identity -------------------------------------------------------------------------------------------------


def test_a_new_directory_becomes_the_campaigns_and_goes_on_being_it(tmp_path: Path) -> None:
    home = tmp_path / "runs" / "x"
    assert directory.check_identity(home, _IDENTITY) is None
    directory.write_identity(home, _IDENTITY)
    recorded = directory.check_identity(home, _IDENTITY)
    assert recorded == directory.read_identity(home)
    assert {key: recorded[key] for key in _IDENTITY} == _IDENTITY
    assert abs(recorded["created"] - time.time()) < 60
    assert os.listdir(home) == ["campaign.json"]


def test_tuples_and_another_seed_make_no_other_campaign(tmp_path: Path) -> None:
    directory.write_identity(tmp_path, {**_IDENTITY, "choices": ("a", "b")})
    directory.check_identity(tmp_path, {**_IDENTITY, "choices": ["a", "b"], "seed": 1})


def test_what_differs_is_listed(tmp_path: Path) -> None:
    directory.write_identity(tmp_path, _IDENTITY)
    changed = {
        **_IDENTITY,
        "task": "search_spaces.digits:other",
        "options": {},
        "space": {"lr": {"low": 1e-5, "high": 0.2, "log": 1}, "depth": {"low": 1, "high": 8}, "width": 3},
    }
    with pytest.raises(CampaignError) as caught:
        directory.check_identity(tmp_path, changed)
    text = str(caught.value)
    for sentence in (
        'task was "search_spaces.digits:task", is "search_spaces.digits:other"',
        "options.epochs is gone (it was 10)",
        "space.lr.high was 0.1, is 0.2",
        "space.lr.log was true, is 1",
        "space.width is new (3)",
    ):
        assert sentence in text
    assert "depth" not in text


def test_the_caller_may_say_what_differs(tmp_path: Path) -> None:
    directory.write_identity(tmp_path, _IDENTITY)
    with pytest.raises(CampaignError, match=r"another campaign: lr: high was 0.1, is 0\.2\. Undo"):
        directory.check_identity(tmp_path, _IDENTITY, compare=lambda was, now: ["lr: high was 0.1, is 0.2"])


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CampaignError, match=r"is not empty \(it holds 'thesis.tex'\)"):
        directory.check_identity(tmp_path, _IDENTITY)


def test_a_launch_that_died_before_its_identity_was_written_is_no_obstacle(tmp_path: Path) -> None:
    directory.acquire(tmp_path)
    (tmp_path / ".campaign.json.0123").touch()
    assert directory.check_identity(tmp_path, _IDENTITY) is None


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for action in (
        lambda: directory.check_identity(path, _IDENTITY),
        lambda: directory.write_identity(path, _IDENTITY),
        lambda: directory.acquire(path),
        lambda: directory.acquire(path / "below"),
    ):
        with pytest.raises(CampaignError, match="Name a directory that you may write"):
            action()
    with pytest.raises(CampaignError, match="holds no campaign"):
        directory.read_identity(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "not valid JSON"),
        ('{"version": 2}', "version 2; this hpo reads version 1"),
        ("[]", "version None"),
    ],
)
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, content: str, text: str) -> None:
    (tmp_path / "campaign.json").write_text(content)
    with pytest.raises(CampaignError, match=text):
        directory.check_identity(tmp_path, _IDENTITY)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write_identity(tmp_path, _IDENTITY)
    before = (tmp_path / "campaign.json").read_bytes()

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CampaignError, match="No space left on device"):
        directory.write_identity(tmp_path, {"task": "other"})
    assert (tmp_path / "campaign.json").read_bytes() == before
    assert os.listdir(tmp_path) == ["campaign.json"]


# Lock -----------------------------------------------------------------------------------------------------

_HOLD = (
    "import sys, pathlib\n"
    "from hpo.journal import directory\n"
    "lock = directory.acquire(pathlib.Path(sys.argv[1]))\n"
    "print('held', flush=True)\n"
    "sys.stdin.read()\n"
    "lock.release()\n"
)


def _hold(home: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def _edit(home: Path, **fields: object) -> None:
    lock = home / "lock"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), **fields}))


def _age(home: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(home / "lock", (then, then))


def test_a_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        held = directory.holder(tmp_path)
        assert held is not None
        assert held.pid == process.pid
        with pytest.raises(CampaignError, match=f"in use by process {process.pid} on {held.host} since "):
            directory.acquire(tmp_path)
        # However old the lock looks: its process is there.
        _age(tmp_path, 3600)
        with pytest.raises(CampaignError, match="in use by"):
            directory.acquire(tmp_path)
        process.communicate()
    assert directory.holder(tmp_path) is None
    directory.acquire(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_a_killed_holders_lock_is_taken_over(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        process.kill()
    assert (tmp_path / "lock").exists()
    assert directory.holder(tmp_path) is None
    lock = directory.acquire(tmp_path)
    assert directory.holder(tmp_path) == lock.holder
    assert lock.holder.pid == os.getpid()
    assert os.listdir(tmp_path) == ["lock"]


def test_a_killed_holder_that_nobody_has_waited_for_is_dead_too(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        directory.acquire(tmp_path)


def test_a_later_process_with_the_same_number_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = directory.acquire(tmp_path)
    assert lock.holder.process_started is not None
    _edit(tmp_path, process_started=lock.holder.process_started - 1)
    directory.acquire(tmp_path)


def test_a_lock_of_another_machine_counts_until_it_is_no_longer_refreshed(tmp_path: Path) -> None:
    directory.acquire(tmp_path)
    _edit(tmp_path, machine="elsewhere", host="n17", pid=1)
    _age(tmp_path, directory.STALE_S - 20)
    with pytest.raises(CampaignError, match="in use by process 1 on n17"):
        directory.acquire(tmp_path)
    _age(tmp_path, directory.STALE_S + 20)
    assert directory.holder(tmp_path) is None
    directory.acquire(tmp_path)


def test_refreshing_keeps_the_lock_young(tmp_path: Path) -> None:
    lock = directory.acquire(tmp_path)
    _age(tmp_path, 3600)
    lock.refresh()
    assert time.time() - (tmp_path / "lock").stat().st_mtime < directory.STALE_S


def test_who_was_thought_dead_learns_that_the_lock_is_lost(tmp_path: Path) -> None:
    first = directory.acquire(tmp_path)
    _edit(tmp_path, machine="elsewhere")
    _age(tmp_path, 3600)
    second = directory.acquire(tmp_path)
    with pytest.raises(CampaignError, match="was taken away by process"):
        first.refresh()
    first.release()
    second.refresh()
    second.release()
    with pytest.raises(CampaignError, match="was taken away while"):
        second.refresh()


def test_a_lock_that_is_being_written_is_held_but_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with pytest.raises(CampaignError, match="another campaign that has just started"):
        directory.acquire(tmp_path)
    _age(tmp_path, directory.STALE_S + 20)
    directory.acquire(tmp_path)


def test_who_died_while_taking_a_lock_over_is_no_obstacle(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        process.kill()
    lock = tmp_path / "lock"
    dead = lock.read_text()
    (tmp_path / f".lock.{json.loads(dead)['token']}").write_text(dead)
    directory.acquire(tmp_path)
    assert os.listdir(tmp_path) == ["lock"]


def test_a_lock_that_another_is_taking_over_is_left_to_it(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        process.kill()
    token = json.loads((tmp_path / "lock").read_text())["token"]
    (tmp_path / f".lock.{token}").touch()
    with pytest.raises(CampaignError, match="another campaign that has just started"):
        directory.acquire(tmp_path)


def test_of_many_that_find_a_dead_holders_lock_one_gets_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from hpo.journal import directory\n"
        "from hpo.errors import CampaignError\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    directory.acquire(pathlib.Path(sys.argv[1]))\n"
        "    print('held', flush=True)\n"
        "except CampaignError:\n"
        "    print('refused', flush=True)\n"
        "sys.stdin.read()\n"
    )
    for attempt in range(3):
        home = tmp_path / str(attempt)
        with _hold(home) as process:
            process.kill()
        rivals = [
            subprocess.Popen(
                [sys.executable, "-c", program, home],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(6)
        ]
        for rival in rivals:
            assert rival.stdout is not None
            assert rival.stdout.readline() == "ready\n"
        for rival in rivals:
            assert rival.stdin is not None
            rival.stdin.write("\n")
            rival.stdin.flush()
        words = [rival.stdout.readline().strip() for rival in rivals if rival.stdout is not None]
        for rival in rivals:
            rival.communicate()
        assert sorted(words) == ["held", *["refused"] * 5]
