"""Sink for Trackio: a run for each individual, in a project with the campaign's name.

Trackio's environment variables, such as ``TRACKIO_SPACE_ID``, have their usual effect; without ``TRACKIO_DIR`` the runs
are in the sink's folder.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from hpo.individual import Individual
from hpo.journal.curves import Point, Sample
from hpo.loggers.sink import (
    FACT,
    LoggedCampaign,
    facts,
    finite,
    reported,
    results,
    sampled,
    seconds_since_start,
)


class TrackioSink:
    """Writes to Trackio; a run is open only during a call, as Trackio can have a single open run."""

    def __init__(self, campaign: LoggedCampaign, folder: Path) -> None:
        # Trackio reads the variable when it is imported.
        os.environ.setdefault("TRACKIO_DIR", os.fspath(folder.resolve()))
        self._campaign = campaign
        self._project = re.sub(r"[^\w.\-]", "_", campaign.name)

    def started(self, individual: Individual) -> None:
        with self._run(individual):
            pass

    def measured(self, individual: Individual, points: Sequence[Point]) -> None:
        self._log(individual, ((reported(point), point.step) for point in points))

    def sampled(self, individual: Individual, samples: Sequence[Sample]) -> None:
        self._log(
            individual, ((sampled(sample), seconds_since_start(individual, sample)) for sample in samples)
        )

    def finished(self, individual: Individual) -> None:
        described = {FACT + name: text for name, text in facts(individual).items()}
        self._log(individual, [({**results(individual)}, None)], described)

    # Each call closes the run that it has written.
    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _log(
        self,
        individual: Individual,
        rows: Iterable[tuple[dict[str, float], int | None]],
        more: dict[str, str] | None = None,
    ) -> None:
        with self._run(individual) as run:
            for values, step in rows:
                if values or more:
                    run.log({**finite(values), **(more or {})}, step=step)

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
