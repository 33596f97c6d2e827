"""A launch's ``status.json``: it says what the journals say, and counts only where it may."""

import json
import os
import time

import pytest
from living import at_work

import hpo
from hpo import cli
from hpo.campaign.rank import status as status_file
from hpo.individual import REEVALUATION, STATUSES
from hpo.islands.coordinator.tally import BestSoFar, Tally
from hpo.islands.leader import publishing
from hpo.journal.commands import Set
from hpo.journal.directory import status_path
from hpo.ledger import alive as signs
from hpo.ledger.opening import give, state_of
from hpo.results import overview
from hpo.results.record import load
from hpo.views import text as texts

SPACE = hpo.SearchSpace(x=hpo.Float(-1, 1), kind=hpo.Categorical("a", "b"))
SETTINGS = {"isolation": "inline", "kind": "random", "first_failures": "off"}


def evaluate(trial):
    if trial.params["x"] > 0.5:
        raise ValueError(f"larger than {int(trial.params['x'] * 4) / 4}")
    return float("nan") if trial.params["x"] < -0.9 else round(trial.params["x"] ** 2, 1)


def several(trial):
    return {"f1": round(trial.params["x"], 1), "size": abs(trial.params["x"])}


TASKS = {
    "one objective": hpo.Task(SPACE, evaluate),
    "maximized": hpo.Task(SPACE, evaluate, direction="maximize"),
    "two objectives": hpo.Task(SPACE, several, objectives={"f1": "maximize", "size": "minimize"}),
}


def settled(found):
    """Without the moment at which it was looked at."""
    return overview.msgspec.structs.replace(found, taken=0.0)


@pytest.fixture
def campaign(tmp_path):
    def run(evaluations, task="one objective", **changes):
        settings = {**SETTINGS, **changes}
        hpo.Campaign(TASKS[task], directory=tmp_path / "run", evaluations=evaluations, **settings).run()
        return tmp_path / "run"

    return run


@pytest.mark.parametrize("task", TASKS)
def test_after_each_launch_it_says_what_the_journals_say(campaign, task):
    for evaluations in (1, 40, 80):
        home = campaign(evaluations, task)
        found = overview.read(home)
        assert found is not None and sum(found.evaluations.values()) == evaluations
        assert settled(found) == settled(overview.folded(load(home)))
        with open(max(home.glob("launches/*/journal/*")), "ab") as file:  # as a power cut leaves it
            file.write(b"torn")
    assert not found.torn, "it does not count"


def test_after_a_launch_that_came_to_nothing_the_errors_are_those_of_its_evaluations(tmp_path):
    def broken(trial):
        return trial.params["y"]

    task = hpo.Task(SPACE, broken)
    with pytest.raises(hpo.HpoError, match="KeyError: 'y'"):
        hpo.Campaign(task, directory=tmp_path / "run", evaluations=40, isolation="inline").run()
    found = overview.of(tmp_path / "run")
    assert found.evaluations["lost"] >= 5 and found.ended == ("futile", 1)
    (line,) = found.errors
    assert "lost, 0-0-" in line and "the latest: KeyError: 'y' (test_status_file.py, line " in line
    assert "KeyError: 'y'" in texts.status(tmp_path / "run", found)


def test_a_launch_that_stopped_early_has_left_it_too(campaign):
    home = campaign(1_000_000, deadline=0.05)
    found = overview.read(home)
    assert found is not None and (found.state, found.ended) == ("stopped", ("deadline", 75))
    assert settled(found) == settled(overview.folded(load(home)))


def test_known_points_are_among_the_best_as_in_the_journals(campaign):
    points = [
        {"params": {"x": 0.0, "kind": "a"}, "value": 0.0},
        {"params": {"x": 0.1, "kind": "a"}, "value": -1},
    ]
    home = campaign(10, known=points)
    found = overview.read(home)
    assert found is not None and found.best is not None
    assert (found.best.id, found.known) == ("known-2", 2)
    assert settled(found) == settled(overview.folded(load(home)))


def test_with_reevaluation_the_journals_say_it(campaign):
    home = campaign(200, reevaluate=0.5, kind="evolution")
    assert any(one.operator == REEVALUATION for one in load(home).individuals)
    assert overview.read(home) is None
    assert overview.read(campaign(205, reevaluate=0.0)) is None
    assert not status_path(home, 1).exists() and not status_path(home, 2).exists()


def test_while_it_is_at_work_the_heartbeat_writes_what_rank_0_knows(tmp_path, monkeypatch):
    monkeypatch.setattr(status_file, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(status_file, "_SHARE", float("inf"))
    monkeypatch.setattr(signs, "REFRESH_S", 0.01)
    monkeypatch.setattr(publishing, "COMMIT_INTERVAL_S", 0.0)
    seen = []

    def evaluate(trial):
        if len(seen) == 3:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                found = overview.read(tmp_path / "run")
                if found is not None and found.evaluations["completed"]:
                    seen.append(found)
                    break
                time.sleep(0.001)
        seen.append(None)
        return len(seen)

    task = hpo.Task(SPACE, evaluate)
    hpo.Campaign(task, directory=tmp_path / "run", evaluations=6, **SETTINGS).run()
    found = next(filter(None, seen), None)
    assert found is not None, "nothing was written"
    assert (found.state, found.running, found.budget) == ("running", 1, 6)
    assert found.best is not None and found.best.value == 1.0
    table = overview.of(tmp_path / "run").table()
    assert table["state"] == "done" and table["evaluations"]["completed"] == 6


def test_a_launch_that_was_killed_has_left_no_status_that_counts(campaign):
    home = campaign(5)
    found = overview.read(home)
    with at_work(home) as held:
        # Of an earlier launch, then of this one.
        assert overview.read(home) is None
        overview.write(home, found, held)
        alive = overview.read(home)
        assert alive is not None and alive.alive and alive.seconds > found.seconds
        stale = time.time() - 100
        os.utime(status_path(home, held.launch), (stale, stale))
        assert overview.read(home) is None
        overview.keep_alive(home, held.launch)
        assert overview.read(home) is not None
    assert overview.read(home) is None


def test_a_failure_that_it_does_not_have_yet_is_evaluated_again(campaign, capsys):
    """Rank 0 writes the file every few seconds; a panel shows a failure at once."""
    home = campaign(40)
    found = overview.read(home)
    assert found is not None and found.evaluations["failed"]
    none_failed = overview.msgspec.structs.replace(found, evaluations={"completed": 39}, ended=None)
    with at_work(home) as held:
        overview.write(home, none_failed, held)
        assert overview.of(home).evaluations == {"completed": 39}
        assert cli.main(["retry", str(home)]) == 0
        assert "are evaluated again" in capsys.readouterr().out and len(state_of(home).pool) == 9


def edited(change):
    def write(home, path):
        table = json.loads(path.read_text())
        change(table)
        path.write_text(json.dumps(table))

    return write


def linked(home, path):
    path.rename(home / "elsewhere.json")
    path.symlink_to(home / "elsewhere.json")


def piped(home, path):
    path.unlink()
    os.mkfifo(path)


def commanded(home, path):
    give(home, Set(time=1.0, by="me", evaluations=9))


NONSENSE = {
    "gone": lambda home, path: path.unlink(),
    "empty": lambda home, path: path.write_bytes(b""),
    "no JSON": lambda home, path: path.write_bytes(b"\xff{" * 100),
    "deep": lambda home, path: path.write_bytes(b"[" * 100_000),
    "large": lambda home, path: os.truncate(path, 1 << 40),
    "of another version": edited(lambda table: table.update(version=2)),
    "of other types": edited(lambda table: table["overview"].update(evaluations=["1"])),
    "without a key": edited(lambda table: table["overview"].pop("budget")),
    "a link": linked,
    "a pipe": piped,
    "a directory": lambda home, path: [path.unlink(), path.mkdir()],
    "older than a command": commanded,
}


@pytest.mark.parametrize("what", NONSENSE)
def test_where_it_does_not_hold_the_journals_are_read(campaign, what, capsys):
    home = campaign(5)
    NONSENSE[what](home, status_path(home, 1))
    assert overview.read(home) is None
    assert cli.main(["status", str(home), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert sum(table["evaluations"].values()) == 5 and set(table["evaluations"]) == set(STATUSES) - {
        "running"
    }


def test_of_equal_results_the_first_to_start_is_the_best():
    tally = Tally()
    for best in (
        BestSoFar((1.0,), "0-0-1", 5.0),
        BestSoFar((1.0,), "0-0-0", 2.0),
        BestSoFar((1.0,), "0-0-2", 9.0),
    ):
        tally.enter(best)
    assert tally.best.id == "0-0-0"
