"""Signals, ``hpo stop``, hang-ups and deadlines: a campaign that is stopped says so, loses nothing and goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from itertools import product

import psutil
import pytest
from cases import cases, nightly
from screens import Person
from terminal import HPO, Command, Terminal, wait_until

GO_ON = "Give the same command again to go on."

CALM = """
import os, time
import hpo
from task import note


def evaluate(trial):
    '''Hears that it should stop, and goes on nevertheless.'''
    note(trial.id, "began")
    heard = False
    for _ in range(6_000):
        if not heard and trial.should_checkpoint():
            heard = True
            note(trial.id, "heard")
        time.sleep(0.01)
    return 0.0


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), evaluate)
"""
"""Evaluations of a minute."""


def stopped(terminal: Terminal, command: Command, *words: str, within_s: float = 20.0) -> float:
    """Checks that the campaign ends as a stopped one that has said ``words``; returns the seconds that it took."""
    begun = time.monotonic()
    done = command.wait(60)
    seconds = time.monotonic() - begun
    assert done.returncode == 75, done.stderr
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert done.stderr.rstrip().endswith(GO_ON), done.stderr
    assert seconds < within_s
    assert terminal.processes() == []
    assert terminal.records("ended")[-1]["exit"] == 75
    return seconds


def completed(terminal: Terminal, evaluations: int, *arguments: object, twice: int = 0) -> None:
    """Goes on, with the file's budget reached exactly and at most ``twice`` evaluations done again."""
    terminal.hpo("run", "c.toml", *arguments, returns=0)
    counts = terminal.status()["evaluations"]
    assert counts["completed"] == sum(counts.values()) == evaluations
    side = Counter(terminal.side())
    assert len(side) == evaluations and sum(side.values()) <= evaluations + twice


@pytest.mark.parametrize(
    ("ranks", "number"),
    cases(
        [(2, signal.SIGHUP)],
        nightly=[(1, None), (1, signal.SIGINT), (3, signal.SIGINT), (2, signal.SIGTERM), (1, signal.SIGUSR1)],
    ),
)
def test_stopped_once_and_resumed_to_exactly_its_budget(
    terminal: Terminal, ranks: int, number: int | None
) -> None:
    """``number``: the signal that stops the campaign; None: ``hpo stop`` does."""
    terminal.task(0.05)
    terminal.campaign(evaluations=100_000)
    command = terminal.start("run", "c.toml", "--ranks", ranks)
    wait_until(lambda: len(terminal.side()) >= 3 * ranks, "a few evaluations")
    if number is None:
        assert "asked to stop" in terminal.hpo("stop", "run", returns=0).stdout
    else:
        command.signal(number)
    print(f"ended {stopped(terminal, command):.2f} s later")

    assert "stopped. Started again in the same way" in terminal.hpo("status", "run").stdout
    status = terminal.status()
    recorded = status["evaluations"]["completed"]
    # What ran was given time to end, and its result was taken.
    assert recorded == sum(status["evaluations"].values()) == len(terminal.side())
    assert status["running"] == 0
    terminal.campaign(evaluations=recorded + 20)
    completed(terminal, recorded + 20, "--ranks", 3 - ranks if ranks < 3 else 2)


def test_under_a_mpirun_of_the_users_own_sigusr1_stops_it(terminal: Terminal) -> None:
    terminal.task(0.05)
    terminal.campaign(evaluations=100_000)
    command = terminal.start_mpirun(2, "run", "c.toml")
    wait_until(lambda: len(terminal.side()) >= 6, "a few evaluations")
    command.signal(signal.SIGUSR1)
    done = command.wait()
    assert done.returncode == 75 and done.stderr.count(GO_ON) == 1, done.stderr
    assert terminal.status()["evaluations"]["completed"] == len(terminal.side())


def test_the_second_time_what_runs_is_ended_at_once(terminal: Terminal) -> None:
    terminal.task()
    terminal.write("calm.py", CALM)
    terminal.campaign(evaluations=10, task="calm.py:task")
    command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(lambda: len(terminal.side("began")) == 2, "the evaluations' begin")
    command.signal(signal.SIGINT)
    wait_until(lambda: len(terminal.side("heard")) == 2, "the evaluations' hearing of it")
    assert command.process.poll() is None, "once is to be patient"
    assert "stopping (stopped)" in terminal.hpo("status", "run").stdout
    command.signal(signal.SIGINT)
    print(f"ended {stopped(terminal, command, '2 running evaluations', 'a second Ctrl-C'):.2f} s later")
    status = terminal.status()
    assert status["evaluations"]["interrupted"] == sum(status["evaluations"].values()) == 2


def test_the_third_time_an_evaluation_inside_the_rank_is_ended_too(terminal: Terminal) -> None:
    terminal.task()
    terminal.write("calm.py", CALM)
    terminal.campaign('[evaluation]\nisolation = "inline"', evaluations=10, task="calm.py:task")
    for ranks in cases([2], nightly=[1]):
        before = len(terminal.side("heard"))
        command = terminal.start("run", "c.toml", "--ranks", ranks)
        # One evaluation will do: who grants them may be busy with it.
        wait_until(lambda: len(terminal.side("began")) > len(terminal.side("heard")), "an evaluation's begin")
        command.signal(signal.SIGINT)
        wait_until(lambda: len(terminal.side("heard")) > before, "its hearing of it")  # noqa: B023
        command.signal(signal.SIGINT)
        # Signals of one number that meet are one: on a machine too slow for this pause, another follows later.
        time.sleep(0.2)
        while command.process.poll() is None:
            command.signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(15)
        done = command.wait()
        assert done.returncode == 75 and "Traceback" not in done.stderr
        assert "Nothing that was recorded is lost: give the same command again" in done.stderr
        assert terminal.processes() == []


def test_grace_is_kept_and_what_saves_itself_goes_on_from_there(terminal: Terminal) -> None:
    terminal.saving_task(20)
    terminal.campaign(evaluations=4, task="saving.py:task")
    held = terminal.write("held", "")
    command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(lambda: len(terminal.side("began")) == 2, "the evaluations' begin")
    command.signal(signal.SIGTERM)
    stopped(terminal, command, within_s=50)
    held.unlink()
    assert terminal.status()["evaluations"]["interrupted"] == 2
    assert terminal.hpo("run", "c.toml", "--ranks", 1).returncode == 0
    lines = [line.split() for line in (terminal.directory / "side.txt").read_text().splitlines()]
    begins = [(name, int(step)) for name, word, step in lines if word == "began"]
    ends = [(name, int(step)) for name, word, step in lines if word == "ended"]
    first = {name for name, _ in begins[:2]}
    assert {name for name, step in begins[2:] if step > 0} == first
    assert len(ends) == len({name for name, _ in ends}) == 4 and all(step == 20 for _, step in ends)
    # Nobody chose to stop these: a resumed one counts as the same try.
    assert {record["retries"] for record in terminal.records("finished")} == {0}


def test_what_ignores_a_stop_is_ended_when_the_grace_is_over(terminal: Terminal) -> None:
    terminal.task()
    terminal.write("calm.py", CALM)
    terminal.campaign("[evaluation]\ngrace = 0.5", evaluations=10, task="calm.py:task")
    command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(lambda: len(terminal.side()) == 2, "the evaluations' begin")
    command.signal(signal.SIGINT)
    stopped(terminal, command, within_s=10)
    assert terminal.status()["evaluations"]["interrupted"] == 2


@nightly
@pytest.mark.parametrize("ranks", [3, 1])
def test_interrupted_while_it_starts(terminal: Terminal, ranks: int) -> None:
    """At any moment of the start: a sentence, 75, and the next start is as if nothing had been."""
    terminal.task(0.02)
    terminal.campaign(evaluations=100_000)
    rng = random.Random(ranks)
    ended_at_once = 0
    for _ in range(6):
        command = terminal.start("run", "c.toml", "--ranks", ranks)
        wait_until(command.minds_signals, "the handlers of the command")
        time.sleep(rng.uniform(0.0, 1.2 if ranks > 1 else 0.4))
        command.signal(rng.choice([signal.SIGINT, signal.SIGTERM]))
        done = command.wait(40, returns=75)
        assert "Traceback" not in done.stderr and "ive the same command again" in done.stderr, done.stderr
        ended_at_once += "before the campaign began" in done.stderr
        wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=20)
    # A signal that finds no campaign has mpirun kill its ranks 0.2 s later. Those that have begun by then lose what
    # they have not recorded, as with any kill: one evaluation each. A signal that finds a campaign costs nothing.
    evaluations = len(terminal.side()) + 20
    terminal.campaign(evaluations=evaluations)
    completed(terminal, evaluations, "--ranks", ranks, twice=ended_at_once * ranks if ranks > 1 else 0)


SLOW_CONSTRAINT = """
import time
import hpo
from task import note


def allows(params):
    note("constraint")
    time.sleep(0.02)
    return False


task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0.0, 1.0)), lambda trial: 0.0, constraints=[allows])
"""
"""Ten thousand points are tried before the campaign is refused: three minutes."""


@pytest.mark.parametrize(
    ("number", "ranks"),
    cases(
        [(signal.SIGTERM, 2)],
        nightly=[(signal.SIGTERM, 1), *product((signal.SIGINT, signal.SIGUSR1), (1, 2))],
    ),
)
def test_one_signal_ends_it_while_it_looks_at_the_space(terminal: Terminal, ranks: int, number: int) -> None:
    terminal.task()
    terminal.write("slow.py", SLOW_CONSTRAINT)
    terminal.campaign(task="slow.py:task")
    command = terminal.start("run", "c.toml", "--ranks", ranks)
    wait_until(lambda: (terminal.directory / "side.txt").exists(), "the first point")
    command.signal(number)
    done = command.wait(30, returns=75)
    assert "Traceback" not in done.stderr and "give the same command again" in done.stderr
    assert terminal.processes() == []


def test_the_journal_appears_and_the_signal_comes(terminal: Terminal) -> None:
    """The moment at which a stop at the start becomes a stop of the campaign."""
    terminal.task(0.02)
    terminal.campaign(evaluations=30)
    for launch in cases([1], nightly=[2]):
        command = terminal.start("run", "c.toml", "--ranks", 2)
        wait_until(lambda: terminal.launch_begun(launch), "the journal", pause_s=0.0005)  # noqa: B023
        command.signal(signal.SIGINT)
        stopped(terminal, command)
    completed(terminal, 30, "--ranks", 2)


def test_a_campaign_with_larger_workers_ends_as_any_other(terminal: Terminal) -> None:
    """Rank 0 leads the first worker, which is not on the first island there."""
    terminal.task(0.1)
    larger = "layout.islands = 2\n[[island]]\n[[island]]\nranks_per_worker = 2"
    terminal.campaign(f'deadline = "4s"\n{larger}', evaluations=None)
    terminal.hpo("run", "c.toml", "--ranks", 3, returns=0)
    assert [one["reason"] for one in terminal.records("ended")] == ["deadline"]
    terminal.campaign(larger, evaluations=100_000)
    before = len(terminal.side())
    command = terminal.start("run", "c.toml", "--ranks", 3)
    wait_until(lambda: len(terminal.side()) > before, "an evaluation")
    terminal.hpo("stop", "run", returns=0)
    stopped(terminal, command)


def test_a_deadline_stops_it_in_time(terminal: Terminal) -> None:
    """The deadline includes the start, which takes seconds on a busy machine."""
    terminal.task(0.03)
    for seconds in (*cases((), nightly=[1]), 4, 16, 32):
        terminal.campaign(f'deadline = "{seconds}s"', evaluations=100_000)
        stopped(terminal, terminal.start("run", "c.toml", "--ranks", 2), within_s=seconds + 20)
        assert terminal.records("ended")[-1]["reason"] == "deadline"
        count = len(terminal.side())
        assert terminal.status()["evaluations"]["completed"] == count
        if count > 5:
            break
    else:
        pytest.fail("nothing was evaluated")
    terminal.campaign('deadline = "10min"', evaluations=count + 10)
    completed(terminal, count + 10)


def test_ctrl_c_at_a_terminal_reaches_only_the_command(terminal: Terminal) -> None:
    """The terminal signals its whole foreground process group; mpirun, which would kill its ranks, is not in it."""
    terminal.task(0.03)
    terminal.campaign(evaluations=100_000)
    person = Person(
        terminal.directory, [*HPO, "run", "c.toml", "--ranks", "2"], terminal.environment, columns=200
    )
    person.sees("workers")
    wait_until(lambda: person.rows and len(terminal.side()) >= 6, "a few evaluations")
    os.write(person.master, b"\x03")
    assert person.end() == 75
    text = "\n".join(person.rows)
    assert "stopped: " in text and GO_ON in text and "Traceback" not in text
    count = len(terminal.side())
    assert terminal.status()["evaluations"]["completed"] == count
    terminal.campaign(evaluations=count + 10)
    completed(terminal, count + 10)


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
    """SIGTERM to all processes of a campaign at once, as Slurm and systemd end a job."""
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
