"""Campaigns on several hosts: workers that span them, and hosts that die."""

from __future__ import annotations

import time

import pytest
from cases import cases
from namespaces import Hosts
from terminal import Terminal, wait_until
from test_dead_ranks import TWO_RANKS, check_complete

from hpo.journal.lock import STALE_S

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
        done = hosts.start("run", "c.toml", "--hostfile", "hosts").wait(100)
        assert done.returncode == 0, done.stderr
        for rank, name in enumerate(("n1", "n2")):
            side = (terminal.directory / f"side-{rank}.txt").read_text()
            found = [line.split()[1:] for line in side.splitlines()]
            assert found == [[name, hosts.address(name, interface or "eth0")]] * 3


@pytest.mark.parametrize(
    ("victim", "power"), cases([("n1", True), ("n2", False)], nightly=[("n1", False), ("n2", True)])
)
def test_a_host_dies(terminal: Terminal, victim: str, power: bool) -> None:
    """Rank 0 is on n1. The lock names a process of another machine that was alive a moment ago."""
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
        done = command.wait(90)
        assert done.returncode == 0, done.stderr
        assert "starting again with 2 ranks on the hosts that are left (1 of at most 10 times)" in done.stderr
        assert time.monotonic() - begun < STALE_S
        check_complete(terminal, 160, victims=4)


@pytest.mark.parametrize("victim", cases(["n2"], nightly=["n1", "n3"]))
def test_a_worker_spans_what_is_left(terminal: Terminal, victim: str) -> None:
    """Of two workers on three hosts each has a rank on n2."""
    terminal.write("task.py", TWO_RANKS)
    terminal.campaign("[layout]\nranks_per_worker = 3", evaluations=40)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\nn3 slots=2\n")
    with Hosts(terminal, "n1", "n2", "n3") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 6, "--hostfile", "hosts")
        wait_until(lambda: len(terminal.side()) >= 4, "a few evaluations")
        hosts.kill(victim)
        done = command.wait(90)
        assert done.returncode == 0, done.stderr
        assert [record["workers"] for record in terminal.records("launched")] == [2, 1]
        check_complete(terminal, 40, victims=2)
