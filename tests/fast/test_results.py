"""Tables say what the journals say, however the campaign was stopped, resumed, killed or is running now."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import journals
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from individuals import make_individual
from journals import T, finished, launched
from living import at_work, joined
from refusals import refused
from written import Written

from hpo.errors import CampaignError, JournalDamaged, UsageError
from hpo.individual import COMPLETED, FINAL, STATUSES
from hpo.journal.commands import Set
from hpo.journal.files import journal_path
from hpo.ledger.opening import give
from hpo.results import overview
from hpo.results import result as results
from hpo.results.record import load
from hpo.views import text


def started(name: str, at: float = T, **fields: object) -> dict[str, object]:
    record = finished(name, **fields)
    names = ("id", "island", "worker", "sequence", "params", "operator", "parents", "retries")
    return {"type": "started", **{key: record[key] for key in names}, "time": at}


def moved(name: str, hop: int, source: int, target: int) -> dict[str, object]:
    fields = {"id": name, "source": source, "target": target, "hop": hop}
    return {"type": "migrated", **fields, "copy": False, "time": T + hop}


def add_launch(home: Path, number: int, *files: list[dict[str, object]], at: float = T) -> None:
    for worker, records in enumerate(files):
        journals.write(home, records, number, worker, at)


def statuses(home: Path) -> dict[str, str]:
    return {one.id: one.status for one in load(home).individuals}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A campaign's directory to be filled by hand."""
    return journals.campaign(tmp_path / "campaign")


def test_a_finished_record_alone_makes_an_individual(home: Path) -> None:
    facts = {
        "params": {"lr": 0.1, "depth": 3},
        "operator": "crossover",
        "retries": 1,
        "metrics": {"accuracy": 0.9, "note": "fine", "loss": math.inf},
    }
    parents = ["0-0-1", "1-0-2"]
    unknown = {"type": "weather", "time": T + 7}
    add_launch(home, 1, [unknown, finished("1-2-3", 0.25, parents=parents, **facts)])
    end = {"status": COMPLETED, "objectives": {"value": 0.25}, "started": T + 3, "finished": T + 3.5}
    expected = make_individual(id="1-2-3", parents=tuple(parents), launch=1, **facts, **end)
    assert load(home).individuals == [expected]


def test_an_evaluation_runs_as_long_as_its_launch_and_is_lost_with_it(home: Path) -> None:
    signs = [at_work(home) for _ in range(3)]
    facts = {"deadline_s": None, "islands": 1, "workers": 2}
    for worker, begin in (0, T), (1, T + 6), (2, T + 20):
        records = [launched(**facts), finished(f"0-{worker}-0", 1.0), started(f"0-{worker}-1", begin + 9)]
        journals.write(home, records, worker + 1, worker, begin)
    before = {f"0-{worker}-0": "completed" for worker in range(3)}
    with signs[1]:
        pass
    with signs[0], signs[2]:
        one, two = load(home), {"0-0-1": "running", "0-1-1": "lost", "0-2-1": "running"}
        assert one.at_work == {1, 3} and [launch.number for launch in one.current] == [1, 3]
        assert statuses(home) == {**before, **two} and one.ended is None
        table = overview.of(home).table()
        assert table["workers"] == 4 and {each["id"] for each in table["running_individuals"]} == {
            "0-0-1",
            "0-2-1",
        }
        assert "4 in 2 launches" in text.status(home, overview.of(home))
        ended = {"type": "ended", "reason": "deadline", "exit": 75, "time": T + 29}
        with journal_path(home, launch=3, island=0, worker=2).open("ab") as file:
            file.write(journals.line(ended))
        assert statuses(home) == {**before, **two, "0-2-1": "lost"} and load(home).ended is None
    found = load(home)
    assert not found.alive and found.ended is None, "the first and the second were cut off"
    assert found.seconds == 24 and found.worker_hours == pytest.approx(2 * (9 + 9 + 9) / 3600)


def test_a_campaign_has_ended_as_the_launch_that_was_closed_last(home: Path) -> None:
    first, second = joined(home), joined(home)
    for launch, at, reason in (first, T + 9, "done"), (second, T, "deadline"):  # their clocks differ
        records = [{"type": "ended", "reason": reason, "exit": 0, "time": at}]
        journals.write(home, records, launch.number, launch.own.joined.first_worker, T - 9)
    assert load(home).ended == ("deadline", 0)
    second.close("deadline", 0, at_rest=True)
    first.ledger.read_on()
    assert load(home).ended == ("done", 0), "a launch that is not closed ended after those that are"
    first.close("done", 0, at_rest=True)
    joined(home)
    assert load(home).ended == ("done", 0), "the third has not begun"


def test_moves_are_ordered_by_hop_and_counted_once(home: Path) -> None:
    first = [finished("0-0-1", 1.0), moved("0-0-1", 0, 0, 2), moved("0-0-1", 0, 0, 2)]
    add_launch(home, 1, [moved("0-0-1", 1, 2, 1)], first)
    assert load(home).individuals[0].migrations == ((0, 2), (2, 1))


def test_torn_journals_are_reported_and_damaged_ones_refused(home: Path) -> None:
    add_launch(home, 1, [finished("0-0-0", 1.0), finished("0-0-1", 2.0)])
    path = journal_path(home, launch=1, island=0, worker=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert statuses(home) == {"0-0-0": "completed"} and load(home).torn == [path]
    path.write_bytes(whole.replace(b'"value":1.0', b'"value":7.0'))
    with pytest.raises(JournalDamaged, match="line 2"):
        load(home)


@given(data=st.data())
def test_the_fold_agrees_with_a_slow_one(tmp_path_factory, data):
    """Random histories over three launches, against the rules applied to one individual at a time."""
    home = journals.campaign(tmp_path_factory.mktemp("fold"))
    kinds = ["start", *(status for status in STATUSES if status != "running")]
    event = st.tuples(st.integers(1, 3), st.sampled_from(["0-0-0", "0-0-1"]), st.sampled_from(kinds))
    events = sorted(data.draw(st.lists(event)), key=lambda event: event[0])
    launches: dict[int, list[dict[str, object]]] = {1: [], 2: [], 3: []}
    for at, (launch, name, kind) in enumerate(events, start=int(T)):
        end = finished(name, status=kind, started=at, finished=at)
        launches[launch].append(started(name, at) if kind == "start" else end)
    for launch, records in launches.items():
        add_launch(home, launch, records)
    expected: dict[str, str] = {}
    for name in {name for _, name, _ in events}:
        own = [kind for _, other, kind in events if other == name]
        final = [kind for kind in own if kind in FINAL]
        expected[name] = final[0] if final else "lost" if own[-1] == "start" else own[-1]
    assert statuses(home) == expected


def test_status_has_the_keys_of_the_contract(home: Path) -> None:
    assert results.status(load(home))["best"] is None and results.status(load(home))["started"] is None
    records = [
        launched(deadline_s=7200.0, islands=2, workers=4),
        finished("0-0-0", 3.0),
        finished("0-0-1", 1.0, params={"lr": 0.5}),
        finished("0-0-2", error="ZeroDivisionError"),
        finished("0-0-3", 0.5, status="pruned"),
        started("0-0-4", T + 4),
    ]
    sign = at_work(home)
    give(home, Set(by="me", time=T, deadline_s=7200.0))
    add_launch(home, 1, records)
    before = time.time()
    with sign:
        status = results.status(load(home))
    seconds = status.pop("seconds")
    assert status.pop("worker_hours") == pytest.approx(4 * seconds / 3600)
    assert before - T <= seconds <= time.time() - T, "the campaign is at work, so its time goes on"
    assert status.pop("rank_hours") == pytest.approx(2 / 3600, rel=0.01)
    (running,) = status.pop("running_individuals")
    assert running["id"] == "0-0-4"
    counts = {"completed": 2, "pruned": 1, "failed": 1}
    assert status == {
        "evaluations": {**{name: 0 for name in STATUSES if name != "running"}, **counts},
        "budget": {"evaluations": 8, "deadline": 7200.0, "rank_hours": None},
        "running": 1,
        "best": {"value": 1.0, "params": {"lr": 0.5}, "id": "0-0-1"},
        "islands": 2,
        "workers": 4,
        "started": T,
        "updated": T + 4,
        "left": [],
        "state": "running",
        "remarks": [],
    }
    json.dumps(status)


def test_time_between_launches_does_not_count_and_the_last_launch_sets_the_budget(home: Path) -> None:
    add_launch(home, 1, [launched(), finished("0-0-0", 1.0, started=T, finished=T + 10)])
    second = [launched(evaluations=20, workers=6), finished("0-0-1", 1.0, started=T, finished=T + 1005)]
    add_launch(home, 2, second, at=T + 1000)
    status = results.status(load(home))
    assert (status["started"], status["updated"], status["seconds"]) == (T, T + 1005, 15.0)
    assert (
        status["budget"] == {"evaluations": 20, "deadline": None, "rank_hours": None}
        and status["workers"] == 6
    )


@pytest.mark.parametrize(
    ("direction", "order"), [("minimize", [1.0, 2.0, 3.0]), ("maximize", [3.0, 2.0, 1.0])]
)
def test_best_follows_the_direction_and_counts_the_completed_only(tmp_path, direction, order):
    home = journals.campaign(tmp_path / "campaign", objectives={"value": direction})
    completed = [finished(f"0-0-{index}", value) for index, value in enumerate([2.0, 3.0, 1.0])]
    pruned = [finished(f"0-0-{index}", value, status="pruned") for index, value in ((7, -9.0), (8, 9.0))]
    add_launch(home, 1, [*completed, *pruned, started("0-0-9")])
    record = load(home)
    assert [one.value for one in results.best(record, 10)] == order
    assert [one.value for one in results.best(record, 2)] == order[:2]
    assert results.Result(home).best.value == order[0]


TWO = {"f1": "maximize", "seconds": "minimize"}


def test_status_shows_one_of_the_front_with_all_its_objectives(tmp_path: Path) -> None:
    home = journals.campaign(tmp_path / "campaign", objectives=TWO)
    values = [(0.5, 1.0), (0.9, 2.0), (0.4, 2.0)]
    add_launch(home, 1, [finished(f"0-0-{n}", dict(zip(TWO, pair))) for n, pair in enumerate(values)])
    best = results.status(load(home))["best"]
    assert best == {"value": {"f1": 0.9, "seconds": 2.0}, "params": {"lr": 0.1}, "id": "0-0-1"}
    shown = text.status(home, overview.of(home))
    assert "f1 = 0.9, seconds = 2 by 0-0-1: lr=0.1" in shown
    assert [one.id for one in results.Result(home).front] == ["0-0-1", "0-0-0"]


_COLUMNS = [
    "id", "island", "worker", "sequence", "status", "value", "started", "finished", "seconds", "operator",
    "parents", "migrations", "retries", "error",
]  # fmt: skip


@pytest.fixture
def mixed(home: Path) -> Path:
    """What is awkward in a table: gaps, text with commas and lines, mixed types, non-finite numbers."""
    first = {"params": {"lr": 0.1, "depth": 3, "layers": "auto"}, "parents": ["1-0-0", "0-0-5"]}
    second = {"params": {"lr": 1e-300, "layers": 2, "nesterov": True}, "error": "line 1\n  line 2: ünïcode"}
    records = [
        finished("0-0-0", 1 / 3, **first, metrics={"loss": math.nan, "epochs": 3, "note": 'a, "b"\nc'}),
        finished("0-0-1", **second, metrics={"loss": -math.inf}),
        moved("0-0-0", 0, 0, 1),
        started("0-0-2", T + 2, params={"lr": 0.2, "depth": 1, "layers": None}),
    ]
    add_launch(home, 1, records)
    return home


def test_the_dataframe_has_the_columns_of_the_contract(mixed: Path, tmp_path: Path) -> None:
    table = results.Result(mixed).dataframe()
    params = ["params.lr", "params.depth", "params.layers", "params.nesterov"]
    assert list(table.columns) == [*_COLUMNS, *params, "metrics.loss", "metrics.epochs", "metrics.note"]
    assert list(table["status"]) == ["completed", "failed", "lost"]
    assert table["value"][0] == 1 / 3 and math.isnan(table["value"][1]) and table["seconds"][0] == 0.5
    assert table["parents"][0] == "1-0-0 0-0-5" and table["migrations"][0] == "0>1"
    assert str(table["params.depth"].dtype) == "Int64" and str(table["params.nesterov"].dtype) == "boolean"
    assert list(table["params.depth"].isna()) == [False, True, False]
    assert list(table["params.layers"]) == ["auto", 2, None] and table["error"][1].endswith("ünïcode")
    several = journals.campaign(tmp_path / "several", objectives=TWO)
    add_launch(several, 1, [finished("0-0-0")])
    at = _COLUMNS.index("value")
    expected = [*_COLUMNS[:at], "objectives.f1", "objectives.seconds", *_COLUMNS[at + 1 :], "params.lr"]
    assert list(results.Result(several).dataframe().columns) == expected


def test_csv_parquet_and_json_hold_the_same(mixed: Path, tmp_path: Path) -> None:
    table = results.Result(mixed).dataframe()
    for suffix in (".csv", ".parquet", ".JSON"):
        assert results.export(mixed, tmp_path / f"table{suffix}") == 3
    parquet = pandas.read_parquet(tmp_path / "table.parquet")
    csv = pandas.read_csv(tmp_path / "table.csv", engine="python")
    rows = json.loads((tmp_path / "table.JSON").read_text())
    assert list(parquet.columns) == list(csv.columns) == list(rows[0]) == list(table.columns)
    for name in ("id", "value", "params.lr", "params.depth", "status", "error", "parents", "metrics.note"):
        exact = [None if pandas.isna(value) else value for value in table[name]]
        for other in (parquet, csv):
            # An empty text and a missing one are the same in a CSV file.
            assert [None if pandas.isna(value) else value for value in other[name]] == [
                None if value == "" and other is csv else value for value in exact
            ], name
        assert [row[name] for row in rows] == exact
    assert (tmp_path / "table.csv").read_text().count(",3,auto,") == 1, "a whole number is written as one"
    assert list(parquet["params.layers"])[:2] == ["auto", "2"]
    assert [row["params.layers"] for row in rows] == ["auto", 2, None]
    assert [row["metrics.loss"] for row in rows] == ["nan", "-inf", None]
    assert rows[1]["params.nesterov"] is True


def test_a_text_with_a_carriage_return_stays_one_cell(tmp_path: Path) -> None:
    campaign = Written(tmp_path / "x")
    campaign.evaluate(0, 0.5, metrics={"note": "50%\r100% done", "plain": "a\nb"})
    campaign.evaluate(1, 0.5, metrics={"note": "fine"})
    results.export(campaign.path, tmp_path / "table.csv")
    table = pandas.read_csv(tmp_path / "table.csv")
    assert list(table["metrics.note"]) == ["50%\r100% done", "fine"]


def test_an_export_replaces_the_file_all_at_once(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with open(path) as reader:
        assert results.export(home, path) == 0
        assert reader.read() == "old", "who had the old file open keeps it whole"
    assert list(pandas.read_csv(path).columns) == _COLUMNS
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["campaign", "table.csv"]


@pytest.mark.parametrize(
    ("name", "error"),
    [*((name, UsageError) for name in ("table.xlsx", "table", ".csv")), ("nowhere/table.csv", CampaignError)],
)
def test_an_export_that_cannot_be_written_names_it(home, tmp_path, name, error):
    refused(lambda: results.export(home, tmp_path / name), name, error=error)


def test_a_result_reads_late_and_tells_why_the_campaign_ended(home: Path, tmp_path: Path) -> None:
    result = results.Result(home)
    add_launch(
        home, 1, [finished("0-0-0", 1.5), {"type": "ended", "reason": "budget", "exit": 0, "time": T + 9}]
    )
    assert (result.best.params, result.best.value, result.reason) == ({"lr": 0.1}, 1.5, "budget")
    assert result.status == results.status(load(home))
    assert results.Result(home, "stopped").reason == "stopped"
    failed = journals.campaign(tmp_path / "failed")
    add_launch(failed, 1, [finished(f"0-0-{index}") for index in range(3)])
    with pytest.raises(CampaignError, match="3 failed"):
        _ = results.Result(failed).best
    assert results.Result(failed).reason == ""
    with pytest.raises(CampaignError, match="nowhere"):
        load(tmp_path / "nowhere")
