"""Campaigns on several hosts: workers that span them, and hosts that die."""

from __future__ import annotations

import time

import pytest
from namespaces import Hosts
from terminal import Terminal, wait_until
from test_dead_ranks import check_complete

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


@pytest.mark.parametrize("interface", [None, "ib0"])
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


@pytest.mark.parametrize("victim", ["n1", "n2"])
def test_a_host_dies(terminal: Terminal, victim: str) -> None:
    """Rank 0 is on n1."""
    terminal.task(0.05)
    terminal.campaign("", evaluations=60)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\n")
    with Hosts(terminal, "n1", "n2") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 4, "--hostfile", "hosts")
        wait_until(lambda: len(terminal.side()) >= 5, "a few evaluations")
        hosts.kill(victim)
        begun = time.monotonic()
        done = command.wait(90)
        assert done.returncode == 0, done.stderr
        assert "starting again with 2 ranks on the hosts that are left (1 of at most 10 times)" in done.stderr
        assert time.monotonic() - begun < STALE_S
        check_complete(terminal, 60, victims=4)
