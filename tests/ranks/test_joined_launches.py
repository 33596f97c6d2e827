"""Several launches that are at work on one campaign at the same time."""

from __future__ import annotations

from collections import Counter

import pytest
from terminal import Command, Terminal, wait_until

from hpo.journal.commands import Set, Stop
from hpo.ledger.opening import give, state_of


def set_budget(terminal: Terminal, more: int = 20) -> int:
    """Set a budget of ``more`` evaluations than have ended, as `hpo set` does, and return it."""
    evaluations = len(terminal.side()) + more
    give(terminal.directory / "run", Set(time=0.0, by="me", evaluations=evaluations))
    return evaluations


def begun_by(terminal: Terminal) -> Counter[int]:
    """Numbers of evaluations that have ended, by launch."""
    joined = state_of(terminal.directory / "run").joined.values()
    workers = Counter(int(name.split("-")[1]) for name in terminal.side())
    return Counter(
        {one.launch: sum(workers[one.first_worker + k] for k in range(one.workers)) for one in joined}
    )


@pytest.fixture
def other(terminal: Terminal) -> Terminal:
    """A second terminal in the same directory, whose processes are distinguished from those of the first."""
    return Terminal(terminal.directory)


@pytest.fixture
def both(terminal: Terminal, other: Terminal) -> tuple[Command, Command]:
    """Two launches, each of which has evaluated something, with a budget that they do not use up."""
    terminal.task(0.3)
    terminal.campaign("logging.sinks = ['tensorboard']", evaluations=100_000)
    first = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(terminal.side, "an evaluation of the first launch")
    second = other.start("run", "c.toml", "--ranks", 2, "--join")
    wait_until(lambda: begun_by(terminal)[2], "an evaluation of the second launch")
    return first, second


def test_launches_on_one_directory_share_its_budget(
    terminal: Terminal, both: tuple[Command, Command]
) -> None:
    refused = terminal.hpo("run", "c.toml", "--ranks", 2)
    assert refused.returncode == 1 and "--join" in refused.stderr and "in use by" in refused.stderr
    alone = terminal.hpo("run", "c.toml", "--ranks", 2, "--alone")
    assert alone.returncode == 1 and "in use by" in alone.stderr
    evaluations = set_budget(terminal)
    ends = [command.wait(returns=0) for command in both]
    assert "joins run as launch 2: 1 other at work, " in ends[1].stderr
    assert Counter(terminal.side()).most_common(1)[0][1] == 1, "evaluated twice"
    assert len(terminal.side()) == evaluations == len(terminal.records("finished"))
    shares = begun_by(terminal)
    assert shares[1] and shares[2]
    status = terminal.status()
    assert status["state"] == "done" and status["evaluations"]["completed"] == evaluations  # type: ignore[index]
    assert terminal.hpo("check", "run").returncode == 0


def test_what_a_killed_launch_leaves_is_evaluated_by_the_other(
    terminal: Terminal, other: Terminal, both: tuple[Command, Command]
) -> None:
    terminal.kill()  # the first, its mpirun and its supervisor
    both[0].wait()
    wait_until(
        lambda: state_of(terminal.directory / "run").closed, "the closing of the killed launch", pause_s=0.1
    )
    evaluations = set_budget(terminal)
    end = both[1].wait(returns=0)
    assert "launch 1 showed no sign of life, and was closed" in end.stderr
    finished = [record["id"] for record in terminal.records("finished")]
    assert len(finished) == len(set(finished)) == evaluations
    again = Counter(terminal.side()) - Counter(finished)
    assert again.total() <= 2, "a worker of the killed launch had one unrecorded evaluation at most"
    state = state_of(terminal.directory / "run")
    assert state.closed[1].by == 2 and state.closed[2].by == 2 and not state.open
    log = terminal.hpo("log", "run", "--to", "tensorboard", returns=0)
    assert ", 0 ended" in log.stdout + log.stderr, "the second launch did not write to the sink"


def test_a_stop_reaches_all_launches_and_each_start_goes_on(
    terminal: Terminal, other: Terminal, both: tuple[Command, Command]
) -> None:
    assert terminal.hpo("stop", "run").returncode == 0
    assert [command.wait().returncode for command in both] == [75, 75]
    assert terminal.status()["state"] == "stopped"
    evaluations = set_budget(terminal, 40)
    starts = [
        terminal.start("run", "c.toml", "--ranks", 2, "--join"),
        other.start("run", "c.toml", "--ranks", 2, "--join"),
    ]
    assert [command.wait().returncode for command in starts] == [0, 0]
    finished = [record["id"] for record in terminal.records("finished") if record["status"] == "completed"]
    assert len(finished) == len(set(finished)) == evaluations


def test_a_stop_holds_for_jobs_that_were_submitted_before_it(terminal: Terminal) -> None:
    terminal.task(0.01)
    terminal.campaign(evaluations=5)
    assert terminal.hpo("run", "c.toml", "--ranks", 1).returncode == 0
    submitted = state_of(terminal.directory / "run").entries
    give(terminal.directory / "run", Stop(time=0.0, by="me"))
    terminal.campaign(evaluations=9)
    job = {"SLURM_JOB_ID": "7"}
    before = terminal.start(
        "run", "c.toml", "--ranks", 2, "--join", environment={**job, "HPO_SUBMITTED": str(submitted)}
    ).wait(returns=0)
    assert "nothing is started" in before.stderr and len(terminal.records("finished")) == 5
    after = {**job, "HPO_SUBMITTED": str(submitted + 1)}
    terminal.start("run", "c.toml", "--ranks", 2, "--join", environment=after).wait(returns=0)
    assert len(terminal.records("finished")) == 9
