"""Ranks that die while a campaign runs: it goes on without them, or is started again, and the budget is met."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from cases import cases
from terminal import Terminal, wait_until

from hpo.config.process import DEADLINE

TWO_RANKS = """
import os, time
import hpo

space = hpo.SearchSpace(x=hpo.Float(-5, 5), y=hpo.Float(-5, 5))

def evaluate(trial):
    import torch
    import torch.distributed as dist

    for _ in range(4):
        time.sleep(0.02)
        dist.all_reduce(torch.ones(1))
    if trial.rank == 0:
        with open("side.txt", "a") as file:
            file.write(f"{trial.id} ended\\n")
    return trial.params["x"] ** 2 + trial.params["y"] ** 2

task = hpo.Task(space, evaluate)
"""


def check_complete(terminal: Terminal, evaluations: int, *, victims: int, unrecorded: int = 0) -> None:
    """The budget exactly, each individual once; done twice only what was running when somebody died. ``unrecorded``:
    evaluations at most that a rank did and that reached no journal.
    """
    records = terminal.records("finished")
    assert Counter(record["status"] for record in records) == {"completed": evaluations}
    assert len({record["id"] for record in records}) == evaluations
    assert len({str(record["params"]) for record in records}) == evaluations
    side = Counter(terminal.side())
    recorded = {record["id"] for record in records}
    assert recorded <= set(side) and len(set(side) - recorded) <= unrecorded
    assert sum(side.values()) - len(side) <= victims
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=20)


def kill(terminal: Terminal, *ranks: int) -> None:
    found = terminal.ranks()
    for rank in ranks:
        found[rank].kill()


@pytest.mark.parametrize("victims", cases([[1, 3]], nightly=[[2]]), ids=str)
def test_the_others_go_on_in_the_same_launch(terminal: Terminal, victims: list[int]) -> None:
    terminal.task(0.05)
    terminal.campaign("[layout]\nislands = 2", evaluations=80)
    command = terminal.start("run", "c.toml", "--ranks", 4)
    wait_until(lambda: len(terminal.side()) >= 10, "a few evaluations")
    kill(terminal, *victims)
    done = command.wait(120, returns=0)
    assert "Traceback" not in done.stderr and "starting again" not in done.stderr, done.stderr
    assert len(terminal.records("launched")) == 1
    check_complete(terminal, 80, victims=len(victims))
    # Nothing of what a dead one had begun is left to the next launch.
    assert terminal.status()["running"] == 0


def test_an_individual_runs_again_soon_after_its_rank_died(terminal: Terminal) -> None:
    terminal.task(0.4)
    terminal.campaign(evaluations=20)
    command = terminal.start("run", "c.toml", "--ranks", 3)
    wait_until(lambda: len(terminal.side()) >= 3, "a few evaluations")
    victim = terminal.rank(2)

    def at_work() -> bool:
        """In the first quarter of an evaluation: one that has ended but is not on record yet would be over before
        its rank is killed."""
        own = [record for record in terminal.records("started") if record["worker"] == 2]
        return bool(own) and time.time() - own[-1]["time"] < 0.1

    wait_until(at_work, "the third worker's next evaluation")
    victim.kill()
    died = time.time()
    assert command.wait(120).returncode == 0
    check_complete(terminal, 20, victims=1)
    begun = [record for record in terminal.records("started") if record["time"] > died and record["retries"]]
    assert len(begun) == 1
    # At once, but for the evaluation that the next worker is at.
    print(f"running again {begun[0]['time'] - died:.2f} s after its rank died")
    assert begun[0]["time"] - died < 15


@pytest.mark.parametrize(
    ("ranks", "victims"), cases([(6, [2, 5])], nightly=[(8, [2]), (8, [3]), (8, [5, 6])]), ids=str
)
def test_a_worker_that_lost_a_rank_hands_on_what_it_had_begun(
    terminal: Terminal, ranks: int, victims: list[int]
) -> None:
    terminal.write("task.py", TWO_RANKS)
    terminal.campaign("[layout]\nislands = 2\nranks_per_worker = 2", evaluations=60)
    command = terminal.start("run", "c.toml", "--ranks", ranks)
    wait_until(lambda: len(terminal.side()) >= 4, "a few evaluations", seconds=60)
    kill(terminal, *victims)
    command.wait(120, returns=0)
    assert len(terminal.records("launched")) == 1
    check_complete(terminal, 60, victims=len(victims))


def test_without_rank_0_it_is_started_again_with_its_deadline_from_the_first_start(
    terminal: Terminal,
) -> None:
    terminal.task(0.05)
    terminal.campaign('deadline = "10 min"\n[evaluation]\ngrace = 5', evaluations=90)
    begun = time.time()
    command = terminal.start("run", "c.toml", "--ranks", 3)
    wait_until(lambda: len(terminal.side()) >= 10, "a few evaluations")
    kill(terminal, 0)
    wait_until(lambda: terminal.launch_begun(2), "the second start")
    deadline = float(terminal.rank(0).environ()[DEADLINE])
    done = command.wait(120, returns=0)
    assert "starting again (1 of at most 10 times)" in done.stderr
    first, second = terminal.records("launched")
    # From the first start, which on a busy machine may have come to nothing before the first launch on record.
    assert begun <= deadline - 600 <= first["time"] < second["time"]
    check_complete(terminal, 90, victims=3)


def test_a_rank_that_dies_while_mpi_starts_costs_one_launch(terminal: Terminal) -> None:
    terminal.task(0.01)
    terminal.campaign(evaluations=20)
    command = terminal.start("run", "c.toml", "--ranks", 4)
    # As soon as there are all: they import for longer than it takes to find them, and wait for each other then.
    wait_until(lambda: len(terminal.ranks()) == 4, "all ranks")
    kill(terminal, 2)
    done = command.wait(90, returns=0)
    assert "starting again (1 of" in done.stderr, done.stderr
    check_complete(terminal, 20, victims=0)
