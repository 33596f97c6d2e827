"""SIGKILL to ranks and to whole jobs at random moments: nothing that was recorded is lost or done again."""

from __future__ import annotations

import random
import time
from collections import Counter

import psutil
import pytest
from cases import all_cases, cases
from terminal import Command, Terminal, wait_until

KILLS = 20 if all_cases else 4


def recorded(terminal: Terminal) -> dict[str, tuple[object, ...]]:
    """What is on record of each individual that is finished."""
    found: dict[str, tuple[object, ...]] = {}
    if not (terminal.directory / "run").exists():
        return found
    for record in terminal.records("finished"):
        assert record["id"] not in found, f"{record['id']} is recorded twice"
        found[record["id"]] = (record["status"], record["objectives"], record["params"])
    return found


def kill(terminal: Terminal, command: Command, rng: random.Random, *, spare_evaluators: bool) -> None:
    """SIGKILL to hpo run, mpirun and the ranks in any order; evaluators are killed too, or see to it themselves."""
    spared = {process.pid for process in terminal.evaluators()} if spare_evaluators else set()
    victims = [process for process in terminal.processes() if process.pid not in spared]
    rng.shuffle(victims)
    for process in victims:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    command.process.wait(10)
    command.wait()
    if not spare_evaluators:
        terminal.kill()
    wait_until(lambda: not terminal.processes(), "the end of all evaluators", seconds=10)


@pytest.mark.timeout(170)
def test_the_whole_job_killed_many_times_in_a_row(terminal: Terminal) -> None:
    terminal.task(0.03)
    # Of the kind that imports scikit-learn, most of the processor time here, nightly alone.
    kind = "default" if all_cases else "evolution"
    terminal.campaign(evaluations=100_000, kind=kind)
    rng = random.Random(20)
    before: dict[str, tuple[object, ...]] = {}
    for turn in range(KILLS):
        launch_before = len(
            {path.name[:4] for path in terminal.directory.glob("run/launches/*/journal/*.jsonl")}
        )
        tries = Counter(terminal.side())
        # Half of them without mpirun, which starts faster; workers come and go.
        ranks = 1 if turn % 2 else rng.choice([2, 3, 4])
        command = terminal.start("run", "c.toml", "--ranks", ranks)
        if turn % 5 == 3:
            time.sleep(rng.uniform(0.0, 1.0))  # while it starts
        else:
            wait_until(lambda: terminal.launch_begun(launch_before + 1), "the begin of the launch")  # noqa: B023
            time.sleep(rng.uniform(0.0, 0.8))
        kill(terminal, command, rng, spare_evaluators=turn % 3 == 1)

        now = recorded(terminal)
        assert {name: now.get(name) for name in before} == before, "a record is lost or changed"
        after = Counter(terminal.side())
        ended = [name for name in after if after[name] > tries[name]]
        assert sum(after.values()) == sum(tries.values()) + len(ended), "done twice in one launch"
        again = [name for name in ended if tries[name]]
        assert not set(again) & set(before), "a recorded evaluation was done again"
        assert len([name for name in ended if name not in now]) <= ranks, (
            "a worker lost more than its last result"
        )
        assert set(now) <= set(after), "recorded, but never done"
        before = now

    evaluations = len(before) + 30
    terminal.campaign(evaluations=evaluations, kind=kind)
    assert terminal.hpo("run", "c.toml", "--ranks", 3).returncode == 0
    final = recorded(terminal)
    assert {name: final.get(name) for name in before} == before
    assert len(final) == evaluations
    counts = terminal.status()["evaluations"]
    assert counts["completed"] == sum(counts.values()) == evaluations
    assert len({str(params) for _, _, params in final.values()}) == evaluations, (
        "a configuration was done twice"
    )
    side = Counter(terminal.side())
    assert set(side) == set(final)
    print(
        f"{KILLS} kills: {len(before)} evaluations recorded, 0 of them lost or done again; "
        f"{sum(side.values()) - len(side)} unrecorded ones done again"
    )


@pytest.mark.parametrize("victim", cases(["mpirun"], nightly=["rank 0"]))
def test_where_nothing_is_started_again_the_next_command_goes_on(terminal: Terminal, victim: str) -> None:
    terminal.task(0.03)
    terminal.campaign("restarts = 0", evaluations=100_000)
    command = terminal.start("run", "c.toml", "--ranks", 3)
    wait_until(lambda: len(terminal.side()) >= 10, "a few evaluations")
    mpirun = psutil.Process(command.process.pid).children()[0]
    process = mpirun if victim == "mpirun" else terminal.rank(int(victim.split()[1]))
    process.kill()
    begun = time.monotonic()
    done = command.wait(30)
    print(f"{victim} killed: hpo run ended after {time.monotonic() - begun:.2f} s")
    assert done.returncode == 75, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("hpo: ")]
    assert "the ranks ended" in told[0] and "same command again" in told[-1], done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=10)

    assert "cut off" in terminal.hpo("status", "run").stdout
    before = recorded(terminal)
    assert len(set(terminal.side()) - set(before)) <= 3
    terminal.campaign(evaluations=len(before) + 10)
    assert terminal.hpo("run", "c.toml").returncode == 0
    after = recorded(terminal)
    assert len(after) == len(before) + 10 and {name: after[name] for name in before} == before


def test_without_the_command_that_watches_it_the_campaign_goes_on_and_can_be_stopped(
    terminal: Terminal,
) -> None:
    terminal.task(0.03)
    terminal.campaign(evaluations=100_000)
    command = terminal.start("run", "c.toml", "--ranks", 2)
    wait_until(terminal.side, "the first evaluation")
    command.process.kill()
    count = len(terminal.side())
    wait_until(lambda: len(terminal.side()) > count + 10, "more evaluations")
    for ranks in 1, 2:
        refused = terminal.hpo("run", "c.toml", "--ranks", ranks, returns=1).stderr.splitlines()
        assert len(refused) == 1 and "run is in use by process" in refused[0] and "hpo stop run" in refused[0]
    assert terminal.hpo("stop", "run").returncode == 0
    wait_until(lambda: not terminal.processes(), "the end of all processes", seconds=20)
    command.wait()
    assert terminal.records("ended")[-1]["exit"] == 75
    assert len(recorded(terminal)) == len(terminal.side())
