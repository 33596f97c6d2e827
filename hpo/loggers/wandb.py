"""Sink for Weights & Biases: a run for each individual, in a group with the campaign's name.

The environment variables of Weights & Biases, such as ``WANDB_MODE`` and ``WANDB_PROJECT``, have their usual effect;
with ``WANDB_MODE=offline`` the runs are in the sink's folder, for ``wandb sync``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from hpo.config.process import environment
from hpo.individual import Individual
from hpo.loggers.sink import FACT, REPORTED, SYSTEM, LoggedCampaign, Rows, Sink, facts, results, succeeded

_STEP, _SECONDS = "step", "seconds"


class WandbSink(Sink):
    """Writes to Weights & Biases; runs have ids made from those of individuals, so that any process can continue them.

    Curves have the metric ``step`` as their x-axis, where a report that is written twice is a single point.
    """

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        self._campaign = campaign
        self._folder = folder
        self._project = environment().get("WANDB_PROJECT") or "hpo"
        self._runs: dict[str, Any] = {}

    def started(self, individual: Individual) -> None:
        self._run(individual)

    def finished(self, individual: Individual) -> None:
        run = self._run(individual)
        # The summary already has the last value of each metric, so final values are under names of their own.
        run.summary.update(
            {**results(individual), **{FACT + name: text for name, text in facts(individual).items()}}
        )
        run.finish(exit_code=0 if succeeded(individual) else 1)
        del self._runs[individual.id]

    # There is no flush: wandb has a process of its own, which saves all that is logged even if this process dies.
    def close(self) -> None:
        """Close all open runs, which another process may continue."""
        while self._runs:
            self._runs.popitem()[1].finish()

    def _log(self, individual: Individual, rows: Rows) -> None:
        run = self._run(individual)
        for values, step, _ in rows:
            axis = _SECONDS if any(name.startswith(SYSTEM) for name in values) else _STEP
            run.log({**_named(values), axis: step})

    def _run(self, individual: Individual) -> Any:
        run = self._runs.get(individual.id)
        if run is None:
            run = self._runs[individual.id] = wandb.init(
                project=self._project,
                group=self._campaign.name,
                name=individual.id,
                id=f"{self._campaign.key}-{individual.id}",
                config={"island": individual.island, "operator": individual.operator, **individual.params},
                tags=[individual.operator],
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
    """``values`` with a prefix for names that Weights & Biases or this sink use themselves."""
    return {
        REPORTED + name if name == _SECONDS or name.startswith("_") else name: value
        for name, value in values.items()
    }
