"""Hosts: what is read of a file of them, which are left after deaths, which answer."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminal import Terminal

from hpo.campaign import supervisor
from hpo.campaign.supervisor import MpirunSettings, Supervisor
from hpo.cluster import hosts, mpirun_command
from hpo.cluster.hosts import Fleet, Host, check_room, crowded, left, read_hostfile, room, silent
from hpo.config import reader as config
from hpo.config.layout import Layout
from hpo.errors import UsageError

FOUR = tuple(Host(f"n{number}", 4) for number in range(4))


def test_ranks_shrink_to_what_the_living_have_room_for() -> None:
    assert left(FOUR, ["n1"], ranks=16, islands=2, ranks_per_worker=2) == Fleet(12, (FOUR[0], *FOUR[2:]))
    assert left(FOUR, [], ranks=16, islands=2, ranks_per_worker=2) == Fleet(16, FOUR)
    assert left(FOUR, ["n9"], ranks=16, islands=2, ranks_per_worker=2) == Fleet(16, FOUR)


def test_ranks_stay_whole_workers() -> None:
    fleet = left(FOUR, ["n0", "n1"], ranks=15, islands=1, ranks_per_worker=3)
    assert fleet is not None and fleet.ranks == 6


def test_each_island_keeps_a_worker_where_cores_have_to_be_shared() -> None:
    assert left(FOUR, ["n0", "n1", "n2"], ranks=16, islands=8, ranks_per_worker=2) == Fleet(16, (FOUR[3],))


def test_nobody_is_left() -> None:
    assert left(FOUR, ["n0", "n1", "n2", "n3"], ranks=16, islands=1, ranks_per_worker=1) is None


@given(
    slots=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    dead=st.sets(st.integers(0, 5)),
    islands=st.integers(1, 4),
    ranks_per_worker=st.integers(1, 4),
    extra=st.integers(0, 6),
)
def test_what_is_left_is_a_layout_that_can_be(
    slots: list[int], dead: set[int], islands: int, ranks_per_worker: int, extra: int
) -> None:
    hosts = tuple(Host(f"n{number}", count) for number, count in enumerate(slots))
    ranks = (islands + extra) * ranks_per_worker
    fleet = left(
        hosts,
        [f"n{number}" for number in dead],
        ranks=ranks,
        islands=islands,
        ranks_per_worker=ranks_per_worker,
    )
    if fleet is None:
        assert dead >= set(range(len(slots)))
        return
    assert fleet.ranks <= ranks
    Layout.plan(ranks=fleet.ranks, islands=islands, ranks_per_worker=ranks_per_worker)
    assert fleet.hosts is not None and not {host.name for host in fleet.hosts} & {f"n{one}" for one in dead}


def test_a_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two nodes\na slots=4\n\nb  # one\na\n")
    assert read_hostfile(path) == (Host("a", 5), Host("b", 1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none\n",
        "a slots=0\n",
        "a slot=4\n",
        "a 4\n",
        "a slots=4 x\n",
        "-x\n",
        f"a slots=1{'0' * 5000}\n",
    ],
)
def test_a_hostfile_that_is_wrong(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match="slots=4"):
        read_hostfile(path)


@pytest.mark.parametrize(
    ("listed", "environ", "expected"),
    [
        (FOUR, {}, (16, "slots in the hostfile")),
        (FOUR, {"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "4"}, (16, "slots in the hostfile")),
        (None, {"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "4(x3),2"}, (14, "tasks in this Slurm job")),
        (
            None,
            {"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_JOB_CPUS_PER_NODE": "72(x2)"},
            (144, "CPUs in this Slurm job"),
        ),
        (None, {"SLURM_JOB_ID": "1"}, (len(os.sched_getaffinity(0)), "cores on this host")),
        (None, {"SLURM_TASKS_PER_NODE": "4"}, (len(os.sched_getaffinity(0)), "cores on this host")),
    ],
)
def test_what_there_is_for_ranks_to_run_on(
    monkeypatch: pytest.MonkeyPatch,
    listed: tuple[Host, ...] | None,
    environ: dict[str, str],
    expected: tuple[int, str],
) -> None:
    monkeypatch.setattr("hpo.cluster.hosts.cpu_quota", lambda: math.inf)
    assert room(listed, environ) == expected


def test_a_quota_below_the_cores_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr("hpo.cluster.hosts.cpu_quota", lambda: 2.5)
    assert room(None, {}) == (2, "CPUs of this container's quota")


def test_more_than_four_ranks_for_each_are_refused() -> None:
    check_room(8, "islands = 8", (2, "cores on this host"), "Choose a smaller layout")
    assert crowded(8, (2, "cores on this host")) is None
    assert (
        crowded(9, (2, "cores on this host"))
        == "9 ranks are more than 4 for each of the 2 cores on this host"
    )
    with pytest.raises(UsageError) as caught:
        check_room(9, "islands = 9", (2, "cores on this host"), "Choose a smaller layout")
    assert str(caught.value) == (
        "islands = 9 need 9 ranks, and by itself hpo starts at most 4 for each of the 2 cores on this host. "
        "Choose a smaller layout"
    )


def test_hosts_are_asked_at_once(tmp_path: Path) -> None:
    """Each answers when all are being asked, and not before."""
    wait = "import pathlib, sys, time; here = pathlib.Path(sys.argv[1]); (here / sys.argv[2]).touch()\n"
    wait += "while len(list(here.iterdir())) < 3: time.sleep(0.01)\nsys.exit(sys.argv[2] == 'refuses')"

    def probe(name: str) -> list[str]:
        return [sys.executable, "-c", wait, str(tmp_path), name]

    assert silent(["localhost", "a", "refuses", "b"], probe, limit_s=100.0) == {"refuses"}


def test_hosts_that_hang_are_waited_for_together_and_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    now, killed = [0.0], []

    class Hanging:
        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return -9
            now[0] += timeout
            raise subprocess.TimeoutExpired("ssh", timeout)

        def kill(self) -> None:
            killed.append(self)

    monkeypatch.setattr(hosts, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(hosts, "_ask", lambda line: Hanging())
    assert silent(["a", "b", "c"], lambda name: [name], limit_s=2.0) == {"a", "b", "c"}
    assert now == [4.0] and len(killed) == 6, "asked twice"


def test_a_probe_that_cannot_be_started_is_no_answer() -> None:
    assert silent(["a"], lambda name: ["/nowhere/ssh", name]) == {"a"}


def test_a_host_that_is_slow_once_is_asked_again(tmp_path: Path) -> None:
    script = 'test -e "$0" || { touch "$0"; exec sleep 60; }'

    def probe(name: str) -> list[str]:
        return ["sh", "-c", script, str(tmp_path / name)]

    assert silent(["a"], probe, limit_s=1.0) == frozenset()


def test_other_names_and_addresses_of_this_host_are_not_silent() -> None:
    """mpirun starts ranks there without ssh; 192.0.2.1 is nowhere."""
    assert silent(["127.0.0.5", "192.0.2.1"], lambda name: ["false"]) == {"192.0.2.1"}


@pytest.mark.parametrize("began", [True, False])
def test_hosts_that_never_answered_and_had_ranks_are_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: bool
) -> None:
    """mpirun may reach them by another port, or another program."""
    listed = (Host("localhost", 1), Host("a", 1), Host("b", 1))
    settings = config.from_keywords(directory=tmp_path, evaluations=1)
    monkeypatch.setattr(supervisor, "version_of", lambda mpirun: "mpirun (Open MPI) 5.0.11")
    monkeypatch.setattr(supervisor, "_NETWORK_S", 0.0)
    monkeypatch.setattr(supervisor, "_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(hosts, "silent", lambda names, limit_s=0.0: frozenset("ab"))
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.run)
    supervised = Supervisor(["rank"], settings, 3, MpirunSettings(mpirun="mpirun", listed=listed))
    fleets = []

    def launched(number: int) -> tuple[int, bool]:
        supervised._begun = tmp_path / "begun"
        if began:
            supervised._begun.touch()
        fleets.append(supervised._fleet)
        return 75, len(fleets) < 2

    monkeypatch.setattr(supervised, "_launch", launched)
    assert supervised.run() == 75
    assert fleets[1].hosts == (listed if began else listed[:1])
    # Nor do those come back on which no rank began.
    supervised._fleet, supervised._unreachable, began = Fleet(1, listed[:1]), frozenset(), True
    fleets.clear()
    assert supervised.run() == 75
    assert fleets[1].hosts == listed[:1]


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        (["a b", "a b", ""], 3),  # the network was away
        (["a", ""], 1),  # a host has died
        (["a b", "b"], 2),
    ],
)
def test_hosts_of_which_none_answers_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], asked: int
) -> None:
    listed = (Host("localhost", 1), Host("a", 1), Host("b", 1))
    settings = config.from_keywords(directory=tmp_path, evaluations=1)
    monkeypatch.setattr(supervisor, "version_of", lambda mpirun: "mpirun (Open MPI) 5.0.11")
    supervised = Supervisor(["rank"], settings, 3, MpirunSettings(mpirun="mpirun", listed=listed))
    left = iter(answers)
    silences: list[frozenset[str]] = []

    def silent(names: list[str]) -> frozenset[str]:
        silences.append(frozenset(next(left).split()))
        return silences[-1]

    monkeypatch.setattr(hosts, "silent", silent)
    fleet = supervised._left()
    assert len(silences) == asked
    assert fleet is not None and fleet.hosts == tuple(one for one in listed if one.name not in silences[-1])


def test_hosts_that_stay_silent_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_NETWORK_S", 0.0)
    monkeypatch.setattr(supervisor, "version_of", lambda mpirun: "mpirun (Open MPI) 5.0.11")
    monkeypatch.setattr(hosts, "silent", frozenset)
    settings = config.from_keywords(directory=tmp_path, evaluations=1)
    assert (
        Supervisor(["rank"], settings, 1, MpirunSettings(mpirun="mpirun", listed=(Host("a", 1),)))._left()
        is None
    )


def test_mpirun_is_told_the_hosts() -> None:
    hosts = (Host("a", 4), Host("b", 2))
    line = mpirun_command.command("mpirun", "mpirun (Open MPI) 5.0.11", 6, ["x"], fleet=hosts)
    assert line[line.index("--host") + 1] == "a:4,b:2"
    line = mpirun_command.command("mpirun", "HYDRA build details", 6, ["x"], fleet=hosts)
    assert line[line.index("--host") + 1] == "a:4,b:2"
    line = mpirun_command.command("mpirun", "Some MPI 1.0", 6, ["x"], fleet=hosts)
    assert line[line.index("--host") + 1] == "a,b"


def test_a_campaign_runs_on_the_hosts_of_a_file(terminal: Terminal) -> None:
    terminal.task()
    terminal.campaign(evaluations=10)
    terminal.write("hosts", "localhost slots=2\n")
    done = terminal.hpo("run", "c.toml", "--ranks", 2, "--hostfile", "hosts")
    assert done.returncode == 0, done.stderr
    assert [record["workers"] for record in terminal.records("launched")] == [2]


def test_a_hostfile_that_is_not_there(terminal: Terminal) -> None:
    terminal.task()
    terminal.campaign(evaluations=10)
    done = terminal.hpo("run", "c.toml", "--ranks", 2, "--hostfile", "nowhere")
    assert done.returncode == 2
    assert "hostfile nowhere cannot be read" in done.stderr
