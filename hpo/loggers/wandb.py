"""Weights & Biases: a run an individual, all in a group named after the campaign. ``WANDB_MODE``, ``WANDB_PROJECT``
and the other variables of its own hold; with ``WANDB_MODE=offline`` the runs lie in the sink's folder, for
``wandb sync``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from hpo.config.process import environment
from hpo.individual import Individual
from hpo.journal.curves import Point, Sample
from hpo.loggers.sink import (
    REPORTED,
    LoggedCampaign,
    facts,
    reported,
    results,
    sampled,
    seconds_since_start,
    succeeded,
)

_STEP, _SECONDS = "step", "seconds"


class WandbSink:
    """Runs are known by ids of their own, so that another process goes on with them. Curves are drawn over the metric
    ``step``, where a report that is written twice is one point."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        self._campaign = campaign
        self._folder = folder
        self._project = environment().get("WANDB_PROJECT") or "hpo"
        self._runs: dict[str, Any] = {}

    def started(self, one: Individual) -> None:
        self._run(one)

    def measured(self, one: Individual, points: Sequence[Point]) -> None:
        run = self._run(one)
        for point in points:
            run.log({**_named(reported(point)), _STEP: point.step})

    def sampled(self, one: Individual, samples: Sequence[Sample]) -> None:
        run = self._run(one)
        for sample in samples:
            run.log({**sampled(sample), _SECONDS: seconds_since_start(one, sample)})

    def finished(self, one: Individual) -> None:
        run = self._run(one)
        # The summary has the last value of each metric, too.
        run.summary.update({**results(one), **{f"hpo/{name}": text for name, text in facts(one).items()}})
        run.finish(exit_code=0 if succeeded(one) else 1)
        del self._runs[one.id]

    def flush(self) -> None:
        """Its own process has what was logged."""

    def close(self) -> None:
        """Runs that go on are left to whatever goes on with them."""
        while self._runs:
            self._runs.popitem()[1].finish()

    def _run(self, one: Individual) -> Any:
        run = self._runs.get(one.id)
        if run is None:
            run = self._runs[one.id] = wandb.init(
                project=self._project,
                group=self._campaign.name,
                name=one.id,
                id=f"{self._campaign.key}-{one.id}",
                config={"island": one.island, "operator": one.operator, **one.params},
                tags=[one.operator],
                dir=self._folder,
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(
                    silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True
                ),
            )
            run.define_metric(_STEP, hidden=True)
            run.define_metric(_SECONDS, hidden=True)
            run.define_metric("*", step_metric=_STEP)
            run.define_metric("system/*", step_metric=_SECONDS)
        return run


def _named(values: Mapping[str, float]) -> dict[str, float]:
    """``values`` without names that W&B or this sink have for steps and times."""
    return {
        REPORTED + name if name == _SECONDS or name.startswith("_") else name: value
        for name, value in values.items()
    }
