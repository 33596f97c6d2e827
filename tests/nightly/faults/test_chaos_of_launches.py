"""Four launches of two ranks on one campaign that are killed, stopped and woken at random."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from terminal import Command, Terminal

from hpo.ledger.opening import state_of

LAUNCHES, SECONDS = 4, 600.0
STOPPED_S = 180.0


def send(terminal: Terminal, number: int) -> None:
    """Send a signal to all processes of a launch."""
    for process in terminal.processes():
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass


@pytest.mark.timeout(SECONDS + 600)
def test_whatever_becomes_of_launches_the_budget_is_met_exactly(tmp_path: Path) -> None:
    terminals = [Terminal(tmp_path) for _ in range(LAUNCHES)]
    terminals[0].task(1.0)
    terminals[0].campaign(evaluations=100_000)
    running: list[Command | None] = [None] * LAUNCHES
    woken_at: dict[int, float] = {}
    rng, end = random.Random(1), time.monotonic() + SECONDS
    done: Counter[str] = Counter()
    while True:
        now = time.monotonic()
        for number, command in enumerate(running):
            if command is not None and command.process.poll() is not None and number not in woken_at:
                command.wait()
                done[f"ended with {command.process.returncode}"] += 1
                running[number] = command = None
            if number in woken_at and now >= woken_at[number]:
                del woken_at[number]
                send(terminals[number], signal.SIGCONT)
            if command is None and now < end:
                running[number] = terminals[number].start("run", "c.toml", "--ranks", 2, "--join")
        if now >= end and not woken_at:
            break
        if now < end and rng.random() < 0.04:
            number = rng.randrange(LAUNCHES)
            if number in woken_at:
                continue
            if rng.random() < 0.5:
                done["killed"] += 1
                terminals[number].kill()
            elif len(woken_at) < LAUNCHES - 1:
                done["stopped"] += 1
                woken_at[number] = now + rng.choice([2.0, 20.0, STOPPED_S])
                send(terminals[number], signal.SIGSTOP)
        time.sleep(1.0)
    terminals[0].hpo("stop", "run", returns=0)
    for command in running:
        if command is not None:
            command.wait(600)
    evaluations = len(terminals[0].records("finished"))
    terminals[0].campaign(evaluations=evaluations + 20)
    terminals[0].hpo("run", "c.toml", "--ranks", 2, seconds=300, returns=0)
    finished = [record["id"] for record in terminals[0].records("finished")]
    state = state_of(tmp_path / "run")
    print(done, f"{state.launches} launches, {state.entries} entries, {len(finished)} evaluations")
    assert len(finished) == len(set(finished)) == evaluations + 20 == state.final and not state.open
    assert len(done) >= 3 and {*finished} <= {*terminals[0].side()}
