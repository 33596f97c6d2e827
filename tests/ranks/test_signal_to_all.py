"""SIGTERM to all processes of a campaign at once, as Slurm and systemd end a job."""

from __future__ import annotations

import signal
from collections import Counter

import psutil
from terminal import Terminal, wait_until

HELPED = """
import multiprocessing, os, time
import hpo
from task import note

HELPERS = []


def evaluate(trial):
    '''Fails when its helper process dies, as a data loader does; notices that before it looks whether to stop.'''
    if not HELPERS:
        HELPERS.append(multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True))
        HELPERS[0].start()
    note(trial.id, "began")
    for _ in range(50):
        time.sleep(0.01)
        if not HELPERS[0].is_alive():
            raise RuntimeError("the helper died")
        if trial.should_checkpoint():
            raise hpo.Interrupted
    note(trial.id, "ended")
    return 0.0


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""


def test_what_fails_because_all_were_signalled_is_evaluated_again(terminal: Terminal) -> None:
    terminal.task()
    terminal.write("helped.py", HELPED)
    terminal.campaign("[layout]\nislands = 2\n", evaluations=12, task="helped.py:task")
    command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(lambda: len(terminal.side("ended")) >= 2, "evaluations that end")
    for process in terminal.processes():
        try:
            process.send_signal(signal.SIGTERM)
        except psutil.NoSuchProcess:
            pass
    command.wait(returns=75)
    assert terminal.processes() == []
    assert terminal.records("ended")[-1]["exit"] == 75  # in good order, although mpirun was signalled too
    assert terminal.hpo("run", "c.toml", "--ranks", 2).returncode == 0
    final = [record for record in terminal.records("finished") if record["status"] != "interrupted"]
    assert Counter(record["status"] for record in final) == {"completed": 12}
    assert len({record["id"] for record in final}) == 12
