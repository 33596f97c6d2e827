"""Sink for MLflow: an experiment for each campaign with a run for each individual.

They are written to the server or database in ``MLFLOW_TRACKING_URI``; without that, to ``mlflow.db`` in the sink's
folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from hpo.config.process import environment
from hpo.individual import Individual
from hpo.journal.curves import Point, Sample
from hpo.loggers.sink import (
    LoggedCampaign,
    choice_text,
    distinct,
    facts,
    reported,
    results,
    sampled,
    seconds_since_start,
    succeeded,
)

_ID, _CAMPAIGN = "hpo.id", "hpo.campaign"
# Limits of MLflow's API. A request takes up to 1000 metrics, and up to 100 parameters or tags.
_NO_NAME = re.compile(r"[^\w.\- :/]")
"""Characters that names of metrics and parameters must not have."""
_LONGEST_NAME = 250
"""Most characters of a name."""
_LONGEST = 5000
"""Most characters of a parameter's value, or of a tag."""
_MOST_AT_ONCE = 500
"""Metrics in a request."""
_MOST_RUNS = 1000
"""Runs in a page of a search."""
_T = TypeVar("_T")


class MLflowSink:
    """Writes to an MLflow server or database, where the same metric, step and time written twice are one row."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        variables = environment()
        given = variables.get("MLFLOW_TRACKING_URI")
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
        for params in _pieces(
            (
                Param(_name(name), _text(choice_text(self._campaign.parameters.get(name), value)))
                for name, value in individual.params.items()
            ),
            100,
        ):
            self._client.log_batch(run, params=params)
        self._client.log_batch(run, tags=self._tags(individual))

    def measured(self, individual: Individual, points: Sequence[Point]) -> None:
        self._log(
            individual,
            (
                Metric(_name(name), value, _ms(point.time), point.step)
                for point in points
                for name, value in reported(point).items()
            ),
        )

    def sampled(self, individual: Individual, samples: Sequence[Sample]) -> None:
        self._log(
            individual,
            (
                Metric(_name(name), value, _ms(sample.time), seconds_since_start(individual, sample))
                for sample in samples
                for name, value in sampled(sample).items()
            ),
        )

    def finished(self, individual: Individual) -> None:
        at = _ms(individual.finished)
        self._log(
            individual, (Metric(_name(name), value, at, 0) for name, value in results(individual).items())
        )
        run = self._run(individual)
        self._client.log_batch(run, tags=self._tags(individual))
        self._client.set_terminated(run, "FINISHED" if succeeded(individual) else "FAILED", end_time=at)

    # MLflow's client has no buffer: each call is written when it returns.
    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

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

    def _log(self, individual: Individual, metrics: Iterable[Metric]) -> None:
        for piece in _pieces(metrics, _MOST_AT_ONCE):
            self._client.log_batch(self._run(individual), metrics=piece)

    def _tags(self, individual: Individual) -> list[RunTag]:
        return [
            RunTag(f"hpo.{name}", _text(value))
            for name, value in (facts(individual) | {"campaign": self._campaign.key}).items()
        ]


def _pieces(values: Iterable[_T], most: int) -> Iterator[list[_T]]:
    values = iter(values)
    while piece := list(islice(values, most)):
        yield piece


def _name(name: str) -> str:
    """``name`` in a form that MLflow allows: a path without parts that are empty, ``.`` or ``..``."""
    parts = [part.strip() for part in _NO_NAME.sub("_", name).split("/")]
    legal = "/".join(part if part.strip(".") else "_" for part in parts if part) or "_"
    return distinct(name, legal, _LONGEST_NAME)


def _text(value: object) -> str:
    return str(value)[:_LONGEST]


def _ms(at: float | None) -> int:
    return int((at or 0.0) * 1000)
