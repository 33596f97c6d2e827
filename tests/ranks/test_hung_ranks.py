"""Ranks that hang, which MPI does not see: the others complete the budget, and the command ends with 0."""

from __future__ import annotations

import psutil
import pytest
from cases import cases
from terminal import Terminal, wait_until
from test_dead_ranks import check_complete

SAVES = """
import time
import hpo
from task import note

def evaluate(trial):
    (trial.directory / "found").touch()
    time.sleep(0.2)
    note(trial.id, "ended")
    return trial.params["x"] ** 2

task = hpo.Task(hpo.SearchSpace(x=hpo.Float(-5, 5)), evaluate)
"""


def stop_at_work(terminal: Terminal, rank: int) -> psutil.Process:
    """Stop a rank, the leader of a worker of one rank, while it has something on record that has not ended."""
    hung = terminal.rank(rank)

    def stopped() -> bool:
        hung.suspend()
        begun = [record["id"] for record in terminal.records("started") if record["worker"] == rank]
        ended = {record["id"] for record in terminal.records("finished")}
        if begun and begun[-1] not in ended:
            return True
        hung.resume()
        return False

    wait_until(stopped, "an evaluation of that rank", pause_s=0.05)
    return hung


@pytest.mark.parametrize(
    ("isolation", "wakes"), cases([("warm", False)], nightly=[("warm", True), ("inline", False)])
)
def test_the_others_complete_the_budget(terminal: Terminal, isolation: str, wakes: bool) -> None:
    """One that wakes up, while the others are at work, ends by itself."""
    budget = 160 if wakes else 80
    terminal.task()
    terminal.write("saves.py", SAVES)
    terminal.campaign(
        f'keep = 1000\n[evaluation]\nisolation = "{isolation}"\nhang_timeout = "3 s"',
        evaluations=budget,
        task="saves.py:task",
    )
    command = terminal.start("run", "c.toml", "--ranks", 4)
    wait_until(lambda: len(terminal.side()) >= 8, "a few evaluations")
    copies = (terminal.directory / "run" / "evaluations").glob
    if isolation == "warm":
        hung = stop_at_work(terminal, 2)
    else:
        terminal.rank(2).suspend()
    if wakes:
        wait_until(lambda: [*copies("*.attempt-2")], "another attempt")
        hung.resume()
        wait_until(lambda: not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE, "its own end")
        assert len(terminal.side()) < budget, "it ended before the others"
    done = command.wait(110, returns=0)
    assert "rank 2 hangs" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len(terminal.records("launched")) == 1
    # Inline an evaluation is on record only with its end, and the rank may have been stopped before that.
    check_complete(terminal, budget, victims=1, unrecorded=int(isolation == "inline"))
    if isolation == "warm":
        (copy,) = copies("*.attempt-2")
        assert copy.name.startswith("0-2-")


@pytest.mark.parametrize("stopped", cases([0], nightly=[2]))
def test_without_rank_0_it_is_started_again(terminal: Terminal, stopped: int) -> None:
    """It is stopped; or it is killed, and another rank is stopped."""
    terminal.task(0.1)
    terminal.campaign('[evaluation]\ngrace = 2\nhang_timeout = "3 s"', evaluations=150)
    command = terminal.start("run", "c.toml", "--ranks", 3)
    wait_until(lambda: len(terminal.side()) >= 8, "a few evaluations")
    first, other = terminal.rank(0), terminal.rank(stopped)
    other.suspend()
    if stopped:
        first.kill()
    done = command.wait(110, returns=0)
    assert "starting again (1 of at most 10 times)" in done.stderr
    assert len(terminal.records("launched")) == 2
    check_complete(terminal, 150, victims=3)
