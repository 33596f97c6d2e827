"""One launch at a time works in a directory: the lock is refused, kept young, taken over from the dead, and lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpo.errors import CampaignError, LockLost
from hpo.journal.lock import STALE_S, acquire, holder, last_refresh

_HOLD = (
    "import sys, pathlib\n"
    "from hpo.journal.lock import acquire\n"
    "lock = acquire(pathlib.Path(sys.argv[1]))\n"
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
        held = holder(tmp_path)
        assert held is not None
        assert held.pid == process.pid
        with pytest.raises(CampaignError, match=f"in use by process {process.pid} on {held.host} since "):
            acquire(tmp_path)
        # However old the lock looks: its process is there.
        _age(tmp_path, 3600)
        with pytest.raises(CampaignError, match="in use by"):
            acquire(tmp_path)
        process.communicate()
    assert holder(tmp_path) is None
    acquire(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_a_killed_holders_lock_is_taken_over(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (tmp_path / "lock").exists() and holder(tmp_path) is None, "a zombie is dead too"
    lock = acquire(tmp_path)
    assert holder(tmp_path) == lock.holder
    assert lock.holder.pid == os.getpid()
    assert os.listdir(tmp_path) == ["lock"]


def test_a_later_process_with_the_same_number_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = acquire(tmp_path)
    assert lock.holder.process_started is not None
    _edit(tmp_path, process_started=lock.holder.process_started - 1)
    acquire(tmp_path)


def test_who_was_thought_dead_learns_that_the_lock_is_lost(tmp_path: Path) -> None:
    first = acquire(tmp_path)
    _edit(tmp_path, machine="elsewhere")
    _age(tmp_path, 3600)
    second = acquire(tmp_path)
    first.refresh()
    with pytest.raises(LockLost, match="was taken away by process"):
        first.check()
    first.release()
    second.refresh()
    second.check()
    assert holder(tmp_path) == second.holder


def test_a_lock_that_is_being_written_is_held_but_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with pytest.raises(CampaignError, match="another campaign that has just started"):
        acquire(tmp_path)
    _age(tmp_path, STALE_S + 20)
    acquire(tmp_path)


def test_who_died_while_taking_a_lock_over_is_no_obstacle(tmp_path: Path) -> None:
    with _hold(tmp_path) as process:
        process.kill()
    lock = tmp_path / "lock"
    dead = lock.read_text()
    (tmp_path / f".lock.{json.loads(dead)['token']}").write_text(dead)
    acquire(tmp_path)
    assert os.listdir(tmp_path) == ["lock"]


def test_of_many_that_find_a_dead_holders_lock_one_gets_it(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from hpo.journal.lock import acquire\n"
        "from hpo.errors import CampaignError\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    acquire(pathlib.Path(sys.argv[1]))\n"
        "    print('held', flush=True)\n"
        "except CampaignError:\n"
        "    print('refused', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with _hold(tmp_path) as process:
        process.kill()
    command = [sys.executable, "-c", program, tmp_path]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    rivals: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(5)]
    for rival in rivals:
        assert rival.stdout.readline() == "ready\n"
    for rival in rivals:
        rival.stdin.write("\n")
        rival.stdin.flush()
    words = [rival.stdout.readline().strip() for rival in rivals]
    for rival in rivals:
        rival.communicate()
    assert sorted(words) == ["held", *["refused"] * 4]


def test_a_refresh_can_be_seen(tmp_path: Path) -> None:
    assert last_refresh(tmp_path) == 0
    lock = acquire(tmp_path)
    _age(tmp_path, 60)
    before = last_refresh(tmp_path)
    lock.refresh()
    after = last_refresh(tmp_path)
    assert before is not None and after is not None and after > before > 0
    assert last_refresh(tmp_path / "lock") is None, "as where storage fails"
