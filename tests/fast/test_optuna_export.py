"""A campaign as an Optuna study: what Optuna reads is what the campaign found, and what was in the storage stays."""

from __future__ import annotations

import io
import json
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from cases import cases
from refusals import refused
from written import BEGAN, SPACE, Written, params

from hpo.errors import CampaignError
from hpo.loggers.optuna_study import export
from hpo.prior_results.points import known_points
from hpo.results.analysis.pareto import best
from hpo.results.record import load

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)

ENDS = ["completed"] * 2 + ["pruned", "failed", "completed", "invalid", "timeout", "crashed", "completed"]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    monkeypatch.chdir(tmp_path)
    campaign = Written(tmp_path / "digits")
    for number, status in enumerate(ENDS):
        value = float(number - 5) ** 2 if status in ("completed", "pruned") else None
        campaign.evaluate(number, value, status, metrics={"size": number, "note": "<script>"})
    campaign.start(len(ENDS))
    return campaign


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    for storage in _OPEN:
        if isinstance(storage, optuna.storages.RDBStorage):
            storage.remove_session()
            storage.engine.dispose()
    _OPEN.clear()


_OPEN: list[Any] = []


def _storage(target: str) -> Any:
    if target.startswith("sqlite"):
        _OPEN.append(optuna.storages.RDBStorage(target))
    else:
        _OPEN.append(optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(target)))
    return _OPEN[-1]


@pytest.mark.parametrize("target", ["a.journal", "sqlite:///a.db"])
def test_optuna_reads_what_the_campaign_found_and_gives_it_back(written: Written, target: str) -> None:
    export(written.path, target)
    study = optuna.load_study(study_name="digits", storage=_storage(target))
    assert [trial.user_attrs["status"] for trial in study.trials] == ENDS
    states = {"completed": "COMPLETE", "pruned": "PRUNED"}
    assert [trial.state.name for trial in study.trials] == [states.get(end, "FAIL") for end in ENDS]
    first = study.trials[3]
    assert first.user_attrs["parents"] == ["0-0-0", "0-0-1"] and first.user_attrs["operator"] == "evolution"
    assert (first.user_attrs["island"], first.user_attrs["worker"], first.user_attrs["id"]) == (0, 0, "0-0-3")
    assert first.user_attrs["error"] == "failed: <b>why</b>" and first.user_attrs["metrics.size"] == 3
    assert first.datetime_start == datetime.fromtimestamp(BEGAN + 30)
    assert first.duration is not None and first.duration.total_seconds() == 4.5
    assert first.intermediate_values == {1: 1.0, 2: 0.5, 3: pytest.approx(1 / 3)}
    assert [trial.params for trial in study.trials] == [params(number) for number in range(len(ENDS))]
    assert first.distributions["lr"] == optuna.distributions.FloatDistribution(1e-5, 0.1, log=True)
    assert first.distributions["depth"] == optuna.distributions.IntDistribution(1, 64, log=True)
    assert first.distributions["width"].choices == (32, 64, 128)
    assert "momentum" in study.trials[0].params and "momentum" not in first.params
    ours = best(load(written.path))[0]
    assert (study.best_trial.user_attrs["id"], study.best_value) == (ours.id, ours.value)

    back, here = known_points(target, SPACE), known_points(str(written.path), SPACE)
    assert len(back) == len(here) == 8
    assert [(one.params, one.value, one.status == "completed") for one in back] == [
        (one.params, one.value, one.status == "completed") for one in here
    ]


@pytest.mark.parametrize("target", cases(["a.journal"], ["sqlite:///a.db"]))
def test_another_export_adds_what_has_ended_since_for_a_dashboard_that_looks_on(written, target):
    other = optuna.create_study(study_name="mine", storage=_storage(target))
    other.add_trial(optuna.create_trial(value=1.0))
    assert export(written.path, target).added == len(ENDS)
    dashboard = optuna.load_study(study_name="digits", storage=_storage(target))
    assert len(dashboard.trials) == len(ENDS)
    written.finish(9, 0.5)
    done = export(written.path, target)
    assert (done.trials, done.added, done.changed) == (10, 1, 0)
    assert len(dashboard.trials) == 10 and dashboard.best_trial.user_attrs["id"] == "0-0-9"
    assert export(written.path, target).added == 0

    written.reopen(3)  # it is not among those that have ended any more
    done = export(written.path, target)
    assert (done.trials, done.added, done.changed) == (9, 9, 1)
    written.finish(3, -1.0, reopened=1)
    assert export(written.path, target).added == 1
    again = optuna.load_study(study_name="digits", storage=_storage(target))
    assert again.best_trial.user_attrs["id"] == "0-0-3" and len(again.trials) == 10
    assert [trial.value for trial in other.trials] == [1.0]


@pytest.mark.parametrize("target", ["a.journal", "sqlite:///a.db"])
def test_trials_that_were_added_in_optuna_stay(written: Written, target: str) -> None:
    export(written.path, target)
    study = optuna.load_study(study_name="digits", storage=_storage(target))
    study.add_trial(optuna.create_trial(value=-9.0))
    assert export(written.path, target).added == 0
    written.finish(9, 0.5)
    assert export(written.path, target).added == 1
    assert [trial.value for trial in study.trials[-2:]] == [-9.0, 0.5]
    written.reopen(3)
    refused(lambda: export(written.path, target), target, "1")
    assert len(study.trials) == len(ENDS) + 2 and study.best_value == -9.0


def test_several_objectives_have_their_names_and_directions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    campaign = Written(tmp_path / "two", {"accuracy": "maximize", "seconds": "minimize"})
    campaign.evaluate(0, 0.5)
    campaign.evaluate(1, None, "pruned", metrics={"pruned_value": 0.5, "pruned_step": 3})
    export(campaign.path, "two.journal")
    study = optuna.load_study(study_name="two", storage=_storage("two.journal"))
    assert [one.name for one in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert study.metric_names == ["accuracy", "seconds"]
    assert [trial.values for trial in study.trials] == [[0.5, 0.5], None]
    assert len(known_points("two.journal", SPACE, {"accuracy": "maximize", "seconds": "minimize"})) == 1


def test_what_is_not_the_campaigns_is_left_as_it_is(written: Written, tmp_path: Path) -> None:
    Path("text.journal").write_text("notes of mine\n")
    Path("text.db").write_text("notes of mine\n")
    with closing(sqlite3.connect("own.db")) as database:
        database.execute("create table studies (name text)")
        database.commit()
    for target in ("text.journal", "sqlite:///text.db", "sqlite:///own.db"):
        path = Path(target.removeprefix("sqlite:///"))
        before = path.read_bytes()
        refused(lambda target=target: export(written.path, target), target)
        assert path.read_bytes() == before

    optuna.create_study(study_name="digits", storage=_storage("other.journal"))
    before = Path("other.journal").read_bytes()
    refused(lambda: export(written.path, "other.journal"), "other.journal", "'digits'")
    assert Path("other.journal").read_bytes() == before

    refused(lambda: export(written.path, "absent/a.journal"), "absent", error=CampaignError)
    for target in ("sqlite:///", "sqlite:///a.db?mode=ro"):
        refused(lambda target=target: export(written.path, target), target)


@pytest.mark.parametrize("target", cases(["a.journal"], ["sqlite:///a.db"]))
def test_optuna_dashboard_serves_every_trial(written: Written, target: str) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    export(written.path, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        served = dashboard.wsgi(_storage(target))
        (study,) = _answer(served, "/api/studies")["study_summaries"]
        found = _answer(served, f"/api/studies/{study['study_id']}", "after=0")
    assert study["study_name"] == "digits" and found["directions"] == ["minimize"]
    assert [{one["key"]: one["value"] for one in trial["user_attrs"]}["id"] for trial in found["trials"]] == [
        f"0-0-{number}" for number in range(len(ENDS))
    ]
    assert [trial["state"] for trial in found["trials"]][:4] == ["Complete", "Complete", "Pruned", "Fail"]
    assert [len(trial["intermediate_values"]) for trial in found["trials"]] == [3] * len(ENDS)


def _answer(application: Any, path: str, query: str = "") -> Any:
    statuses: list[str] = []
    variables = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "wsgi.input": io.BytesIO(),
    }
    setup_testing_defaults(variables)
    body = b"".join(application(variables, lambda status, headers, error=None: statuses.append(status)))
    assert statuses == ["200 OK"], body
    return json.loads(body)
