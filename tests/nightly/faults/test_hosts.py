from __future__ import annotations
import time
import pytest
from namespaces import Hosts
from terminal import Terminal, wait_until


def check(terminal, done, n):
    print(done.stderr, done.stdout)
    assert done.returncode == 0, done.stderr
    records = terminal.records("finished")
    assert len(records) == n and len({r["id"] for r in records}) == n


@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["n1", "n2"])
@pytest.mark.parametrize("how", ["power", "cut"])
def test_power(terminal: Terminal, victim: str, how) -> None:
    terminal.task(0.05)
    terminal.campaign("", evaluations=60)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\n")
    with Hosts(terminal, "n1", "n2") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 4, "--hostfile", "hosts")
        wait_until(lambda: len(terminal.side()) >= 5, "a few evaluations")
        hosts.cut(victim)
        if how == "power":
            hosts.kill(victim)
        t = time.time()
        done = command.wait(200)
        print(time.time() - t)
        check(terminal, done, 60)

THREE = """
import hpo
def evaluate(trial):
    import torch, time
    import torch.distributed as dist
    time.sleep(0.1)
    total = torch.tensor([trial.rank + 1.0])
    dist.all_reduce(total)
    return trial.params["x"] * float(total)

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-1, 1)), evaluate)
"""

@pytest.mark.parametrize("victim", ["n1", "n2", "n3"])
def test_three(terminal: Terminal, victim) -> None:
    terminal.write("task.py", THREE)
    terminal.campaign("[layout]\nranks_per_worker = 3", evaluations=40)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\nn3 slots=2")
    with Hosts(terminal, "n1", "n2", "n3") as hosts:
        command = hosts.start("run", "c.toml", "--ranks", 6, "--hostfile", "hosts")
        wait_until(lambda: len(terminal.records("finished")) >= 5, "a few evaluations")
        hosts.kill(victim)
        t = time.time()
        done = command.wait(110)
        print(time.time() - t)
        check(terminal, done, 40)

def test_dead_at_start(terminal: Terminal) -> None:
    terminal.task(0.05)
    terminal.campaign("", evaluations=60)
    terminal.write("hosts", "n1 slots=2\nn2 slots=2\n")
    with Hosts(terminal, "n1", "n2") as hosts:
        hosts.kill("n1")
        t = time.time()
        done = hosts.start("run", "c.toml", "--ranks", 4, "--hostfile", "hosts").wait(100)
        print(time.time() - t)
        check(terminal, done, 60)

@pytest.mark.parametrize("interface", [None, "eth0"])
def test_unresolved(terminal: Terminal, interface: str | None) -> None:
    terminal.write("task.py", THREE)
    evaluation = "" if interface is None else f'[evaluation]\ninterface = "{interface}"\n'
    terminal.campaign(f"{evaluation}[layout]\nranks_per_worker = 2", evaluations=3)
    terminal.write("hosts", "n1 slots=1\nn2 slots=1\n")
    with Hosts(terminal, "n1", "n2", resolving=False) as hosts:
        done = hosts.start("run", "c.toml", "--hostfile", "hosts").wait(100)
        check(terminal, done, 3)
