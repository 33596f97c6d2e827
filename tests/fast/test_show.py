"""``hpo show``: all of one individual, from journals, curves and its directory."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_finished, make_started

import hpo
from hpo import cli
from hpo.journal import directory
from hpo.journal.curves import Point, curve_path, encode
from hpo.journal.files import JournalWriter, journal_path
from hpo.journal.records import Finished, Header, Launched, Migrated, Note, Reopened, Reported
from hpo.views.terminal.show import sparkline

IDENTITY = {"task": "t", "objectives": {"score": "maximize"}, "space": {}}
FAILURE = "Traceback:\n  line 3\nValueError: no"


def fields(sequence: int, **more: object) -> dict[str, object]:
    base = {"id": f"0-0-{sequence}", "island": 0, "worker": 0, "sequence": sequence, "operator": "random"}
    return {**base, "params": {"lr": 0.1 * sequence, "width": 8}, "parents": (), "retries": 0, **more}


def finished(sequence: int, score: float | None, at: float, **more: object) -> Finished:
    status = "failed" if score is None else "completed"
    values = {"started": at - 9, "finished": at, "status": status, "metrics": {"size": [1, 2]}, "error": None}
    objectives = None if score is None else {"score": score}
    return make_finished(**fields(sequence, **{**values, "objectives": objectives, **more}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two launches: 0-0-2 crashes, is tried again, fails, is reopened, and completes on another worker."""
    run = tmp_path / "run"
    directory.write_identity(run, IDENTITY)
    with JournalWriter(journal_path(run, launch=1, island=0, worker=0), header(1, 0)) as first:
        first.append(Launched(evaluations=9, deadline_s=None, islands=1, workers=2, time=1.0))
        first.append(finished(0, 0.25, 10.0, operator="default"))
        first.append(finished(1, 0.75, 20.0))
        first.append(make_started(**fields(2), time=21.0))
        first.append(Note(id="0-0-2", status="crashed", error="exit code -11", time=25.0))
        first.append(make_started(**fields(2, retries=1), time=26.0))
        first.append(finished(2, None, 30.0, retries=1, started=26.0, error=FAILURE))
    with JournalWriter(journal_path(run, launch=2, island=0, worker=1), header(2, 1)) as second:
        second.append(Reopened(id="0-0-2", number=1, reason="hpo retry", time=40.0))
        again = fields(2, reopened=1, parents=("0-0-1", "0-9-9"))
        second.append(make_started(**again, time=50.0))
        second.append(Reported(id="0-0-2", island=0, step=4, loss=-0.5, time=54.0))
        second.append(finished(2, 0.5, 60.0, reopened=1, parents=("0-0-1", "0-9-9"), started=50.0))
        second.append(Migrated(id="0-0-2", source=0, target=1, hop=1, copy=False, time=61.0))
        second.append(finished(3, None, 70.0, parents=("0-0-2",), error=FAILURE))
    curve = curve_path(run, launch=2, island=0, worker=1)
    curve.parent.mkdir()
    rows = [
        Point(id="0-0-2", step=s, value=s / 8, time=50.0 + s, began=50.0, metrics={"loss": 1 / s})
        for s in range(1, 9)
    ]
    curve.write_bytes(b"".join(map(encode, rows)))
    (run / "evaluations" / "0-0-2").mkdir(parents=True)
    (run / "evaluations" / "0-0-2" / "output-0.txt").write_text("x")
    return run


def header(launch: int, worker: int) -> Header:
    return Header(version=1, launch=launch, island=0, worker=worker, host=f"n{worker}", time=launch * 1.0)


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main(["show", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_it_tells_one_individual_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, home, "0-0-2").split())
    for words in (
        "status completed",
        "score 0.5 (best 0.75 by 0-0-1, default 0.25 by 0-0-0)",
        "took 10 s",
        "worker 0-1 on n1, launch 2",
        "operator random of 0-0-1 (0.75), 0-9-9",
        "children 1: 0-0-3",
        "migrations 0 to 1",
        "configuration 0-0-2 best 0-0-1 default 0-0-0 lr 0.2 0.1 0.0",
        "launch 1, worker 0-0 on n0: crashed after 4 s",
        "tried again after: exit code -11",
        "launch 1, worker 0-0 on n0: failed after 4 s",
        "evaluated again (hpo retry)",
        "launch 2, worker 0-1 on n1: completed after 10 s",
        "compared by the pruner after step 4: value 0.5",  # of an objective to be maximised
        "curve: steps 1 to 8, 8 reports, from 0.125 to 1 ▁▂▃▄▅▆▇█ step value loss",
        "8 1 0.125",
        f"directory {home}/evaluations/0-0-2",
        "output-0.txt",
    ):
        assert words in text, (words, text)
    text = shown(capsys, home, "0-0-3")
    assert "error\n    Traceback:\n      line 3\n    ValueError: no" in text and "directory " not in text
    assert "(the best)" in shown(capsys, home, "0-0-1")


def test_the_table_has_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = json.loads(shown(capsys, home, "0-0-2", "--json"))
    assert table["params"] == {"lr": 0.2, "width": 8} and table["best"]["id"] == "0-0-1"
    assert [run["status"] for run in table["runs"]] == ["crashed", "failed", "completed"]
    assert [row["loss"] for row in table["curve"]] == [1 / step for step in range(1, 9)]
    assert table["parents"] == [
        {"id": "0-0-1", "objectives": {"score": 0.75}},
        {"id": "0-9-9", "objectives": None},
    ]
    assert table["output"] == [f"{home}/evaluations/0-0-2/output-0.txt"]


@pytest.mark.parametrize(
    ("identity", "near"),
    [("0-0-2x", 'Did you mean "0-0-2"?'), ("known-1", "Valid: 0-0-0"), ("\x1b[2J", r"no individual \x1b[2J")],
)
def test_an_unknown_id_is_refused_with_near_ones(home, capsys, identity, near):
    assert cli.main(["show", str(home), identity]) == 2
    assert near in capsys.readouterr().err


def test_known_points_and_runs_of_a_real_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def evaluate(trial: hpo.Trial) -> float:
        trial.report(1, trial.params["x"])
        trial.log(seen="é")
        return trial.params["x"]

    task = hpo.Task(hpo.SearchSpace(x=hpo.Float(0, 1)), evaluate, default={"x": 0.5})
    known = [{"params": {"x": 0.25}, "value": 0.25}]
    home = tmp_path / "run"
    hpo.Campaign(task, directory=home, evaluations=4, isolation="inline", kind="random", known=known).run()
    text = shown(capsys, home, "known-1")
    assert "known-1" in text and "source" in text and "0.25" in text
    text = shown(capsys, home, "0-0-0")
    assert (
        "operator" in text and "default" in text and "seen  é" in text and "curve: step 1, 1 report," in text
    )
    with pytest.raises(SystemExit):
        cli.main(["show", str(home)])
    assert cli.main(["show", str(home), "known-2"]) == 2
    assert "Known points are known-1 to known-1" in capsys.readouterr().err


@given(st.lists(st.floats(), max_size=200))
def test_a_line_of_bars_shows_any_values(values: list[float]) -> None:
    line = sparkline(values, 40)
    assert len(line) == min(len(values), 40)
    if len(values) <= 40:
        assert [bar == " " for bar in line] == [not math.isfinite(value) for value in values]
        finite = sorted((value, bar) for value, bar in zip(values, line) if bar != " ")
        assert [bar for _, bar in finite] == sorted(bar for _, bar in finite)
