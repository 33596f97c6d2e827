"""Sink for MLflow: an experiment for each campaign with a run for each individual.

They are written to the server or database in ``MLFLOW_TRACKING_URI``; without that, to ``mlflow.db`` in the sink's
folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from hpo.config.process import environment
from hpo.individual import Individual
from hpo.loggers.sink import LoggedCampaign, Rows, Sink, choice_text, distinct, facts, results, succeeded

_ID, _CAMPAIGN = "hpo.id", "hpo.campaign"
_NO_NAME = re.compile(r"[^\w.\- :/]")
"""Characters that names of metrics and parameters must not have."""
# Limits of MLflow's API: characters of a name, characters of a value, metrics and parameters in a request, and runs in
# a page.
_LONGEST_NAME, _LONGEST_VALUE = 250, 5000
_MOST_METRICS, _MOST_PARAMS, _MOST_RUNS = 500, 100, 1000


class MLflowSink(Sink):
    """Writes to an MLflow server or database, where the same metric, step and time written twice are one row."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        given = environment().get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=given or f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        self._campaign = campaign
        self._runs: dict[str, str] = {}
        self._experiment = self._find(campaign.name) or self._find(f"{campaign.name} {campaign.key}") or ""

    def _find(self, name: str) -> str | None:
        """Id of the experiment ``name``, made if it is missing; None where it belongs to another campaign."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            made: str = self._client.create_experiment(name, tags={_CAMPAIGN: self._campaign.key})
            return made
        if found.tags.get(_CAMPAIGN) != self._campaign.key or found.lifecycle_stage != "active":
            return None
        # Another process may have begun these runs: they are continued by the id in their tags.
        token = None
        while True:
            page = self._client.search_runs([found.experiment_id], max_results=_MOST_RUNS, page_token=token)
            for run in page:
                if _ID in run.data.tags:
                    self._runs[run.data.tags[_ID]] = run.info.run_id
            token = page.token
            if not token:
                break
        return str(found.experiment_id)

    def started(self, individual: Individual) -> None:
        run = self._run(individual)
        self._client.update_run(run, status="RUNNING")
        params = [
            Param(_name(name), _text(choice_text(self._campaign.parameters.get(name), value)))
            for name, value in individual.params.items()
        ]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run, params=params[first : first + _MOST_PARAMS])
        self._client.log_batch(run, tags=self._tags(individual))

    def finished(self, individual: Individual) -> None:
        self._log(individual, [(results(individual), 0, individual.finished or 0.0)])
        run, status = self._run(individual), "FINISHED" if succeeded(individual) else "FAILED"
        self._client.log_batch(run, tags=self._tags(individual))
        self._client.set_terminated(run, status, end_time=_ms(individual.finished))

    def _run(self, individual: Individual) -> str:
        run = self._runs.get(individual.id)
        if run is None:
            made = self._client.create_run(
                self._experiment,
                start_time=_ms(individual.started),
                run_name=individual.id,
                tags={_ID: individual.id},
            )
            run = self._runs[individual.id] = made.info.run_id
        return run

    def _log(self, individual: Individual, rows: Rows) -> None:
        metrics = [
            Metric(_name(name), value, _ms(at), step)
            for values, step, at in rows
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run(individual), metrics=metrics[first : first + _MOST_METRICS])

    def _tags(self, individual: Individual) -> list[RunTag]:
        return [
            RunTag(f"hpo.{name}", _text(value))
            for name, value in (facts(individual) | {"campaign": self._campaign.key}).items()
        ]


def _name(name: str) -> str:
    """``name`` in a form that MLflow allows: a path without parts that are empty, ``.`` or ``..``."""
    parts = [part.strip() for part in _NO_NAME.sub("_", name).split("/")]
    legal = "/".join(part if part.strip(".") else "_" for part in parts if part) or "_"
    return distinct(name, legal, _LONGEST_NAME)


def _text(value: object) -> str:
    return str(value)[:_LONGEST_VALUE]


def _ms(at: float | None) -> int:
    return int((at or 0.0) * 1000)
