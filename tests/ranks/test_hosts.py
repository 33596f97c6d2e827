"""Hosts: what is read of a file of them, which are left after deaths, which answer."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
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
    assert left(FOUR, ["n1"], ranks=16, sizes=[2] * 2) == Fleet(12, (FOUR[0], *FOUR[2:]))
    assert left(FOUR, ["n9"], ranks=16, sizes=[2] * 2) == Fleet(16, FOUR)
    # Each island keeps a worker, where cores have to be shared.
    assert left(FOUR, ["n0", "n1", "n2"], ranks=16, sizes=[2] * 8) == Fleet(16, (FOUR[3],))


@given(
    slots=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    dead=st.sets(st.integers(0, 5)),
    sizes=st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=4),
    extra=st.integers(0, 6),
)
def test_what_is_left_is_a_layout_that_can_be(
    slots: list[int], dead: set[int], sizes: list[int], extra: int
) -> None:
    hosts = tuple(Host(f"n{number}", count) for number, count in enumerate(slots))
    ranks = sum(sizes) + extra * min(sizes)
    fleet = left(
        hosts,
        [f"n{number}" for number in dead],
        ranks=ranks,
        sizes=sizes,
    )
    if fleet is None:
        assert dead >= set(range(len(slots)))
        return
    assert fleet.ranks <= ranks
    Layout.plan(ranks=fleet.ranks, sizes=sizes)
    assert fleet.hosts is not None and not {host.name for host in fleet.hosts} & {f"n{one}" for one in dead}


def test_a_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# two nodes\na slots=4\n\nb  # one\na\n")
    assert read_hostfile(path) == (Host("a", 5), Host("b", 1))


def test_a_hostfile_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    texts = [
        "",
        "# none\n",
        "a slots=0\n",
        "a slot=4\n",
        "a 4\n",
        "a slots=4 x\n",
        "-x\n",
        f"a slots=1{'0' * 5000}\n",
    ]
    for text in texts:
        path.write_text(text)
        with pytest.raises(UsageError, match="slots=4"):
            read_hostfile(path)
    with pytest.raises(UsageError, match="nowhere"):
        read_hostfile(tmp_path / "nowhere")
    path.write_text("a\n", encoding="utf-16")
    with pytest.raises(UsageError, match="it is not text"):
        read_hostfile(path)


IN_SLURM = {"SLURM_JOB_ID": "1", "SLURM_TASKS_PER_NODE": "4(x3),2"}
CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("listed", "environ", "expected"),
    [
        (FOUR, IN_SLURM, (16, "slots in the hostfile")),
        (None, IN_SLURM, (14, "tasks in this Slurm job")),
        (None, {**IN_SLURM, "SLURM_JOB_CPUS_PER_NODE": "72(x2)"}, (144, "CPUs in this Slurm job")),
        (None, {"SLURM_JOB_ID": "1"}, (CORES, "cores on this host")),
        (None, {"SLURM_TASKS_PER_NODE": "4"}, (CORES, "cores on this host")),
    ],
)
def test_what_there_is_for_ranks_to_run_on(
    monkeypatch: pytest.MonkeyPatch,
    listed: tuple[Host, ...] | None,
    environ: dict[str, str],
    expected: tuple[int, str],
) -> None:
    monkeypatch.setattr(hosts, "cpu_quota", lambda: math.inf)
    assert room(listed, environ) == expected


def test_a_quota_below_the_cores_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8))
    monkeypatch.setattr(hosts, "cpu_quota", lambda: 2.5)
    assert room(None, {}) == (2, "CPUs of this container's quota")


def test_more_than_four_ranks_for_each_are_refused() -> None:
    check_room(8, "islands = 8", (2, "cores on this host"), "Choose a smaller layout")
    assert crowded(8, (2, "cores on this host")) is None
    need, room, remedy = "islands = 9", (2, "cores on this host"), "Choose a smaller layout"
    refused(lambda: check_room(9, need, room, remedy), f"{need}: 9 ranks", "2 cores on this host", remedy)


def probe_by(
    monkeypatch: pytest.MonkeyPatch, probe: Callable[[str], list[str]], limit_s: float = 100.0
) -> None:
    """Have ``probe`` stand for ssh."""
    monkeypatch.setattr(hosts, "_probe", lambda name, agent: probe(name))
    monkeypatch.setattr(hosts, "_PROBE_S", limit_s)
    monkeypatch.setattr("shutil.which", lambda name: name)


def test_hosts_are_asked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answers when all are being asked, and not before."""
    wait = "import pathlib, sys, time; here = pathlib.Path(sys.argv[1]); (here / sys.argv[2]).touch()\n"
    wait += "while len(list(here.iterdir())) < 3: time.sleep(0.01)\nsys.exit(sys.argv[2] == 'refuses')"
    probe_by(monkeypatch, lambda name: [sys.executable, "-c", wait, str(tmp_path), name])
    assert silent(["localhost", "a", "refuses", "b"]) == {"refuses"}


def test_a_host_that_is_slow_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'test -e "$0" && [ $1 != dead ] || { touch "$0"; exec sleep 60; }'
    probe_by(monkeypatch, lambda name: ["sh", "-c", script, str(tmp_path / name), name], limit_s=1.0)
    assert silent(["a", "dead"]) == {"dead"}


def test_other_names_and_addresses_of_this_host_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun starts ranks there without ssh; 192.0.2.1 is nowhere."""
    probe_by(monkeypatch, lambda name: ["false"])
    assert silent(["127.0.0.5", "192.0.2.1"]) == {"192.0.2.1"}


@pytest.mark.parametrize(
    ("answers", "asked", "limit_s"),
    [
        (["a b", "a b", ""], 3, 100.0),  # the network was away
        (["a", ""], 1, 100.0),  # a host has died
        (["a b", "b"], 2, 100.0),
        (["a b", "a"], 1, 0.0),  # all have died
    ],
)
def test_hosts_of_which_none_answers_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], asked: int, limit_s: float
) -> None:
    listed = (Host("localhost", 1), Host("a", 1), Host("b", 1))
    settings = config.from_keywords(directory=tmp_path, evaluations=1)
    monkeypatch.setattr(supervisor, "_NETWORK_S", limit_s)
    monkeypatch.setattr(supervisor, "version_of", lambda mpirun: "mpirun (Open MPI) 5.0.11")
    supervised = Supervisor(["rank"], settings, 3, MpirunSettings(mpirun="mpirun", listed=listed))
    assert supervised._crowded is None
    supervised._fleet = Fleet(13, listed)
    assert "13 ranks are more than 4 for each of the 3 slots" in str(supervised._crowded)
    answered = iter(answers)
    silences: list[frozenset[str]] = []

    def silent(names: list[str], limit_s: float = 0.0, agent: str | None = None) -> frozenset[str]:
        silences.append(frozenset(next(answered).split()))
        return silences[-1]

    monkeypatch.setattr(hosts, "silent", silent)
    fleet = supervised._remaining_fleet()
    assert len(silences) == asked
    assert fleet is not None and fleet.hosts == tuple(one for one in listed if one.name not in silences[-1])
    # Ranks have started on hosts that do not answer: mpirun reaches them in another way.
    supervised._unreachable, answered = frozenset("ab"), iter(["a b"])
    fleet = supervised._remaining_fleet()
    assert fleet is not None and fleet.hosts == listed


@pytest.mark.parametrize(
    ("version", "hosts"),
    [("mpirun (Open MPI) 5.0.11", "a:4,b:2"), ("HYDRA build details", "a:4,b:2"), ("Some MPI 1.0", "a,b")],
)
def test_mpirun_gets_the_hosts(version: str, hosts: str) -> None:
    line = mpirun_command.command("mpirun", version, 6, ["x"], fleet=(Host("a", 4), Host("b", 2)))
    assert line[line.index("--host") + 1] == hosts


def test_a_campaign_runs_on_the_hosts_of_a_file(terminal: Terminal) -> None:
    terminal.task()
    terminal.campaign(evaluations=10)
    terminal.write("hosts", "localhost slots=2\n")
    terminal.hpo("run", "c.toml", "--ranks", 2, "--hostfile", "hosts", returns=0)
    assert [record["workers"] for record in terminal.records("launched")] == [2]
