"""Starts that would never end, and ranks that would outlive their mpirun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from terminal import wait_until

from hpo.cluster.hosts import Host
from hpo.cluster.mpirun import _hangs, _session, end_rest, wait
from hpo.cluster.mpirun_command import command, environment, find_mpirun

WAITS = """
import ctypes, signal
from hpo.cluster.mpirun import bounded

with bounded(1):
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter, as MPI_Init does
print("it went on")
"""


def test_a_wait_inside_a_library_ends_the_process_when_its_time_is_over() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGALRM and not done.stdout


def test_what_is_over_in_time_leaves_the_handler_as_it_was() -> None:
    code = (
        "import signal\nfrom hpo.cluster.mpirun import bounded\nsignal.signal(signal.SIGALRM, print)\n"
        "with bounded(50):\n    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL\n"
        "assert signal.getsignal(signal.SIGALRM) is print and signal.getitimer(signal.ITIMER_REAL)[0] == 0"
    )
    subprocess.run([sys.executable, "-c", code], timeout=30, check=True)


def test_what_is_left_of_a_session_ends_and_nothing_else() -> None:
    # A shell that leaves a process behind, as a killed mpirun does, in a process group of its own.
    line = "set -m; (trap '' HUP; exec sleep 60) & echo $!; read"
    mpirun = subprocess.Popen(
        ["bash", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert mpirun.stdin is not None and mpirun.stdout is not None
        rank = psutil.Process(int(mpirun.stdout.readline()))  # while the shell is there, and so is its child
        mpirun.stdin.close()
        mpirun.wait(10)
        rank.suspend()  # not earlier: at its end, a shell's stopped background processes get a SIGHUP from the kernel
        end_rest(mpirun.pid)
        assert rank.wait(10) is None  # no child of this process, so its code is not known
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)
        mpirun.stdout.close()


def start(ranks: list[float], then: str, here: int = 2) -> subprocess.Popen[bytes]:
    """What stands for mpirun: starts processes that end after so many seconds, waits for them and does ``then``.
    ``here``: how many ranks they are told to be on their host."""
    text = f"""
import os, subprocess, sys, time
variables = [{{"OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_LOCAL_SIZE": "{here}"}} for n in range(9)]
ranks = [
    subprocess.Popen(["sleep", str(seconds)], env=os.environ | one) for seconds, one in zip({ranks}, variables)
]
for one in ranks:
    one.wait()
{then}
"""
    return subprocess.Popen([sys.executable, "-c", text], start_new_session=True)


def size_of(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *ranks: float, total: int = 2, here: int = 2, begun: bool = True,
    then: str = "sys.exit(7)", rest_s: float = 0.6, **keywords: Any,
) -> int | None:  # fmt: skip
    """What ``wait`` returns of an mpirun as ``start`` makes it; nothing of its session is left then."""
    monkeypatch.setattr("hpo.cluster.mpirun._REST_S", rest_s)
    monkeypatch.setattr("hpo.cluster.mpirun._STAY_S", rest_s)
    if begun:
        (tmp_path / "begun").touch()
    mpirun = start([*ranks], then, here)
    try:
        code = wait(mpirun, total, partial(size_of, tmp_path / "begun"), **keywords)
        if code is None:
            assert mpirun.poll() == -signal.SIGKILL
            wait_until(lambda: not _session(mpirun.pid), "the end of its ranks", seconds=10)
        return code
    finally:
        end_rest(mpirun.pid)


CASES: dict[str, tuple[dict[str, Any], list[float], int | None]] = {
    "its ranks have gone": ({"then": "time.sleep(100)", "rest_s": 1.5}, [3, 3], None),
    "a rank is missing at the start": ({"begun": False}, [60], None),
    "a rank has gone": ({}, [2], 7),
    "other ranks are on other hosts": ({"here": 1, "begun": False, "rest_s": 0.1}, [2], 7),
    "its ranks have gone from this host": (
        {"here": 1, "rest_s": 0.1, "then": "time.sleep(1); sys.exit(7)"},
        [1],
        7,
    ),
    "it does not end in time": ({"kill_at": lambda: 0.0}, [100, 100], None),
    "the campaign has begun, its ranks hide": (
        {"unseen_s": 0.1, "then": "time.sleep(2); sys.exit(7)"},
        [],
        7,
    ),
    "no rank is seen for too long": ({"unseen_s": 0.1, "begun": False, "then": "time.sleep(9)"}, [], None),
}


@pytest.mark.parametrize("case", CASES)
def test_an_mpirun_is_waited_for_or_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    keywords, ranks, code = CASES[case]
    assert waited(tmp_path, monkeypatch, *ranks, **keywords) == code


def test_an_mpirun_that_waits_for_its_daemon_ends(tmp_path: Path) -> None:
    """The launch agent stands for an srun whose task was killed before it answered: it never returns."""
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec sleep 100\n")
    agent.chmod(0o700)
    line = command(
        find_mpirun(), "Open MPI 5", 2, ["true"], fleet=(Host("localhost", 1), Host("192.0.2.1", 1))
    )
    mpirun = subprocess.Popen(
        line,
        env=environment(os.environ) | {"PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": str(agent)},
        start_new_session=True,
    )
    try:
        wait_until(
            lambda: any(one.cmdline()[:1] == ["sleep"] for one in psutil.Process(mpirun.pid).children()),
            "the launch agent",
        )
        mpirun.terminate()  # which it ignores
        assert wait(mpirun, 2, lambda: None, unseen_s=1.0) is None
        assert mpirun.poll() == -signal.SIGKILL and _session(mpirun.pid) == []
    finally:
        end_rest(mpirun.pid)


@pytest.mark.parametrize(("stopped", "code"), [(True, None), (False, 7)])
def test_ranks_that_are_stopped_end_where_rank_0_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool, code: int | None
) -> None:
    """It was killed, so the campaign's end is on no record."""
    monkeypatch.setattr("hpo.cluster.mpirun._REST_S", 0.6)
    (tmp_path / "begun").touch()
    mpirun = start([2, 60 if stopped else 5], "sys.exit(7)")
    try:
        wait_until(lambda: len(_session(mpirun.pid)) == 3, "the start of its ranks")
        if stopped:
            max(psutil.Process(mpirun.pid).children(), key=lambda one: one.pid).suspend()
        assert wait(mpirun, 2, partial(size_of, tmp_path / "begun")) == code
    finally:
        end_rest(mpirun.pid)


def test_stopped_ranks_are_left_alone_while_ranks_of_other_hosts_may_run() -> None:
    rank = subprocess.Popen(["sleep", "60"])
    try:
        psutil.Process(rank.pid).suspend()
        wait_until(lambda: psutil.Process(rank.pid).status() == "stopped", "the stop")
        for alone in True, False:
            assert _hangs({0: -1, 1: rank.pid}, [rank.pid], all_here=alone, ended=lambda: False) is alone
    finally:
        rank.kill()
        rank.wait(10)


@pytest.mark.parametrize(("signs", "code"), [([1, 2, 2, 2], None), ([1, None], 7), (range(99), 7)], ids=str)
def test_an_mpirun_ends_whose_rank_0_shows_no_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signs: Sequence[int | None], code: int | None
) -> None:
    """It is on another host, and so is another rank; what cannot be seen for a while is no proof."""
    given = iter(signs)
    seconds = 100 if code is None else 5
    look = {"refreshed": lambda: next(given, None), "silent_s": 0.9}
    assert waited(tmp_path, monkeypatch, seconds, total=3, here=1, **look) == code


def test_a_launch_is_not_ended_for_storage_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank of two dies, as it may once all have met, while the file that says so cannot be seen."""

    def ended() -> bool:
        (tmp_path / "begun").unlink(missing_ok=True)
        return False

    assert waited(tmp_path, monkeypatch, 2, 6, ended=ended) == 7
    assert not (tmp_path / "begun").exists()


def test_an_mpirun_that_stays_after_the_end_of_the_campaign_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it waits for a host that has lost its power."""
    monkeypatch.setattr("hpo.cluster.mpirun._OVER_S", 1.0)
    answers = [False, True]

    def ended() -> bool:
        with (tmp_path / "begun").open("a") as journal:
            journal.write("and more")
        return answers.pop(0)

    assert waited(tmp_path, monkeypatch, 100, 100, ended=ended) is None
    assert not answers
