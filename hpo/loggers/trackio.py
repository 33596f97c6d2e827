"""Sink for Trackio: a run for each individual, in a project with the campaign's name.

Trackio's environment variables, such as ``TRACKIO_SPACE_ID``, have their usual effect; without ``TRACKIO_DIR`` the runs
are in the sink's folder.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from hpo.individual import Individual
from hpo.loggers.sink import FACT, LoggedCampaign, Rows, Sink, facts, finite, results


class TrackioSink(Sink):
    """Writes to Trackio; a run is open only during a call, as Trackio can have a single open run."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        # Trackio reads the variable when it is imported.
        os.environ.setdefault("TRACKIO_DIR", os.fspath(folder.resolve()))
        self._campaign = campaign
        self._project = re.sub(r"[^\w.\-]", "_", campaign.name)

    def started(self, individual: Individual) -> None:
        with self._run(individual):
            pass

    def finished(self, individual: Individual) -> None:
        described = {FACT + name: text for name, text in facts(individual).items()}
        with self._run(individual) as run:
            run.log({**finite(results(individual)), **described})

    def _log(self, individual: Individual, rows: Rows) -> None:
        with self._run(individual) as run:
            for values, step, _ in rows:
                if values:
                    run.log(finite(values), step=step)

    @contextmanager
    def _run(self, individual: Individual) -> Iterator[Any]:
        import trackio

        with redirect_stdout(io.StringIO()):  # Trackio prints a line for each run
            run = trackio.init(
                project=self._project,
                name=individual.id,
                group=self._campaign.key,
                config={"island": individual.island, "operator": individual.operator, **individual.params},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            try:
                yield run
            finally:
                trackio.finish()
