"""Campaigns on several hosts: what is rarer than in ranks/test_several_hosts.py."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from namespaces import Hosts
from terminal import Terminal, wait_until

from hpo.ledger.alive import STALE_S

SUMS = """
import hpo

def evaluate(trial):
    import torch
    import torch.distributed as dist

    total = torch.tensor([trial.rank + 1.0])
    dist.all_reduce(total)
    return trial.params["x"] * float(total)

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-1, 1)), evaluate)
"""


def test_hosts_that_do_not_know_each_other_s_names_need_the_interface(terminal: Terminal) -> None:
    terminal.write("task.py", SUMS)
    terminal.campaign("[layout]\nranks_per_worker = 2", evaluations=3)
    terminal.write("hosts", "n1\nn2\n")
    with Hosts(terminal, "n1", "n2", resolving=False) as hosts:
        refused = hosts.start("run", "c.toml", "--hostfile", "hosts").wait(60)
        assert refused.returncode == 1
        assert re.search("n[12] .* n[12].* interface = ", refused.stderr)
        text = '[layout]\nranks_per_worker = 2\n[evaluation]\ninterface = "eth0"'
        terminal.campaign(text, evaluations=3)
        done = hosts.start("run", "c.toml", "--hostfile", "hosts").wait(60)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("victim", ["n1", "n2"])
def test_a_host_was_dead_from_the_start(terminal: Terminal, victim: str) -> None:
    terminal.task(0.05)
    terminal.campaign(evaluations=20)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\n")
    with Hosts(terminal, "n1", "n2") as hosts:
        hosts.kill(victim)
        done = hosts.start("run", "c.toml", "--ranks", 4, "--hostfile", "hosts").wait(90)
        assert done.returncode == 0, done.stderr
        assert terminal.status()["evaluations"]["completed"] == 20


@pytest.mark.timeout(STALE_S + 300)
@pytest.mark.parametrize("stopped", [0, 2])
def test_a_rank_is_stopped_where_mpirun_does_not_see_it(terminal: Terminal, stopped: int) -> None:
    """It is rank 0; or that is killed, and the one that is stopped is on another host."""
    terminal.task(0.05)
    terminal.campaign('[evaluation]\ngrace = 2\nhang_timeout = "3 s"', evaluations=160)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\n")
    with Hosts(terminal, "n1", "n2") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 4, "--hostfile", "hosts")
        wait_until(lambda: len(terminal.side()) >= 60, "evaluations of all ranks")
        first, other = terminal.rank(0), terminal.rank(stopped)
        other.suspend()
        if stopped:
            first.kill()
        done = command.wait(STALE_S + 200)
        assert done.returncode == 0, done.stderr
        assert "starting again (1 of at most 10 times)" in done.stderr
        assert len(terminal.records("launched")) == 2
        records = terminal.records("finished")
        assert Counter(record["status"] for record in records) == {"completed": 160}
        assert len({record["id"] for record in records}) == 160
        wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=20)
