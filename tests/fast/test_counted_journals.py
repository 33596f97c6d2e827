"""Journals count as far as the ledger says; campaigns that an earlier version began go on with a ledger."""

from __future__ import annotations

from pathlib import Path

import journals
import pytest
from journals import T
from living import joined

import hpo
from hpo.errors import LaunchClosed
from hpo.individual import COMPLETED
from hpo.journal.commands import Enqueue, Pause, Retry, Set, Stop, Unpause
from hpo.journal.files import journal_part, journal_path
from hpo.ledger.entries import Limits
from hpo.ledger.journals import excluded_journals, journal_files
from hpo.ledger.opening import open_ledger, state_of
from hpo.results.record import load

SPACE = hpo.SearchSpace(lr=hpo.Float(0, 1))


def started(identity: str, **fields: object) -> dict[str, object]:
    table = journals.finished(identity)
    for name in ("started", "finished", "status", "objectives", "metrics", "error"):
        del table[name]
    return {**table, "type": "started", "time": T, **fields}


def append(path: Path, *tables: dict[str, object]) -> None:
    with open(path, "ab") as file:
        file.writelines(map(journals.line, tables))


# --- closed launches --------------------------------------------------------------------------------------------------


def test_of_a_closed_launch_nothing_counts_that_is_written_later(tmp_path: Path) -> None:
    home = journals.campaign(tmp_path)
    launch = joined(home, 2)
    launch.draw()
    paths = [journals.write(home, [journals.finished(f"0-{one}-0", 0.5)], worker=one) for one in (0, 1)]
    append(paths[1], started("0-1-1"))
    successor = joined(home, 2)
    successor.close_others("died")
    closed = successor.state.closed[1]
    assert closed.final == 2 and closed.pool == ("0-1-1",) and not closed.in_place and closed.by == 2
    append(paths[0], journals.finished("0-0-7", 0.1))
    append(paths[1], journals.finished("0-1-1", 0.1))
    late = journal_part(paths[0], 1)
    late.write_bytes(journals.line(journals.header()) + journals.line(journals.finished("0-0-8", 0.1)))
    journals.write(home, [journals.finished("0-7-0", 0.1)], worker=7)
    found = {one.id: one.status for one in load(home).individuals}
    assert found == {"0-0-0": COMPLETED, "0-1-0": COMPLETED, "0-1-1": "lost"}
    assert [one.path for one in journal_files(home)] == paths
    state = state_of(home)
    assert excluded_journals(home, state=state) == [late, journal_path(home, launch=1, island=0, worker=7)]
    # Launch 2 has workers 2 and 3; launch 3 never joined.
    journals.write(home, [journals.finished("0-9-0", 0.1)], launch=2, worker=9)
    journals.write(home, [journals.finished("0-4-0", 0.1)], launch=3, worker=4)
    assert [one.path for one in journal_files(home)] == paths
    with pytest.raises(LaunchClosed, match="launch 1 was closed by another launch"):
        launch.ledger.read_on()
        launch.own  # noqa: B018


def test_a_torn_line_is_never_completed_by_a_later_write(tmp_path: Path) -> None:
    home = journals.campaign(tmp_path)
    joined(home, 2).draw()
    path = journals.write(home, [journals.finished("0-0-0", 0.5)])
    whole = journals.line(journals.finished("0-0-1", 0.5))
    with open(path, "ab") as file:
        file.write(whole[:40])
    successor = joined(home, 2)
    successor.close_others("died")
    with open(path, "ab") as file:
        file.write(whole[40:])
    assert successor.state.closed[1].final == 1
    assert [one.id for one in load(home).individuals] == ["0-0-0"]


def test_a_launch_that_ends_by_itself_leaves_individuals_to_go_on_in_their_directories(
    tmp_path: Path,
) -> None:
    """But for those of a worker that was given up, and of drawn ones that it did not copy."""
    home = journals.campaign(tmp_path)
    first = joined(home, 2)
    first.draw()
    tables = [journals.finished("0-0-0", 0.5), started("0-0-1"), started("0-0-2")]
    journals.write(home, tables)
    joined(home, 2).close_others("died")
    second = joined(home, 2)
    second.close_others("died")
    second.draw(ids=["0-0-1", "0-0-2"])
    at = second.first_worker
    begun = journals.finished("0-0-1", None, status="interrupted", started=T, finished=T + 9, retries=1)
    paused = journals.finished(f"0-{at}-1", 0.5, status="pruned", resting=True)
    left = {"type": "left", "island": 0, "worker": at + 1, "reason": "hangs", "time": T, "may_run": True}
    journals.write(home, [begun, paused, started(f"0-{at}-0"), left], launch=3, worker=at)
    journals.write(home, [started(f"0-{at + 1}-0")], launch=3, worker=at + 1)
    second.close("stopped", 75, at_rest=True)
    closed = second.state.closed[3]
    assert set(closed.pool) == {"0-0-1", "0-0-2", f"0-{at}-0", f"0-{at + 1}-0"}
    assert set(closed.in_place) == {"0-0-1", f"0-{at}-0", f"0-{at}-1"}
    assert closed.final == 1 and closed.resting == (f"0-{at}-1",)
    assert (second.state.final, second.state.free) == (2, 6)


def test_a_failure_that_was_retried_and_completed_is_not_retried_once_more(tmp_path: Path) -> None:
    """Two who give `hpo retry` at the same time name the same individual."""
    home = journals.campaign(tmp_path)
    launch = joined(home, 2)
    launch.draw()
    retry = Retry(time=1.0, by="me", statuses=("failed",))
    for _ in range(2):
        open_ledger(home).append(lambda state: state.command(retry, ["0-0-0", "0-0-1"]))
    reopened = [
        {"type": "reopened", "id": f"0-0-{one}", "number": 1, "reason": "hpo retry", "time": T, "entry": 4}
        for one in range(2)
    ]
    ends = [journals.finished(f"0-0-{one}") for one in range(2)]
    done = journals.finished("0-0-0", 0.5, reopened=1)
    journals.write(home, [*ends, *reopened, done, journals.finished("0-0-1", reopened=1)])
    launch.ledger.read_on()
    launch.close("done", 0, at_rest=True)
    closed = launch.state.closed[1]
    assert closed.final == 1 and closed.pool == ("0-0-1",), "it failed again before the second"


# --- campaigns without a ledger ---------------------------------------------------------------------------------------


def test_an_older_campaign_goes_on_with_what_it_had(tmp_path: Path) -> None:
    def command(number: int, name: str, **arguments: object) -> dict[str, object]:
        facts = {"name": name, "arguments": arguments, "by": "me@here", "given": 1.0, "time": 2.0}
        return {"type": "command", "id": f"{number:020d}-{number:016x}", **facts}

    points = [{"lr": 0.25}, {"lr": 0.5}]
    tables = [
        journals.launched(evaluations=9, workers=4),
        journals.finished("0-0-0", 0.5),
        started("0-0-1", operator="enqueued", params={"lr": 0.25}),
        journals.finished("0-0-2", 0.5, status="pruned", resting=True),
        command(1, "enqueue", points=points),
        {**command(2, "set", evaluations=12), "in_file": {"evaluations": 9}},
        command(3, "pause"),
        {**command(4, "set", evaluations=99), "refused": "no"},
    ]
    home = journals.campaign(tmp_path, tables, [journals.finished("0-1-0")], space=SPACE)
    (home / "commands").mkdir()
    for number, content in ((3, b'{"name":"stop"'), (5, b'{"name":"unpause","time":1,"by":"me"}'), (6, b"{")):
        (home / "commands" / f"{number:020d}-{number:016x}.json").write_bytes(content)
    (home / "stop").touch()
    before = state_of(home)
    assert not (home / "ledger").exists()
    state = open_ledger(home).state
    assert (state.limits, state.in_file) == (Limits(evaluations=12), Limits(evaluations=9))
    assert [one.request for one in state.commands] == [
        Unpause(time=1, by="me"),
        Stop(time=0.0, by="an earlier version"),
    ]
    assert not state.paused and state.stop_pending and state.points == points[1:]
    assert (state.launches, state.workers, state.final, state.rank_s) == (1, 4, 3, 1.5)
    assert (list(state.pool), list(state.resting)) == (["0-0-1"], ["0-0-2"])
    for name in ("limits", "final", "pool", "resting", "paused", "workers", "commands"):
        if name != "commands":
            assert getattr(before, name) == getattr(state, name)
    launch = joined(home, 2, evaluations=9)
    assert launch.number == 2 and launch.first_worker == 4 and launch.state.limits.evaluations == 12
    drew = launch.draw(ids=["0-0-1", "0-0-2"], points=[0])
    assert drew is not None and (drew.fresh, drew.ids, drew.points) == (7, ("0-0-1", "0-0-2"), (0,))


def test_a_real_campaign_without_its_ledger_completes_and_evaluates_nothing_twice(tmp_path: Path) -> None:
    home = tmp_path / "run"
    evaluated: list[str] = []

    def evaluate(trial: hpo.Trial) -> float:
        evaluated.append(trial.id)
        return float(trial.params["lr"])

    def run(evaluations: int) -> hpo.Result:
        task = hpo.Task(SPACE, evaluate)
        keywords = {"isolation": "inline", "kind": "random", "directory": home}
        return hpo.Campaign(task, evaluations=evaluations, **keywords).run()

    run(5)
    for path in (home / "ledger").iterdir():
        path.unlink()
    (home / "ledger").rmdir()
    assert len(hpo.Result(home).individuals) == 5
    assert len(run(8).individuals) == 8 and len(evaluated) == len(set(evaluated)) == 8
    state = state_of(home)
    assert state.final == 8 and state.free == 0 and [*state.closed] == [2]


def test_what_was_left_out_of_damaged_journals_is_evaluated_by_the_next_launch(tmp_path: Path) -> None:
    from hpo.ledger.inspection import check, repair

    home = tmp_path / "run"
    task = hpo.Task(SPACE, lambda trial: float(trial.params["lr"]))

    def run() -> hpo.Result:
        return hpo.Campaign(task, directory=home, evaluations=6, kind="random", isolation="inline").run()

    run()
    (journal,) = journal_files(home)
    lines = journal.path.read_bytes().splitlines(keepends=True)
    lines[3] = b"x" + lines[3][1:]
    journal.path.write_bytes(b"".join(lines))
    assert repair(home).exit_code == 0 and len(hpo.Result(home).individuals) == 5
    assert len(run().individuals) == 6 and check(home).exit_code == 0
    assert state_of(home).final == 6
    journal.path.write_bytes(b"".join(journal.path.read_bytes().splitlines(keepends=True)[:-2]))
    assert check(home).exit_code == 0, "the part that was damaged is kept aside"
    (home / "damaged" / f"{journal.path.name}.damaged-1").unlink()
    (finding,) = check(home).damaged
    assert "bytes that counted are gone" in finding.text


def test_commands_given_before_a_launch_hold_for_it(tmp_path: Path) -> None:
    home = journals.campaign(tmp_path)
    joined(home, 2).close("stopped", 75, at_rest=True)
    asked = {"time": 1.0, "by": "me"}
    for request in (Set(**asked, evaluations=3), Enqueue(**asked, points=[{"lr": 0.5}]), Pause(**asked)):
        open_ledger(home).append(lambda state, request=request: state.command(request))
    assert state_of(home).unseen_commands == 3
    launch = joined(home, 2)
    assert launch.draw(points=[0]) is None and launch.state.limits.evaluations == 3
    assert state_of(home).unseen_commands == 0
    open_ledger(home).append(lambda state: state.command(Unpause(**asked)))
    launch.ledger.read_on()
    drew = launch.draw(points=[0])
    assert drew is not None and (drew.fresh, drew.points) == (2, (0,))
