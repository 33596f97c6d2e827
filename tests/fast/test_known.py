"""Known points: what is taken of a source, what is told of the rest, and what a search makes of them."""

from __future__ import annotations

import gc
import json
import random
import re
import shutil
import warnings
from pathlib import Path

import pandas
import pytest
import refusals
from msgspec.structs import replace
from populations import asked_and_told

import hpo
from hpo.campaign.definition import CampaignDefinition
from hpo.campaign.launch import finished
from hpo.config import reader as config
from hpo.config.layout import Layout
from hpo.config.settings import KnownSettings
from hpo.errors import UsageError
from hpo.individual import COMPLETED, FAILED, is_known
from hpo.islands.resume.fold import fold
from hpo.islands.resume.start import start_messages
from hpo.journal.records import Known, decode, encode
from hpo.ledger.inspection import check
from hpo.prior_results.configurations import read_points
from hpo.prior_results.points import known_points
from hpo.results import overview
from hpo.results import result as results
from hpo.results.record import load
from hpo.search.population import Member, Population
from hpo.views.terminal.best_report import best_json

SPACE = hpo.SearchSpace(
    lr=hpo.Float(1e-4, 1.0, log=True),
    width=hpo.Int(4, 64),
    optimizer=hpo.Categorical("sgd", "adam"),
    momentum=hpo.Float(0.0, 0.9, when={"optimizer": "sgd"}),
    wide=hpo.Categorical(True, False, None, 3, 0.5),
)
POINT: dict[str, object] = {"lr": 0.1, "width": 8, "optimizer": "adam", "wide": True}


def evaluate(trial: hpo.Trial) -> float:
    p = trial.params
    if p["width"] == 13:
        raise RuntimeError("unlucky")
    return abs(float(p["lr"]) - 0.1) + abs(int(p["width"]) - 8) / 100  # type: ignore[arg-type]


TASK = hpo.Task(SPACE, evaluate)


def campaign(directory: Path, task: hpo.Task = TASK, **keywords: object) -> hpo.Result:
    keywords = {"evaluations": 20, "isolation": "inline", "kind": "evolution", **keywords}
    return hpo.Campaign(task, directory=directory, **keywords).run()


def refused(source: object, *words: str, objectives: object = "minimize", **keywords: object) -> None:
    refusals.refused(lambda: known_points(source, SPACE, objectives, **keywords), *words)


def write(path: Path, text: str) -> Path:
    path.write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")
    return path


def test_a_plain_table_is_read_with_types_gaps_and_conditions(tmp_path):
    table = write(
        tmp_path / "points.csv",
        """lr,width,optimizer,momentum,wide,value
        0.1,8,adam,,True,0.5
        1e-2,16.0,sgd,0.25,,0.25
        1,4,adam,,3,1
        1,5,adam,,0.50,1e3""",
    )
    found = known_points(table, SPACE)
    assert [one.params for one in found] == [
        {"lr": 0.1, "width": 8, "optimizer": "adam", "wide": True},
        {"lr": 0.01, "width": 16, "optimizer": "sgd", "momentum": 0.25, "wide": None},
        {"lr": 1.0, "width": 4, "optimizer": "adam", "wide": 3},
        {"lr": 1.0, "width": 5, "optimizer": "adam", "wide": 0.5},
    ]
    assert [one.params["wide"] is True for one in found] == [True, False, False, False]
    assert [one.value for one in found] == [0.5, 0.25, 1.0, 1000.0]
    assert str(found) == f"known points of {table}: 4 entered"
    assert "3 entered; 1 left out: 1 here" in str(found.without([SPACE.key(found.points[0].params)], SPACE))


def test_what_does_not_fit_is_left_out_and_counted(tmp_path):
    table = write(
        tmp_path / "points.csv",
        """lr,width,optimizer,momentum,wide,value,note
        0.1,8,adam,,True,0.5,fine
        0.1,8,adam,,True,0.7,
        2.0,8,adam,,True,0.5,
        0.1,8.5,adam,,True,0.5,
        0.1,9,lion,,True,0.5,
        0.1,10,sgd,,True,0.5,
        0.1,11,adam,0.5,True,0.5,
        0.1,12,adam,,True,,
        0.1,14,adam,,True,inf,
        ,15,adam,,True,0.5,
        "0,1",16,adam,,True,0.5,
        0.1,17,adam,,True,"1.000,5",""",
    )
    found = known_points(table, SPACE, default={"momentum": 0.9}, allows=lambda p: p["width"] != 15)
    assert [(one.params["width"], one.status) for one in found] == [
        (8, COMPLETED),
        (10, COMPLETED),
        (11, COMPLETED),
        (14, "invalid"),
    ]
    assert found.points[1].params["momentum"] == 0.9
    assert found.left_out == {
        "the same configuration again": 1,
        "whose lr is not allowed here": 1,
        "whose lr is no number with a decimal point": 1,
        "whose width is not allowed here": 1,
        "whose optimizer is not allowed here": 1,
        "without a value": 1,
        "whose value is no number with a decimal point": 1,
        "without lr, which has no default": 1,
    }
    line = str(found)
    assert "4 entered, 1 of them as failed; 8 left out: " in line and "\n" not in line
    assert "momentum = 0.9, the default, added in 1" in line
    assert "momentum dropped, which does not exist with their other values, in 1" in line
    assert "note dropped, which is no parameter here, in 1" in line
    found = known_points(table, SPACE, default={"lr": 0.2}, allows=lambda p: p["width"] != 15)
    assert found.left_out["refused by a constraint"] == 1
    refused(table, "note", 'unknown = "drop"', unknown="refuse")


def test_of_one_configuration_the_best_is_kept(tmp_path):
    table = write(
        tmp_path / "points.csv",
        """lr,width,optimizer,wide,value,seconds
        0.1,8,adam,True,inf,1
        0.1,8,adam,True,0.7,2
        0.1,8,adam,True,0.5,3
        0.1,8,adam,True,0.6,1
        0.1,8,adam,True,inf,1
        0.1,9,adam,True,0.5,1""",
    )
    found = known_points(table, SPACE)
    assert [(one.params["width"], one.value) for one in found] == [(8, 0.5), (9, 0.5)]
    assert [one.value for one in known_points(table, SPACE, "maximize")] == [0.7, 0.5]
    both = known_points(table, SPACE, {"value": "minimize", "seconds": "minimize"})
    # 0.6 in 1 s is better than the first that completed in both, 0.5 in 3 s in one only.
    assert [one.objectives for one in both] == [
        {"value": 0.6, "seconds": 1.0},
        {"value": 0.5, "seconds": 1.0},
    ]


def test_columns_of_other_names_and_several_objectives(tmp_path):
    rows = [{**POINT, "rate": 0.3, "f1": 0.9, "s": 12}]
    del rows[0]["lr"]
    objectives = {"score": "maximize", "s": "minimize"}
    found = known_points(rows, SPACE, objectives, columns={"lr": "rate", "score": "f1"})
    assert found.points[0].params["lr"] == 0.3
    assert found.points[0].objectives == {"score": 0.9, "s": 12.0} and found.points[0].value is None
    refused(rows, "'score'", "columns", objectives=objectives)
    refused(rows, "'rat'", '"rate"', objectives=objectives, columns={"lr": "rat", "score": "f1"})
    refused(rows, "'lrr'", '"lr"', objectives=objectives, columns={"lrr": "rate"})


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("earlier") / "run"
    campaign(home, evaluations=60)
    return home


@pytest.mark.parametrize("suffix", ["", ".csv"])
def test_an_earlier_campaign_comes_back_exactly(earlier, tmp_path, suffix):
    source = earlier
    if suffix:
        source = tmp_path / f"table{suffix}"
        results.export(earlier, source)
    found = known_points(source, SPACE, default={"momentum": 0.0})
    there = load(earlier).individuals
    assert [one.params for one in found] == [one.params for one in there]
    assert [one.origin for one in found] == [one.id for one in there]
    assert [one.value for one in found] == [one.value for one in there]
    assert sum(one.status == FAILED for one in found) == sum(one.status == FAILED for one in there)
    assert not found.left_out and not found.changed


def test_what_best_prints_is_a_source(earlier, tmp_path):
    source = tmp_path / "best.json"
    source.write_text(best_json(earlier, 3))
    best = json.loads(source.read_text())
    assert [one.params for one in known_points(source, SPACE)] == [one["params"] for one in best]
    assert [one.value for one in known_points(source, SPACE)] == [one["value"] for one in best]
    assert read_points(str(source), SPACE) == [one["params"] for one in best]


def test_directions_and_names_of_objectives_are_checked(earlier):
    assert len(known_points(earlier, SPACE, {"loss": "minimize"})) == 60
    refused(earlier, "value is to minimize there", objectives="maximize")
    refused(earlier, "value is to minimize there", "accuracy", objectives={"accuracy": "maximize"})
    refused(earlier, "(loss, seconds)", "points", objectives={"loss": "minimize", "seconds": "minimize"})


RENAMED: dict[str, object] = {**{k: v for k, v in POINT.items() if k != "lr"}, "value": 1.0}


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{**RENAMED, "learning_rate": 0.01}], 'columns = { lr = "learning_rate" }'),
        ([{**RENAMED, "learning_rate": 0.01, "note": "x", "s": 12.0}], 'columns = { lr = "learning_rate" }'),
        ([{**POINT, "width": 9, "value": 1.0}, {**RENAMED, "a rate": 0.01}], 'columns = { lr = "a rate" }'),
        ([{**RENAMED, "note": "x", "seconds": 12.0}], None),
        ([{**POINT, "rate": 0.5, "value": 1.0}], None),
    ],
)
def test_a_renamed_parameter_does_not_become_its_default(rows, line):
    default = {"lr": 0.5}
    if line is None:
        assert len(known_points(rows, SPACE, default=default)) == len(rows)
        return
    refused(rows, line, 'unknown = "drop"', default=default)
    name = line.split('"')[1]
    found = known_points(rows, SPACE, default=default, columns={"lr": name})
    assert [one.params["lr"] for one in found] == [row.get(name, row.get("lr")) for row in rows]
    assert known_points(rows, SPACE, default=default, unknown="drop").points[-1].params["lr"] == 0.5


ALIKE = hpo.SearchSpace(
    a=hpo.Categorical(1, "1", "1 (int)", 2, "x"),
    b=hpo.Categorical(None, "None", "", 0.5),
    c=hpo.Ordinal(True, "True", False, when={"a": (1, 2)}),
    n=hpo.Int(1, 10**6),
)
MARKED = {"d": ("None", "l2"), "e": ("NA", "x"), "f": ("1", "01"), "g": ("true", "True")}
"""Texts that pandas rewrites, and that therefore carry their type."""
TEXTS = {**MARKED, "h": ("01", "02"), "i": ("relu", "ReLU"), "j": (None, "l2")}

ALL_ALIKE = hpo.SearchSpace(
    ALIKE.parameters | {name: hpo.Categorical(*choices) for name, choices in TEXTS.items()}
)


@pytest.fixture(scope="module")
def alike(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("alike") / "run"
    campaign(home, hpo.Task(ALL_ALIKE, lambda trial: float(trial.params["n"])), evaluations=60, kind="random")
    return home


@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet", "pandas.csv", "frame"])
def test_choices_that_look_alike_come_back_as_they_were(alike, tmp_path, suffix):
    there, space = [repr(one.params) for one in hpo.Result(alike).individuals], ALL_ALIKE
    source = tmp_path / f"table{Path(suffix).suffix or '.csv'}"
    results.export(alike, source)
    if suffix == "pandas.csv":
        pandas.read_csv(source).to_csv(source)  # with its index
    if suffix == "frame":
        frame = pandas.read_csv(source)
        marked = [name for name in TEXTS if frame[f"params.{name}"].astype(str).str.endswith("(str)").any()]
        assert marked == list(MARKED)
        texts = hpo.SearchSpace(
            {"n": ALIKE.parameters["n"], **{name: space.parameters[name] for name in TEXTS}}
        )
        found = known_points(frame.to_dict("records"), texts, unknown="drop")
        individuals = hpo.Result(alike).individuals
        assert [one.params for one in found] == [
            {n: one.params[n] for n in texts.names} for one in individuals
        ]
        return
    assert [repr(one.params) for one in known_points(source, space)] == there
    assert [repr(one) for one in read_points(str(source), space)] == there


def test_a_parameter_that_a_source_lacks_gets_the_default_not_none():
    row = {name: value for name, value in POINT.items() if name != "wide"} | {"value": 1.0}
    found = known_points([row], SPACE, default={"wide": 3})
    assert found.points[0].params["wide"] == 3 and found.changed.total() == 1
    assert known_points([{**row, "wide": None}], SPACE).points[0].params["wide"] is None


@pytest.mark.parametrize(
    ("choices", "cell", "read"),
    [
        (("None", "l2"), "None", "None"),  # as earlier versions wrote it
        (("None", "l2"), "NULL", None),
        (("1", "01"), "01", None),
        (("1", "2"), "1 (str)", "1"),  # of a space where it needed its type
        ((1, "1 (int)"), "1 (int)", "1 (int)"),
        (("relu", "ReLU"), "relu", "relu"),
        (("a gap", "None"), "a gap", "a gap"),
    ],
)
def test_a_cell_is_a_choice_or_left_out(tmp_path, choices, cell, read):
    table = write(tmp_path / "points.csv", f"a,value\n{cell},1")
    found = known_points(table, hpo.SearchSpace(a=hpo.Categorical(*choices)))
    assert [one.params["a"] for one in found] == [read] * (read is not None)
    assert found.left_out.total() == (read is None)


def test_cells_that_may_be_several_choices_are_left_out(tmp_path):
    """As earlier versions and people write them."""
    table = write(
        tmp_path / "points.csv",
        """a,b,c,n,value
        1,0.5,True,1,1
        2,,TRUE,2,1
        2,None,False,3,1
        x,0.5,,4,1
        2,0.50,false,5,1""",
    )
    found = known_points(table, ALIKE)
    assert [one.params["n"] for one in found] == [4, 5]
    assert found.left_out.total() == 3 and 'Write "1 (int)" or "1 (str)"' in str(found)
    with pytest.raises(UsageError, match=r"row 1: a = '1' may be any of 1, '1'"):
        read_points(str(table), ALIKE)
    assert len(known_points([{"a": "1", "b": None, "n": 1, "value": 1.0}], ALIKE)) == 1  # JSON has types


@pytest.mark.parametrize(
    "content",
    [
        "lr;width;value\n0,1;8;0,5\n".encode("utf-8-sig"),
        "lr\twidth\tvalue\n0,1\t8\t0,5\n".encode("utf-16"),
        b"lr\twidth\tvalue\n0,1\t8\t0,5\n",
        "lr,width\nä,2".encode("cp1252"),
        b"PK\x03\x04\x00",
    ],
)
def test_tables_of_spreadsheets_are_refused_with_the_remedy(tmp_path, content):
    (tmp_path / "points.csv").write_bytes(content)
    refused(tmp_path / "points.csv", "points.csv", "UTF-8", "decimal sign")


@pytest.mark.parametrize("file", ["study.log", "study.db"])
def test_an_optuna_study(tmp_path, file, monkeypatch):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    home = tmp_path / "a#b?c%20d"  # its database is opened by a URL
    home.mkdir()
    monkeypatch.chdir(home)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if file == "study.log":
            storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(file))
        else:
            storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        study = optuna.create_study(
            study_name="a", storage=storage, direction="maximize", sampler=optuna.samplers.RandomSampler(0)
        )

        def objective(trial):
            trial.suggest_float("lr", 1e-4, 1.0, log=True)
            trial.suggest_int("width", 4, 64)
            if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
                trial.suggest_float("momentum", 0.0, 0.9)
            trial.suggest_categorical("wide", [True, None, 3])
            if trial.number == 3:
                raise optuna.TrialPruned
            if trial.number == 4:
                raise RuntimeError
            return trial.number / 7

        study.optimize(objective, 8, catch=RuntimeError)
        before = Path(file).read_bytes()
        for source in (home / file, study, *(["sqlite:///study.db"] if file == "study.db" else [])):
            found = known_points(source, SPACE, {"accuracy": "maximize"})
            values = [one.value for one in found if one.status == COMPLETED]
            assert values == [n / 7 for n in (0, 1, 2, 5, 6, 7)]
            assert [one.origin for one in found if one.status == FAILED] == ["trial 4"]
            assert found.left_out == {"pruned there": 1} and not found.changed
            assert found.points[0].params == pytest.approx(study.trials[0].params)
            refused(source, "to maximize there")
        assert before == Path(file).read_bytes()
        optuna.create_study(study_name="b", storage=storage)
        refused(home / file, "2 studies", "a, b", objectives="maximize")
        refused(home / file, "'c'", objectives="maximize", study="c")
        assert len(known_points(home / file, SPACE, "maximize", study="a")) == 7
        if file == "study.db":
            storage.remove_session()
            storage.engine.dispose()
        gc.collect()  # Python 3.13 warns of connections that nobody has closed


def test_trials_that_hold_no_configuration_are_no_points(tmp_path):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/study.db")
    for cut_off in (True, False):
        trial = study.ask()
        trial.suggest_float("lr", 1e-4, 1.0)
        if not cut_off:
            trial.suggest_categorical("wide", [None, True])
    study.ask()  # a trial killed before its first parameter
    space, said = hpo.SearchSpace(wide=SPACE.parameters["wide"], lr=SPACE.parameters["lr"]), []
    found = read_points(f"{tmp_path}/study.db", space, left_out=said)
    assert [one["lr"] for one in found] == [pytest.approx(study.trials[1].params["lr"])]
    assert "2 rows without" in said[0]
    with pytest.raises(UsageError, match="no row has values of the parameters width"):
        read_points(f"{tmp_path}/study.db", hpo.SearchSpace(width=hpo.Int(1, 2)))
    study._storage._backend.remove_session()
    study._storage._backend.engine.dispose()
    gc.collect()


# Optuna leaves its connection to what is no database open, of which Python 3.13 warns.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_sources_that_are_none_get_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.bin").write_bytes(b"\x80abc")
    (tmp_path / "x.json").write_text('{"a": 1}')
    (tmp_path / "x.csv").write_bytes(b"lr\n\xff\n")
    (tmp_path / "y.csv").write_text("lr,width,value\n1,2\n")
    (tmp_path / "x.parquet").write_text("PAR0")
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0" + bytes(100))
    names = "absent.csv ~no-such-user/x.csv empty x.bin x.json x.csv y.csv x.parquet x.db sqlite:///absent.db"
    for source in names.split():
        with pytest.raises(hpo.HpoError, match=source.removeprefix("sqlite:///")):
            known_points(source, SPACE)
    refused({"a": 1}, "dict")
    assert not (tmp_path / "absent.db").exists()
    gc.collect()


def test_a_campaign_knows_them_and_does_not_evaluate_them(earlier, tmp_path, capsys):
    task = hpo.Task(SPACE, evaluate, default=POINT)
    source = tmp_path / "copy"
    shutil.copytree(earlier, source)
    keywords = {"known": [source, {"params": POINT, "value": 0.5}], "islands": 1}
    result = campaign(tmp_path / "run", task, evaluations=10, **keywords)
    assert capsys.readouterr().err.count("60 entered") == 1
    record = result.record
    assert len(record.known) == 61 and len(record.individuals) == 10
    assert all(one.operator != "default" for one in record.individuals), "its result was known"
    assert {SPACE.key(one.params) for one in record.known}.isdisjoint(
        SPACE.key(one.params) for one in record.individuals
    )
    # Bred from what is known, from the first individual on.
    parents = [name for one in record.individuals for name in one.parents]
    assert any(is_known(name) for name in parents)
    assert record.individuals[0].operator in ("evolution", "random")
    assert sum(one.operator == "evolution" for one in record.individuals) >= 6
    # What is known counts for the best, and is marked; it is no evaluation.
    best = min(one.value for one in [*record.known, *record.individuals] if one.value is not None)
    assert result.best.value == best
    status = results.status(record)
    assert sum(status["evaluations"].values()) == 10
    table = result.dataframe()
    assert len(table) == 71 and (table["operator"] == "known").sum() == 61
    assert set(table.loc[table["operator"] == "known", "metrics.source"]) == {
        str(source),
        "the campaign's own list",
    }
    assert table.loc[table["id"] == "known-1", "island"].item() == -1
    # The source may vanish; what is on record is not read again, and nothing comes twice.
    shutil.rmtree(source)
    rows = [{**record.individuals[1].params, "value": 1.0}, {**POINT, "lr": 0.2, "value": 0.001}]
    pandas.DataFrame(rows).to_csv(tmp_path / "more.csv", index=False)
    keywords["known"].append(str(tmp_path / "more.csv"))
    record = campaign(tmp_path / "run", task, evaluations=15, **keywords).record
    assert re.findall(r"\d+ entered.*", capsys.readouterr().err) == ["1 entered; 1 left out: 1 here already"]
    assert len(record.known) == 62 and len(record.individuals) == 15
    keys = [SPACE.key(one.params) for one in (*record.known, *record.individuals)]
    assert len(set(keys)) == len(keys)
    report = check(tmp_path / "run")
    assert not report.findings and report.finished == 15, report
    assert len(known_points(tmp_path / "run", SPACE)) == 77  # the known points of a source are known, too


def test_wrong_points_are_replaced_when_it_goes_on(tmp_path, capsys):
    table, by_hand = tmp_path / "points.csv", {"params": {**POINT, "width": 9}, "value": 0.0}
    text = "lr,rate,width,optimizer,wide,value\n{},0.5,8,adam,True,0.001\n0.2,0.2,10,adam,True,0.5"

    def known(evaluations, value=0.25, **entry):
        by_hand["value"] = value
        entries = [{"source": str(table), **entry}, by_hand]
        result = campaign(tmp_path / "run", evaluations=evaluations, known=entries)
        return [(one.id, one.params["lr"], one.value) for one in result.record.known], capsys.readouterr().err

    write(table, text.format(0.1))
    assert known(2, 0.0)[0] == [("known-1", 0.1, 0.001), ("known-2", 0.2, 0.5), ("known-3", 0.1, 0.0)]
    found, said = known(3)  # another value by hand
    assert found[2] == ("known-4", 0.1, 0.25) and "1 entered; in place of 1" in said
    assert known(4)[0] == found and "entered" not in known(4)[1]
    found, said = known(5, columns={"lr": "rate"})
    assert [one[:2] for one in found] == [("known-2", 0.2), ("known-4", 0.1), ("known-5", 0.5)]
    settings = {"directory": tmp_path / "run", "evaluations": 5}
    listed = {"known": [{"source": str(table), "columns": {"lr": "rate"}}, by_hand]}
    file = tmp_path / "campaign.toml"

    def definition(keywords: dict[str, object]) -> CampaignDefinition:
        return CampaignDefinition(config.from_keywords(**keywords), TASK)

    assert "nothing to start" in (finished(definition(settings | listed), file) or "")
    campaign(tmp_path / "run", evaluations=5)
    said = capsys.readouterr().err
    assert f"2 known points of {table}" in said and "empty table" in said
    assert "1 known point of the campaign's own list" in said
    write(table, "lr,rate,width,optimizer,wide,value")
    assert finished(definition(settings | listed), file) is None, "points to take back"
    assert [one[0] for one in known(6, columns={"lr": "rate"})[0]] == ["known-4"]
    assert overview.read(tmp_path / "run").known == overview.folded(load(tmp_path / "run")).known == 1
    assert not check(tmp_path / "run").findings
    table.unlink()
    assert [one[0] for one in known(7, columns={"lr": "rate"})[0]] == ["known-4"]
    assert hpo.Result(tmp_path / "run").best.id != "known-3"


def test_every_island_knows_them_from_the_start_and_nobody_owns_them():
    records = [
        Known(
            number=number,
            params={**POINT, "lr": float(f"{0.0001 * number:.11e}")},
            status=COMPLETED if number % 10 else FAILED,
            objectives={"value": float(number)} if number % 10 else None,
            source="x",
            origin=str(number),
            time=1.0,
        )
        for number in range(1, 1001)
    ]
    decoded = [decode(encode(one)) for one in records]
    assert decoded == records
    layout = Layout.plan(ranks=4, sizes=[1] * 2)
    earlier = fold(decoded, space=SPACE, islands=2, losses=TASK.losses)
    assert earlier.known == 1000 and len(earlier.keys) == 1000 and earlier.tally.final == 0
    assert earlier.tally.best is not None and earlier.tally.best[:2] == ((1.0,), "known-1")
    for start in start_messages(layout, earlier, 1, ["a"] * 4):
        members = [replace(one) for one in start.population]
        assert start.owned == [] and len({one.id for one in members}) == len(members)
        population = Population()
        for member in members:
            population.enter(member)
        assert [one.losses[0] for one in population.best[:3]] == [1.0, 2.0, 3.0]
        values = [one.losses[0] for one in population.recent]
        assert len(values) == 256 and max(values) > 990, "the bad ones are known as well"
        assert len(population.failures) == 64
        for number in range(400):
            population.add(Member(f"0-0-{number}", (0.5,) * 5, (5000.0,), COMPLETED))
        assert len(population.recent) == 64


def test_points_of_a_file_are_evaluated_first(tmp_path):
    table = write(tmp_path / "points.csv", "lr,width,optimizer,momentum,wide\n0.5,9,sgd,0.5,3\n0.25,9,adam,,")
    result = campaign(tmp_path / "run", evaluations=4, points=[{**POINT, "lr": 0.125}, str(table)])
    first = result.individuals[:3]
    assert [one.operator for one in first] == ["given"] * 3
    assert [one.params["lr"] for one in first] == [0.125, 0.5, 0.25]
    write(table, "lr,width,optimizer,momentum,wide\n0.5,9,sgd,0.95,3")
    for points, words in (
        (str(table), "points.csv, row 1: momentum = 0.95"),
        ({"lr": 0.1, "optimizer": "adam", "wide": True}, "number 1: width"),
    ):
        with pytest.raises(UsageError, match=words):
            campaign(tmp_path / "other", points=[points])


def test_a_mistake_is_a_sentence_before_anything_starts(tmp_path):
    for entry, word in (
        ("absent.csv", "absent.csv"),
        ("a\0b", "b does not exist"),
        ({"source": "x.csv", "unknwon": "drop"}, "unknwon"),
        ({"params": {"lr": 2.0}}, "lr = 2.0"),
        ({"params": POINT, "objectives": {"accuracy": 1.0}}, "accuracy"),
        (3, "known = 3"),
        (tmp_path / "run", "own directory"),
    ):
        if isinstance(entry, Path):
            campaign(entry, evaluations=2)
        known = [entry]
        refusals.refused(lambda known=known: campaign(tmp_path / "run", known=known, evaluations=4), word)
        assert isinstance(entry, Path) or not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nosuch://me:se:c@ret@nohost/db", "nosuch://me:***@nohost/db"),
        ("nosuch://me@nohost/db", "nosuch://me@nohost/db"),
        ("a:b@c.csv", "a:b@c.csv"),
    ],
)
def test_passwords_are_not_told(source, told):
    assert KnownSettings(source=source).recorded_as == told
    assert "ret@" not in refusals.refused(lambda: hpo.known_points(source, SPACE), told)


def test_points_read_in_python_can_be_given_to_a_campaign(tmp_path):
    rows = [{**POINT, "value": 0.25}, {**POINT, "lr": 0.5, "value": float("inf")}]
    result = campaign(tmp_path / "run", evaluations=3, known=[*known_points(rows, SPACE)])
    assert [(one.status, one.value) for one in result.record.known] == [(COMPLETED, 0.25), (FAILED, None)]


@pytest.mark.parametrize(
    "kind", ["evolution", "surrogate", "genetic", "cmaes", "pso", "nelder-mead", "random"]
)
def test_a_search_starts_from_what_is_entered(kind):
    rng = random.Random(1)
    space = hpo.SearchSpace(x=hpo.Float(0, 1), y=hpo.Float(0, 1), n=hpo.Ordinal(1, 2, 3))

    def value(p):
        return (p["x"] - 0.3) ** 2 + (p["y"] - 0.6) ** 2 + 0.1 * (p["n"] - 2) ** 2

    def values_of(search):
        return [value(one.params) for one in asked_and_told(search, 40, lambda one, _: value(one.params))]

    search = hpo.Search(space, seed=3, kind=kind)
    points = [space.decode(space.sample(rng)) for _ in range(100)]
    for params in points:
        search.enter(params, value(params))
    search.enter({"x": 0.9, "y": 0.9, "n": 1}, None)
    assert search.best.value == min(map(value, points))
    found = values_of(search)
    # The same draws, but for what the entered ones change.
    assert (found == values_of(hpo.Search(space, seed=3, kind=kind))) is (kind == "random")
    if kind not in ("random", "pso"):
        assert sorted(found[:10])[5] < sorted(map(value, points))[25], "bred from the good ones at once"
    with pytest.raises(UsageError, match="x = 2: must be"):
        search.enter({"x": 2, "y": 0.5, "n": 1}, 0.0)
