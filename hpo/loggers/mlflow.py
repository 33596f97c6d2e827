"""MLflow: an experiment a campaign, a run an individual, on the server or in the database of ``MLFLOW_TRACKING_URI``;
in ``mlflow.db`` of the sink's folder where that is not set."""

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
_NO_NAME = re.compile(r"[^\w.\- :/]")
_LONGEST_NAME = 250
_LONGEST = 5000
"""Characters of a parameter's value or a tag."""
_MOST_AT_ONCE = 500
"""Metrics; a request of MLflow takes up to 1000, and 100 parameters or tags."""
_MOST_RUNS = 1000
_T = TypeVar("_T")


class MLflowSink:
    """A metric that is written twice, with its step and time, is there once in a database of MLflow's."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        variables = environment()
        given = variables.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=given or f"sqlite:///{folder.resolve() / 'mlflow.db'}")
        self._campaign = campaign
        self._runs: dict[str, str] = {}
        self._experiment = self._find(campaign.name) or self._find(f"{campaign.name} {campaign.key}") or ""

    def _find(self, name: str) -> str | None:
        """The experiment of this name, which is made if it is not there; None where it is another campaign's."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            made: str = self._client.create_experiment(name, tags={_CAMPAIGN: self._campaign.key})
            return made
        if found.tags.get(_CAMPAIGN) != self._campaign.key or found.lifecycle_stage != "active":
            return None
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

    def started(self, one: Individual) -> None:
        run = self._run(one)
        self._client.update_run(run, status="RUNNING")
        for params in _pieces(
            (
                Param(_name(name), _text(choice_text(self._campaign.parameters.get(name), value)))
                for name, value in one.params.items()
            ),
            100,
        ):
            self._client.log_batch(run, params=params)
        self._client.log_batch(run, tags=self._tags(one))

    def measured(self, one: Individual, points: Sequence[Point]) -> None:
        self._log(
            one,
            (
                Metric(_name(name), value, _ms(point.time), point.step)
                for point in points
                for name, value in reported(point).items()
            ),
        )

    def sampled(self, one: Individual, samples: Sequence[Sample]) -> None:
        self._log(
            one,
            (
                Metric(_name(name), value, _ms(sample.time), seconds_since_start(one, sample))
                for sample in samples
                for name, value in sampled(sample).items()
            ),
        )

    def finished(self, one: Individual) -> None:
        at = _ms(one.finished)
        self._log(one, (Metric(_name(name), value, at, 0) for name, value in results(one).items()))
        run = self._run(one)
        self._client.log_batch(run, tags=self._tags(one))
        self._client.set_terminated(run, "FINISHED" if succeeded(one) else "FAILED", end_time=at)

    def flush(self) -> None:
        """Each call is written when it returns."""

    def close(self) -> None:
        """As ``flush``."""

    def _run(self, one: Individual) -> str:
        run = self._runs.get(one.id)
        if run is None:
            made = self._client.create_run(
                self._experiment, start_time=_ms(one.started), run_name=one.id, tags={_ID: one.id}
            )
            run = self._runs[one.id] = made.info.run_id
        return run

    def _log(self, one: Individual, metrics: Iterable[Metric]) -> None:
        for piece in _pieces(metrics, _MOST_AT_ONCE):
            self._client.log_batch(self._run(one), metrics=piece)

    def _tags(self, one: Individual) -> list[RunTag]:
        return [
            RunTag(f"hpo.{name}", _text(value))
            for name, value in (facts(one) | {"campaign": self._campaign.key}).items()
        ]


def _pieces(values: Iterable[_T], most: int) -> Iterator[list[_T]]:
    values = iter(values)
    while piece := list(islice(values, most)):
        yield piece


def _name(name: str) -> str:
    """Name of a parameter or metric that MLflow allows: a path, without a part that is empty, ``.`` or ``..``."""
    parts = [part.strip() for part in _NO_NAME.sub("_", name).split("/")]
    legal = "/".join(part if part.strip(".") else "_" for part in parts if part) or "_"
    return distinct(name, legal, _LONGEST_NAME)


def _text(value: object) -> str:
    return str(value)[:_LONGEST]


def _ms(at: float | None) -> int:
    return int((at or 0.0) * 1000)
