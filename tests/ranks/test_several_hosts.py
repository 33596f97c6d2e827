"""Campaigns on several hosts: workers that span them, and hosts that die."""

from __future__ import annotations

import time

import pytest
from cases import cases, nightly
from namespaces import Hosts
from terminal import Terminal, wait_until
from test_dead_ranks import TWO_RANKS, check_complete

from hpo.ledger.alive import STALE_S
from hpo.ledger.opening import state_of

SPANNING = """
import os, socket
import hpo, psutil

def evaluate(trial):
    import torch
    import torch.distributed as dist

    total = torch.tensor([trial.rank + 1.0])
    dist.all_reduce(total)
    mine = {one.laddr.ip.removeprefix("::ffff:") for one in psutil.Process().net_connections()}
    with open(f"side-{trial.rank}.txt", "a") as file:
        file.write(f"{trial.id} {socket.gethostname()} {','.join(sorted(mine))}\\n")
    return trial.params["x"] * float(total)

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-1, 1)), evaluate)
"""


@pytest.mark.parametrize("interface", cases(["ib0"], nightly=[None]))
def test_a_worker_spans_two_hosts(terminal: Terminal, interface: str | None) -> None:
    terminal.write("task.py", SPANNING)
    evaluation = "" if interface is None else f'[evaluation]\ninterface = "{interface}"\n'
    terminal.campaign(f"{evaluation}[layout]\nranks_per_worker = 2", evaluations=3)
    terminal.write("hosts", "n1 slots=1\nn2 slots=1\n")
    with Hosts(terminal, "n1", "n2", networks=("eth0", "ib0")) as hosts:
        hosts.start("run", "c.toml", "--hostfile", "hosts").wait(100, returns=0)
        for rank, name in enumerate(("n1", "n2")):
            side = (terminal.directory / f"side-{rank}.txt").read_text()
            found = [line.split()[1:] for line in side.splitlines()]
            assert found == [[name, hosts.address(name, interface or "eth0")]] * 3


@pytest.mark.parametrize(
    ("victim", "power"), cases([("n1", True)], nightly=[("n2", False), ("n1", False), ("n2", True)])
)
def test_a_host_dies(terminal: Terminal, victim: str, power: bool) -> None:
    """Rank 0 is on n1. Its sign of life is of another machine, and fresh."""
    terminal.task(0.05)
    terminal.campaign('evaluation.hang_timeout = "16 s"', evaluations=160)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\n")
    with Hosts(terminal, "n1", "n2") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 4, "--hostfile", "hosts")
        # By then all ranks have talked to each other. Later than that mpirun sends its daemons nothing: a connection
        # with something on its way is not probed, and lasts for a quarter of an hour.
        wait_until(lambda: len(terminal.side()) >= 60, "evaluations of all ranks")
        hosts.kill(victim, power=power)
        begun = time.monotonic()
        done = command.wait(90, returns=0)
        assert "starting again with 2 ranks on the hosts that are left (1 of at most 10 times)" in done.stderr
        assert time.monotonic() - begun < STALE_S
        check_complete(terminal, 160, victims=4)


@nightly
@pytest.mark.parametrize("victim", ["n2", "n1"])
def test_a_worker_spans_what_is_left(terminal: Terminal, victim: str) -> None:
    """Of two workers on three hosts each has a rank on n2."""
    terminal.write("task.py", TWO_RANKS)
    terminal.campaign("[layout]\nranks_per_worker = 3", evaluations=40)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\nn3 slots=2\n")
    with Hosts(terminal, "n1", "n2", "n3") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 6, "--hostfile", "hosts")
        wait_until(lambda: len(terminal.side()) >= 4, "a few evaluations")
        hosts.kill(victim)
        command.wait(90, returns=0)
        assert [record["workers"] for record in terminal.records("launched")] == [2, 1]
        check_complete(terminal, 40, victims=2)


ALONE = """
import fcntl, os, socket, time
import hpo

def note(name, *words):
    with open(name, "a") as file:
        file.write(" ".join(words) + "\\n")

def evaluate(trial):
    with open(trial.directory / "alone", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note("begun.txt", socket.gethostname(), trial.id)
        while not os.path.exists("go"):
            time.sleep(0.02)
        note("side.txt", trial.id)
    return trial.params["x"]

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-1, 1)), evaluate)
"""
"""Evaluations that last until a file ``go`` exists, and fail where another process is at work in their directory."""


@pytest.mark.parametrize(
    ("victim", "fault"),
    cases([("n2", "frozen")], nightly=[("n1", "frozen"), ("n1", "cut off"), ("n2", "cut off")]),
)
def test_a_host_falls_silent_and_its_processes_live(terminal: Terminal, victim: str, fault: str) -> None:
    """Rank 0 is on n1. The next launch evaluates what the victim may still be evaluating."""
    terminal.write("task.py", ALONE)
    terminal.campaign('evaluation.hang_timeout = "16 s"', evaluations=6)
    terminal.write("hosts", "n1 slots=1\nn2 slots=1\n")
    notes = terminal.directory / "begun.txt"

    def begun(host: str) -> set[str]:
        lines = map(str.split, notes.read_text().splitlines() if notes.exists() else [])
        return {identity for where, identity in lines if where == host}

    with Hosts(terminal, "n1", "n2") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 2, "--hostfile", "hosts")
        wait_until(lambda: begun("n1") and begun("n2"), "an evaluation on each host")
        under_way = begun(victim)
        hosts.freeze(victim) if fault == "frozen" else hosts.cut_off(victim)
        wait_until(lambda: terminal.launch_begun(2), "another launch")
        if fault == "frozen":
            hosts.wake(victim)
        (terminal.directory / "go").touch()
        command.wait(90, returns=0)
        closed = state_of(terminal.directory / "run").closed
        assert (closed[1].by, closed[1].in_place, closed[2].by) == (2, (), 2)
        assert under_way <= begun("n2" if victim == "n1" else "n1")
        # Not check_complete: rank 0 may begin more before it finds out, which does not count.
        finished = terminal.records("finished")
        assert [record["status"] for record in finished] == ["completed"] * 6
        assert len({record["id"] for record in finished}) == 6
        # A daemon of mpirun that has lost its network may stay.
        wait_until(lambda: not terminal.ranks(), "the end of all ranks")
