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
from written import Written

from hpo.errors import CampaignError, JournalDamaged, UsageError
from hpo.individual import COMPLETED, FINAL, STATUSES
from hpo.journal import directory
from hpo.journal.files import journal_path
from hpo.journal.lock import acquire
from hpo.results import overview
from hpo.results import result as results
from hpo.results.record import CampaignRecord, load
from hpo.views import text

_T = 1.7e9


def _finished(name: str, value: float | None = None, **fields: object) -> dict[str, object]:
    island, worker, sequence = map(int, name.split("-"))
    return {
        "type": "finished",
        "id": name,
        "island": island,
        "worker": worker,
        "sequence": sequence,
        "params": {"lr": 0.1},
        "operator": "random",
        "parents": [],
        "retries": 0,
        "started": _T + sequence,
        "finished": _T + sequence + 0.5,
        "status": COMPLETED,
        "objectives": None if value is None else {"value": value},
        "metrics": {},
        "error": None,
        **fields,
    }


def _started(name: str, at: float = _T, **fields: object) -> dict[str, object]:
    record = _finished(name, **fields)
    names = ("id", "island", "worker", "sequence", "params", "operator", "parents", "retries")
    return {"type": "started", **{key: record[key] for key in names}, "time": at}


def _moved(name: str, hop: int, source: int, target: int) -> dict[str, object]:
    fields = {"id": name, "source": source, "target": target, "hop": hop}
    return {"type": "migrated", **fields, "copy": False, "time": _T + hop}


def _launched(**fields: object) -> dict[str, object]:
    return {
        "type": "launched",
        "evaluations": 8,
        "deadline_s": None,
        "islands": 2,
        "workers": 4,
        "ranks_per_worker": 1,
        "time": _T,
        **fields,
    }


class _Home:
    """A campaign's directory to be filled by hand."""

    def __init__(self, path: Path, objectives: dict[str, str] | None = None) -> None:
        self.path = path
        directory.write_identity(
            path, {"task": "x:y", "objectives": objectives or {"value": "minimize"}, "seed": 0}
        )

    def launch(self, number: int, *files: list[dict[str, object]], at: float = _T) -> None:
        for worker, records in enumerate(files):
            journals.write(self.path, records, number, worker, at)

    def load(self) -> CampaignRecord:
        return load(self.path)

    def statuses(self) -> dict[str, str]:
        return {one.id: one.status for one in self.load().individuals}


@pytest.fixture
def home(tmp_path: Path) -> _Home:
    return _Home(tmp_path / "campaign")


# The fold -------------------------------------------------------------------------------------------------


def test_a_finished_record_alone_makes_an_individual(home: _Home) -> None:
    record = _finished(
        "1-2-3",
        0.25,
        params={"lr": 0.1, "depth": 3},
        operator="crossover",
        parents=["0-0-1", "1-0-2"],
        retries=1,
        metrics={"accuracy": 0.9, "note": "fine", "loss": math.inf},
    )
    home.launch(1, [record])
    assert home.load().individuals == [
        make_individual(
            id="1-2-3",
            params={"lr": 0.1, "depth": 3},
            status=COMPLETED,
            objectives={"value": 0.25},
            metrics={"accuracy": 0.9, "note": "fine", "loss": math.inf},
            started=_T + 3,
            finished=_T + 3.5,
            operator="crossover",
            parents=("0-0-1", "1-0-2"),
            retries=1,
            launch=1,
        )
    ]


def test_what_was_at_work_runs_while_the_campaign_does_and_is_lost_with_it(home: _Home) -> None:
    home.launch(1, [_finished("0-0-0", 1.0), _started("0-0-1")])
    lock = acquire(home.path)
    assert home.load().alive
    assert home.statuses() == {"0-0-0": "completed", "0-0-1": "running"}
    lock.release()
    assert not home.load().alive
    assert home.statuses() == {"0-0-0": "completed", "0-0-1": "lost"}


def test_what_an_earlier_leg_left_is_lost_while_a_later_one_runs(home: _Home) -> None:
    home.launch(1, [_started("0-0-1")])
    home.launch(2, [_started("0-0-2", _T + 9)])
    with_lock = acquire(home.path)
    assert home.statuses() == {"0-0-1": "lost", "0-0-2": "running"}
    with_lock.release()


def test_nothing_runs_in_a_leg_that_has_ended(home: _Home) -> None:
    home.launch(1, [_started("0-0-1"), {"type": "ended", "reason": "deadline", "exit": 75, "time": _T + 9}])
    acquire(home.path)
    record = home.load()
    assert home.statuses() == {"0-0-1": "lost"}
    assert record.ended == ("deadline", 75)


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_final_status_stays(home: _Home, status: str) -> None:
    home.launch(1, [_started("0-0-1"), _finished("0-0-1", status=status, error="the first")])
    home.launch(2, [_started("0-0-1", _T + 8), _finished("0-0-1", 0.5, error="the second")])
    (one,) = home.load().individuals
    assert (one.status, one.error) == (status, "the first")


@pytest.mark.parametrize("status", ["lost", "interrupted"])
def test_another_status_gives_way_to_what_comes_later(home: _Home, status: str) -> None:
    home.launch(1, [_finished("0-0-1", status=status)])
    assert home.statuses() == {"0-0-1": status}
    home.launch(2, [_started("0-0-1", _T + 60)])
    lock = acquire(home.path)
    assert home.statuses() == {"0-0-1": "running"}
    lock.release()
    assert home.statuses() == {"0-0-1": "lost"}
    home.launch(3, [_started("0-0-1", _T + 70), _finished("0-0-1", 0.5, started=_T + 70, finished=_T + 80)])
    (one,) = home.load().individuals
    assert (one.status, one.value, one.seconds) == ("completed", 0.5, 10.0)


def test_an_evaluation_taken_over_by_another_worker_counts_once(home: _Home) -> None:
    """One worker died with it, another did it again in the same launch; their journals are read in turn."""
    home.launch(1, [_started("0-0-1", _T + 1)], [_started("0-0-1", _T + 5), _finished("0-0-1", 0.5)])
    home.launch(2, [_finished("0-1-1", 0.5)], [_started("0-1-1", _T + 1)])
    assert home.statuses() == {"0-0-1": "completed", "0-1-1": "completed"}


def test_moves_are_ordered_by_hop_and_counted_once(home: _Home) -> None:
    home.launch(
        1,
        [_moved("0-0-1", 1, 2, 1)],
        [_finished("0-0-1", 1.0), _moved("0-0-1", 0, 0, 2), _moved("0-0-1", 0, 0, 2)],
    )
    (one,) = home.load().individuals
    assert one.migrations == ((0, 2), (2, 1))


def test_unknown_records_are_skipped(home: _Home) -> None:
    home.launch(1, [{"type": "weather", "time": _T + 7}, _finished("0-0-0", 1.0)])
    assert home.statuses() == {"0-0-0": "completed"}


def test_torn_journals_are_reported_and_damaged_ones_refused(home: _Home) -> None:
    home.launch(1, [_finished("0-0-0", 1.0), _finished("0-0-1", 2.0)])
    path = journal_path(home.path, launch=1, island=0, worker=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert home.statuses() == {"0-0-0": "completed"}
    assert home.load().torn == [path]
    path.write_bytes(whole.replace(b'"value":1.0', b'"value":7.0'))
    with pytest.raises(JournalDamaged, match="line 2"):
        home.load()


@given(data=st.data())
def test_the_fold_agrees_with_a_slow_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random histories over three launches, against the rules applied to one individual at a time."""
    home = _Home(tmp_path_factory.mktemp("fold"))
    endings = [status for status in STATUSES if status != "running"]
    events = data.draw(
        st.lists(
            st.tuples(
                st.integers(1, 3), st.sampled_from(["0-0-0", "0-0-1"]), st.sampled_from(["start", *endings])
            )
        )
    )
    events.sort(key=lambda event: event[0])
    launches: dict[int, list[dict[str, object]]] = {1: [], 2: [], 3: []}
    for index, (launch, name, kind) in enumerate(events):
        at = _T + index
        launches[launch].append(
            _started(name, at) if kind == "start" else _finished(name, status=kind, started=at, finished=at)
        )
    for launch, records in launches.items():
        home.launch(launch, records)
    expected: dict[str, str] = {}
    for name in {name for _, name, _ in events}:
        kinds = [kind for _, other, kind in events if other == name]
        final = [kind for kind in kinds if kind in FINAL]
        expected[name] = final[0] if final else "lost" if kinds[-1] == "start" else kinds[-1]
    assert home.statuses() == expected


# Status ---------------------------------------------------------------------------------------------------


def test_status_has_the_keys_of_the_contract(home: _Home) -> None:
    home.launch(
        1,
        [
            _launched(deadline_s=7200.0),
            _finished("0-0-0", 3.0),
            _finished("0-0-1", 1.0, params={"lr": 0.5}),
            _finished("0-0-2", status="failed", error="ZeroDivisionError"),
            _finished("0-0-3", 0.5, status="pruned"),
            _started("0-0-4", _T + 4),
        ],
    )
    lock = acquire(home.path)
    before = time.time()
    status = results.status(home.load())
    lock.release()
    assert list(status) == [
        "evaluations", "budget", "running", "best", "islands", "workers", "started", "updated", "seconds",
        "left", "state", "running_individuals", "remarks",
    ]  # fmt: skip
    assert status["evaluations"] == {
        "completed": 2,
        "pruned": 1,
        "failed": 1,
        "invalid": 0,
        "timeout": 0,
        "crashed": 0,
        "lost": 0,
        "interrupted": 0,
    }
    assert status["running"] == 1
    assert [one["id"] for one in status["running_individuals"]] == ["0-0-4"]
    assert status["budget"] == {"evaluations": 8, "deadline": 7200.0}
    assert status["best"] == {"value": 1.0, "params": {"lr": 0.5}, "id": "0-0-1"}
    assert (status["islands"], status["workers"]) == (2, 4)
    assert (status["started"], status["updated"]) == (_T, _T + 4)
    # It is at work still, so its time goes on.
    seconds = status["seconds"]
    assert isinstance(seconds, float)
    assert before - _T <= seconds <= time.time() - _T
    json.dumps(status)


def test_time_between_legs_does_not_count_and_the_last_launch_sets_the_budget(home: _Home) -> None:
    home.launch(1, [_launched(), _finished("0-0-0", 1.0, started=_T, finished=_T + 10)])
    home.launch(
        2,
        [
            _launched(evaluations=20, workers=6),
            _finished("0-0-1", 1.0, started=_T + 1000, finished=_T + 1005),
        ],
        at=_T + 1000,
    )
    status = results.status(home.load())
    assert (status["started"], status["updated"], status["seconds"]) == (_T, _T + 1005, 15.0)
    assert status["budget"] == {"evaluations": 20, "deadline": None}
    assert status["workers"] == 6


def test_status_before_the_first_leg_and_without_a_campaign(home: _Home, tmp_path: Path) -> None:
    status = results.status(home.load())
    assert status["best"] is None
    assert (status["started"], status["updated"], status["seconds"]) == (None, None, 0)
    with pytest.raises(CampaignError, match="holds no campaign"):
        load(tmp_path / "nowhere")


# Best -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "order"), [("minimize", [1.0, 2.0, 3.0]), ("maximize", [3.0, 2.0, 1.0])]
)
def test_best_follows_the_direction_and_counts_the_completed_only(
    tmp_path: Path, direction: str, order: list[float]
) -> None:
    home = _Home(tmp_path / "campaign", {"value": direction})
    home.launch(
        1,
        [
            *(_finished(f"0-0-{index}", value) for index, value in enumerate([2.0, 3.0, 1.0])),
            _finished("0-0-7", -9.0, status="pruned"),
            _finished("0-0-8", 9.0, status="pruned"),
            _started("0-0-9"),
        ],
    )
    record = home.load()
    assert [one.value for one in results.best(record, 10)] == order
    assert [one.value for one in results.best(record, 2)] == order[:2]
    assert results.Result(home.path).best.value == order[0]


def _dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


@given(
    st.integers(2, 4).flatmap(
        lambda width: st.lists(st.tuples(*[st.integers(-3, 3).map(float)] * width), max_size=30)
    )
)
def test_the_front_is_what_no_other_dominates(losses: list[tuple[float, ...]]) -> None:
    width = len(losses[0]) if losses else 2
    signs = [1.0 if index % 2 else -1.0 for index in range(width)]
    record = CampaignRecord(
        directory=Path(),
        identity={
            "objectives": {f"o{i}": "minimize" if sign > 0 else "maximize" for i, sign in enumerate(signs)}
        },
        individuals=[
            make_individual(
                id=f"0-0-{number}",
                params={},
                status=COMPLETED,
                objectives={
                    f"o{i}": sign * loss for i, (sign, loss) in enumerate(zip(signs, row, strict=True))
                },
            )
            for number, row in enumerate(losses)
        ],
        launches=[],
        torn=[],
        seconds=0.0,
        alive=False,
    )
    found = [losses[one.sequence] for one in results.front(record)]
    assert sorted(found) == sorted(one for one in losses if not any(_dominates(two, one) for two in losses))
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    assert results.best(record, 2) == results.front(record)[:2]


def test_status_shows_one_of_the_front_with_all_its_objectives(tmp_path: Path) -> None:
    home = _Home(tmp_path / "campaign", {"f1": "maximize", "seconds": "minimize"})
    home.launch(
        1,
        [
            _finished("0-0-0", objectives={"f1": 0.5, "seconds": 1.0}),
            _finished("0-0-1", objectives={"f1": 0.9, "seconds": 2.0}),
            _finished("0-0-2", objectives={"f1": 0.4, "seconds": 2.0}),
        ],
    )
    best = results.status(home.load())["best"]
    assert best == {"value": {"f1": 0.9, "seconds": 2.0}, "params": {"lr": 0.1}, "id": "0-0-1"}
    shown = text.status(home.path, overview.of(home.path))
    assert (
        "f1 = 0.9, seconds = 2 by 0-0-1: lr=0.1 (of 2 objectives the best in f1; `hpo best` shows the"
        in shown
    )
    assert [one.id for one in results.Result(home.path).front] == ["0-0-1", "0-0-0"]


# Tables ---------------------------------------------------------------------------------------------------

_COLUMNS = [
    "id", "island", "worker", "sequence", "status", "value", "started", "finished", "seconds", "operator",
    "parents", "migrations", "retries", "error",
]  # fmt: skip


@pytest.fixture
def mixed(home: _Home) -> _Home:
    """What is awkward in a table: gaps, text with commas and lines, mixed types, non-finite numbers."""
    home.launch(
        1,
        [
            _launched(),
            _finished(
                "0-0-0",
                1 / 3,
                params={"lr": 0.1, "depth": 3, "layers": "auto"},
                parents=["1-0-0", "0-0-5"],
                metrics={"loss": math.nan, "epochs": 3, "note": 'a, "b"\nc'},
            ),
            _finished(
                "0-0-1",
                status="failed",
                params={"lr": 1e-300, "layers": 2, "nesterov": True},
                error="Traceback, line 1\n  line 2: ünïcode",
                metrics={"loss": -math.inf},
            ),
            _moved("0-0-0", 0, 0, 1),
            _started("0-0-2", _T + 2, params={"lr": 0.2, "depth": 1, "layers": None}),
        ],
    )
    return home


_EXTRA = ["params.lr", "params.depth", "params.layers", "params.nesterov"]
_METRICS = ["metrics.loss", "metrics.epochs", "metrics.note"]


def test_the_dataframe_has_the_columns_of_the_contract(mixed: _Home) -> None:
    table = results.Result(mixed.path).dataframe()
    assert list(table.columns) == [*_COLUMNS, *_EXTRA, *_METRICS]
    assert list(table["id"]) == ["0-0-0", "0-0-1", "0-0-2"]
    assert list(table["status"]) == ["completed", "failed", "lost"]
    assert table["value"][0] == 1 / 3
    assert math.isnan(table["value"][1])
    assert table["seconds"][0] == 0.5
    assert table["parents"][0] == "1-0-0 0-0-5"
    assert table["migrations"][0] == "0>1"
    assert str(table["params.depth"].dtype) == "Int64"
    assert list(table["params.depth"].isna()) == [False, True, False]
    assert str(table["params.nesterov"].dtype) == "boolean"
    assert list(table["params.layers"]) == ["auto", 2, None]
    assert table["error"][1].endswith("ünïcode")


def test_several_objectives_have_columns_of_their_own_even_if_none_completed(tmp_path: Path) -> None:
    home = _Home(tmp_path / "campaign", {"f1": "maximize", "seconds": "minimize"})
    home.launch(1, [_finished("0-0-0", status="failed")])
    table = results.Result(home.path).dataframe()
    at = _COLUMNS.index("value")
    expected = [*_COLUMNS[:at], "objectives.f1", "objectives.seconds", *_COLUMNS[at + 1 :], "params.lr"]
    assert list(table.columns) == expected


def test_csv_parquet_and_json_hold_the_same(mixed: _Home, tmp_path: Path) -> None:
    table = results.Result(mixed.path).dataframe()
    for suffix in (".csv", ".parquet", ".JSON"):
        assert results.export(mixed.path, tmp_path / f"table{suffix}") == 3
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
    assert list(table["id"]) == ["0-0-0", "0-0-1"]


def test_an_export_replaces_the_file_all_at_once(mixed: _Home, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with open(path) as reader:
        results.export(mixed.path, path)
        assert reader.read() == "old", "who had the old file open keeps it whole"
    assert path.read_text().startswith("id,island,")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["campaign", "table.csv"]


def test_a_campaign_without_evaluations_can_be_exported(home: _Home, tmp_path: Path) -> None:
    for suffix in ("csv", "parquet", "json"):
        assert results.export(home.path, tmp_path / f"table.{suffix}") == 0
    assert list(pandas.read_csv(tmp_path / "table.csv").columns) == _COLUMNS
    assert json.loads((tmp_path / "table.json").read_text()) == []


@pytest.mark.parametrize("name", ["table.xlsx", "table", ".csv"])
def test_another_suffix_is_refused_and_the_three_are_listed(mixed: _Home, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"\.csv, \.parquet or \.json"):
        results.export(mixed.path, tmp_path / name)


def test_a_path_that_cannot_be_written_is_named(mixed: _Home, tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="No such file or directory"):
        results.export(mixed.path, tmp_path / "nowhere" / "table.csv")


# Result ---------------------------------------------------------------------------------------------------


def test_a_result_reads_late_and_tells_why_the_campaign_ended(home: _Home) -> None:
    result = results.Result(home.path)
    home.launch(
        1, [_finished("0-0-0", 1.5), {"type": "ended", "reason": "budget", "exit": 0, "time": _T + 9}]
    )
    assert result.best.params == {"lr": 0.1}
    assert result.best.value == 1.5
    assert result.reason == "budget"
    assert result.status == results.status(home.load())
    assert results.Result(home.path, "stopped").reason == "stopped"


def test_no_best_one_is_a_sentence_with_the_counts(home: _Home) -> None:
    home.launch(1, [_finished(f"0-0-{index}", status="failed") for index in range(3)])
    with pytest.raises(
        CampaignError, match=r"no evaluation has completed, so there is no best one \(3 failed\)"
    ):
        _ = results.Result(home.path).best
    assert results.Result(home.path).reason == ""
